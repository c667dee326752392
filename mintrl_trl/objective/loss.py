"""The squared advantage regression on sequence log-ratios (Eq. 7) with the relaxed anchor (Eq. 11).

Owns the loss of the intervention phase. It uses no importance weight, no clipping and no length normalisation, and it
never takes the author of a token for a mask: every response token is trained on, whoever wrote it.
Invariant: nothing at a masked position or in an unscored row, NaN included, reaches the loss or its gradient.

Letters: B local sequences, C completion length.
"""

import math
from dataclasses import dataclass
from enum import Enum

import torch

from ..errors import ConfigError


class Anchor(Enum):
    """The reference log-probability of intervention-authored tokens (Eq. 11)."""

    CONST = "const"  # a constant kappa
    PROXY = "proxy"  # the policy that generated the batch, as for all other tokens
    JUDGE = "judge"  # the intervention policy's own log-probability; kappa where it is unknown


@dataclass(frozen=True)
class RegressionSettings:
    """Settings of the regression. Defaults are the paper's for math.

    Args:
        beta2 (`float`, defaults to `1e-3`): Regularisation of the log-ratio, in units of reward per nat. Above 0.
        anchor (`Anchor` or `str`, defaults to `"const"`): Reference of intervention-authored tokens.
        kappa (`float`, defaults to `-0.2`): The constant of that reference, in nats. Below 0.
        loss_scale (`float`, *optional*): A factor on the loss, for comparison with losses of another scale:
            1 / (2 beta2 mean length) makes gradients comparable to those of a token mean. `None` is the plain Eq. 7.

    Raises:
        ConfigError: A value outside its range.
    """

    beta2: float = 1e-3
    anchor: Anchor | str = Anchor.CONST
    kappa: float = -0.2
    loss_scale: float | None = None

    def __post_init__(self):
        try:
            object.__setattr__(self, "anchor", Anchor(self.anchor))
        except ValueError:
            names = ", ".join(repr(choice.value) for choice in Anchor)
            raise ConfigError("anchor", self.anchor, names, "use 'const', the paper's stronger variant") from None
        if not (math.isfinite(self.beta2) and self.beta2 > 0):
            raise ConfigError("beta2", self.beta2, "a finite number above 0", "use 1e-3, the paper's value")
        if not (math.isfinite(self.kappa) and self.kappa < 0):
            raise ConfigError("kappa", self.kappa, "a finite number below 0", "use -0.2 for math or -0.1 for code")
        if self.loss_scale is not None and not (math.isfinite(self.loss_scale) and self.loss_scale > 0):
            raise ConfigError("loss_scale", self.loss_scale, "a finite number above 0, or None", "use None")


@dataclass(frozen=True)
class RegressionLoss:
    """Result of `regression_loss`. Only `loss` carries a gradient; rows that are not scored hold 0.

    Args:
        loss (`torch.Tensor`): Scalar, mean of `per_sequence`.
        per_sequence (`torch.Tensor`): (B,) squared residuals, times the loss scale.
        log_ratio (`torch.Tensor`): (B,) sum of log-probability minus reference over response tokens, in nats.
        residual (`torch.Tensor`): (B,) beta2 log_ratio - advantage. Its negative is the weight that every token of the
            row is pushed with.
        imitation_bonus (`torch.Tensor`): (B,) beta2 times the sum of reference minus log-probability over the
            intervention-authored tokens: what these tokens add to the advantage of their whole row.
        scored (`torch.Tensor`): (B,) bool, true for the rows that the loss is made of.
    """

    loss: torch.Tensor
    per_sequence: torch.Tensor
    log_ratio: torch.Tensor
    residual: torch.Tensor
    imitation_bonus: torch.Tensor
    scored: torch.Tensor


def regression_loss(
    logps: torch.Tensor,
    old_logps: torch.Tensor | None,
    response_mask: torch.Tensor,
    policy_authored: torch.Tensor,
    advantages: torch.Tensor,
    scored: torch.Tensor,
    intervention_logps: torch.Tensor | None,
    settings: RegressionSettings,
) -> RegressionLoss:
    """Mean over all rows of (beta2 sum_s (log pi(y_s) - ref_s) - A)^2 (Eq. 7, 11).

    The mean runs over all B rows: those that are not scored add 0 and stay in the denominator, so micro-batches of one
    size average to the loss of the whole batch. References carry no gradient; log-probabilities do, on intervention
    tokens as well. A NaN at a response token of a scored row means broken logits and makes the loss NaN: nothing here
    hides it.

    Args:
        logps (`torch.Tensor`): (B, C) log-probabilities under the policy in training, in nats. bfloat16 and float16
            are cast to float32 before any difference is taken.
        old_logps (`torch.Tensor`, *optional*): (B, C) the same under the policy that generated the batch. `None` where
            both are the same (one optimizer step per batch): then the detached `logps`.
        response_mask (`torch.Tensor`): (B, C) bool, true for response tokens up to the first end token, whoever wrote
            them.
        policy_authored (`torch.Tensor`): (B, C) bool, true where the policy wrote the token.
        advantages (`torch.Tensor`): (B,) advantages.
        scored (`torch.Tensor`): (B,) bool, true where the row has an advantage.
        intervention_logps (`torch.Tensor`, *optional*): (B, C) log-probabilities under the intervention policy; NaN
            where unknown. Read with the anchor `judge` only.
        settings ([`RegressionSettings`]): Settings.

    Returns:
        [`RegressionLoss`]: Summed in float32, or in float64 where `logps` is.

    Raises:
        ValueError: Shapes that do not fit together, or masks that are not bool.
    """
    _check(logps, old_logps, response_mask, policy_authored, advantages, scored, intervention_logps)
    dtype = torch.float64 if logps.dtype == torch.float64 else torch.float32
    logps = logps.to(dtype)
    counted = response_mask & scored.unsqueeze(1)  # (B, C) bool, true where a token counts
    by_judge = counted & ~policy_authored  # (B, C) bool, true for intervention-authored tokens that count

    reference = (logps if old_logps is None else old_logps.to(dtype)).detach()  # (B, C)
    if settings.anchor is not Anchor.PROXY:
        relaxed = torch.full_like(reference, settings.kappa)
        if settings.anchor is Anchor.JUDGE and intervention_logps is not None:
            relaxed = torch.where(intervention_logps.isfinite(), intervention_logps.detach().to(dtype), relaxed)
        reference = torch.where(policy_authored, reference, relaxed)

    difference = torch.where(counted, logps - reference, 0.0)  # (B, C)
    log_ratio = difference.sum(dim=1)  # (B,)
    residual = torch.where(scored, settings.beta2 * log_ratio - advantages.detach().to(dtype), 0.0)  # (B,)
    per_sequence = residual.square() * (1.0 if settings.loss_scale is None else settings.loss_scale)  # (B,)
    bonus = -settings.beta2 * torch.where(by_judge, difference.detach(), 0.0).sum(dim=1)  # (B,)
    return RegressionLoss(
        loss=per_sequence.mean(),
        per_sequence=per_sequence.detach(),
        log_ratio=log_ratio.detach(),
        residual=residual.detach(),
        imitation_bonus=bonus,
        scored=scored,
    )


def _check(
    logps: torch.Tensor,
    old_logps: torch.Tensor | None,
    response_mask: torch.Tensor,
    policy_authored: torch.Tensor,
    advantages: torch.Tensor,
    scored: torch.Tensor,
    intervention_logps: torch.Tensor | None,
) -> None:
    if logps.ndim != 2:
        raise ValueError(f"`logps` is (B, C), not {tuple(logps.shape)}")
    rows = logps.shape[:1]
    wanted = {
        "old_logps": (old_logps, logps.shape),
        "response_mask": (response_mask, logps.shape),
        "policy_authored": (policy_authored, logps.shape),
        "intervention_logps": (intervention_logps, logps.shape),
        "advantages": (advantages, rows),
        "scored": (scored, rows),
    }
    for name, (tensor, shape) in wanted.items():
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"`{name}` is {tuple(tensor.shape)}, but `logps` asks for {tuple(shape)}")
    for name in ("response_mask", "policy_authored", "scored"):
        if wanted[name][0].dtype != torch.bool:
            raise ValueError(f"`{name}` must be bool, not {wanted[name][0].dtype}")
