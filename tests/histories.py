"""What a run leaves behind, without times: to compare an interrupted and resumed run with one that never stopped."""

import json
from pathlib import Path

# Times and what depends on them (so do the last bits of a sampler, by which rows it decodes together, and in how many
# forward passes it does), and numbers of a call of `train` rather than of the run.
_TIMES = (
    *("seconds", "step_time", "lookahead", "eval_runtime", "_per_second", "share/", "mfu", "memory/", "mismatch/"),
    *("passes/", "positions/"),
)
_CALLS = ("train_", "total_flos")


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def without_times(value):
    if isinstance(value, dict):
        return {
            name: without_times(item)
            for name, item in value.items()
            if not any(word in name for word in _TIMES + _CALLS)
        }
    return [without_times(item) for item in value] if isinstance(value, list) else value


def history(folder: Path) -> dict[str, list]:
    """Lines of a run folder, without times; the summary that ends `train` has nothing else."""
    names = ("metrics.jsonl", "rollouts.jsonl", "evaluations.jsonl")
    return {name: without_times(read_lines(folder / name)) for name in names if (folder / name).exists()}
