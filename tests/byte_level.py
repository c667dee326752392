"""Byte-level tokenizers built in code that join and split text as the vocabularies of real models do."""

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

BYTE_PIECES = bytes_to_unicode()  # the character that stands for each byte
BYTES = list(BYTE_PIECES.values())
QWEN_WORDS = Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def merges_of(*words: str) -> list[tuple[str, str]]:
    """Merges that build each word from the left; a `|` in a word marks pieces that are built first, then joined."""
    merges = []
    for word in words:
        parts = ["".join(BYTE_PIECES[byte] for byte in part.encode()) for part in word.split("|")]
        for part in parts:
            merges += [(part[:end], part[end]) for end in range(1, len(part))]
        merges += [("".join(parts[:number]), parts[number]) for number in range(1, len(parts))]
    return list(dict.fromkeys(merges))


def smollm2_tokenizer(*, adds_start: bool = False) -> PreTrainedTokenizerFast:
    """Control tokens 0 to 2 come first, digits stand alone, and the last of several line ends is a token of its own.

    `<|im_end|>`, id 2, both ends a text and pads it.
    """
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    merges = merges_of(
        "lo", " hel|lo", "we", " get", " there", "\n\n", "one", "Step", "So", " the", " answer", " is", " =", "Then",
        " x", " y",
    )  # fmt: skip
    tokenizer = _byte_level([*special, *BYTES], merges)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    if adds_start:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
        )
    tokenizer.add_special_tokens(special)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|im_end|>", padding_side="left"
    )


def qwen_tokenizer() -> PreTrainedTokenizerFast:
    """Id 13 is a full stop and id 382 a full stop with two line ends, as line ends belong to the sign before them."""
    merges = merges_of("\n\n", ".|\n\n", "so", " x", " is", "Then", " y")
    joined = [left + right for left, right in merges]
    stop = joined.pop(joined.index("." + 2 * BYTE_PIECES[10]))
    filler = [f"<|unused_{number}|>" for number in range(382 - len(BYTES) - len(joined))]
    tokenizer = _byte_level([*BYTES, *joined, *filler, stop], merges)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(QWEN_WORDS, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.add_special_tokens(["<|im_end|>", *filler])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|im_end|>")


def _byte_level(pieces: list[str], merges: list[tuple[str, str]]) -> Tokenizer:
    pieces = list(dict.fromkeys([*pieces, *(left + right for left, right in merges)]))
    tokenizer = Tokenizer(models.BPE({piece: token_id for token_id, piece in enumerate(pieces)}, merges))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
