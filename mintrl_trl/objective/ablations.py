"""Losses that MInTRL is taken apart with: the constant anchor's bonus put elsewhere, and GRPO instead of Eq. 7.

Pure formulas for ablations; the method's own loss is `loss.py`. Invariant: each is one change away from what it is
compared with. The bonus variants leave the residual of the policy anchor (Proxy) as it is and change who gets the
constant anchor's bonus; GRPO on intervened rollouts is TRL's token mean with a weight on tokens.

Letters: B rows of this process, C completion columns, N rows of all processes, G group.
"""

from dataclasses import dataclass, replace
from enum import Enum

import torch

from .advantage import Advantages
from .loss import Anchor, RegressionLoss, RegressionSettings, regression_loss

STD_EPSILON = 1e-4  # TRL's, beside the standard deviation of a group


class ConstBonus(Enum):
    """Who gets what the constant anchor adds to a rollout's advantage, b = beta2 sum over I of (kappa - log pi_t)."""

    ROLLOUT = "rollout"  # every token of the rollout: the paper (Eq. 11)
    TOKENS = "tokens"  # its intervention tokens alone
    SUCCESSES = "successes"  # every token, in rewarded rollouts alone
    EQUAL = "equal"  # every token, but each rollout with interventions the mean of their bonuses


class Credit(Enum):
    """How GRPO counts the tokens of intervened rollouts."""

    FULL = "full"  # as if the policy had written them
    MASKED = "masked"  # intervention tokens have no gradient
    TOKEN_WEIGHTS = "token_weights"  # intervention tokens by their truncated importance weight
    SEQUENCE_WEIGHTS = "sequence_weights"  # every token, by the truncated product of these weights


def const_bonus_loss(
    logps: torch.Tensor,
    old_logps: torch.Tensor | None,
    response_mask: torch.Tensor,
    policy_authored: torch.Tensor,
    advantages: torch.Tensor,
    scored: torch.Tensor,
    intervention_logps: torch.Tensor | None,
    succeeded: torch.Tensor,
    bonus: ConstBonus,
    settings: RegressionSettings,
) -> RegressionLoss:
    """The regression with the constant anchor (Eq. 7, 11), its bonus given to others.

    Eq. 11 replaces log pi_t by kappa on intervention tokens. That is the regression with log pi_t everywhere on an
    advantage that is larger by b, a constant: (beta2 sum (l - log pi_t) - (A + b))^2. Here b goes elsewhere. With
    `TOKENS` the gradient of an intervention token is that of the constant anchor, that of all others the policy
    anchor's. With `EQUAL` the mean is over the rows of this micro-batch, so that their bonuses add up to the same.

    Args:
        logps, old_logps, response_mask, policy_authored, advantages, scored, intervention_logps: As for
            [`regression_loss`].
        succeeded (`torch.Tensor`): (B,) bool, true for rewarded rollouts.
        bonus ([`ConstBonus`]): Who gets it.
        settings ([`RegressionSettings`]): beta2, kappa and scale; the anchor is constant.

    Returns:
        [`RegressionLoss`]: `imitation_bonus` is what was given.
    """
    dtype = torch.float64 if logps.dtype == torch.float64 else torch.float32
    logps = logps.to(dtype)
    reference = (logps if old_logps is None else old_logps.to(dtype)).detach()  # (B, C)
    by_judge = response_mask & scored.unsqueeze(1) & ~policy_authored  # (B, C) bool, intervention tokens that count
    earned = settings.beta2 * torch.where(by_judge, settings.kappa - reference, 0.0).sum(dim=1)  # (B,)
    given = earned
    if bonus is ConstBonus.SUCCESSES:
        given = torch.where(succeeded, earned, 0.0)
    elif bonus is ConstBonus.EQUAL:
        rows = by_judge.any(dim=1)  # (B,) bool
        given = torch.where(rows, earned.sum() / rows.sum().clamp(min=1), 0.0)
    elif bonus is ConstBonus.TOKENS:
        given = torch.zeros_like(earned)
    loss = regression_loss(
        logps,
        old_logps,
        response_mask,
        policy_authored,
        advantages.to(dtype) + given,
        scored,
        intervention_logps,
        replace(settings, anchor=Anchor.PROXY),
    )
    if bonus is not ConstBonus.TOKENS:
        return replace(loss, imitation_bonus=given)
    pull = torch.where(by_judge, logps - reference, 0.0).sum(dim=1)  # (B,)
    pushed = -2 * settings.beta2 * (settings.loss_scale or 1.0) * earned * pull  # (B,)
    return replace(loss, loss=loss.loss + pushed.mean(), imitation_bonus=earned)


@dataclass(frozen=True)
class IntervenedGRPO:
    """Settings of [`intervened_grpo_loss`].

    Args:
        credit ([`Credit`]): How intervention tokens count.
        cap (`float`): Largest importance weight, above 0.
        kappa (`float`): Stands for a log-probability under the intervention policy that is not known, in nats.
        epsilon_low, epsilon_high (`float`): Clip range of the probability ratio.
        delta (`float`, *optional*): Bound of the ratio where the advantage is negative (dual clip).
    """

    credit: Credit
    cap: float
    kappa: float
    epsilon_low: float
    epsilon_high: float
    delta: float | None


def intervened_grpo_loss(
    logps: torch.Tensor,
    old_logps: torch.Tensor | None,
    response_mask: torch.Tensor,
    policy_authored: torch.Tensor,
    advantages: torch.Tensor,
    intervention_logps: torch.Tensor | None,
    denominator: torch.Tensor,
    settings: IntervenedGRPO,
) -> tuple[torch.Tensor, torch.Tensor]:
    """GRPO's clipped token mean on rollouts that hold intervention tokens.

    An intervention token's importance weight is pi_t / pi_JI, how likely the policy was to write it over how likely
    its author was; it is cut at `cap` and carries no gradient. A token with weight 0 stays in the denominator.

    Args:
        logps (`torch.Tensor`): (B, C) log-probabilities under the policy in training, in nats.
        old_logps (`torch.Tensor`, *optional*): (B, C) under the policy that generated the batch; `None`: the same.
        response_mask (`torch.Tensor`): (B, C) bool, true for response tokens.
        policy_authored (`torch.Tensor`): (B, C) bool, true where the policy wrote the token, and on padding.
        advantages (`torch.Tensor`): (B,), 0 for rows that do not count.
        intervention_logps (`torch.Tensor`, *optional*): (B, C) under the intervention policy; NaN where unknown.
        denominator (`torch.Tensor`): (), tokens that the mean is over.
        settings ([`IntervenedGRPO`]): Settings.

    Returns:
        `tuple`: The loss (), and the weights (B, C) of all tokens.
    """
    dtype = torch.float64 if logps.dtype == torch.float64 else torch.float32
    logps = logps.to(dtype)
    old = (logps if old_logps is None else old_logps.to(dtype)).detach()  # (B, C)
    ratio = torch.exp(torch.where(response_mask, logps - old, 0.0))  # of padding 1, whatever stands there
    clipped = ratio.clamp(1 - settings.epsilon_low, 1 + settings.epsilon_high)
    bounded = ratio if settings.delta is None else ratio.clamp(max=settings.delta)
    gain = advantages.to(dtype).unsqueeze(1)  # (B, 1)
    per_token = -torch.min(bounded * gain, clipped * gain)  # (B, C)
    weights = _weights(old, response_mask & ~policy_authored, intervention_logps, settings)  # (B, C)
    return torch.where(response_mask, per_token * weights, 0.0).sum() / denominator, weights


def group_scaled(advantages: Advantages, rewards: torch.Tensor, group_size: int) -> Advantages:
    """Advantages over the standard deviation of their group's rewards, as GRPO has them.

    Args:
        advantages ([`Advantages`]): Of N rows.
        rewards (`torch.Tensor`): (N,) rewards; NaN means no reward.
        group_size (`int`): G.

    Returns:
        [`Advantages`]: Divided by the sample standard deviation over the rows with a reward, plus 1e-4. A group with
        fewer than two of them has advantages of 0, as its reward is its own baseline.
    """
    grouped = rewards.to(advantages.values.dtype).view(-1, group_size)  # (N/G, G)
    known = ~grouped.isnan()
    count = known.sum(dim=1, keepdim=True)  # (N/G, 1)
    mean = torch.where(known, grouped, 0.0).sum(dim=1, keepdim=True) / count.clamp(min=1)
    squares = torch.where(known, grouped - mean, 0.0).square().sum(dim=1, keepdim=True)
    std = (squares / (count - 1).clamp(min=1)).sqrt()  # (N/G, 1)
    values = advantages.values.view(-1, group_size) / (std + STD_EPSILON)
    return replace(advantages, values=torch.where(count > 1, values, 0.0).flatten())


def _weights(
    old: torch.Tensor, by_judge: torch.Tensor, intervention_logps: torch.Tensor | None, settings: IntervenedGRPO
) -> torch.Tensor:
    """(B, C) what each token counts."""
    ones = torch.ones_like(old)
    if settings.credit is Credit.FULL:
        return ones
    if settings.credit is Credit.MASKED:
        return torch.where(by_judge, 0.0, ones)
    authors = torch.full_like(old, settings.kappa)
    if intervention_logps is not None:
        authors = torch.where(intervention_logps.isfinite(), intervention_logps.to(old.dtype), authors)
    log_weights = torch.where(by_judge, old - authors, 0.0)  # (B, C)
    if settings.credit is Credit.SEQUENCE_WEIGHTS:
        return log_weights.sum(dim=1, keepdim=True).exp().clamp(max=settings.cap).expand_as(old)
    return torch.where(by_judge, log_weights.exp().clamp(max=settings.cap), ones)
