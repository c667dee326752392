"""Advantages: the reward of a rollout minus a baseline made of the control rollouts of its prompt (Eq. 9, 10).

Owns the baseline and nothing else: no scaling by a standard deviation, no clipping, no filtering of equal groups.
Invariant: with the control baseline, the reward of an intervened rollout changes its own advantage only.

Letters: N global sequences, G group (same prompt, neighbouring rows).
"""

import math
from dataclasses import dataclass
from enum import Enum

import torch

from ..errors import ConfigError, RewardError

MIN_BETA1 = 1e-6  # below it, reward differences over beta1 leave the range of float32


class Baseline(Enum):
    """Which rollouts of a group the baseline is made of."""

    CONTROL = "control"  # the paper: pure on-policy rollouts only
    POOLED = "pooled"  # all rollouts; biased by the judge's selection, for ablations


@dataclass(frozen=True)
class Advantages:
    """Result of `compute_advantages`.

    Args:
        values (`torch.Tensor`): (N,) reward minus baseline; 0 where the row is not scored.
        baseline (`torch.Tensor`): (N/G,) one value per group; NaN where the group is dropped.
        scored (`torch.Tensor`): (N,) bool, true where the row has a reward and its group a baseline. All others leave
            the loss.
    """

    values: torch.Tensor
    baseline: torch.Tensor
    scored: torch.Tensor


def compute_advantages(
    rewards: torch.Tensor,
    is_control: torch.Tensor,
    group_size: int,
    *,
    baseline: Baseline | str = Baseline.CONTROL,
    beta1: float | None = None,
) -> Advantages:
    """Advantages of a batch of whole groups: A = r - V (Eq. 10), with V from `soft_value` (Eq. 9).

    Rows without a reward leave the baseline and the loss. A group in which no row of the baseline has a reward is
    dropped as a whole. The own reward of a control stays in its baseline, as in Eq. 10.

    Args:
        rewards (`torch.Tensor`): (N,) outcome rewards, finite; NaN means no reward.
        is_control (`torch.Tensor`): (N,) bool, true for pure on-policy rollouts.
        group_size (`int`): G, rows per prompt. Groups are neighbouring rows.
        baseline (`Baseline` or `str`, defaults to `"control"`): `"control"` or `"pooled"`.
        beta1 (`float`, *optional*): Temperature of the soft value, in units of reward. `None` is its limit for large
            temperatures, the mean.

    Returns:
        [`Advantages`], in float64 if `rewards` is, else in float32.

    Raises:
        ConfigError: An unknown `baseline`, or a `beta1` that is not a positive finite number.
        ValueError: Lengths that do not make whole groups, or a group without any control row.
        RewardError: An infinite reward.
    """
    baseline = _baseline(baseline)
    if rewards.ndim != 1 or rewards.shape != is_control.shape or is_control.dtype != torch.bool:
        raise ValueError(f"want (N,) rewards and (N,) bool: {rewards.shape}, {is_control.shape} {is_control.dtype}")
    if group_size < 1 or len(rewards) % group_size:
        raise ValueError(f"{len(rewards)} rewards do not make whole groups of {group_size}")
    if torch.isinf(rewards).any():
        rows = torch.isinf(rewards).nonzero().flatten().tolist()
        raise RewardError(f"infinite reward in rows {rows}; return a finite number, or None for no reward")

    rewards = rewards.detach().to(torch.float64 if rewards.dtype == torch.float64 else torch.float32)
    grouped = rewards.view(-1, group_size)  # (N/G, G)
    has_reward = ~grouped.isnan()  # (N/G, G) bool
    counted = has_reward
    if baseline is Baseline.CONTROL:
        controls = is_control.view(-1, group_size)
        if not controls.any(dim=1).all():
            raise ValueError("a group without control rows has no baseline")
        counted = has_reward & controls
    values = soft_value(grouped, counted, beta1)  # (N/G,)
    scored = has_reward & ~values.isnan().unsqueeze(1)  # (N/G, G) bool
    advantages = torch.where(scored, grouped - values.unsqueeze(1), 0.0)
    return Advantages(values=advantages.flatten(), baseline=values, scored=scored.flatten())


def soft_value(rewards: torch.Tensor, counted: torch.Tensor, beta1: float | None) -> torch.Tensor:
    """The soft value of each row (Eq. 9): V = beta1 log mean exp(r / beta1) over the entries that count.

    Computed as m + beta1 log1p(mean expm1((r - m) / beta1)) with m the largest reward, which keeps full precision for
    large temperatures, where Eq. 9 as printed multiplies a rounding error by beta1.

    Args:
        rewards (`torch.Tensor`): (..., G) floating point; entries that do not count may be NaN.
        counted (`torch.Tensor`): (..., G) bool, true for the entries that the value is made of.
        beta1 (`float`, *optional*): Temperature, at least 1e-6; `None` is the mean.

    Returns:
        `torch.Tensor`: (...), NaN where nothing counts.

    Raises:
        ConfigError: `beta1` is not a positive finite number.

    Example:

    ```python
    >>> rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0]])
    >>> soft_value(rewards, torch.ones_like(rewards, dtype=torch.bool), None).item()
    0.5

    ```
    """
    count = counted.sum(dim=-1)
    if beta1 is None:
        return torch.where(counted, rewards, 0.0).sum(dim=-1) / count
    if not (math.isfinite(beta1) and beta1 >= MIN_BETA1):
        raise ConfigError("beta1", beta1, f"a finite number from {MIN_BETA1} up, or None", "use None for the mean")
    largest = torch.where(counted, rewards, -math.inf).amax(dim=-1)
    gain = torch.expm1((rewards - largest.unsqueeze(-1)) / beta1)  # in [-1, 0]
    return largest + beta1 * torch.log1p(torch.where(counted, gain, 0.0).sum(dim=-1) / count)


def _baseline(value: Baseline | str) -> Baseline:
    try:
        return Baseline(value)
    except ValueError:
        names = " or ".join(repr(choice.value) for choice in Baseline)
        raise ConfigError("baseline", value, names, "use 'control', the paper's") from None
