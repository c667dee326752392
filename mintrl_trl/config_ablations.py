"""The switches that take MInTRL apart, as settings of a recipe. None of them is part of the method.

It owns names, ranges and which switch goes with what. Invariant: with every switch at its default a run is MInTRL's,
and a switch that would not act is refused.
"""

import math
from dataclasses import dataclass, fields
from typing import Any

from .config import MInTRLConfig
from .config_judge import setting
from .errors import ConfigError
from .objective.ablations import ConstBonus, Credit, IntervenedGRPO

# What of TRL's GRPO loss phase 1 can be trained with; other values of these settings are refused.
_PLAIN_GRPO = {
    "loss_type": "dapo",
    "importance_sampling_level": "token",
    "top_entropy_quantile": 1.0,
    "entropy_coef": 0.0,
    "use_adaptive_entropy": False,
}


@dataclass
class AblationConfig(MInTRLConfig):
    """[`MInTRLConfig`] with switches for ablations; a recipe that sets one of them is read as this.

    Raises:
        ConfigError: As for [`MInTRLConfig`]; and a switch that does not go with the others.
    """

    phase1_loss: str = setting(
        "regression",
        "Loss of phase 1: 'regression' (Eq. 7) or 'grpo', the clipped token mean of phase 2 on the same rollouts, "
        "with advantages over the standard deviation of their group (`baseline: pooled` makes them GRPO's own).",
    )
    intervention_credit: str = setting(
        "full",
        "With phase1_loss='grpo', what intervention tokens count: 'full', 'masked' (nothing), 'token_weights' or "
        "'sequence_weights' (truncated importance weights, pi_t over the judge's probability, which is e^kappa where "
        "the judge gives none).",
    )
    importance_cap: float = setting(2.0, "Largest of these weights. Above 0.")
    const_bonus: str = setting(
        "rollout",
        "Who gets what the constant anchor adds to an advantage: 'rollout' (every token; the paper), 'tokens' (the "
        "intervention tokens), 'successes' (rewarded rollouts) or 'equal' (each rollout with interventions the same).",
    )
    reset_optimizer_at: int | None = setting(
        None, "Updates after which the optimizer's state is cleared, whatever the phase. At least 1; unset: never."
    )

    def __post_init__(self):
        _check_choice("phase1_loss", self.phase1_loss, ("regression", "grpo"))
        _check_choice("intervention_credit", self.intervention_credit, [credit.value for credit in Credit])
        _check_choice("const_bonus", self.const_bonus, [bonus.value for bonus in ConstBonus])
        cap, reset = self.importance_cap, self.reset_optimizer_at
        if isinstance(cap, bool) or not isinstance(cap, float | int) or not (math.isfinite(cap) and cap > 0):
            raise ConfigError("importance_cap", cap, "a finite number above 0", "set `importance_cap: 2.0`")
        if reset is not None and (isinstance(reset, bool) or not isinstance(reset, int) or reset < 1):
            raise ConfigError("reset_optimizer_at", reset, "a whole number of at least 1", "remove it")
        super().__post_init__()
        self._check_switches()

    def _check_switches(self) -> None:
        grpo = self.phase1_loss == "grpo"
        if self.intervention_credit != "full" and not grpo:
            allowed = "'full' with phase1_loss='regression'"
            fix = "set `phase1_loss: grpo`"
            raise ConfigError("intervention_credit", self.intervention_credit, allowed, fix)
        if self.importance_cap != 2.0 and not self.intervention_credit.endswith("_weights"):
            allowed = f"unset with intervention_credit={self.intervention_credit!r}"
            raise ConfigError("importance_cap", self.importance_cap, allowed, "remove `importance_cap`")
        if self.const_bonus != "rollout" and (grpo or self.anchor != "const"):
            allowed = f"'rollout' with phase1_loss={self.phase1_loss!r} and anchor={self.anchor!r}"
            raise ConfigError("const_bonus", self.const_bonus, allowed, "set `anchor: const`, without `phase1_loss`")
        if self.const_bonus != "rollout" and self.dry_run_worst_case:
            allowed = f"false with const_bonus={self.const_bonus!r}, which needs rewards; memory is that without it"
            raise ConfigError("dry_run_worst_case", True, allowed, "remove `const_bonus` for the dry run")
        if self.intervention_updates == 0 and (grpo or self.const_bonus != "rollout"):
            name = "phase1_loss" if grpo else "const_bonus"
            allowed = "its default in a run without phase 1"
            raise ConfigError(name, getattr(self, name), allowed, "set `intervention_updates` above 0")
        for name, neutral in (("intervention_credit", "full"), ("const_bonus", "rollout")):
            if getattr(self, name) != neutral and (missing := self._without_interventions()) is not None:
                allowed = f"{neutral!r} with {missing}: no rollout has a token of the judge"
                raise ConfigError(name, getattr(self, name), allowed, f"remove `{name}`")
        if grpo:
            for name, value in _PLAIN_GRPO.items():
                if getattr(self, name) != value:
                    allowed = f"{value!r} with phase1_loss='grpo'"
                    raise ConfigError(name, getattr(self, name), allowed, f"remove `{name}`")
        if self.reset_optimizer_at is not None and self.reset_optimizer_at % self.updates_per_batch:
            allowed = f"a multiple of {self.updates_per_batch}, so that no generated batch is split"
            raise ConfigError("reset_optimizer_at", self.reset_optimizer_at, allowed, "choose one")
        if self.reset_optimizer_at is not None and 0 < self.max_steps <= self.reset_optimizer_at:
            allowed = f"below max_steps={self.max_steps}, after which nothing is trained"
            raise ConfigError("reset_optimizer_at", self.reset_optimizer_at, allowed, "lower it")

    def _without_interventions(self) -> str | None:
        """The setting that keeps intervention tokens out of all rollouts, if one does."""
        for name, none in (("num_intervened", 0), ("max_reviews", 0), ("judge_variant", "placebo")):
            if getattr(self, name) == none:
                return f"{name}={none!r}"
        return None

    def grpo_settings(self) -> IntervenedGRPO:
        """Settings of the GRPO loss of phase 1."""
        return IntervenedGRPO(
            credit=Credit(self.intervention_credit),
            cap=float(self.importance_cap),
            kappa=float(self.kappa),
            epsilon_low=self.epsilon,
            epsilon_high=self.epsilon if self.epsilon_high is None else self.epsilon_high,
            delta=self.delta,
        )


SWITCHES = tuple(field.name for field in fields(AblationConfig) if field.name not in MInTRLConfig.__dataclass_fields__)


def _check_choice(name: str, value: Any, choices: Any) -> None:
    if value not in list(choices):
        raise ConfigError(name, value, " or ".join(map(repr, choices)), f"remove `{name}`")
