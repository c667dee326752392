"""Verdicts of the reproduction by their rules, and the numbers they read, on summaries made up here."""

import pytest

from benchmarks.reproduction.cells import Arm, Experiment, settings
from benchmarks.reproduction.claims import (
    Status,
    above_base,
    alike,
    all_of,
    falls,
    higher,
    higher_at_cost,
    not_above_base,
    not_higher,
    not_testable,
    peaks,
    peaks_within,
    ratio_within,
    within,
)
from benchmarks.reproduction.scores import Results, Score, margin, margin_of_best, matched, read
from tests.reproduced import CONST, GRPO, results, summary_of

# Scores


def test_margin_by_hand():
    left, right = Score((0.80, 0.84)), Score((0.10, 0.16))  # standard errors 0.02 and 0.03; 1.72 degrees of freedom
    assert margin(left, right) == pytest.approx(6.314 * (0.02**2 + 0.03**2) ** 0.5)
    three = Score((0.5, 0.6, 0.7))  # standard error 0.1 / sqrt(3); with its like 4 degrees of freedom
    assert margin(three, three) == pytest.approx(2.132 * 0.1 * (2 / 3) ** 0.5)
    assert margin(Score((0.5, 0.5)), Score((0.4, 0.4))) == pytest.approx(0.01 * 1.812)


def test_metrics_are_read_where_they_were_asked_for():
    summary = summary_of(GRPO, 0, {0: 0.01, 150: 0.1, 300: 0.2})
    assert read(summary, "hard@1") == 0.2
    assert read(summary, "hard@1", 150) == 0.1
    assert read(summary, "hard@1", 100) is None
    assert read(summary, "rewards/control:first") == 0.4
    assert read(summary, "rewards/control:last") == 0.6
    assert read(summary, "entropy/sample:last") is None
    assert read(summary, "step/seconds") == 300.0


def test_first_evaluation_that_has_cost_as_much():
    long = summary_of(GRPO, 0, {0: 0.0, 100: 0.1, 200: 0.2, 300: 0.3})
    short = summary_of(CONST, 0, {0: 0.0, 150: 0.8})
    assert matched(long, short, "seconds")["update"] == 200
    short["evaluations"][-1]["tokens/teacher"] += 1_000_000  # 2.5 million tokens in all
    assert matched(long, short, "tokens")["update"] == 300
    short["evaluations"][-1]["tokens/teacher"] += 1_000_000
    assert matched(long, short, "tokens") is None


# Rules


@pytest.mark.parametrize(
    ("const", "grpo", "status"),
    [
        pytest.param((0.8, 0.82), (0.1, 0.12), "reproduced", id="higher"),
        pytest.param((0.1, 0.12), (0.8, 0.82), "not reproduced", id="lower"),
        pytest.param((0.5, 0.8), (0.4, 0.6), "not reproduced", id="within the spread"),
        pytest.param((0.99, 1.0), (0.98, 0.99), "not testable here", id="ceiling"),
        pytest.param((0.01, 0.0), (0.02, 0.0), "not testable here", id="floor"),
        pytest.param((), (0.1, 0.2), "not run", id="missing"),
    ],
)
def test_higher(const, grpo, status):
    verdict = higher(["table/Const"], ["table/GRPO"], "hard@1")(results(const, grpo))
    assert verdict.status.value == status


@pytest.mark.parametrize(
    ("const", "grpo", "status"),
    [
        pytest.param((0.50, 0.51), (0.50, 0.50), "reproduced", id="near"),
        pytest.param((0.40, 0.60), (0.45, 0.50), "not testable here", id="too far apart to say"),
        pytest.param((0.60, 0.61), (0.50, 0.50), "not reproduced", id="different"),
    ],
)
def test_noise_makes_nothing_alike(const, grpo, status):
    assert alike("table/Const", "table/GRPO", "hard@1")(results(const, grpo)).status.value == status


@pytest.mark.parametrize(
    ("const", "status"),
    [
        pytest.param((0.20, 0.21), "reproduced", id="lower"),
        pytest.param((0.30, 0.60), "not testable here", id="too far apart to say"),
        pytest.param((0.60, 0.61), "not reproduced", id="higher"),
    ],
)
def test_what_is_worse_gains_nothing(const, status):
    assert not_higher("table/Const", "table/GRPO", "hard@1")(results(const, (0.5, 0.5))).status.value == status


@pytest.mark.parametrize(
    ("const", "status"),
    [((0.01, 0.02), "reproduced"), ((0.05, 0.60), "not testable here"), ((0.5, 0.51), "not reproduced")],
    ids=str,
)
def test_noise_is_no_proof_that_nothing_was_gained(const, status):
    assert not_above_base(["table/Const"], "hard@1")(results(const)).status.value == status


RULES_OF_ONE = (
    higher(["table/Const"], ["table/GRPO"], "hard@1"),
    above_base(["table/Const"], "hard@1"),
    not_above_base(["table/Const"], "hard@1"),
    falls(["table/Const"], "intervention/nll"),
    within(["table/Const"], "hard@1", 0.0, 1.0),
    higher_at_cost(["table/Const"], "table/GRPO", "hard@1", "seconds"),
    ratio_within("table/Const", "table/GRPO", "step/seconds", 0.9, 1.1),
)


@pytest.mark.parametrize("rule", RULES_OF_ONE)
def test_no_verdict_before_all_seeds_are_there(rule):
    assert rule(results()).status is not Status.NOT_RUN
    assert rule(results(const=(0.8,))).status is Status.NOT_RUN


def test_one_seed_each_says_nothing_of_a_number_without_a_scale():
    assert margin(Score((0.5,)), Score((0.1,)), 0.0) == float("inf")


def test_the_best_of_many_has_to_be_better_by_more():
    best, other = Score((0.52, 0.56)), Score((0.50, 0.50))
    # pooled over four: (0.0008 + 3 x 0) / 4 = 0.0002, an error of 0.0141; 3.747 is the 99 % quantile
    among = [best, other, Score((0.4, 0.4)), Score((0.3, 0.3))]
    assert margin_of_best(best, other, among) == pytest.approx(3.747 * 0.0002**0.5)
    assert margin_of_best(other, other, [other]) == pytest.approx(0.01 * 2.764)


def test_verdict_names_the_numbers_behind_it():
    verdict = higher(["table/Const"], ["table/GRPO"], "hard@1")(results())
    assert verdict.numbers == "Const 81.0 ± 1.4 %, GRPO 11.0 ± 1.4 %"


@pytest.mark.parametrize(
    ("rule", "status"),
    [
        (alike("table/Const", "table/GRPO", "hard@1"), "not reproduced"),
        (alike("table/Const", "table/Const", "hard@1"), "reproduced"),
        (above_base(["table/Const", "table/GRPO"], "hard@1"), "reproduced"),
        (not_above_base(["table/Const"], "hard@1"), "not reproduced"),
        (falls(["table/Const"], "intervention/nll"), "reproduced"),
        (falls(["table/Const"], "rewards/control"), "not reproduced"),
        (falls(["table/Const"], "entropy/sample"), "not run"),
        (within(["table/GRPO"], "hard@1", 0.0, 0.3), "reproduced"),
        (within(["table/GRPO"], "hard@1", 0.0, 0.1), "not reproduced"),
        (higher_at_cost(["table/Const"], "table/GRPO", "hard@1", "seconds"), "reproduced"),
        (higher_at_cost(["table/GRPO"], "table/Const", "hard@1", "tokens"), "not testable here"),
        (ratio_within("table/GRPO", "table/Const", "step/seconds", 0.9, 1.1), "reproduced"),
        (ratio_within("table/GRPO", "table/Const", "step/seconds", 2.5, 3.45), "not reproduced"),
    ],
)
def test_other_rules(rule, status):
    assert rule(results()).status.value == status


@pytest.mark.parametrize(
    ("metrics", "const", "status"),
    [
        pytest.param(("hard@1", "hard@16"), (0.8, 0.82), "reproduced", id="both"),
        pytest.param(("hard@1", "hard@16"), (0.1, 0.12), "not reproduced", id="neither"),
        pytest.param(("hard@1", "all@8"), (0.8, 0.82), "not run", id="one is missing"),
    ],
)
def test_all_of(metrics, const, status):
    rule = all_of({metric: higher(["table/Const"], ["table/GRPO"], metric) for metric in metrics})
    assert rule(results(const)).status.value == status


def test_what_cannot_be_decided_does_not_stand_in_the_way():
    decided, open_ = alike("table/Const", "table/Const", "hard@1"), not_testable("no way to tell")
    verdict = all_of({"one": decided, "other": open_})(results())
    assert verdict.status is Status.REPRODUCED
    assert verdict.numbers.endswith("other: no way to tell")
    assert all_of({"other": open_})(results()).status is Status.NOT_TESTABLE


@pytest.mark.parametrize(
    ("most", "status"), [(0.3, "reproduced"), (0.9, "not reproduced"), (0.6, "not reproduced")], ids=str
)
def test_peak_lies_below_the_largest_share(most, status):
    arms = [Arm("none", "quickstart", settings(max_reviews=0)), Arm("some", "quickstart"), Arm("most", "chains_grpo")]
    passes, shares = {"none": 0.2, "some": 0.6, "most": most}, {"some": 0.02, "most": 0.5}
    summaries = [
        summary_of(arm, 0, {150: passes[arm.name]}, totals={"mean/off_policy_share": shares.get(arm.name, 0.0)})
        for arm in arms
    ]
    found = Results([Experiment("figure", "", "", tuple(arms), (0,))], {s["key"]: s for s in summaries})
    assert peaks(["figure/some", "figure/most"], "figure/none", "all@1")(found).status.value == status
    arms = ["figure/some", "figure/most"], "figure/none", "all@1"
    where = [peaks_within(*arms, low, high)(found).status.value for low, high in ((0.01, 0.04), (0.1, 0.4))]
    assert where == (["reproduced", "not reproduced"] if status == "reproduced" else ["not testable here"] * 2)
