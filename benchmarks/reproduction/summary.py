"""What is kept of a finished run: settings, scores, curves, tokens, and where and on what it was made.

It reads a run folder and writes one JSON file of less than 20 kB. It draws no conclusion. Invariant: a summary says by
itself which settings made it, of which commit, on what machine and in how many minutes.
"""

import json
import os
import platform
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from mintrl_trl.data.chains import World, encode, privileged_prompt_ids
from mintrl_trl.evaluation import pass_at_k
from mintrl_trl.reporting.run_folder import RunFolder
from mintrl_trl.training_rows import problem_of

from .cells import RECIPES, Cell, digest

MAX_BYTES = 20_000
POINTS = 40  # of a curve at most; neighbouring updates are averaged
WIDTH = 5  # updates in a point, or a multiple, so that runs of any length have points at the same places

CURVES = (
    "rewards/control",
    "rewards/intervened",
    "reward_gap",
    "off_policy_share",
    "judge/interventions",
    "entropy/sample",
    "intervention/kl",
    "intervention/nll",
    "imitation_bonus",
    "grad_norm",
    "step/seconds",
)
ALSO_NAMED = {"entropy/sample": "entropy/policy"}  # of distillation: over all rollouts, which are the policy's own
# Numbers that are summed over the run, by their beginnings: tokens, and forward passes by whose they are.
SUMMED = ("tokens/", "passes/", "positions/", "sft/")
SAMPLED = ("tokens/policy", "tokens/discarded", "tokens/lookahead")  # by the policy, trained on or not
# Of MENTOR's expert, of the teacher that writes solutions, and of the one that reads in distillation
TAUGHT = ("positions/expert", "sft/teacher_tokens", "positions/teacher")
UPDATE_TIMES = ("step/seconds", "sft/seconds", "sft/teacher_seconds")
TIMES = ("step/seconds", "seconds/rollout", "seconds/mixed", "seconds/reward", "seconds/sync")
DISTILLATION = ("opd", "opsd")  # methods whose teacher reads every rollout
MEANS = ("off_policy_share", "reward_gap", "intervention/kl", "imitation_bonus")
_DIGITS = 5


def summarize(cell: Cell, folder: Path, seconds: float) -> dict[str, Any]:
    """The summary of a finished run.

    Args:
        cell ([`Cell`]): What was run.
        folder (`Path`): Its run folder.
        seconds (`float`): Wall-clock time of the whole process.

    Returns:
        `dict`: Plain values. `evaluations` holds, for each update that was evaluated, Pass@k of each subset in
        [0, 1], and the seconds and tokens spent up to there, the policy's and those of whoever helps it.
    """
    run = RunFolder(folder)
    asked = helper_prompt_tokens(cell)
    lines, work = list(run.metrics()), judge_work(folder / "rollouts.jsonl", asked)
    if cell.resolved().get("method") in DISTILLATION:
        lines = [line | teacher_reading(line, cell, asked) for line in lines]
    return {
        "key": cell.key,
        "label": cell.label,
        "recipe": cell.recipe,
        "overrides": dict(cell.overrides),
        "seed": cell.seed,
        "updates": cell.updates,
        "settings": cell.resolved(),
        "models": {model: digest(RECIPES.parent / model) for model in sorted(cell.models)},
        "minutes": round(seconds / 60, 2),
        "commit": json.loads((folder / "versions.json").read_text(encoding="utf-8"))["git_commit"],
        "machine": machine(),
        "evaluations": list(_evaluations(run, lines, work)),
        "curves": _curves(lines),
        "totals": _totals(lines, work),
    }


def write_summary(summary: Mapping[str, Any], folder: Path) -> Path:
    """Write a summary under its key, whole or not at all.

    Raises:
        ValueError: It is longer than 20 kB.
    """
    text = "{\n" + ",\n".join(f'"{name}": {json.dumps(value)}' for name, value in summary.items()) + "\n}\n"
    if len(text) >= MAX_BYTES:
        raise ValueError(f"the summary of {summary['label']} has {len(text)} bytes; fewer than {MAX_BYTES} are kept")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{summary['key']}.json"
    part = path.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
    return path


def with_other_models(summaries: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Keys of those whose teacher, expert or judge had other weights than the model that is here now."""
    return {
        key
        for key, summary in summaries.items()
        for model, made_with in summary.get("models", {}).items()
        if (RECIPES.parent / model).is_dir() and digest(RECIPES.parent / model) != made_with
    }


def read_summaries(folder: Path) -> dict[str, dict[str, Any]]:
    """All summaries of a folder, by key."""
    read = (json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json")))
    return {summary["key"]: summary for summary in read}


@dataclass
class JudgeWork:
    """What a judge that is a language model would do for one update."""

    reviews: int = 0
    corrections: int = 0
    read: int = 0  # tokens
    written: int = 0  # tokens of corrections; a verdict is taken to be none


def helper_prompt_tokens(cell: Cell) -> int:
    """Tokens of the prompt that a judge or teacher reads, the same for every problem of the small world.

    One that is the policy itself reads a solution, too.
    """
    settings = cell.resolved()
    problem = problem_of(next(iter(World.load().training_rows(0))))
    reads_solution = settings.get("judge") == "self" or settings.get("method") == "opsd"
    return len(privileged_prompt_ids(problem)) if reads_solution else 1 + len(encode(problem.question))


def teacher_reading(line: Mapping[str, Any], cell: Cell, prompt: int) -> dict[str, int]:
    """What a distilling teacher read in an update: each rollout whole, after its own prompt; nothing at update 0."""
    settings = cell.resolved()
    rollouts = settings["prompts_per_update"] * (settings["num_control"] + settings["num_intervened"])
    written = line.get("tokens/policy")
    return {} if written is None else {"positions/teacher": int(written + rollouts * prompt)}


def judge_work(rollouts: Path, prompt: int) -> dict[int, JudgeWork]:
    """The judge's work by update, counted from 1, from a run's recorded rollouts.

    A review reads the prompt and the response up to the end of the chunk; a correction reads the prompt and what was
    kept, and writes itself. Nothing is taken off for a cache of prefixes.

    Args:
        rollouts (`Path`): The run's file.
        prompt (`int`): Tokens of a prompt as the judge reads it.
    """
    work: dict[int, JudgeWork] = defaultdict(JudgeWork)
    if not rollouts.exists():
        return work
    with open(rollouts, encoding="utf-8") as file:
        for line in file:
            if '"reviews": []' in line:
                continue
            record = json.loads(line)
            done = work[record["update"]]
            for review in record["reviews"]:
                done.reviews += 1
                done.read += prompt + review["chunk_start"] + review["chunk_tokens"]
                if review["correction_tokens"]:
                    done.corrections += 1
                    done.read += prompt + review["chunk_start"] + review["kept_tokens"]
                    done.written += review["correction_tokens"]
    return work


@cache
def machine() -> dict[str, Any]:
    """Processor, cores and versions."""
    try:
        model = next(
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        )
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return {"processor": model, "cores": os.cpu_count(), "torch": torch.__version__}


def _evaluations(
    run: RunFolder, lines: list[dict[str, Any]], work: Mapping[int, JudgeWork]
) -> Iterable[dict[str, Any]]:
    for line in run.evaluations():
        update = line["update"]
        before = [other for other in lines if other["update"] <= update]
        sampled = sum(other.get(name) or 0 for other in before for name in SAMPLED)
        judged = sum(done.read + done.written for number, done in work.items() if number <= update)
        yield {
            "update": update,
            "pass": _passes(line["problems"]),
            "tokens/sampled": int(sampled),
            "tokens/teacher": int(judged + sum(other.get(name) or 0 for other in before for name in TAUGHT)),
            "seconds": round(sum(other.get(name, 0.0) for other in before for name in UPDATE_TIMES), 1),
        }


def _passes(problems: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Pass@k for k = 1, 2, 4, ... of all problems and of each subset."""
    samples = min(problem["samples"] for problem in problems)
    ks = [2**power for power in range(samples.bit_length()) if 2**power <= samples]
    groups = {"all": problems}
    for subset in sorted({problem["subset"] for problem in problems if problem["subset"]}):
        groups[subset] = [problem for problem in problems if problem["subset"] == subset]
    return {
        name: {str(k): round(fmean(pass_at_k(p["samples"], p["solved"], k) for p in group), _DIGITS) for k in ks}
        for name, group in groups.items()
    }


def _curves(lines: list[dict[str, Any]]) -> dict[str, list[list[float]]]:
    """Pairs of an update and a mean over its neighbours, for every curve that the run logged."""
    last = max((line["update"] for line in lines), default=0)
    width = WIDTH * max(1, -(-last // (WIDTH * POINTS)))
    curves = {}
    for name in CURVES:
        bins: dict[int, list[float]] = defaultdict(list)
        for line in lines:
            value = line.get(name, line.get(ALSO_NAMED.get(name)))
            if value is not None and line["update"]:
                bins[(line["update"] - 1) // width].append(value)
        if bins:
            curves[name] = [
                [min((number + 1) * width, last), float(f"{fmean(values):.4g}")] for number, values in bins.items()
            ]
    return curves


def _totals(lines: list[dict[str, Any]], work: Mapping[int, JudgeWork]) -> dict[str, float]:
    totals: dict[str, float] = defaultdict(float)
    for line in lines:
        for name, value in line.items():
            if value is not None and (name in TIMES or name.startswith(SUMMED)):
                totals[name] += value
    for name in MEANS:
        values = [line[name] for line in lines if line.get(name) is not None]
        if values:
            totals[f"mean/{name}"] = fmean(values)
    for name in ("reviews", "corrections", "read", "written"):
        totals[f"judge/{name}"] = sum(getattr(done, name) for done in work.values())
    return {name: float(f"{value:.6g}") for name, value in sorted(totals.items())}
