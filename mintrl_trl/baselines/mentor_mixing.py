"""MENTOR's arithmetic: how much the expert is listened to at a token, how a token of the mixture is drawn, advantages.

Student p, expert e, both over one vocabulary at the sampling temperature. At every position of a mixed rollout the next
token follows

    mix = (1 - w) p + w e,    w = min(1, H(p) / gamma),

so the expert speaks where the student is unsure. A draw is made as in speculative sampling: a token y of p is taken
with probability min(1, mix(y) / p(y)), else one is drawn from max(mix - p, 0), normalised. The law is exactly that of
the mixture, and as few tokens as possible differ from what the student would have written; those are the expert's.

Pure functions on tensors; it runs no model. Letters: V tokens of the vocabulary, N rollouts, G rollouts of a prompt.
"""

import math

import torch
from torch import Tensor

FIRST_GAMMA = 999.0  # before anything is known of the student's entropies: w is near 0


def entropy(logps: Tensor) -> Tensor:
    """Shannon entropy in nats of distributions given by log-probabilities (..., V), minus infinity allowed; (...)."""
    return torch.special.entr(logps.exp()).sum(-1)


def expert_weight(entropies: Tensor, gamma: float) -> Tensor:
    """w = min(1, H / gamma), the expert's share of the mixture, in [0, 1]. At gamma = 0 any entropy gives it all.

    Args:
        entropies (`Tensor`): (...) of the student, in nats.
        gamma (`float`): At least 0, in nats.
    """
    return (entropies / max(gamma, torch.finfo(entropies.dtype).tiny)).clamp(max=1.0)


def mixture_logps(student_logps: Tensor, expert_logps: Tensor, weight: Tensor) -> Tensor:
    """log((1 - w) p + w e), also where w is 0 or 1 or a probability is 0.

    Args:
        student_logps (`Tensor`): (..., V), or of single tokens.
        expert_logps (`Tensor`): The same shape.
        weight (`Tensor`): w, in a shape that fits.
    """
    return torch.logaddexp(torch.log1p(-weight) + student_logps, torch.log(weight) + expert_logps)


def acceptance(student_logps: Tensor, expert_logps: Tensor, weight: Tensor) -> Tensor:
    """min(1, mix(y) / p(y)): the probability with which a token drawn from the student is taken.

    Args:
        student_logps (`Tensor`): (...) log p(y), finite.
        expert_logps (`Tensor`): (...) log e(y).
        weight (`Tensor`): (...) w.
    """
    return (mixture_logps(student_logps, expert_logps, weight) - student_logps).clamp(max=0.0).exp()


def residual_logits(student_logps: Tensor, expert_logps: Tensor) -> Tensor:
    """Logits of what is drawn in place of a token that was not taken: log max(e - p, 0), not normalised.

    mix - p is w (e - p), so w falls out of the normalised residual.

    Args:
        student_logps (`Tensor`): (..., V).
        expert_logps (`Tensor`): (..., V).
    """
    gap = torch.where(expert_logps > student_logps, student_logps - expert_logps, 0.0)  # log(p / e), at most 0
    return expert_logps + torch.log(-torch.expm1(gap))  # minus infinity where e is not above p


def quantile(values: Tensor, share: float) -> float:
    """Quantile of (M,) values, linear between neighbours, for any M of at least 1 (torch's own stops at 2**24).

    Args:
        values (`Tensor`): (M,).
        share (`float`): In [0, 1].
    """
    place = share * (len(values) - 1)
    below = math.floor(place)
    low = torch.kthvalue(values, below + 1).values.item()
    high = torch.kthvalue(values, math.ceil(place) + 1).values.item()
    return low + (high - low) * (place - below)


def alpha(step: int, initial: float, steps: int) -> float:
    """Weight of mixed rollouts' advantages in update number `step`, counted from 1: a cosine from `initial` to 0.

    Args:
        step (`int`): At least 1.
        initial (`float`): alpha_0.
        steps (`int`): T, the update from which on it is 0, and no mixed rollouts are made.
    """
    return 0.0 if step >= steps else initial * 0.5 * (1 + math.cos(math.pi * step / steps))


def mentor_advantages(
    rewards: Tensor, is_control: Tensor, group_size: int, *, alpha: float, reward_range: float = 1.0
) -> Tensor:
    """Advantages of on-policy and of mixed rollouts; both are measured against the on-policy ones.

    On-policy: (R - mean) / (std + 1e-6), mean and sample standard deviation over the group's on-policy rollouts. Mixed:
    alpha max(R - mean, 0) / reward_range, never negative: a failure is not blamed on the student.

    Args:
        rewards (`Tensor`): (N,), NaN where there is none; such a row has advantage 0 and counts for nothing.
        is_control (`Tensor`): (N,) bool, true for on-policy rollouts.
        group_size (`int`): G; groups are neighbouring rows.
        alpha (`float`): See [`alpha`].
        reward_range (`float`, *optional*, defaults to 1.0): Largest minus smallest reward there is.

    Returns:
        `Tensor`: (N,) float32; 0 in a group without any on-policy reward.
    """
    grouped = rewards.float().view(-1, group_size)  # (N/G, G)
    control = is_control.view(-1, group_size)
    on_policy = torch.where(control, grouped, torch.nan)
    mean = on_policy.nanmean(dim=1, keepdim=True)  # (N/G, 1)
    count = on_policy.isfinite().sum(dim=1, keepdim=True)
    squares = (on_policy - mean).square().nansum(dim=1, keepdim=True)
    std = (squares / (count - 1).clamp(min=1)).sqrt()
    above = grouped - mean
    values = torch.where(control, above / (std + 1e-6), alpha * above.clamp(min=0) / reward_range)
    return values.nan_to_num(nan=0.0).view(-1)
