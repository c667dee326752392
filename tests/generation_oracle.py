"""The slow, obvious decoder the local generator is compared with, and small helpers to run requests."""

import asyncio

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from mintrl_trl.generation.noise import draw

from .tiny import tiny_model

VOCABULARY = 47  # of both tiny models


def tiny_llama(seed=0):
    """A Llama (the architecture of SmolLM2) with fewer key-value heads than heads and its own output matrix."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config).eval()


MODELS = {"qwen3": tiny_model, "llama": tiny_llama}


@torch.no_grad()
def decode_alone(model, prefix, max_tokens, seed, *, end_ids=(), temperature=1.0):
    """One row, the whole sequence computed anew for every token. Returns ids and log-probabilities."""
    ids, logps = list(prefix), []
    while len(logps) < max_tokens:
        logits = model(torch.tensor([ids]), use_cache=False).logits[:, -1]
        token, logp = draw(logits, torch.tensor([seed]), torch.tensor([len(ids)]), temperature)
        ids.append(token.item())
        logps.append(logp.item())
        if ids[-1] in end_ids:
            break
    return ids[len(prefix) :], logps


@torch.no_grad()
def score_alone(model, prefix, continuation, temperature=1.0):
    """Log-probabilities of a continuation from one plain forward pass."""
    logits = model(torch.tensor([[*prefix, *continuation]]), use_cache=False).logits[0, len(prefix) - 1 : -1]
    table = (logits / temperature).log_softmax(-1)
    return [row[token].item() for row, token in zip(table, continuation, strict=True)]


async def collect(generator, prefix, max_tokens, seed, **options):
    """All of one stream: ids and log-probabilities."""
    tokens = [token async for token in generator.stream(prefix, max_tokens, seed, **options)]
    return [token.id for token in tokens], [token.logp for token in tokens]


async def collect_all(generator, requests, **options):
    """Many streams at once; `requests` are (prefix, max_tokens, seed)."""
    return await asyncio.gather(*(collect(generator, *request, **options) for request in requests))
