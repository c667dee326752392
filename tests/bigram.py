"""Models whose next-token distribution is a table of the last token: what a loss is worth is then known in advance."""

import math

import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from mintrl_trl.data import chains

WIDTH = 32  # at least the vocabulary's 26
NEVER = -40.0  # log-probability of what is never drawn


def bigram_model(table: dict[int, dict[int, float]]) -> Qwen3ForCausalLM:
    """A model of the small world's vocabulary: after token i comes j with probability `table[i][j]`.

    Args:
        table (`dict[int, dict[int, float]]`): Rows that are left out are those of `table[-1]`.
    """
    size = len(chains.TOKENS)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=size,
            hidden_size=WIDTH,
            intermediate_size=WIDTH,
            num_hidden_layers=1,
            num_attention_heads=1,
            num_key_value_heads=1,
            head_dim=WIDTH,
            max_position_embeddings=256,
            tie_word_embeddings=False,
            pad_token_id=chains.PAD_ID,
            bos_token_id=chains.BOS_ID,
            eos_token_id=chains.EOS_ID,
            rms_norm_eps=1e-12,
            dtype="float32",
        )
    )
    logps = torch.full((size, size), NEVER)
    for token in range(size):
        row = table.get(token, table[-1])
        logps[token, list(row)] = torch.tensor([math.log(p) for p in row.values()])
    with torch.no_grad():
        layer = model.model.layers[0]
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(size, WIDTH))
        model.lm_head.weight.zero_()
        model.lm_head.weight[:, :size] = logps.T / math.sqrt(WIDTH)  # the norm makes sqrt(width) of each one
    model.generation_config.eos_token_id = chains.EOS_ID
    model.generation_config.pad_token_id = chains.PAD_ID
    return model.eval()


def next_logps(model: Qwen3ForCausalLM, ids: list[int]) -> Tensor:
    """(tokens, V) log-probabilities of what follows each token."""
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].log_softmax(-1)
