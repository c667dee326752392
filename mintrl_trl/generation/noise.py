"""Counter-based Gumbel noise: which token a row draws is a function of its seed, the token's position and the logits.

There is no generator state. The noise of one token is a hash of (request seed, absolute position, token id), so it does
not depend on the batch a row sits in, on who else is there, on when the row joined, or on how often its request was cut
into pieces. Nothing here touches torch's global generators.

Shapes: B rows, V tokens of the vocabulary.
"""

from functools import lru_cache

import torch

# Odd 64-bit multipliers as the signed integers torch stores: the increment and the two constants of SplitMix64
# (Steele, Lea and Flood 2014). Products wrap around modulo 2**64.
_INCREMENT = 0x9E3779B97F4A7C15 - 2**64
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9 - 2**64
_MULTIPLIER_2 = 0x94D049BB133111EB - 2**64
_LOW_63_BITS = 2**63 - 1


def _fold(bits: torch.Tensor, shift: int) -> torch.Tensor:
    """`bits ^= bits >>> shift`, in place; torch's own shift is arithmetic, so the sign's copies are masked off."""
    return bits.bitwise_xor_((bits >> shift).bitwise_and_((1 << (64 - shift)) - 1))


def _mix(bits: torch.Tensor) -> torch.Tensor:
    """SplitMix64's finaliser, in place: every output bit depends on every input bit."""
    _fold(bits, 30).mul_(_MULTIPLIER_1)
    _fold(bits, 27).mul_(_MULTIPLIER_2)
    return _fold(bits, 31)


@lru_cache(maxsize=4)
def _token_codes(vocabulary_size: int, device: torch.device) -> torch.Tensor:
    """One fixed hash per token id, (V,) int64."""
    return _mix(torch.arange(1, vocabulary_size + 1, device=device) * _INCREMENT)


def random_bits(seeds: torch.Tensor, positions: torch.Tensor, vocabulary_size: int) -> torch.Tensor:
    """63 hashed bits for every (row, token).

    Args:
        seeds (`torch.Tensor`): (B,) int64, the seed of each row's request.
        positions (`torch.Tensor`): (B,) int64, how many tokens stand before the one that is drawn.
        vocabulary_size (`int`): V.

    Returns:
        `torch.Tensor`: (B, V) int64 in [0, 2**63).
    """
    keys = _mix(_mix(seeds + _INCREMENT) + positions * _INCREMENT)  # (B,)
    bits = keys[:, None] ^ _token_codes(vocabulary_size, seeds.device)  # (B, V), both sides well mixed already
    bits.mul_(_MULTIPLIER_1)
    _fold(bits, 32).mul_(_MULTIPLIER_2)
    return bits.bitwise_and_(_LOW_63_BITS)


def gumbel(bits: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Standard Gumbel numbers from 63 random bits each.

    The uniform number is taken near 0, where floats are densest, so the large values, which decide who wins, reach 44
    and are not cut off at the 17 that `-log(-log(u))` can reach in float32.

    Args:
        bits (`torch.Tensor`): int64 in [0, 2**63).
        dtype (`torch.dtype`): float32 or float64.

    Returns:
        `torch.Tensor`: Finite numbers of the same shape.
    """
    uniform = bits.to(dtype).mul_(2.0**-63).clamp_(2.0**-64, 1 - torch.finfo(dtype).eps / 2)
    return uniform.neg_().log1p_().neg_().log_().neg_()


def draw(
    logits: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample one token per row from softmax(logits / temperature) by the Gumbel-max trick.

    Args:
        logits (`torch.Tensor`): (B, V), any float type; computed in float64 if given so, else in float32.
        seeds (`torch.Tensor`): (B,) int64.
        positions (`torch.Tensor`): (B,) int64, the absolute position of the token that is drawn.
        temperature (`float`): Above 0.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: ids (B,) int64, and log-probabilities (B,) in nats under the distribution
        that was sampled. A row whose logits hold a NaN, plus infinity or nothing finite has a log-probability that is
        not finite.
    """
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    scaled = logits.to(dtype) / temperature  # (B, V)
    ids = (scaled + gumbel(random_bits(seeds, positions, scaled.shape[-1]), dtype)).argmax(-1)  # (B,)
    logps = scaled.gather(-1, ids[:, None]).squeeze(-1) - scaled.logsumexp(-1)  # (B,)
    return ids, logps
