"""Run folders written by hand for the tests of the report: rollouts of every kind, hostile text among them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mintrl_trl.reporting.records import RolloutRecord
from mintrl_trl.reporting.run_folder import RunFolder
from mintrl_trl.rollouts.rollout import Decision, Role, StopReason

from .analyzed_runs import SETTINGS, write_run
from .samples import corrected_record

HOSTILE = "</script><script>hacked = 1</script><img src=http://192.0.2.1/x onerror='hacked = 1'>\x1b[31m\u202eabc"


def line(update: int, **changes: Any) -> dict[str, Any]:
    """What a healthy update logs while interventions last."""
    return {
        "loss": 1.0 / update,
        "grad_norm": 0.5,
        "rewards/control": 0.25 + update / 100,
        "rewards/intervened": 0.75,
        "reward_gap": 0.5 - update / 100,
        "groups/dead": 0.25,
        "groups/rescued": 0.5,
        "off_policy_share": 0.02,
        "judge/no_verdict": 0.01,
        "judge/revise_rate": 0.3,
        "entropy/sample": 0.5,
        "lengths/control": 40.0,
        "lengths/truncated": 0.0,
        "imitation_bonus": 0.1,
        "tokens/policy": 100.0,
        "tokens/discarded": 10.0,
        "tokens/lookahead": 5.0,
        "tokens/intervention": 2.0,
        "judge/review/calls": 8.0,
        "judge/review/prompt_tokens": 4000.0,
        "step/seconds": 2.0,
        "share/rollout": 0.5,
        "share/update": 0.4,
        "share/idle": 0.1,
        "seconds/rollout": 1.0,
    } | {name.replace("__", "/"): value for name, value in changes.items()}


def rollouts(update: int) -> list[RolloutRecord]:
    """Three groups of a control and an intervened rollout: a rescued one, a derailed one, and one without a verdict."""
    sample = corrected_record(prompt=f"{update} + 1?", reward_why=HOSTILE, update=update)
    control = replace(sample, role=Role.CONTROL, reviews=())
    silent = replace(
        sample.reviews[0],
        discarded_text="",
        review=replace(
            sample.reviews[0].review,
            decision=Decision.NO_VERDICT,
            step=None,
            reason="timeout",
            correction_tokens=0,
            discarded_ids=(),
        ),
    )
    spans = (replace(sample.spans[0], text=f"x{HOSTILE}"), *sample.spans[1:])
    return [
        replace(control, group=0, row=0, reward=0.0),
        replace(sample, group=0, row=1, reward=1.0),
        replace(control, group=1, row=2, reward=1.0, spans=spans),
        replace(sample, group=1, row=3, reward=0.0, advantage=-1.25),
        replace(control, group=2, row=4, reward=1.0),
        replace(control, group=2, row=5, reward=1.0, role=Role.INTERVENED, reviews=(silent,), stop=StopReason.LENGTH),
    ]


def write_reported_run(
    folder: Path,
    updates: int = 20,
    settings: Mapping[str, Any] = SETTINGS,
    with_rollouts: bool = True,
    **changes: Any,
) -> Path:
    """A run folder with metrics and rollouts; `changes` go into every line of metrics."""
    settings = dict(settings) | {"max_steps": updates, "intervention_updates": updates}
    write_run(folder, settings, {update: line(update, **changes) for update in range(1, updates + 1)})
    if with_rollouts:
        run = RunFolder(folder)
        for update in range(1, updates + 1):
            run.append_rollouts(rollouts(update))
    return folder
