"""Run folders written by hand, for the tests of the analysis: three methods, known numbers, no training."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mintrl_trl.reporting.run_folder import RunFolder

SETTINGS = {
    "output_dir": "runs/somewhere",
    "seed": 0,
    "learning_rate": 3e-4,
    "max_steps": 4,
    "intervention_updates": 2,
    "num_intervened": 8,
    "max_reviews": 4,
    "correction_tokens": 1,
    "anchor": "const",
}
GRPO_SETTINGS = SETTINGS | {"intervention_updates": 0, "num_intervened": 0}


def write_run(
    folder: Path,
    settings: Mapping[str, Any] = SETTINGS,
    lines: Mapping[int, Mapping[str, float]] | None = None,
    solved: Mapping[int, Sequence[int]] | None = None,
    recipe: Mapping[str, Any] | None = None,
) -> Path:
    """A run folder.

    Args:
        folder: Where.
        settings: Of the trainer.
        lines: Metrics by update; four updates of nothing much by default.
        solved: Update -> responses out of four that are right, for an easy and then a hard problem.
        recipe: What a recipe adds to the settings.
    """
    run = RunFolder(folder)
    run.write_config(settings)
    run.write_recipe({"task": "math"} | dict(recipe or {}))
    for update, values in (lines or {update: {"loss": 0.1} for update in range(1, 5)}).items():
        run.append_metrics(update, values)
    for update, counts in (solved or {}).items():
        problems = [
            {"samples": 4, "solved": count, "unscored": 0, "truncated": 0, "tokens": 40, "subset": subset}
            for count, subset in zip(counts, ("easy", "hard"), strict=True)
        ]
        run.append_evaluation(update, {"problems": problems})
        right = sum(counts) / (4 * len(counts))
        run.append_metrics(update, {"eval/pass@1": right})
    return folder
