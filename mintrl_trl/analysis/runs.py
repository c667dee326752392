"""Runs as an analysis reads them: what a run folder holds, which method it is, which runs differ by their seed alone.

Reads files and computes nothing that stands in a figure. Invariant: runs of one group have all settings that decide
results in common, the seed apart, or the caller gave them one name.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..evaluation import EvalResult, ProblemResult
from ..reporting.run_folder import RunFolder

Series = list[tuple[int, float]]  # (update, value), in order of updates

BASE, GRPO = "Base", "GRPO"
# How the recipes' methods are called in legends; MInTRL goes by its anchor.
_METHODS = {"grpo": GRPO, "sft_grpo": "SFT+GRPO", "opd": "OPD", "opsd": "OPSD", "mentor": "MENTOR"}
_ANCHORS = {"const": "MInTRL-Const", "proxy": "MInTRL-Proxy", "judge": "MInTRL-Judge"}
ORDER = (BASE, GRPO, *list(_METHODS.values())[1:], "MInTRL-Proxy", "MInTRL-Const", "MInTRL-Judge")  # of legends

# Settings in which runs of one group may differ: seeds, places, and what is watched, saved or waited for.
_FREE = re.compile(
    r"(data_)?seed|output_dir|run_name|eval_.*|save_.*|log_.*|logging_.*|report_to|hub_.*|push_to_hub|dataloader_.*"
    r"|show_progress|stall_seconds|set_aside_older_run|resume_from_checkpoint|allow_changed_resume|resumable_checkpoints"
    r"|vllm_server_.*|.*base_url|.*_timeout.*|.*_retries|disable_tqdm|project|.*_space_id|max_concurrent_.*"
)


class UnlikeProblemsError(DataError):
    """Scores on unlike problems were to be compared."""


@dataclass(frozen=True)
class Run:
    """One run folder.

    Args:
        folder (`Path`): The folder.
        settings (`Mapping[str, Any]`): The trainer's settings and what the recipe adds.
        metrics (`tuple[Mapping]`): Lines of `metrics.jsonl`, in order.
    """

    folder: Path
    settings: Mapping[str, Any]
    metrics: tuple[Mapping[str, Any], ...]

    @property
    def method(self) -> str:
        """The method as the paper calls it, such as `MInTRL-Const`."""
        named = _METHODS.get(self.settings.get("method", ""))
        if named is not None:
            return named
        if self.settings.get("intervention_updates") == 0:
            return GRPO
        return _ANCHORS.get(self.settings.get("anchor", ""), "run")

    @property
    def is_mintrl(self) -> bool:
        """Whether it trains by the regression of the paper, with reviews or without, and by no other method."""
        return self.method not in _METHODS.values()

    @property
    def was_reviewed(self) -> bool:
        """Whether a judge reviewed rollouts; what MENTOR mixes into them is no review."""
        return self.is_mintrl and bool(self.series("off_policy_share"))

    @property
    def num_updates(self) -> int:
        """The last update of which there is a line; 0 before the first."""
        return max((line["update"] for line in self.metrics), default=0)

    @property
    def switch(self) -> int | None:
        """The last update with interventions, where updates without follow; else `None`."""
        last = self.settings.get("intervention_updates") or 0
        return last if 0 < last < self.num_updates and self.series("rewards/intervened") else None

    @cached_property
    def evaluations(self) -> dict[int, EvalResult]:
        """Counts per problem by the number of updates done; empty without evaluation."""
        found = {}
        for line in RunFolder(self.folder).evaluations():
            try:
                problems = tuple(ProblemResult(**problem) for problem in line["problems"])
                found[line["update"]] = EvalResult(problems)
            except (KeyError, TypeError) as error:
                where = str(self.folder / "evaluations.jsonl")
                raise DataError(where, "problems", line, "counts of every problem", "remove the line") from error
        return dict(sorted(found.items()))

    @property
    def last_evaluation(self) -> EvalResult | None:
        """The last one after an update; `None` where the run was not evaluated, or only before it trained."""
        last = max(self.evaluations, default=0)
        return self.evaluations[last] if last else None

    def series(self, *names: str) -> Series:
        """Known values of a metric by update: that of the first of `names` which was logged. Unknown ones are left out.

        A repeated update, as after a resume without a rewind, keeps its last value.
        """
        for name in names:
            values = {
                line["update"]: float(line[name])
                for line in self.metrics
                if isinstance(line.get(name), int | float) and math.isfinite(line[name])
            }
            if values:
                return sorted(values.items())
        return []


@dataclass(frozen=True)
class Group:
    """Runs of one method that differ by their seed alone.

    Args:
        name (`str`): Its name in legends and tables.
        runs (`tuple[Run, ...]`): At least one, in the order given.
        method (`str`): The method, which decides the colour.
    """

    name: str
    runs: tuple[Run, ...]
    method: str

    @property
    def switch(self) -> int | None:
        """The last update with interventions, where all runs agree on one."""
        switches = {run.switch for run in self.runs}
        return switches.pop() if len(switches) == 1 else None


def read_run(folder: str | Path) -> Run:
    """Read a run folder.

    Raises:
        DataError: The folder holds no settings, or no line of metrics.
    """
    folder = Path(folder)
    settings = last_written(folder, "settings")
    if settings is None:
        allowed = "a run folder, with settings.json and metrics.jsonl"
        raise DataError(str(folder), "settings.json", None, allowed, "name the `output_dir` of a run")
    metrics = tuple(line for line in RunFolder(folder).metrics() if isinstance(line.get("update"), int))
    if not metrics:
        run = folder.resolve().parent
        fix = f"name the run's folder, {run}" if (run / "metrics.jsonl").is_file() else "train first"
        raise DataError(str(folder), "metrics.jsonl", None, "at least one line", fix)
    return Run(folder, (last_written(folder, "recipe") or {}) | settings, metrics)


def read_groups(words: Iterable[str]) -> list[Group]:
    """Read runs as a command line names them: `FOLDER`, or `NAME=FOLDER` to say how a run is called.

    Args:
        words (`Iterable[str]`): The runs. Those of one name make a group; so do those without a name that differ by
            their seed alone.

    Returns:
        `list[Group]`: In the order of the paper's table (GRPO first, MInTRL-Const last), then of appearance.

    Raises:
        DataError: No run, a folder that is none, one given twice, or a name that is given to some and is what others
            are called by themselves.
    """
    named: list[tuple[str | None, Run]] = []
    for word in words:
        name, folder = split_name(word)
        named.append((name, read_run(folder)))
    places = [run.folder.resolve() for _, run in named]
    for index, place in enumerate(places):
        if place in places[:index]:
            raise DataError(str(place), "run", "given twice", "each run once", "remove one of them")
    if not named:
        raise DataError("command line", "RUN", None, "at least one run folder", "name the `output_dir` of a run")
    return _group(named)


def decides_results(setting: str) -> bool:
    """Whether runs that differ in a setting are runs of different things: not the seed, a place, or what is watched."""
    return _FREE.fullmatch(setting) is None


def split_name(word: str) -> tuple[str | None, Path]:
    """`NAME=FOLDER` in its parts; no name where the word is a folder itself."""
    name, given, folder = word.partition("=")
    if not given or Path(word).exists():  # a folder may have an equals sign in its name
        return None, Path(word)
    return name or None, Path(folder)


def _group(named: Sequence[tuple[str | None, Run]]) -> list[Group]:
    shared = set.intersection(*({*run.settings} for _, run in named))  # older runs lack settings of newer ones
    compared = sorted(filter(decides_results, shared))
    keys = [name or (run.method, *(_spelled(run.settings[s]) for s in compared)) for name, run in named]
    members: dict[Any, list[Run]] = {}
    for key, (_, run) in zip(keys, named, strict=True):
        members.setdefault(key, []).append(run)
    first = {key: runs[0] for key, runs in members.items()}
    groups = []
    for key, runs in members.items():
        run = first[key]
        alike = [other for k, other in first.items() if isinstance(k, tuple) and other.method == run.method]
        name = key if isinstance(key, str) else _name(run, alike, compared)
        if name in (group.name for group in groups):
            raise DataError(str(run.folder), "name", name, "a name of its own for each group", "write NAME=FOLDER")
        groups.append(Group(name, tuple(runs), run.method))
    return sorted(groups, key=lambda group: ORDER.index(group.method) if group.method in ORDER else len(ORDER))


def _spelled(value: Any) -> str:
    """A setting's value, so that 1 and 1.0 are the same."""
    return repr(float(value)) if isinstance(value, int) and not isinstance(value, bool) else json.dumps(value)


def _name(run: Run, alike: Sequence[Run], compared: Sequence[str]) -> str:
    """The method, and what sets this run apart from the others of its method."""
    differing = [s for s in compared if len({_spelled(other.settings[s]) for other in alike}) > 1]
    return ", ".join([run.method, *(f"{s} {run.settings[s]}" for s in differing)])


def last_written(folder: Path, stem: str) -> dict[str, Any] | None:
    """`settings.json`, or the numbered file that a resumed run wrote last beside it."""
    path, number = folder / f"{stem}.json", 1
    if not path.is_file():
        return None
    while (later := folder / f"{stem}-{number + 1}.json").is_file():
        path, number = later, number + 1
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, TypeError, ValueError) as error:
        raise DataError(str(path), stem, str(error), "a JSON object", "restore the file, or train again") from error
