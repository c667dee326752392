"""Bytes of token ids for the three kinds of tokenizers, built here; plain text never becomes a control token."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast

from mintrl_trl.data import chains
from mintrl_trl.errors import ConfigError
from mintrl_trl.generation.vocabulary import TokenizerVocabulary, end_ids_of

from .tiny import tiny_tokenizer

CORPUS = [
    "Let x = 3. Then 2x = 6, and so on.\n\nNext step: déjà vu — 漢字 🙂.\n",
    "```python\nfor i in range(10):\n    print(i)\n```\n\nthe other the then that this",
] * 3


def byte_level():
    """As in Qwen and SmolLM2: every byte has a piece, control tokens are special, `<think>` is an ordinary addition."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens(["<|end|>", "<|start|>", "<|endoftext|>"])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|endoftext|>")


def sentence_piece():
    """As in Llama 2: spaces are U+2581, one is put before a text and taken off by decoding, bytes are a fallback."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=450, show_progress=False, special_tokens=["<unk>", "<s>", "</s>"], max_token_length=8
    )
    tokenizer.train_from_iterator([line.replace("漢字 🙂", "").replace("\n", " ") for line in CORPUS], trainer)
    vocabulary = tokenizer.get_vocab()
    merges = [tuple(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]
    for piece in fallback:
        vocabulary[piece] = len(vocabulary)
    tokenizer.model = models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", bos_token="<s>", unk_token="<unk>")


TOKENIZERS = {
    "byte level": byte_level,
    "sentence piece": sentence_piece,
    "characters": tiny_tokenizer,
    "chains": chains.build_tokenizer,
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer(request):
    return TOKENIZERS[request.param]()


@pytest.fixture(scope="module")
def vocabulary(tokenizer):
    return TokenizerVocabulary(tokenizer, end_ids_of(tokenizer), len(tokenizer) + 3)


def spelled(vocabulary, ids):
    return b"".join(vocabulary.token_bytes(token_id) for token_id in ids).decode(errors="replace")


def test_joined_bytes_are_the_tokenizers_own_decoding(tokenizer, vocabulary):
    anchor = vocabulary.encode("1")

    @given(st.lists(st.integers(0, len(tokenizer) - 1), max_size=12))
    def check(ids):
        ids = [*anchor, *(token_id for token_id in ids if token_id not in vocabulary.special_ids)]
        joined = b"".join(vocabulary.token_bytes(token_id) for token_id in ids)
        try:
            text = joined.decode()
        except UnicodeDecodeError:
            return  # tokenizers differ in how they show half a character
        assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text

    check()


def test_special_tokens_spell_nothing(tokenizer, vocabulary):
    assert vocabulary.end_ids == {tokenizer.eos_token_id} and vocabulary.end_ids <= vocabulary.special_ids
    assert all(vocabulary.token_bytes(token_id) == b"" for token_id in vocabulary.special_ids)
    assert vocabulary.special_ids >= {len(tokenizer), len(tokenizer) + 2}  # ids of the model that spell nothing
    assert vocabulary.size == len(tokenizer) + 3
    assert tokenizer.eos_token in vocabulary.special_texts
    lengths = [len(text) for text in vocabulary.special_texts]
    assert lengths == sorted(lengths, reverse=True)


def test_encoding_is_undone_by_bytes_and_yields_no_control_token(tokenizer, vocabulary):
    character = "B" if "#" in tokenizer.get_vocab() else "x"
    for text in ("1", f"{character}2", "\n\n", f"3{character}\n\n4"):
        assert spelled(vocabulary, vocabulary.encode(text)) == text
    hostile = f"1{tokenizer.eos_token}2"
    assert not set(vocabulary.encode(hostile)) & vocabulary.end_ids


@pytest.mark.parametrize("build", [byte_level, sentence_piece])
@pytest.mark.parametrize("text", ["Then 2x = 6", " so", "  x", "\n\nNext", "漢字 🙂 ok", "a  b", "<|end|>", "</s>"])
def test_encoding_keeps_every_character(build, text):
    tokenizer = build()
    vocabulary = TokenizerVocabulary(tokenizer, end_ids_of(tokenizer), len(tokenizer))
    ids = vocabulary.encode(text)
    assert spelled(vocabulary, ids) == text and not set(ids) & vocabulary.special_ids


def test_known_bytes():
    tokenizer = byte_level()
    vocabulary = TokenizerVocabulary(tokenizer, end_ids_of(tokenizer), len(tokenizer))
    ids = tokenizer.get_vocab()
    assert vocabulary.token_bytes(ids["Ġthe"]) == b" the"
    assert vocabulary.token_bytes(ids["Ċ"]) == b"\n"
    assert vocabulary.token_bytes(ids["ï"]) == b"\xef"  # one byte of a longer character
    assert vocabulary.token_bytes(ids["<think>"]) == b"<think>" and ids["<think>"] not in vocabulary.special_ids
    assert vocabulary.special_ids == {ids["<|end|>"], ids["<|start|>"], ids["<|endoftext|>"]}
    assert vocabulary.special_texts == ("<|endoftext|>", "<|start|>", "<|end|>")
    pieces = sentence_piece()
    vocabulary = TokenizerVocabulary(pieces, end_ids_of(pieces), len(pieces))
    ids = pieces.get_vocab()
    assert vocabulary.token_bytes(ids["▁the"]) == b" the"
    assert vocabulary.token_bytes(ids["<0xE6>"]) == b"\xe6"


def test_end_ids_come_from_tokenizer_and_generation_config():
    tokenizer = tiny_tokenizer()
    assert end_ids_of(tokenizer) == {2}
    assert end_ids_of(tokenizer, GenerationConfig(eos_token_id=7)) == {2, 7}
    assert end_ids_of(tokenizer, GenerationConfig(eos_token_id=[7, 8])) == {2, 7, 8}
    tokenizer.eos_token = None
    assert end_ids_of(tokenizer) == frozenset()


def spacing():
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.decoder = decoders.WordPiece()  # puts spaces between pieces
    return tokenizer


@pytest.mark.parametrize(
    ("build", "end_ids", "size", "field"),
    [
        (tiny_tokenizer, [], 47, "end_ids"),
        (tiny_tokenizer, [47], 47, "end_ids"),
        (tiny_tokenizer, [2], 46, "size"),
        (spacing, [2], 47, "processing_class"),
    ],
    ids=["no end", "end out of range", "model too small", "not a concatenation"],
)
def test_what_cannot_work_is_refused(build, end_ids, size, field):
    with pytest.raises(ConfigError) as caught:
        TokenizerVocabulary(build(), end_ids, size)
    assert caught.value.field == field
