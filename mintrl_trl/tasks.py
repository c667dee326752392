"""What a recipe trains on: rows, reward, judge and evaluation problems for `math`, `code` and `chains`.

It puts together what `data`, `rewards` and `judges` offer, and contains no rule of a task itself. It loads no model.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from datasets import Dataset

from .data.sources import load_rows, to_dataset
from .errors import ConfigError, DataError
from .evaluation.benchmarks import load_benchmarks
from .judges.public_tests import PublicTestsJudge
from .recipe import Recipe, RecipeArguments
from .rewards import code as code_rewards
from .rewards.math import check_golds, math_reward, require_golds
from .rollouts.doors import Judge, PolicyGenerator

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Task:
    """What a recipe trains on.

    Args:
        model (`str`): The policy: the recipe's, or the task's own.
        rows (`Dataset`): Training rows.
        reward (`Callable`): Outcome reward in TRL's signature.
        judge (`Judge` or `Callable`, *optional*): The judge, or a function that makes it from the generator; `None`
            where the trainer's arguments say it all.
        evaluation (`Sequence[Mapping]`): Rows for evaluation during training; empty without.
        subset (`Callable`): From an evaluation row to the name of the subset it is reported under.
        evaluation_reward (`Callable`, *optional*): What evaluation asks for, where training rewards something else.
    """

    model: str
    rows: Dataset
    reward: Callable[..., Any]
    judge: Judge | Callable[[PolicyGenerator], Judge] | None = None
    evaluation: Sequence[Mapping[str, Any]] = ()
    subset: Callable[[Mapping[str, Any]], str | None] = lambda row: None
    evaluation_reward: Callable[..., Any] | None = None


def build_task(recipe: Recipe) -> Task:
    """The task of a recipe.

    Raises:
        ConfigError: A setting that does not go with the task.
        DataError: A row that cannot be used.
    """
    arguments, args, model = recipe.arguments, recipe.config, recipe.policy.model_name_or_path
    if arguments.task == "chains":
        from .chains_task import chains_task

        return chains_task(arguments, args, model)
    if model is None:
        fix = "set `model_name_or_path: Qwen/Qwen3-1.7B`, or a folder"
        raise ConfigError("model_name_or_path", None, "a hub id or a folder", fix)
    if model.startswith("models/") and not Path(model).is_dir():  # where scripts/get_smollm2.py puts what it makes
        fix = "run `python scripts/get_smollm2.py` first, or set `model_name_or_path` to a hub id"
        raise ConfigError("model_name_or_path", model, "a folder that exists, or a hub id", fix)
    if args.judge == "local" or (args.judge == "exact" and arguments.task != "code"):
        raise ConfigError("judge", args.judge, f"llm or self for `task: {arguments.task}`", "set `judge: self`")
    rows = _file_rows(arguments)
    evaluation = _evaluation(arguments)
    if arguments.task == "math":
        return Task(model, to_dataset(rows), math_reward, **evaluation)
    code_rewards.start()  # a machine that cannot run programs is found out before a model loads
    judge = PublicTestsJudge(rows) if args.judge == "exact" and args.needs_judge else None
    return Task(model, to_dataset(rows), code_rewards.code_reward, judge, **evaluation)


def _evaluation(arguments: RecipeArguments) -> dict[str, Any]:
    """What is evaluated on during training: the rows of all benchmarks, each a subset, and what scores them."""
    if not arguments.evaluates_files:
        return {}
    names = [*(arguments.eval_benchmarks or ()), *([arguments.eval_dataset] if arguments.eval_dataset else ())]
    try:
        benchmarks = load_benchmarks(names, data=arguments.eval_data, limit=arguments.eval_limit)
    except ConfigError as error:  # in the words of the recipe
        words = {"source": "eval_dataset", "benchmark": "eval_benchmarks", "data": "eval_data", "limit": "eval_limit"}
        raise ConfigError(words.get(error.field, error.field), error.value, error.allowed, error.fix) from error
    for benchmark in benchmarks:
        if benchmark.domain != arguments.task:
            allowed = f"benchmarks and rows of {arguments.task}, the task that is trained"
            raise ConfigError("eval_benchmarks", f"{benchmark.name} ({benchmark.domain})", allowed, "leave it out")
    return {
        "evaluation": [{**row, "benchmark": benchmark.name} for benchmark in benchmarks for row in benchmark.rows],
        "subset": itemgetter("benchmark"),
        "evaluation_reward": benchmarks[0].reward,
    }


def _file_rows(arguments: RecipeArguments) -> list[dict[str, Any]]:
    """The rows of a data set, without those that cannot be used, or refused because of the first of them."""
    try:
        rows = load_rows(
            arguments.dataset,
            task=arguments.task,
            split=arguments.dataset_split,
            limit=arguments.dataset_limit,
            skip_bad_rows=arguments.drop_bad_rows,
        )
        if arguments.task == "math":
            if arguments.drop_bad_rows:
                return _without_bad_golds(rows, arguments.dataset)
            require_golds(rows)
        elif arguments.task == "code":
            if arguments.drop_bad_rows:
                return _without_empty_tests(rows, arguments.dataset)
            code_rewards.require_tests(rows)
    except ConfigError as error:  # in the words of the recipe
        name = {"source": "dataset", "split": "dataset_split"}.get(error.field, error.field)
        raise ConfigError(name, error.value, error.allowed, error.fix) from error
    except DataError as error:
        fix = f"{error.fix}, or set `drop_bad_rows: true`; `mintrl check-data` lists all such rows"
        raise DataError(error.where, error.field, error.value, error.allowed, fix) from error
    return rows


def _without_bad_golds(rows: list[dict[str, Any]], dataset: str) -> list[dict[str, Any]]:
    bad = dict(check_golds(rows))
    if not bad:
        return rows
    first = next(iter(bad))
    shown = f"{rows[first]['id']}: {rows[first]['answer']!r:.100} ({bad[first]})"
    if len(bad) == len(rows):
        allowed = "rows of which at least one has an answer that equals itself"
        raise ConfigError("dataset", dataset, allowed, f"correct the answers; the first is {shown}")
    text = "Left out %d of %d rows of %s whose gold answers do not equal themselves. The first: %s"
    logger.warning(text, len(bad), len(rows), dataset, shown)
    return [row for number, row in enumerate(rows) if number not in bad]


def _without_empty_tests(rows: list[dict[str, Any]], dataset: str) -> list[dict[str, Any]]:
    bad = code_rewards.check_tests(rows, run=False)
    if not bad:
        return rows
    if len(bad) == len(rows):
        allowed = "rows of which at least one has tests that a program that does nothing does not pass"
        raise ConfigError("dataset", dataset, allowed, "add assertions that can fail")
    text = "Left out %d of %d rows of %s whose tests ask nothing. The first: %s"
    logger.warning(text, len(bad), len(rows), dataset, rows[bad[0]]["id"])
    return [row for number, row in enumerate(rows) if number not in set(bad)]
