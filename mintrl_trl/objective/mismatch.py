"""How far the trainer's probabilities of sampled tokens are from those of whoever sampled them.

It owns the formula and nothing else. Between a trainer and a server with the same weights the two differ by rounding;
stale weights, a wrong adapter, another temperature or another position encoding make them differ by far more.
Invariant: only tokens whose log-probability both sides know are counted.
"""

import torch
from torch import Tensor

_LARGEST = 20.0  # nats; beyond them exp(difference) of one token would be all there is in the mean


def mismatch_terms(logps: Tensor, sampled_logps: Tensor, counted: Tensor) -> Tensor:
    """Sum, number and largest value of what tells two distributions apart on tokens that one of them sampled.

    With d = log p(trainer) - log p(sampler), a token's share in KL(sampler || trainer) is exp(d) - 1 - d: never below
    0, and unbiased, because the tokens are the sampler's own.

    Args:
        logps (`Tensor`): (B, C) log-probabilities under the trainer, in nats.
        sampled_logps (`Tensor`): (B, C) the same under the sampler; NaN where unknown.
        counted (`Tensor`): (B, C) bool, tokens to look at.

    Returns:
        `Tensor`: (3,) float32: sum of the shares in the KL, number of tokens, and the largest |d| in nats. No token
        gives three zeros.

    Example:

    ```python
    >>> trainer, sampler = torch.tensor([[0.5, 0.25]]).log(), torch.tensor([[0.5, 0.5]]).log()
    >>> [round(value, 4) for value in mismatch_terms(trainer, sampler, torch.tensor([[True, True]])).tolist()]
    [0.1931, 2.0, 0.6931]

    ```
    """
    known = counted & sampled_logps.isfinite()  # (B, C) bool
    difference = torch.where(known, logps.detach().float() - sampled_logps.float(), 0.0)  # (B, C)
    clamped = difference.clamp(-_LARGEST, _LARGEST)
    shares = torch.expm1(clamped) - clamped
    return torch.stack([shares.sum(), known.sum().to(shares), difference.abs().amax()])
