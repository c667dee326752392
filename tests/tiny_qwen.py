"""A Qwen3 of a few thousand weights, as a hub folder holds it, and a place for it in the local hub cache.

Like the real one: byte-level BPE, ChatML with an empty thinking block, more embeddings than tokens, two end ids, and a
generation config whose sampling settings nobody here may follow.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from huggingface_hub import constants
from transformers import GenerationConfig, Qwen2Tokenizer, Qwen3Config, Qwen3ForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
MERGES = [("Ċ", "Ċ"), ("W", "a"), ("Wa", "i"), ("Wai", "t"), ("Ġ", "Wait"), ("b", "o"), ("bo", "x")]


def qwen_tokenizer() -> Qwen2Tokenizer:
    """All bytes, a few merges, and the special tokens."""
    pieces = [*bytes_to_unicode().values(), *map("".join, MERGES)]
    tokenizer = Qwen2Tokenizer(
        vocab={piece: token_id for token_id, piece in enumerate(pieces)},
        merges=MERGES,
        unk_token=None,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=["<|im_start|>"],
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def qwen_model(seed: int = 0) -> Qwen3ForCausalLM:
    """Randomly initialised, in float32."""
    torch.manual_seed(seed)
    tokenizer = qwen_tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer) + 12,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=40_960,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.pad_token_id,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id],
        do_sample=True,
        temperature=0.6,
        top_k=20,
        top_p=0.95,
    )
    return model


@contextmanager
def cached_qwen(name: str) -> Iterator[Path]:
    """Put model and tokenizer into the hub cache under `name`, so that both load offline; gives their folder."""
    root = Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"
    snapshot = root / "snapshots" / ("0" * 40)
    try:
        qwen_model().save_pretrained(snapshot)
        qwen_tokenizer().save_pretrained(snapshot)
        (root / "refs").mkdir()
        (root / "refs" / "main").write_text(snapshot.name)
        yield snapshot
    finally:
        shutil.rmtree(root)
