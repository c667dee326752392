"""Evaluations that `mintrl eval` keeps, as an analysis reads them: counts and responses of each model.

Reads files; samples and scores nothing. Invariant: a model counts on a benchmark only where all its samples are there
and scored, as `mintrl eval` itself counts.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..errors import DataError
from ..evaluation import EvalResult
from ..evaluation.run import count
from ..evaluation.samples import SampleFolder, stored_folders
from .runs import ORDER, UnlikeProblemsError, split_name


@dataclass(frozen=True)
class ModelEvaluation:
    """One model on its benchmarks.

    Args:
        name (`str`): Its name in legends: that of the command line, or the label it was evaluated under.
        folders (`tuple[SampleFolder, ...]`): One for each benchmark.
    """

    name: str
    folders: tuple[SampleFolder, ...]

    @property
    def method(self) -> str:
        """The method, which decides the colour; empty where the name is that of none."""
        return self.name if self.name in ORDER else ""

    @cached_property
    def results(self) -> dict[str, dict[str, EvalResult]]:
        """Domain -> benchmark -> counts, of the samples that the evaluation asked for.

        Raises:
            DataError: Samples or scores are missing.
        """
        found: dict[str, dict[str, EvalResult]] = {}
        for folder in self.folders:
            header = folder.described()
            result = count(folder, header["ids"], header["samples"], header["subsets"])
            found.setdefault(header["domain"], {})[header["benchmark"]] = result
        return found

    def benchmarks(self, domains: Collection[str]) -> dict[str, SampleFolder]:
        """The folder of each benchmark of some domains."""
        headers = [(folder.described(), folder) for folder in self.folders]
        return {header["benchmark"]: folder for header, folder in headers if header["domain"] in domains}

    def responses(self, benchmarks: Sequence[str]) -> Iterator[str]:
        """Text of every sample of some benchmarks."""
        for folder in self.folders:
            if folder.described()["benchmark"] in benchmarks:
                yield from (sample.text for sample in folder.samples())


def is_evaluation(folder: str | Path) -> bool:
    """Whether a folder holds what `mintrl eval` writes: a benchmark, a model with benchmarks, or several models. A run
    folder is none, though it may have evaluations in it."""
    return not (Path(folder) / "settings.json").is_file() and bool(stored_folders(folder))


def shared_benchmarks(models: Sequence[ModelEvaluation], domains: Collection[str]) -> tuple[str, ...]:
    """The benchmarks of some domains that all models with any of them were evaluated on, in the first one's order.

    Raises:
        UnlikeProblemsError: Models were evaluated on unlike problems of a benchmark.
    """
    found = [own for model in models if (own := model.benchmarks(domains))]
    shared = [name for name in (found[0] if found else ()) if all(name in own for own in found)]
    for name in shared:
        first, *others = (own[name] for own in found)
        for other in others:
            if _problems(first) != _problems(other):
                fix = "name evaluations with one `--limit` and one file of problems"
                raise UnlikeProblemsError(str(other.path), "problems", "others", f"those of {first.path}", fix)
    return tuple(shared)


def read_evaluations(words: Iterable[str]) -> list[ModelEvaluation]:
    """Read evaluations as a command line names them: `FOLDER`, or `NAME=FOLDER` for a folder of one model.

    Args:
        words (`Iterable[str]`): Folders for which [`is_evaluation`] is true.

    Returns:
        `list[ModelEvaluation]`: In the order of the paper's table as far as names are methods, then of appearance.

    Raises:
        DataError: A name for several models, or for two folders.
    """
    found: dict[str, tuple[SampleFolder, ...]] = {}
    for word in words:
        name, folder = split_name(word)
        by_label: dict[str, list[SampleFolder]] = {}
        for stored in stored_folders(folder):
            by_label.setdefault(stored.described()["model"]["label"], []).append(stored)
        if name is not None and len(by_label) > 1:
            allowed = f"one model's folder; this one holds {', '.join(by_label)}"
            raise DataError(str(folder), "name", name, allowed, "name the folder below it")
        for label, folders in by_label.items():
            if (name or label) in found:
                raise DataError(str(folder), "model", name or label, "a name of its own", "write NAME=FOLDER")
            found[name or label] = tuple(folders)
    models = [ModelEvaluation(name, folders) for name, folders in found.items()]
    return sorted(models, key=lambda model: ORDER.index(model.name) if model.name in ORDER else len(ORDER))


def _problems(folder: SampleFolder) -> tuple[str | None, list[str]]:
    header = folder.described()
    return header.get("prompts"), header["ids"]
