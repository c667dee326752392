"""How hard training problems are for a model, and which of them are too easy to learn from.

Owns the rule of the difficulty filter and the file of what is kept. It samples nothing: counts come from
`evaluation.results`. Invariants: a response without a reward is not solved, so no problem is dropped for want of a
verdict; kept rows keep their order, and reading the file gives the very prompts that were sampled.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigError, DataError
from .intervals import Interval, mean_interval
from .results import EvalResult

EASY_SHARE = 7 / 8  # solved at least this often, a problem gives groups that are mostly all right and teach nothing
RATE_COLUMN = "base_pass_rate"


@dataclass(frozen=True)
class Difficulty:
    """One problem under the base model.

    Args:
        id (`str`): Of its row.
        solved (`int`): Responses rewarded above 0.5.
        samples (`int`): Responses.
        unscored (`int`): Responses that got no reward; not solved.
    """

    id: str
    solved: int
    samples: int
    unscored: int

    @property
    def rate(self) -> float:
        """Share of responses that are right, in [0, 1]."""
        return self.solved / self.samples


@dataclass(frozen=True)
class DifficultyReport:
    """What a filter found.

    Args:
        model (`str`): Label of the base model.
        source (`str`): Where the rows come from.
        drop_from (`int`): Problems solved at least so often were dropped.
        problems (`tuple[Difficulty, ...]`): All that were sampled, in the source's order.
        too_long (`tuple[str, ...]`): Ids of rows that were left out because of their prompt's length.
    """

    model: str
    source: str
    drop_from: int
    problems: tuple[Difficulty, ...]
    too_long: tuple[str, ...] = ()

    @property
    def kept(self) -> tuple[Difficulty, ...]:
        """Problems that are not too easy."""
        return tuple(one for one in self.problems if one.solved < self.drop_from)

    @property
    def kept_share(self) -> float:
        """Share of the sampled problems that are kept, in [0, 1]."""
        return len(self.kept) / len(self.problems)

    @property
    def pass_rate(self) -> Interval:
        """Mean pass rate over all sampled problems."""
        return mean_interval([one.rate for one in self.problems])

    def histogram(self) -> list[int]:
        """How many problems were solved 0, 1, ... n times."""
        counts = [0] * (max(one.samples for one in self.problems) + 1)
        for one in self.problems:
            counts[one.solved] += 1
        return counts

    def as_json(self) -> str:
        """All of it, with the rate of every problem."""
        rate = asdict(self.pass_rate)
        summary = {"kept": len(self.kept), "kept_share": self.kept_share, "pass_rate": rate}
        return json.dumps({**asdict(self), **summary, "histogram": self.histogram()}, indent=2) + "\n"


def default_drop_from(samples: int) -> int:
    """Right responses of `samples` from which on a problem is too easy: 7 of 8, and the same share of other numbers.

    Examples:

    ```python
    >>> [default_drop_from(samples) for samples in (4, 8, 16, 32)]
    [4, 7, 14, 28]

    ```
    """
    return max(1, -int(-samples * EASY_SHARE // 1))


def difficulties(result: EvalResult) -> tuple[Difficulty, ...]:
    """The counts of an evaluation, by problem."""
    return tuple(Difficulty(one.id, one.solved, one.samples, one.unscored) for one in result.problems)


def write_kept(path: str | Path, rows: Sequence[Mapping[str, Any]], report: DifficultyReport) -> int:
    """Write the rows of problems that are kept, each with its `base_pass_rate`, in the form that training reads.

    The file is there whole or not at all.

    Args:
        path (`str` or `Path`): A `.jsonl` file; one that is there is replaced.
        rows (`Sequence[Mapping]`): All rows, as `data.sources` gives them.
        report ([`DifficultyReport`]): What was found.

    Returns:
        `int`: Rows written.

    Raises:
        ConfigError: Nothing is kept.
        DataError: The disk does not take it.
    """
    rates = {one.id: one.rate for one in report.kept}
    if not rates:
        allowed = f"a number that leaves a problem; all {len(report.problems):,} were solved so often"
        raise ConfigError("drop_from", report.drop_from, allowed, "take harder problems")
    path = Path(path)
    beside = path.with_name(f".{path.name}.new")
    try:
        with open(beside, "w", encoding="utf-8") as file:
            for row in rows:
                if row["id"] in rates:
                    there = {name: value for name, value in row.items() if value is not None}
                    file.write(json.dumps({**there, RATE_COLUMN: rates[row["id"]]}, ensure_ascii=False) + "\n")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        allowed, fix = "a place that takes what is written", "name another; nothing is sampled again"
        raise DataError(str(path), "file", error.strerror, allowed, fix) from error
    return len(rates)
