"""Tiny models and tokenizers built in code, and arithmetic in double precision. Nothing is downloaded."""

from contextlib import contextmanager

import torch
import trl.trainer.utils
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz .=+-?\n"
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character, the blank line is one token; pad 0, bos 1, eos 2."""
    pieces = ["<pad>", "<bos>", "<eos>", *CHARACTERS, "\n\n"]
    tokenizer = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n\n|[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def tiny_model(seed: int = 0, *, layers: int = 2, width: int = 32, tied: bool = True) -> Qwen3ForCausalLM:
    """A randomly initialised Qwen3 of a few thousand weights, in float32."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(CHARACTERS) + 4,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=width // 2,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = Qwen3ForCausalLM(config).eval()
    model.generation_config.eos_token_id = 2
    model.generation_config.pad_token_id = 0
    return model


class ExactLogProbs:
    """In place of TRL's fused LM head, which works in float32: the same values in the model's own precision."""

    @staticmethod
    def apply(hidden, weight, bias, labels, temperature, chunk_size, softcapping, scale, outputs):
        logps = torch.log_softmax(hidden @ weight.T / temperature, dim=-1)  # (T, V)
        entropy = -(logps.exp() * logps).sum(dim=-1)
        return logps.gather(1, labels.unsqueeze(1)).squeeze(1), entropy.detach(), None, None, None


def exact_rotary(self, hidden, position_ids):
    """In place of the rotary embedding's forward, which works in float32: angles in the model's own precision."""
    frequencies = 1.0 / self.config.rope_parameters["rope_theta"] ** (
        torch.arange(0, self.config.head_dim, 2, dtype=hidden.dtype) / self.config.head_dim
    )  # (D/2,)
    angles = position_ids.to(hidden.dtype).unsqueeze(-1) * frequencies  # (B, L, D/2)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


@contextmanager
def double_precision():
    """While it lasts, float64 models compute everything in float64, what upstream does in float32 in any case too."""
    upstream = trl.trainer.utils._ChunkedLogProbFunction, Qwen3RotaryEmbedding.forward
    trl.trainer.utils._ChunkedLogProbFunction, Qwen3RotaryEmbedding.forward = ExactLogProbs, exact_rotary
    try:
        yield
    finally:
        trl.trainer.utils._ChunkedLogProbFunction, Qwen3RotaryEmbedding.forward = upstream
