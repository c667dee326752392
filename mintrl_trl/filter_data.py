"""Leaves out what a base model solves almost always: the difficulty filter of the paper's training prompts.

Owns the order of things: rows are read and measured, then the model answers them through `evaluate_models`, which saves
and continues, then what is kept is written. It has no rule of its own: that is `evaluation.difficulty`'s. Invariant: it
may be stopped at any moment and called again with the same arguments.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from .data.sources import CHAINS_SOURCE, load_rows
from .errors import ConfigError
from .eval_models import EvalModel
from .evaluate_models import EvalSettings, evaluate_models
from .evaluation.benchmarks import LoadedBenchmark
from .evaluation.check_data import task_of
from .evaluation.difficulty import DifficultyReport, default_drop_from, difficulties, write_kept
from .evaluation.results import EvalProblem
from .rewards.code import require_tests
from .rewards.math import require_golds

SAMPLES = 8
MAX_COMPLETION_LENGTHS = {"math": 16_384, "code": 16_384, "chains": 52}  # as rollouts have in training


def filter_data(
    source: str,
    model: EvalModel,
    out: str | Path,
    settings: EvalSettings,
    console: Console,
    *,
    task: str | None = None,
    split: str = "train",
    drop_from: int | None = None,
    max_prompt_length: int = 2048,
    skip_bad_rows: bool = False,
) -> DifficultyReport:
    """Measure how often a model solves the problems of a source, and write those that it does not solve too often.

    Args:
        source (`str`): A JSON Lines file, a hub id, or `chains`, as `data.sources` reads them.
        model ([`EvalModel`]): The base model.
        out (`str` or `Path`): The file of what is kept.
        settings ([`EvalSettings`]): Samples of each problem, limit of rows, and how the model runs; `out` is the folder
            of the samples. Responses have training's limit by default, 16,384 tokens.
        console (`Console`): Where progress goes.
        task (`str`, *optional*): `"math"`, `"code"` or `"chains"`; by default what the rows look like.
        split (`str`, *optional*, defaults to `"train"`): Of a hub id or the small world.
        drop_from (`int`, *optional*): Problems solved at least so often are dropped; by default 7 of 8.
        max_prompt_length (`int`, *optional*, defaults to 2048): Rows with longer prompts are left out, as in training.
        skip_bad_rows (`bool`, *optional*, defaults to `False`): Leave out rows that cannot be used, with a warning.

    Raises:
        ConfigError: A setting that cannot work; before any weights are read. Or nothing is kept.
        DataError: A row that cannot be used.
        GenerationError: The model could not go on. What was finished is saved.
    """
    out = Path(out)
    drop_from = default_drop_from(settings.samples) if drop_from is None else drop_from
    if not 1 <= drop_from <= settings.samples:
        fix = f"use {default_drop_from(settings.samples)}"
        raise ConfigError("drop_from", drop_from, f"from 1 to {settings.samples}, the samples of a problem", fix)
    if max_prompt_length < 1:
        raise ConfigError("max_prompt_length", max_prompt_length, "1 or more", "use 2048")
    if out.suffix != ".jsonl" or not out.parent.is_dir() or out.resolve() == Path(source).resolve():
        allowed = "a .jsonl file, other than the source, in a folder that exists"
        raise ConfigError("out", str(out), allowed, "write --out kept.jsonl")
    task = (task or CHAINS_SOURCE) if source == CHAINS_SOURCE else task_of(source, task)
    rows = load_rows(source, task=task, split=split, limit=settings.limit, skip_bad_rows=skip_bad_rows)
    if task == "math":
        require_golds(rows)
    elif task == "code":
        require_tests(rows)
    rows, too_long = _that_fit(rows, model, max_prompt_length, settings.enable_thinking)
    name = Path(source).name.partition(".")[0]
    problems = LoadedBenchmark(name, name, task, tuple(rows), source)
    limit = settings.max_completion_length or MAX_COMPLETION_LENGTHS[task]
    settings = replace(settings, max_completion_length=limit)
    (measured,) = evaluate_models([model], {source: problems}, settings, console)
    found = difficulties(measured.results[name])
    report = DifficultyReport(model.label, source, drop_from, found, tuple(too_long))
    write_kept(out, rows, report)
    return report


def _that_fit(
    rows: list[dict[str, Any]], model: EvalModel, max_prompt_length: int, enable_thinking: bool
) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows whose prompts have at most so many tokens, and the ids of the others."""
    fitting, too_long = [], []
    for row in rows:
        switch = {"enable_thinking": enable_thinking}
        tokens = len(EvalProblem.from_row(row, model.tokenizer, chat_template_kwargs=switch).prompt_ids)
        if tokens <= max_prompt_length:
            fitting.append(row)
        else:
            too_long.append(row["id"])
    if not fitting:
        allowed = "a length that at least one prompt has"
        raise ConfigError("max_prompt_length", max_prompt_length, allowed, "raise it")
    return fitting, too_long
