"""What is wrong with a data set, found before it is trained on.

Owns: the checks below and the report that they fill. Trains nothing, changes no file, and leaves printing to
`reporting.data_report`. Invariant: a row either is in the report's findings or passed each check that the report names;
a check that cannot run raises, it is never taken for passed.

| check | what it finds |
|---|---|
| `unreadable` | rows that cannot be used at all; no other check sees them |
| `repeated_id` | rows with the id of an earlier one; no other check sees them |
| `golds` | maths: gold answers that do not equal themselves, so that no completion could be right |
| `duplicates` | rows with the text of an earlier one, whether or not their answers agree |
| `overlap` | rows whose text, or a large part of it, stands in one of the files to keep apart (`evaluation.overlap`) |
| `long_prompts` | rows with more prompt tokens than allowed |
| `empty_tests` | code: tests that a program that does nothing passes (`rewards.empty_tests`) |
| `references` | code: reference solutions that fail their own tests |
"""

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from ..data.sources import CHAINS_SOURCE, HUB_TASKS, ReadRows, first_rows, read_rows
from ..errors import ConfigError, DataError
from ..rewards.code import Why, check_references, check_tests
from ..rewards.math import check_golds
from .overlap import LEAST_SHARE, Overlap, same_texts
from .prompt_lengths import PERCENTILES, Lengths, percentiles, prompt_lengths

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TASKS = ("math", "code")


class Check(StrEnum):
    """What is checked, in the order of the report; see the table above. A closed set."""

    UNREADABLE = "unreadable"
    REPEATED_ID = "repeated_id"
    GOLDS = "golds"
    DUPLICATES = "duplicates"
    OVERLAP = "overlap"
    LONG_PROMPTS = "long_prompts"
    EMPTY_TESTS = "empty_tests"
    REFERENCES = "references"


SKIPPABLE = (
    Check.GOLDS,
    Check.DUPLICATES,
    Check.EMPTY_TESTS,
    Check.REFERENCES,
)  # the others run when asked for, or are free
OnProgress = Callable[[Check, int, int], None]  # rows done and rows to do
_ROWS_AT_A_TIME = {
    Check.GOLDS: 256,
    Check.OVERLAP: 1000,
    Check.EMPTY_TESTS: 256,
    Check.REFERENCES: 32,
}  # between two reports of progress


@dataclass(frozen=True)
class Finding:
    """One row that a check found.

    Args:
        where (`str`): File and line, or number of the row.
        id (`str`): Id of the row; empty where it could not be read.
        detail (`str`): What is wrong, in words.
        other (`str`): Where the row stands whose text it has; empty for checks of one row alone.
    """

    where: str
    id: str
    detail: str
    other: str = ""


@dataclass(frozen=True)
class DataReport:
    """What was found in a data set.

    Args:
        source (`str`): What was checked.
        task (`str`): `math` or `code`.
        rows (`int`): Rows of the source, with those that cannot be used.
        against (`tuple[str, ...]`): Files that it was compared with.
        findings (`dict[Check, tuple[Finding, ...]]`): Of each check that ran, in the order of the rows.
        lengths (`tuple[Lengths, ...]`): Lengths of the prompts; empty if there is no usable row.
        notes (`tuple[str, ...]`): What a reader has to know to read the numbers, such as rows that were not compared.
        seconds (`float`): How long it took.
    """

    source: str
    task: str
    rows: int
    against: tuple[str, ...]
    findings: dict[Check, tuple[Finding, ...]]
    lengths: tuple[Lengths, ...]
    notes: tuple[str, ...]
    seconds: float

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not any(self.findings.values())

    def as_json(self) -> str:
        """The report as JSON, with all findings."""
        names = [f"p{percent}" for percent in PERCENTILES]
        lengths = {length.unit: dict(zip(names, length.percentiles, strict=True)) for length in self.lengths}
        return json.dumps(asdict(self) | {"lengths": lengths, "clean": self.clean}, indent=2) + "\n"


def check_data(
    source: str | Path,
    *,
    task: str | None = None,
    split: str = "train",
    limit: int | None = None,
    against: Sequence[str | Path] = (),
    least_share: float = LEAST_SHARE,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    max_prompt_tokens: int | None = None,
    skip: Collection[Check] = (),
    on_progress: OnProgress = lambda check, done, rows: None,
) -> DataReport:
    """Check a data set.

    Args:
        source (`str` or `Path`): What `load_rows` takes, the small world apart.
        task (`str`, *optional*): `"math"` or `"code"`; by default what the first rows look like.
        split (`str`, defaults to `"train"`): Split of a hub source.
        limit (`int`, *optional*): Usable rows at most, from the beginning.
        against (`Sequence[str or Path]`): Files to keep apart from, such as evaluation sets.
        least_share (`float`, defaults to 0.3): In (0, 1]: share of passages from which on two texts overlap.
        tokenizer (`PreTrainedTokenizerBase`, *optional*): Prompts are measured in its tokens, with its chat template.
        max_prompt_tokens (`int`, *optional*): Longer prompts are findings. It needs a tokenizer.
        skip (`Collection[Check]`): Checks of `SKIPPABLE` to leave out.
        on_progress (`Callable`): Told of the check that runs, rows done and rows to do.

    Raises:
        ConfigError: A source that cannot be read, or an argument that cannot work.
        RewardError: Programs cannot be run on this machine; skip `references` and `empty_tests` then.
    """
    begun = time.monotonic()
    if not 0 < least_share <= 1:
        fix = f"use {LEAST_SHARE}, or 1 for texts that stand whole in another"
        raise ConfigError("least_share", least_share, "more than 0, at most 1", fix)
    if max_prompt_tokens is not None and (max_prompt_tokens < 1 or tokenizer is None):
        fix = "name the policy's tokenizer, and a limit of at least 1"
        raise ConfigError("max_prompt_tokens", max_prompt_tokens, "1 or more, together with a tokenizer", fix)
    task = task_of(source, task)
    read = read_rows(source, task=task, split=split, limit=limit)
    if not read.rows and not read.errors:
        raise ConfigError("source", str(source), "at least one row", "the source is empty")
    others, notes = _read_others(source, against)
    lengths = prompt_lengths([row["prompt"] for row in read.rows], tokenizer)

    repeated = [error for error in read.errors if _is_repeated_id(error)]
    checks: dict[Check, Iterable[Finding]] = {
        Check.UNREADABLE: [
            Finding(error.where, "", str(error).removeprefix(f"{error.where}: "))
            for error in read.errors
            if not _is_repeated_id(error)
        ],
        Check.REPEATED_ID: [Finding(error.where, str(error.value), f"not {error.allowed}") for error in repeated],
        Check.DUPLICATES: _duplicates(read),
    }
    if task == "math":
        checks[Check.GOLDS] = _golds(read, on_progress)
    if against:
        checks[Check.OVERLAP] = _overlaps(read, others, least_share, on_progress)
    if max_prompt_tokens is not None:
        checks[Check.LONG_PROMPTS] = _long_prompts(read, lengths["tokens"], max_prompt_tokens)
    if task == "code":
        checks[Check.EMPTY_TESTS] = _empty_tests(read, on_progress)
        checks[Check.REFERENCES] = _references(read, on_progress)
        missing = sum(not row["privileged_context"] for row in read.rows)
        if missing:
            notes.append(f"{missing:,} of {len(read.rows):,} rows have no reference solution.")
    return DataReport(
        source=str(source),
        task=task,
        findings={check: tuple(checks[check]) for check in Check if check in checks and check not in skip},
        rows=len(read.rows) + len(read.errors),
        against=tuple(map(str, against)),
        lengths=tuple(Lengths(unit, percentiles(values)) for unit, values in lengths.items() if values),
        notes=tuple(notes),
        seconds=time.monotonic() - begun,
    )


def _golds(read: ReadRows, on_progress: OnProgress) -> Iterator[Finding]:
    for numbers in _parts(range(len(read.rows)), Check.GOLDS, on_progress):
        for index, why in check_golds([read.rows[number] for number in numbers]):
            answer = read.rows[numbers[index]]["answer"]
            text = f"the answer {_short(repr(answer))} does not equal itself ({why}). Fix: write the bare answer"
            yield _finding(read, numbers[index], text)


def _duplicates(read: ReadRows) -> Iterator[Finding]:
    for number, earlier in same_texts([row["question"] for row in read.rows]):
        detail = f"the text of {read.rows[earlier]['id']}"
        answer, other = (read.rows[index]["answer"] for index in (number, earlier))
        if answer != other:
            detail += f", but with the answer {_short(repr(answer))} instead of {_short(repr(other))}"
        yield _finding(read, number, detail, read.places[earlier])


def _overlaps(read: ReadRows, others: ReadRows, least_share: float, on_progress: OnProgress) -> Iterator[Finding]:
    overlap = Overlap([row["question"] for row in others.rows], least_share)
    for numbers in _parts(range(len(read.rows)), Check.OVERLAP, on_progress):
        for number in numbers:
            match = overlap.find(read.rows[number]["question"])
            if match is not None:
                what = "the text" if match.same else f"{match.share:.0%} of the passages"
                such = "" if match.same else f', such as "{match.passage}"'
                name, place = others.rows[match.other]["id"], others.places[match.other]
                yield _finding(read, number, f"{what} of {name}{such}", place)


def _long_prompts(read: ReadRows, tokens: Sequence[int], limit: int) -> Iterator[Finding]:
    for number, length in enumerate(tokens):
        if length > limit:
            yield _finding(read, number, f"{length:,} tokens, {limit:,} allowed")


def _empty_tests(read: ReadRows, on_progress: OnProgress) -> Iterator[Finding]:
    for numbers in _parts(range(len(read.rows)), Check.EMPTY_TESTS, on_progress):
        for index in check_tests([read.rows[number] for number in numbers]):
            test = read.rows[numbers[index]]["tests"][0]
            first = f"; the first of them is {_short(repr(test['code']))}" if test["type"] == "assert" else ""
            yield _finding(read, numbers[index], f"a program that does nothing passes its tests{first}")


def _references(read: ReadRows, on_progress: OnProgress) -> Iterator[Finding]:
    with_reference = [number for number, row in enumerate(read.rows) if row["privileged_context"]]
    for numbers in _parts(with_reference, Check.REFERENCES, on_progress):
        for index, check in check_references([read.rows[number] for number in numbers]):
            if check.why is Why.EMPTY_TESTS:  # a finding of another check
                continue
            detail = f"its reference solution does not pass: {check.why} {_short(check.detail)}".strip()
            yield _finding(read, numbers[index], detail)


def _finding(read: ReadRows, number: int, detail: str, other: str = "") -> Finding:
    return Finding(read.places[number], read.rows[number]["id"], detail, other)


def _parts(numbers: Sequence[int], check: Check, on_progress: OnProgress) -> Iterator[Sequence[int]]:
    """Row numbers by parts; progress is told after each."""
    size = _ROWS_AT_A_TIME[check]
    on_progress(check, 0, len(numbers))
    for start in range(0, len(numbers), size):
        yield numbers[start : start + size]
        on_progress(check, min(start + size, len(numbers)), len(numbers))


def task_of(source: str | Path, task: str | None = None) -> str:
    """The task that was named, or what the rows look like: those of code have tests."""
    if str(source) == CHAINS_SOURCE:
        fix = "name a file; the small world draws problems without end"
        raise ConfigError("source", str(source), "rows that stand somewhere", fix)
    if task is not None and task not in TASKS:
        raise ConfigError("task", task, " | ".join(TASKS), "leave it out to have it found out")
    if task is None and str(source) in HUB_TASKS:
        return HUB_TASKS[str(source)]
    return task or ("code" if any("tests" in row for row in first_rows(source)) else "math")


def _read_others(source: str | Path, against: Sequence[str | Path]) -> tuple[ReadRows, list[str]]:
    """The rows of all files to keep apart, one after the other, and notes on what cannot be compared."""
    others, notes = ReadRows([], [], []), []
    for path in against:
        try:
            read = read_rows(path, task=task_of(path))
        except ConfigError as error:
            raise ConfigError("against", error.value, error.allowed, error.fix) from error
        if Path(path).resolve() == Path(source).resolve():
            fix = "name an evaluation set; duplicates are looked for anyway"
            raise ConfigError("against", str(path), "a file other than the one that is checked", fix)
        if not read.rows:
            what = str(read.errors[0]) if read.errors else "the file is empty"
            raise ConfigError("against", str(path), "at least one usable row", what)
        unusable = [error for error in read.errors if not _is_repeated_id(error)]
        if unusable:
            notes.append(f"{len(unusable):,} rows of {path} cannot be read and were not compared: {unusable[0]}")
        others.rows.extend(read.rows)
        others.places.extend(read.places)
    return others, notes


def _is_repeated_id(error: DataError) -> bool:
    return error.field == "id" and isinstance(error.value, str) and error.value != ""


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 120 else text[:117] + "..."
