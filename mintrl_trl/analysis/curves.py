"""Curves over a run, averaged over seeds: Figure 3 (reward, length, entropy), 4b (acquisition of the judge's knowledge)
and 10 (reward against wall-clock time).

Pure functions from groups of runs to tables. Invariant: a point stands for the same update of every run of its group;
where one run ends, the group's curve ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean, stdev

from .runs import Group, Run, Series

_SMOOTHING_SHARE = 20  # a smoothed value is the mean of the last twentieth of the run


@dataclass(frozen=True)
class Quantity:
    """Something that is drawn over a run.

    Args:
        name (`str`): The title, with its unit.
        metrics (`tuple[str, ...]`): Names in `metrics.jsonl`; the first that was logged is taken.
    """

    name: str
    metrics: tuple[str, ...]


# Rewards, lengths and entropies are those of rollouts by the policy alone, so that methods are compared on one thing.
TRAINING = (
    Quantity("training reward", ("rewards/control", "reward")),
    Quantity("response length (tokens)", ("lengths/control", "completions/mean_length")),
    Quantity("entropy (nats per token)", ("entropy/sample", "entropy/policy", "entropy")),
)
ACQUISITION = (
    Quantity("forward KL on intervention tokens (nats)", ("intervention/kl",)),
    # Where the judge's log-probabilities are unknown; the same thing for a judge that leaves no choice.
    Quantity("-log policy on intervention tokens (nats)", ("intervention/nll",)),
    Quantity("reward gap", ("reward_gap",)),
)
TRAINING_REWARD = TRAINING[0]
EVALUATION = Quantity("evaluation reward (Pass@1)", ("eval/pass@1",))
_SECONDS = ("step/seconds", "step_time")


@dataclass(frozen=True)
class Point:
    """One update of a curve.

    Args:
        x (`float`): Update, or seconds.
        value (`float`): Mean over runs.
        smoothed (`float`): Mean over runs of the trailing mean over the last twentieth of the run.
        spread (`float`, *optional*): Sample standard deviation over runs of what `smoothed` averages; `None` for one
            run.
        low (`float`, *optional*): Lower end of the interval of 95 % over the draw of problems; `None` where the value
            is not a mean over problems.
        high (`float`, *optional*): Its upper end.
    """

    x: float
    value: float
    smoothed: float
    spread: float | None
    low: float | None = None
    high: float | None = None

    @property
    def band(self) -> tuple[float, float] | None:
        """What is shaded: the spread over runs on both sides, for one run the interval over problems."""
        if self.spread is not None:
            return self.smoothed - self.spread, self.smoothed + self.spread
        return None if self.low is None or self.high is None else (self.low, self.high)


@dataclass(frozen=True)
class Curve:
    """A quantity over the runs of a group.

    Args:
        group (`str`): The group's name.
        method (`str`): Its method.
        quantity (`str`): The quantity's name.
        runs (`int`): Runs behind every point.
        points (`tuple[Point, ...]`): In order.
    """

    group: str
    method: str
    quantity: str
    runs: int
    points: tuple[Point, ...]


def training_curves(groups: Sequence[Group], quantity: Quantity, smooth: bool = True) -> list[Curve]:
    """A quantity over updates.

    Args:
        groups (`Sequence[Group]`): The runs.
        quantity (`Quantity`): What to read.
        smooth (`bool`, *optional*, defaults to `True`): Whether `smoothed` smooths; evaluations are few and exact
            enough as they are.

    Returns:
        `list[Curve]`: One for each group all of whose runs logged it, in order.
    """
    curves = []
    for group in groups:
        by_run = [run.series(*quantity.metrics) for run in group.runs]
        points = _average([[float(update) for update, _ in series] for series in by_run], by_run, smooth)
        if points:
            curves.append(Curve(group.name, group.method, quantity.name, len(group.runs), points))
    return curves


def wall_clock_curves(groups: Sequence[Group], quantity: Quantity, smooth: bool = True) -> list[Curve]:
    """A quantity over the seconds that the updates until then took; evaluations and checkpoints are not counted.

    Args:
        groups, quantity, smooth: As in [`training_curves`].

    Returns:
        `list[Curve]`: One for each group all of whose runs logged it and their time. `x` is the mean over runs of the
        seconds until that update.
    """
    curves = []
    for group in groups:
        by_run, clocks = [], []
        for run in group.runs:
            clock = seconds_until(run)
            by_run.append([(update, value) for update, value in run.series(*quantity.metrics) if update in clock])
            clocks.append([clock[update] for update, _ in by_run[-1]])
        points = _average(clocks, by_run, smooth)
        if points:
            curves.append(Curve(group.name, group.method, quantity.name, len(group.runs), points))
    return curves


def seconds_until(run: Run) -> dict[int, float]:
    """Update -> seconds of training until it was done; 0 at update 0. Empty where no time was logged."""
    series = run.series(*_SECONDS)
    if not series:
        return {}
    updates, seconds = zip(*series, strict=True)
    return {0: 0.0} | dict(zip(updates, accumulate(seconds), strict=True))


def smooth(series: Series) -> Series:
    """Trailing mean over the last twentieth of the series, so that nothing is drawn before it was measured.

    Examples:

    ```python
    >>> smooth([(1, 0.0), (2, 1.0)])  # two values are not smoothed
    [(1, 0.0), (2, 1.0)]

    ```
    """
    width = max(1, len(series) // _SMOOTHING_SHARE)
    values = [value for _, value in series]
    return [(update, fmean(values[max(0, end - width) : end])) for end, (update, _) in enumerate(series, start=1)]


def _average(xs: Sequence[Sequence[float]], by_run: Sequence[Series], smoothing: bool) -> tuple[Point, ...]:
    """Points of the updates that all runs have; their places on the x axis are averaged too."""
    places = [dict(zip((u for u, _ in series), own, strict=True)) for own, series in zip(xs, by_run, strict=True)]
    values = [dict(series) for series in by_run]
    smoothed = [dict(smooth(series)) if smoothing else dict(series) for series in by_run]
    points = []
    for update in sorted(set.intersection(*(set(own) for own in values))):
        own = [run[update] for run in smoothed]
        points.append(
            Point(
                x=fmean(run[update] for run in places),
                value=fmean(run[update] for run in values),
                smoothed=fmean(own),
                spread=stdev(own) if len(own) > 1 else None,
            )
        )
    return tuple(points)
