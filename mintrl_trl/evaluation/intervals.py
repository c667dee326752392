r"""How sure a score is: bootstrap intervals over problems, and whether two models differ on the same problems.

Owns: intervals of a mean of per-problem scores and of a domain average over benchmarks, the paired test of two models,
and the correction for many tests. Never samples from a model and never reads a file. Invariant: the same scores give
the same numbers (fixed seed), and an interval holds its value.

A score is a problem's Pass@k, so it takes few values; resamples draw how often each value occurs, which has the law of
drawing problems and costs the same for 30 problems and for 30,000.

The interval is BCa [1], drawn out for few problems [2]. A plain percentile interval covers the true mean in as little
as 86 % of sets of 30 problems of which most are never solved. With a the acceleration and z0 the bias correction, its
ends are the quantiles of the resampled means at

    Phi(z0 + (z0 + e) / (1 - a (z0 + e))),   e = -/+ t sqrt(V / V*)

where t is Student's quantile and V / V* = n / (n - 1) for one benchmark: resamples vary less than samples by that
much. For an average over benchmarks, problems are drawn within each, and the degrees of freedom are Welch's. Where all
problems of a benchmark score the same there is nothing to resample. Its part of the interval then says what such a set
excludes: a population of which more than 1 - (alpha / 2)^(1 / n) scores otherwise. An interval of scores that vary
less than if one were a third of a point away from the rest is never shorter than that, as they say no more of problems
that were not drawn. One of differences may be, so that it agrees with its test. `benchmarks/interval_coverage.py`
measures how often intervals hold the truth.

[1] Efron (1987), Better bootstrap confidence intervals. [2] Hesterberg (2015), What teachers should know about the
bootstrap. [3] Zou and Donner (2008), Construction of confidence limits about effect measures: a general approach.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from ..errors import ConfigError

LEVEL = 0.95
RESAMPLES = 10_000
FLIPS = 20_000  # drawn sign flips, where there are too many for all of them
_MAX_SUMS = 200_000  # up to here all sums of flipped differences are worked out
_EQUAL = 1e-12  # sums of scores closer than this are equal
_ALIKE = 0.1  # scores are nearly equal whose squared distances from their mean add up to less
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Interval:
    """A value with its confidence interval.

    Args:
        value (`float`): The estimate.
        low (`float`): Lower end.
        high (`float`): Upper end.
        level (`float`): Share of intervals that hold the true value, in (0, 1).
    """

    value: float
    low: float
    high: float
    level: float = LEVEL

    def in_points(self, unit: str = "") -> str:
        """A difference of shares, in percentage points: `+1.2 [-0.3, +2.7]`, with `unit` right behind the value."""
        value, low, high = (f"{100 * one:+.1f}" for one in (self.value, self.low, self.high))
        return f"{value}{unit} [{low}, {high}]"


@dataclass(frozen=True)
class Comparison:
    """The second of two models against the first, on the same problems.

    Args:
        difference (`Interval`): Second minus first.
        p_value (`float`): In (0, 1], two-sided: how often a difference at least this large comes up if on each problem
            it is left to chance which model gets which of the two scores.
        exact (`bool`): Whether all such assignments were counted, and not `FLIPS` of them drawn.
    """

    difference: Interval
    p_value: float
    exact: bool


def mean_interval(scores: ArrayLike, *, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """The mean of per-problem scores with its interval over the draw of problems.

    Args:
        scores (`ArrayLike`): Shape (problems,), each in [0, 1]: a problem's Pass@k.
        level (`float`, defaults to 0.95): In (0, 1).
        resamples (`int`, defaults to 10000): Bootstrap resamples, at least 100.
        seed (`int`, defaults to 0): Seed of the resamples.

    Raises:
        ConfigError: No score, one outside [0, 1], or an argument out of range.

    Examples:

    ```python
    >>> interval = mean_interval([0.0] * 30)  # a model that solves nothing of 30 problems
    >>> interval.low, round(interval.high, 3)
    (0.0, 0.116)

    ```
    """
    return average_interval([scores], level=level, resamples=resamples, seed=seed)


def average_interval(
    benchmarks: Sequence[ArrayLike], *, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """The average of several benchmarks' means, each with the same weight, as in the paper's tables.

    Args:
        benchmarks (`Sequence[ArrayLike]`): The scores of each benchmark, as for `mean_interval`.
        level, resamples, seed: As for `mean_interval`.

    Raises:
        ConfigError: No benchmark, one without scores, a score outside [0, 1], or an argument out of range.
    """
    strata = [_checked("scores", scores, 0.0) for scores in benchmarks]
    return _interval(strata, 0.0, level, resamples, seed)


def compare_means(
    first: ArrayLike, second: ArrayLike, *, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0
) -> Comparison:
    """Whether the second of two models scores otherwise than the first on the same problems.

    Args:
        first, second (`ArrayLike`): Shape (problems,), the same problems in the same order, each score in [0, 1].
        level, resamples, seed: As for `mean_interval`.

    Raises:
        ConfigError: Unlike numbers of problems, and as for `mean_interval`.

    Examples:

    ```python
    >>> compare_means([0, 0, 0, 0, 1], [1, 1, 1, 0, 1]).p_value  # three better, none worse: 2 / 2**3
    0.25

    ```
    """
    return compare_averages([first], [second], level=level, resamples=resamples, seed=seed)


def compare_averages(
    first: Sequence[ArrayLike],
    second: Sequence[ArrayLike],
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Comparison:
    """`compare_means` for the average over several benchmarks, each with the same weight.

    Raises:
        ConfigError: Unlike numbers of benchmarks or problems, and as for `average_interval`.
    """
    if len(first) != len(second):
        fix = "compare models on the same benchmarks"
        raise ConfigError("second", f"{len(second)} benchmarks", f"{len(first)} benchmarks", fix)
    pairs = [(_checked("first", a, 0.0), _checked("second", b, 0.0)) for a, b in zip(first, second, strict=True)]
    for a, b in pairs:
        if len(a) != len(b):
            fix = "compare models on the same problems"
            raise ConfigError("second", f"{len(b)} problems", f"{len(a)} problems", fix)
    differences = [b - a for a, b in pairs]
    interval = _interval(differences, -1.0, level, resamples, seed)
    p_value, exact = _sign_flips(differences, seed)
    return Comparison(interval, p_value, exact)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values of several tests made together, so that one of them falls below alpha by chance in alpha of all cases.

    Holm's step-down rule: the i-th smallest of m, counted from 0, times m - i, and never less than those before it.

    Examples:

    ```python
    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]

    ```
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    scaled = [min(1.0, p_values[index] * (len(order) - rank)) for rank, index in enumerate(order)]
    corrected = dict(zip(order, accumulate(scaled, max), strict=True))
    return [corrected[index] for index in range(len(p_values))]


def _checked(field: str, scores: ArrayLike, least: float) -> np.ndarray:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        shown = f"an array of shape {values.shape}"
        raise ConfigError(field, shown, "one number for each of at least one problem", "pass the problems' Pass@k")
    bad = values[~((values >= least) & (values <= 1.0))]  # NaN, too
    if len(bad):
        raise ConfigError(field, float(bad[0]), f"numbers from {least:g} to 1", "pass the problems' Pass@k")
    return values


def _interval(strata: list[np.ndarray], least: float, level: float, resamples: int, seed: int) -> Interval:
    if not strata:
        raise ConfigError("benchmarks", [], "at least one benchmark", "name one")
    if not 0 < level < 1:
        raise ConfigError("level", level, "more than 0, less than 1", "use 0.95")
    if resamples < 100:
        raise ConfigError("resamples", resamples, "at least 100", f"use {RESAMPLES}")
    alpha, value = 1 - level, float(np.mean([scores.mean() for scores in strata]))
    equal = [scores for scores in strata if np.ptp(scores) < _EQUAL]
    others = [scores for scores in strata if np.ptp(scores) >= _EQUAL]
    down = [_room(scores, scores[0] - least, alpha) for scores in equal]
    up = [_room(scores, 1 - scores[0], alpha) for scores in equal]
    if others:
        to_low, to_high = _bca(others, alpha, resamples, np.random.default_rng(seed))
        down.append(to_low * len(others))
        up.append(to_high * len(others))
    # Ends of independent parts add up as their standard deviations do [3].
    to_low, to_high = math.hypot(*down), math.hypot(*up)
    if least == 0.0 and all(scores.var() * len(scores) < _ALIKE for scores in strata):  # of scores, not differences
        to_low = max(to_low, math.hypot(*(_room(scores, scores.mean(), alpha) for scores in strata)))
        to_high = max(to_high, math.hypot(*(_room(scores, 1 - scores.mean(), alpha) for scores in strata)))
    low, high = value - to_low / len(strata), value + to_high / len(strata)
    return Interval(value, max(low, least), min(high, 1.0), level)


def _room(scores: np.ndarray, distance: float, alpha: float) -> float:
    """How far the mean may lie if problems that were not drawn score otherwise than those that were, which have this
    mean `distance` from there."""
    return distance * (1 - (alpha / 2) ** (1 / len(scores)))


def _bca(strata: list[np.ndarray], alpha: float, resamples: int, rng: np.random.Generator) -> tuple[float, float]:
    """How far the ends of the BCa interval lie below and above the average of benchmarks whose scores vary."""
    value = float(np.mean([scores.mean() for scores in strata]))
    means = _resampled_means(strata, resamples, rng)
    below = (np.mean(means < value - _EQUAL) + np.mean(means <= value + _EQUAL)) / 2
    bias = _NORMAL.inv_cdf(min(max(float(below), 1 / resamples), 1 - 1 / resamples))
    acceleration, reach = _acceleration(strata), _reach(strata, alpha)
    shares = [
        _NORMAL.cdf(bias + (bias + end) / max(1 - acceleration * (bias + end), _EQUAL)) for end in (-reach, reach)
    ]
    low, high = np.quantile(means, shares)
    return max(value - float(low), 0.0), max(float(high) - value, 0.0)


def _resampled_means(strata: list[np.ndarray], resamples: int, rng: np.random.Generator) -> np.ndarray:
    """Averages of means of resamples, problems drawn within each benchmark; shape (resamples,)."""
    total = np.zeros(resamples)
    for scores in strata:
        values, counts = np.unique(scores, return_counts=True)
        drawn = rng.multinomial(len(scores), counts / len(scores), size=resamples)  # (resamples, values)
        total += drawn @ values / len(scores)
    return total / len(strata)


def _acceleration(strata: list[np.ndarray]) -> float:
    """Skewness of the average, over six, from the influence of each problem on it."""
    influence = np.concatenate([(scores - scores.mean()) / len(scores) for scores in strata])
    return float((influence**3).sum() / (6 * (influence**2).sum() ** 1.5))


def _reach(strata: list[np.ndarray], alpha: float) -> float:
    """How many standard deviations of a resampled mean the interval spans to each side, before it is skewed."""
    spreads = [(scores.var(ddof=1) / len(scores), len(scores)) for scores in strata if len(scores) > 1]
    total = sum(variance for variance, _ in spreads)
    resampled = sum(variance * (size - 1) / size for variance, size in spreads)
    freedom = total**2 / sum(variance**2 / (size - 1) for variance, size in spreads)
    return _student_quantile(1 - alpha / 2, freedom) * math.sqrt(total / resampled)


def _student_quantile(share: float, freedom: float) -> float:
    """Student's t by its expansion around the normal quantile (Abramowitz and Stegun 26.7.5)."""
    z = _NORMAL.inv_cdf(share)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, start=1))


def _sign_flips(strata: list[np.ndarray], seed: int) -> tuple[float, bool]:
    """Two-sided p-value of the average difference over flipped signs, and whether all flips were counted."""
    flipped = np.concatenate([scores / len(scores) for scores in strata])
    sizes, counts = np.unique(np.abs(flipped).round(15), return_counts=True)
    sizes, counts = sizes[sizes > 0], counts[sizes > 0]
    observed = abs(flipped.sum()) - _EQUAL
    if math.prod(int(count) + 1 for count in counts) <= _MAX_SUMS:
        sums, shares = np.zeros(1), np.ones(1)
        for size, count in zip(sizes, counts, strict=True):  # `count` differences of one size: a binomial sum
            ups = np.arange(count + 1)
            binomial = np.array([math.comb(int(count), int(up)) / 2 ** int(count) for up in ups])
            sums = (sums[:, None] + size * (2 * ups - count)).ravel()
            shares = (shares[:, None] * binomial).ravel()
        p_value = float(shares[np.abs(sums) >= observed].sum())
        return min(1.0, max(p_value, sys.float_info.min)), True  # never 0, however many problems
    ups = np.random.default_rng(seed).binomial(counts, 0.5, size=(FLIPS, len(counts)))
    sums = (2 * ups - counts) @ sizes
    return (1 + int((np.abs(sums) >= observed).sum())) / (1 + FLIPS), False  # the observed one is one of them
