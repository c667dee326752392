"""Intervals cover the truth, also for few problems; the paired test keeps its level; both against worked numbers."""

import itertools
import math
import statistics

import numpy as np
import pytest

from mintrl_trl.errors import ConfigError
from mintrl_trl.evaluation.intervals import (
    _student_quantile,
    average_interval,
    compare_averages,
    compare_means,
    holm,
    mean_interval,
)

# Chances of solving a problem, with their mean: a weak model (most problems never), a middling and a strong one.
WEAK = (lambda rng, size: rng.beta(0.3, 2, size), 0.3 / 2.3)
NEVER = (lambda rng, size: (rng.random(size) < 0.3) * rng.beta(1, 2, size), 0.1)
STRONG = (lambda rng, size: rng.beta(2, 0.5, size), 0.8)
SETS = 500


def pass_rates(rng, population, problems, samples):
    return rng.binomial(samples, population(rng, problems)) / samples


@pytest.mark.parametrize(
    ("population", "problems", "samples"),
    [
        pytest.param(WEAK, 30, 32, id="weak-30"),
        pytest.param(NEVER, 30, 32, id="never-30", marks=pytest.mark.slow),
        pytest.param(STRONG, 30, 4, id="strong-30", marks=pytest.mark.slow),
        pytest.param(WEAK, 164, 8, id="weak-164", marks=pytest.mark.slow),
    ],
)
def test_intervals_cover_the_truth(population, problems, samples):
    draw, truth = population
    rng = np.random.default_rng(11)
    intervals = [mean_interval(pass_rates(rng, draw, problems, samples), resamples=1000) for _ in range(SETS)]
    covered = sum(interval.low <= truth <= interval.high for interval in intervals) / SETS
    assert 0.93 <= covered <= 0.97


@pytest.mark.slow
def test_intervals_of_a_domain_average_cover_the_truth():
    rng = np.random.default_rng(3)
    populations, sizes = (WEAK, NEVER, STRONG), (30, 30, 60)
    truth = statistics.fmean(mean for _, mean in populations)
    covered = 0
    for _ in range(SETS):
        scores = [pass_rates(rng, draw, size, 8) for (draw, _), size in zip(populations, sizes, strict=True)]
        interval = average_interval(scores, resamples=1000)
        covered += interval.low <= truth <= interval.high
    assert 0.93 <= covered / SETS <= 0.97


def test_two_equal_models_differ_in_as_few_sets_as_the_level_says():
    rng = np.random.default_rng(5)
    p_values = []
    for _ in range(300):
        chances = rng.beta(0.5, 1, 12)
        first, second = rng.binomial(4, chances) / 4, rng.binomial(4, chances) / 4
        comparison = compare_means(first, second, resamples=100)
        assert comparison.exact
        p_values.append(comparison.p_value)
    assert 0.01 <= np.mean(np.array(p_values) <= 0.05) <= 0.08


def test_a_domain_average_weighs_benchmarks_alike_and_draws_within_each():
    few, many = [1.0, 0.0], [0.0] * 98
    interval = average_interval([few, many])
    assert interval.value == 0.25  # not 0.01
    # The second is 0 in every resample; 98 zeros leave it up to 1 - 0.025^(1/98), half of which counts.
    room = (1 - 0.025 ** (1 / 98)) / 2
    assert (interval.low, interval.high) == (0.0, pytest.approx(0.25 + math.hypot(0.25, room)))


@pytest.mark.parametrize(
    ("score", "low", "high"),
    [(0.0, 0.0, 1 - 0.025**0.05), (1.0, 0.025**0.05, 1.0), (0.5, 0.5 * 0.025**0.05, 1 - 0.5 * 0.025**0.05)],
)
def test_equal_scores_still_leave_room(score, low, high):
    interval = mean_interval([score] * 20)
    assert (interval.value, interval.low, interval.high) == pytest.approx((score, low, high))


def test_a_single_problem_says_next_to_nothing():
    interval = mean_interval([1.0])
    assert (interval.low, interval.high) == (pytest.approx(0.025), 1.0)


def test_more_problems_and_a_lower_level_make_intervals_narrower():
    def width(scores, **arguments):
        interval = mean_interval(scores, **arguments)
        assert interval.low < interval.value < interval.high
        return interval.high - interval.low

    scores = [0.0, 0.25, 0.5, 1.0] * 10
    assert width(scores * 4) == pytest.approx(width(scores) / 2, rel=0.1)
    assert width(scores, level=0.8) < width(scores)
    # A normal interval of 40 problems: 2 t s / sqrt(n), s of the four values.
    expected = 2 * 2.0227 * statistics.stdev(scores) / 40**0.5
    assert width(scores) == pytest.approx(expected, rel=0.05)


def test_intervals_are_mirrored_with_their_scores_and_repeat_themselves():
    scores = np.array([0.0] * 20 + [0.25, 0.5, 1.0] * 3)
    interval, mirrored = mean_interval(scores), mean_interval(1 - scores)
    assert (mirrored.low, mirrored.high) == pytest.approx((1 - interval.high, 1 - interval.low), abs=0.02)
    assert mean_interval(scores) == interval
    assert mean_interval(scores, seed=1).high == pytest.approx(interval.high, abs=0.02)


@pytest.mark.parametrize(("freedom", "expected"), [(4, 2.7764), (9, 2.2622), (29, 2.0452), (1000, 1.9623)])
def test_student_quantile_is_that_of_the_tables(freedom, expected):
    assert _student_quantile(0.975, freedom) == pytest.approx(expected, abs=2e-3)


# Two models


def by_enumeration(first, second):
    differences = [b - a for a, b in zip(first, second, strict=True)]
    sums = [
        abs(sum(sign * d for sign, d in zip(signs, differences, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(differences))
    ]
    return sum(total >= abs(sum(differences)) - 1e-9 for total in sums) / len(sums)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([0, 0, 0, 0], [1, 1, 1, 1], 2 / 16),
        ([0, 0, 1, 1], [1, 1, 1, 1], 2 / 4),
        ([0.5, 0.25], [0.5, 0.25], 1.0),
        ([0, 1], [1, 0], 1.0),
    ],
    ids=["all better", "half equal", "equal", "as many better as worse"],
)
def test_p_values_by_hand(first, second, expected):
    comparison = compare_means(first, second)
    assert (comparison.p_value, comparison.exact) == (pytest.approx(expected), True)


def test_p_values_are_those_of_all_sign_flips():
    rng = np.random.default_rng(0)
    for _ in range(20):
        first, second = rng.integers(0, 5, (2, 9)) / 4
        assert compare_means(first, second).p_value == pytest.approx(by_enumeration(first, second))


def test_no_p_value_is_zero():
    assert 0 < compare_means([0] * 1319, [1] * 1319).p_value < 1e-300


def test_drawn_flips_agree_with_the_binomial_test():
    # 26 better, 10 worse, each by another amount near 1: too many sums to count. The sign test says 0.011.
    amounts = 0.9 + np.linspace(0, 0.1, 36)
    signs = np.array([1] * 26 + [-1] * 10)
    comparison = compare_means(np.where(signs < 0, amounts, 0), np.where(signs > 0, amounts, 0))
    assert not comparison.exact
    assert comparison.p_value == pytest.approx(0.0113, abs=0.004)


def test_swapped_models_mirror_the_difference():
    first, second = [[0.0, 0.5, 1.0, 0.25], [0.0, 0.0, 1.0]], [[0.5, 0.5, 1.0, 1.0], [0.0, 1.0, 1.0]]
    forth, back = compare_averages(first, second), compare_averages(second, first)
    assert forth.difference.value == -back.difference.value == pytest.approx((1.25 / 4 + 1 / 3) / 2)
    assert forth.p_value == back.p_value


def test_equal_models_do_not_differ_though_the_set_is_small():
    comparison = compare_means([0.0] * 9 + [1.0], [0.0] * 9 + [1.0])
    assert (comparison.difference.value, comparison.p_value) == (0.0, 1.0)
    assert comparison.difference.low == -comparison.difference.high == pytest.approx(-(1 - 0.025**0.1))


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: mean_interval([]), "scores"),
        (lambda: mean_interval([0.5, float("nan")]), "scores"),
        (lambda: mean_interval([0.5, 1.5]), "scores"),
        (lambda: mean_interval([[0.5]]), "scores"),
        (lambda: mean_interval([0.5, 1], level=1.0), "level"),
        (lambda: mean_interval([0.5, 1], resamples=10), "resamples"),
        (lambda: average_interval([]), "benchmarks"),
        (lambda: compare_means([0, 1], [0, 1, 1]), "second"),
        (lambda: compare_averages([[0, 1]], [[0, 1], [1]]), "second"),
        (lambda: compare_means([2], [0]), "first"),
    ],
)
def test_what_cannot_be_scored_is_refused(call, field):
    with pytest.raises(ConfigError, match=f"`{field}`"):
        call()


def test_nearly_equal_scores_are_no_surer_than_equal_ones():
    """As Pass@4 beside Pass@8 of problems that are solved almost always."""
    equal, nearly = mean_interval([1.0] * 64), mean_interval([1.0] * 63 + [0.97])
    assert nearly.low < equal.low == pytest.approx(0.025 ** (1 / 64))
    low, high = mean_interval([0.0] * 64), mean_interval([0.0] * 63 + [0.03])
    assert high.high > low.high


def test_the_interval_of_a_difference_may_be_short():
    assert compare_means([0.5] * 30, [0.51] * 29 + [0.52]).difference.low > 0
