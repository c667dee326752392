"""Summaries and results of a reproduction, made up: what the tests of its rules and of its page read."""

from benchmarks.reproduction.cells import Arm, Experiment, settings
from benchmarks.reproduction.scores import Results

CONST, GRPO = Arm("Const", "quickstart"), Arm("GRPO", "chains_grpo", settings(max_steps=300), at=150)
EXPERIMENT = Experiment("table", "A table", "What is asked.", (GRPO, CONST), (0, 1))


def summary_of(arm: Arm, seed: int, hard: dict[int, float], **changes) -> dict:
    """A summary with Pass@1 of hard problems by update; 10,000 tokens and 2 seconds an update."""
    cell = arm.cell(seed)
    return {
        "key": cell.key,
        "label": arm.name,
        "recipe": arm.recipe,
        "overrides": dict(arm.overrides),
        "seed": seed,
        "updates": cell.updates,
        "minutes": 2.0,
        "commit": "0123456789abcdef",
        "machine": {"processor": "a processor", "cores": 2, "torch": "2"},
        "evaluations": [
            {
                "update": update,
                "pass": {name: {"1": value, "16": min(1.0, 2 * value)} for name in ("all", "easy", "hard")},
                "tokens/sampled": 6000 * update,
                "tokens/teacher": 4000 * update,
                "seconds": 2.0 * update,
            }
            for update, value in hard.items()
        ],
        "curves": {"rewards/control": [[75, 0.4], [150, 0.6]], "intervention/nll": [[30, 6.0], [90, 2.0]]},
        "totals": {"tokens/policy": 900000.0, "judge/read": 600000.0, "step/seconds": 300.0},
    } | changes


def results(const=(0.8, 0.82), grpo=(0.1, 0.12), **changes) -> Results:
    summaries = [summary_of(CONST, seed, {0: 0.01, 150: value}, **changes) for seed, value in enumerate(const)]
    summaries += [summary_of(GRPO, seed, {0: 0.01, 150: value, 300: 0.2}) for seed, value in enumerate(grpo)]
    return Results([EXPERIMENT], {summary["key"]: summary for summary in summaries})
