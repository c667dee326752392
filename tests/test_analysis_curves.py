"""Curves, Pass@k and intensity: the numbers behind the figures, worked out by hand."""

import math

import pytest

from mintrl_trl.analysis.curves import Quantity, seconds_until, smooth, training_curves, wall_clock_curves
from mintrl_trl.analysis.intensity import intensities
from mintrl_trl.analysis.passes import pass_curves, subsets
from mintrl_trl.analysis.runs import UnlikeProblemsError, read_groups
from mintrl_trl.errors import DataError
from mintrl_trl.reporting.run_folder import RunFolder
from tests.analyzed_runs import GRPO_SETTINGS, SETTINGS, write_run

X = Quantity("x", ("x", "y"))


def groups_of(tmp_path, **runs):
    """Groups of runs given as name -> (settings, lines, evaluations)."""
    for name, (settings, lines, solved) in runs.items():
        write_run(tmp_path / name, settings, lines, solved)
    return read_groups([str(tmp_path / name) for name in runs])


def test_a_curve_is_the_mean_over_seeds_with_their_spread(tmp_path):
    one = {1: {"x": 1.0}, 2: {"x": 3.0}}
    two = {1: {"x": 3.0}, 2: {"x": 3.0}, 3: {"x": 9.0}}
    groups = groups_of(tmp_path, a=(SETTINGS, one, None), b=(SETTINGS | {"seed": 1}, two, None))
    (curve,) = training_curves(groups, X)
    assert (curve.group, curve.runs) == ("MInTRL-Const", 2)
    assert [(point.x, point.value, point.spread) for point in curve.points] == [
        (1.0, 2.0, pytest.approx(math.sqrt(2))),
        (2.0, 3.0, 0.0),
    ], "the curve ends where its shortest run ends"


def test_a_group_that_lacks_the_quantity_in_a_run_has_no_curve(tmp_path):
    groups = groups_of(
        tmp_path,
        a=(SETTINGS, {1: {"x": 1.0}}, None),
        b=(SETTINGS | {"seed": 1}, {1: {"z": 1.0}}, None),
        c=(GRPO_SETTINGS, {1: {"y": 1.0}}, None),
    )
    (curve,) = training_curves(groups, X)
    assert curve.group == "GRPO"
    assert curve.points[0].spread is None, "one run has no spread"


def test_smoothing_looks_back_over_a_twentieth():
    series = smooth([(update, float(update >= 20)) for update in range(40)])
    assert series[19:22] == [(19, 0.0), (20, 0.5), (21, 1.0)]


def test_evaluations_are_not_smoothed(tmp_path):
    lines = {update: {"x": float(update >= 20)} for update in range(40)}
    groups = groups_of(tmp_path, a=(SETTINGS, lines, None))
    assert training_curves(groups, X)[0].points[20].smoothed == 0.5
    assert training_curves(groups, X, smooth=False)[0].points[20].smoothed == 1.0


def test_wall_clock_time_adds_up_the_updates_and_is_averaged_over_runs(tmp_path):
    one = {0: {"x": 0.0}, 1: {"step/seconds": 1.0, "x": 0.5}, 2: {"step/seconds": 1.0, "x": 1.0}}
    two = {0: {"x": 0.0}, 1: {"step/seconds": 3.0, "x": 0.5}, 2: {"step/seconds": 5.0, "x": 1.0}}
    groups = groups_of(tmp_path, a=(SETTINGS, one, None), b=(SETTINGS | {"seed": 1}, two, None))
    assert seconds_until(groups[0].runs[1]) == {0: 0.0, 1: 3.0, 2: 8.0}
    (curve,) = wall_clock_curves(groups, X)
    assert [(point.x, point.value) for point in curve.points] == [(0.0, 0.0), (2.0, 0.5), (5.0, 1.0)]


def test_a_run_without_times_has_no_wall_clock_curve(tmp_path):
    groups = groups_of(tmp_path, a=(SETTINGS, {1: {"x": 1.0}}, None))
    assert wall_clock_curves(groups, X) == []


def test_pass_at_k_is_of_the_last_evaluation_and_base_of_the_first(tmp_path):
    groups = groups_of(
        tmp_path,
        a=(SETTINGS, None, {0: (3, 0), 2: (0, 0), 4: (4, 1)}),
        b=(SETTINGS | {"seed": 1}, None, {0: (3, 0), 4: (4, 3)}),
        c=(GRPO_SETTINGS, None, None),
    )
    assert subsets(groups) == ("easy", "hard")
    base, const = pass_curves(groups, "hard")
    assert [(point.x, point.value) for point in base.points] == [(1.0, 0.0), (2.0, 0.0), (4.0, 0.0)]
    assert (const.group, const.runs) == ("MInTRL-Const", 2), "GRPO was not evaluated here"
    # One right of four: 1/4, 1/2, 1; three of four: 3/4, 1, 1
    assert [point.value for point in const.points] == [0.5, 0.75, 1.0]
    assert const.points[0].spread == pytest.approx(math.sqrt(0.125))
    assert pass_curves(groups)[1].points[0].value == pytest.approx(0.75), "both problems"
    assert pass_curves(groups, "other") == []
    point = pass_curves(groups)[1].points[0]
    assert point.low < point.value < point.high, "two problems, the mean over runs of each"
    assert point.band == (pytest.approx(point.value - point.spread), pytest.approx(point.value + point.spread))


def test_scores_on_unlike_problems_are_not_compared(tmp_path):
    one = write_run(tmp_path / "one", SETTINGS, solved={0: (0, 0), 4: (1, 1)})
    other = write_run(tmp_path / "other", GRPO_SETTINGS)
    RunFolder(other).append_evaluation(4, {"problems": [dict(samples=4, solved=4, unscored=0, truncated=0, tokens=9)]})
    groups = read_groups([str(one), str(other)])
    for compare in (pass_curves, intensities):
        with pytest.raises(UnlikeProblemsError, match="Allowed: the 1 that"):
            compare(groups)
    assert len(pass_curves(groups[1:])) == 2


def test_an_evaluation_before_training_is_no_result_of_it(tmp_path):
    groups = read_groups([str(write_run(tmp_path / "one", SETTINGS, solved={0: (1, 1)}))])
    assert pass_curves(groups) == []


def with_share(share: float) -> dict:
    return {1: {"off_policy_share": share}, 2: {"off_policy_share": share / 2}, 3: {"loss": 0.0}}


def test_gain_is_measured_from_runs_without_interventions(tmp_path):
    groups = groups_of(
        tmp_path,
        grpo=(GRPO_SETTINGS, None, {4: (4, 0)}),
        none=(SETTINGS | {"max_reviews": 0}, None, {4: (4, 1)}),
        a=(SETTINGS, with_share(0.04), {4: (4, 2)}),
        b=(SETTINGS | {"seed": 1}, with_share(0.08), {4: (4, 4)}),
        c=(SETTINGS | {"max_reviews": 1}, with_share(0.01), {4: (3, 1)}),
    )
    few, many = intensities(groups, subset="hard")
    assert (few.reviews, few.correction_tokens, few.runs) == (1, 1, 1)
    assert (few.share, few.gain) == (pytest.approx(0.0075), 0.0)
    assert (many.share, many.gain) == (pytest.approx((0.03 + 0.06) / 2), 0.5)
    assert many.spread == pytest.approx(math.sqrt(0.125))
    assert [point.gain for point in intensities(groups, "GRPO", "hard")] == [0.25, 0.75]


def test_what_mentor_mixes_is_no_review(tmp_path):
    groups = groups_of(
        tmp_path,
        grpo=(GRPO_SETTINGS, None, {4: (1, 1)}),
        mentor=(SETTINGS | {"method": "mentor"}, with_share(0.2), {4: (4, 4)}),
        ours=(SETTINGS, with_share(0.2), {4: (2, 2)}),
    )
    (point,) = intensities(groups)
    assert (point.group, point.gain) == ("MInTRL-Const", 0.25), "against GRPO, not MENTOR"


def test_gain_needs_a_baseline(tmp_path):
    groups = groups_of(tmp_path, a=(SETTINGS, with_share(0.04), {4: (4, 2)}))
    assert intensities(groups) == []
    with pytest.raises(DataError, match="MInTRL-Const"):
        intensities(groups, "GRPO")
    assert intensities(groups_of(tmp_path / "more", g=(GRPO_SETTINGS, None, {4: (4, 0)}))) == []
