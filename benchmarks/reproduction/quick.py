"""A small set of the experiments with short runs, to see in minutes that all of it works.

It derives arms from the full list and adds none of its own. Its numbers say little: one seed, 60 updates.
"""

from dataclasses import replace

from .cells import Arm, Experiment
from .experiments import EXPERIMENTS

UPDATES, PHASE_1, LONG = 60, 36, 120
SEEDS = (0,)
EVALUATION = (("eval_problems", 64), ("eval_every", 30))
LEFT_OUT = ("harder", "reward", "control baseline", "masked", "weights")  # arms whose names hold one of these


def quick_experiments() -> tuple[Experiment, ...]:
    """The experiments of the quick set, on one seed."""
    return tuple(
        replace(
            experiment,
            arms=tuple(_short(arm) for arm in experiment.arms if not any(word in arm.name for word in LEFT_OUT)),
            seeds=SEEDS,
        )
        for experiment in EXPERIMENTS
        if experiment.quick
    )


def _short(arm: Arm) -> Arm:
    long = dict(arm.overrides).get("max_steps", 0) > UPDATES
    changes = {"max_steps": LONG if long else UPDATES}
    if arm.cell(0).known and arm.cell(0).resolved().get("intervention_updates"):
        changes["intervention_updates"] = PHASE_1
    if "reset_optimizer_at" in dict(arm.overrides):
        changes["reset_optimizer_at"] = PHASE_1
    overrides = dict(arm.overrides) | changes | dict(EVALUATION)
    return replace(arm, overrides=tuple(overrides.items()), at=UPDATES if long else None)
