"""Numbers of arms read from summaries: values by seed, their mean and spread, and when two means differ.

It draws no verdict. Invariant: a seed without a summary is missing, never zero.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from .cells import Arm, Experiment

# One-sided 95 % quantiles of Student's t by degrees of freedom; beyond, the last.
_T_95 = {1: 6.314, 2: 2.920, 3: 2.353, 4: 2.132, 5: 2.015, 6: 1.943, 8: 1.860, 10: 1.812}
_T_99 = {1: 31.82, 2: 6.965, 3: 4.541, 4: 3.747, 5: 3.365, 6: 3.143, 8: 2.896, 10: 2.764}  # the same of 99 %
LEAST_ERROR = 0.01  # of a mean: problems and samples are few, whatever seeds agree on


@dataclass(frozen=True)
class Score:
    """A number on several seeds.

    Args:
        values (`tuple[float, ...]`): One per seed that was run.
    """

    values: tuple[float, ...]

    def __bool__(self) -> bool:
        return bool(self.values)

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return fmean(self.values)

    @property
    def spread(self) -> float:
        """Sample standard deviation over seeds; 0 for one."""
        return stdev(self.values) if len(self.values) > 1 else 0.0

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return self.spread / math.sqrt(len(self.values))

    def percent(self) -> str:
        """Mean and spread in per cent."""
        if not self.values:
            return "-"
        spread = f" ± {100 * self.spread:.1f}" if len(self.values) > 1 else ""
        return f"{100 * self.mean:.1f}{spread} %"

    def number(self, form: str = ".3g") -> str:
        """Mean and spread as they are."""
        if not self.values:
            return "-"
        spread = f" ± {self.spread:{form}}" if len(self.values) > 1 else ""
        return f"{self.mean:{form}}{spread}"


def margin(left: Score, right: Score, least: float = LEAST_ERROR) -> float:
    """What the difference of two means has to pass: one-sided Welch's t at 95 %, its error at least `least`.

    Args:
        left, right ([`Score`]): With at least one seed each. With one seed alone the spread of the other stands for
            both; with one each, `least` does, and without it nothing passes.
        least (`float`): Smallest standard error of the difference.
    """
    if not least and len(left.values) == len(right.values) == 1:
        return math.inf
    squares = [score.error**2 for score in (left, right)]
    for index, score in enumerate((left, right)):
        if len(score.values) == 1:
            squares[index] = (left, right)[1 - index].spread ** 2
    error = math.sqrt(sum(squares))
    if error <= least:
        return least * _T_95[10]
    parts = [
        square**2 / (len(score.values) - 1)
        for square, score in zip(squares, (left, right), strict=True)
        if len(score.values) > 1
    ]
    freedom = sum(squares) ** 2 / sum(parts) if sum(parts) else 1.0
    return error * _quantile(_T_95, freedom)


def margin_of_best(chosen: Score, other: Score, among: Sequence[Score]) -> float:
    """What a difference has to pass whose left side was chosen as the best of some: one-sided t at 99 %.

    Args:
        chosen, other ([`Score`]): The two.
        among (`Sequence[Score]`): All from which one was chosen, and what they are compared with; their spreads are
            pooled.
    """
    freedom = sum(len(score.values) - 1 for score in among)
    squares = sum((len(score.values) - 1) * score.spread**2 for score in among)
    variance = squares / freedom if freedom else 0.0
    error = math.sqrt(variance * (1 / len(chosen.values) + 1 / len(other.values)))
    if error <= LEAST_ERROR:
        return LEAST_ERROR * _T_99[10]
    return error * _quantile(_T_99, freedom)


def _quantile(table: Mapping[int, float], freedom: float) -> float:
    return table[max(known for known in table if known <= max(freedom, 1.0))]


def short(name: str) -> str:
    """An arm's name without its experiment's."""
    return name.partition("/")[2]


class Results:
    """All summaries, read by arm. An arm is named `<experiment>/<arm>`; its seeds are the experiment's.

    Args:
        experiments (`Sequence[Experiment]`): Whose arms may be asked for.
        summaries (`Mapping`): By key.
    """

    def __init__(self, experiments: Sequence[Experiment], summaries: Mapping[str, Mapping[str, Any]]):
        self._arms = {f"{e.name}/{arm.name}": (arm, e.seeds) for e in experiments for arm in e.arms}
        self._summaries = summaries

    def arm(self, name: str) -> Arm | None:
        """The arm of that name; `None` if no experiment has it."""
        return self._arms[name][0] if name in self._arms else None

    def names(self, experiment: str) -> list[str]:
        """Names of an experiment's arms, in order."""
        return [name for name in self._arms if name.startswith(f"{experiment}/")]

    def seeds(self, name: str) -> tuple[int, ...]:
        """On which an arm is to be run; none if no experiment has it."""
        return self._arms[name][1] if name in self._arms else ()

    def summaries(self, name: str) -> list[Mapping[str, Any]]:
        """Those that there are of an arm, in the order of seeds."""
        arm = self.arm(name)
        keys = [cell.key for cell in (arm.cell(seed) for seed in self.seeds(name)) if cell.known]
        return [self._summaries[key] for key in keys if key in self._summaries]

    def score(self, name: str, metric: str, at: int | None = None) -> Score:
        """A metric of an arm.

        Args:
            name (`str`): The arm.
            metric (`str`): As for [`read`].
            at (`int`, *optional*): Updates after which it is read off; by default the arm's own.
        """
        arm = self.arm(name)
        at = arm.at if at is None and arm is not None else at
        values = [read(summary, metric, at) for summary in self.summaries(name)]
        return Score(tuple(value for value in values if value is not None))


def evaluation(summary: Mapping[str, Any], at: int | None) -> Mapping[str, Any] | None:
    """The evaluation after so many updates, by default the last one."""
    found = [line for line in summary["evaluations"] if at is None or line["update"] == at]
    return found[-1] if found else None


def read(summary: Mapping[str, Any], metric: str, at: int | None = None) -> float | None:
    """One number of a summary.

    Args:
        summary (`Mapping`): The summary.
        metric (`str`): `<subset>@<k>` for Pass@k in [0, 1]; a curve's name with `:first` or `:last` for the mean of its
            first or last fifth; `minutes`; else the name of a total.
        at (`int`, *optional*): Updates after which Pass@k is read off, and after which a curve is left out.

    Returns:
        `float`: `None` where it was not measured.
    """
    if "@" in metric:
        subset, _, k = metric.partition("@")
        line = evaluation(summary, at)
        return None if line is None else line["pass"].get(subset, {}).get(k)
    name, _, end = metric.partition(":")
    if end:
        curve = [point for point in summary["curves"].get(name, ()) if at is None or point[0] <= at]
        if not curve:
            return None
        part = max(1, len(curve) // 5)  # the first or last fifth of its points
        points = curve[:part] if end == "first" else curve[-part:]
        return fmean(value for _, value in points)
    return summary["minutes"] if name == "minutes" else summary["totals"].get(name)


def matched(summary: Mapping[str, Any], other: Mapping[str, Any], cost: str) -> Mapping[str, Any] | None:
    """The first evaluation of `summary` that has cost at least what the whole of `other` did.

    Args:
        summary, other (`Mapping`): Summaries.
        cost (`str`): `tokens` (sampled by the policy, and read and written by the judge) or `seconds`.
    """

    def spent(line: Mapping[str, Any]) -> float:
        return line["seconds"] if cost == "seconds" else line["tokens/sampled"] + line["tokens/teacher"]

    budget = spent(other["evaluations"][-1])
    return next((line for line in summary["evaluations"] if spent(line) >= budget), None)
