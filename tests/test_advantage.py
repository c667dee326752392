"""Baseline and advantages: worked numbers, what may not change them, and refusals."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mintrl_trl.errors import ConfigError, RewardError
from mintrl_trl.objective.advantage import Baseline, compute_advantages, soft_value

NAN = math.nan
CONTROLS = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]
SEMI = [1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0]
IS_CONTROL = torch.tensor([True] * 8 + [False] * 8)


def advantages(rewards, is_control=IS_CONTROL, group_size=16, **options):
    return compute_advantages(torch.tensor(rewards, dtype=torch.float64), is_control, group_size, **options)


def test_control_baseline_by_hand():
    result = advantages(CONTROLS + SEMI)
    assert result.baseline.tolist() == [0.25]
    assert result.values.tolist() == [0.75 if reward else -0.25 for reward in CONTROLS + SEMI]
    assert result.scored.all()


def test_pooled_baseline_by_hand():
    result = advantages(CONTROLS + SEMI, baseline="pooled")
    assert result.baseline.tolist() == [0.375]
    assert result.values.tolist() == [0.625 if reward else -0.375 for reward in CONTROLS + SEMI]


@pytest.mark.parametrize(
    ("beta1", "value"),
    [
        (0.1, 0.8613841829395048),
        (0.5, 0.47722929639662026),
        (1.0, 0.35737401950878844),
        (10.0, 0.2595301747695554),
        (1000.0, 0.2500937656240332),
    ],
)
def test_soft_value_by_hand(beta1, value):
    result = advantages(CONTROLS + SEMI, beta1=beta1)
    assert result.baseline.item() == pytest.approx(value, rel=1e-9)
    assert result.values.tolist() == pytest.approx([reward - value for reward in CONTROLS + SEMI], rel=1e-9)


def test_soft_value_runs_from_the_maximum_to_the_mean():
    rewards = torch.tensor([CONTROLS], dtype=torch.float32)
    counted = torch.ones_like(rewards, dtype=torch.bool)
    assert soft_value(rewards, counted, 1e-6).item() == pytest.approx(1.0, abs=2e-5)
    assert soft_value(rewards, counted, None).item() == 0.25
    # As printed, Eq. 9 would lose every digit here in float32: 1e6 times a rounding error of 1e-7.
    assert soft_value(rewards, counted, 1e6).item() == pytest.approx(0.25, abs=1e-6)
    assert soft_value(torch.full((1, 8), 0.3), counted, 0.01).item() == pytest.approx(0.3, abs=1e-7)


def test_all_controls_wrong_and_all_intervened_right():
    result = advantages([0.0] * 8 + [1.0] * 8)
    assert result.baseline.tolist() == [0.0]
    assert result.values.tolist() == [0.0] * 8 + [1.0] * 8  # unscaled: the standard deviation has no part in it


@given(
    rewards=st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=16, max_size=16),
    row=st.integers(8, 15),
    other=st.sampled_from([-3.0, 0.25, 7.0, NAN]),
    beta1=st.sampled_from([None, 0.5]),
)
def test_an_intervened_reward_touches_its_own_row_only(rewards, row, other, beta1):
    before = advantages(rewards, beta1=beta1)
    changed = [*rewards[:row], other, *rewards[row + 1 :]]
    after = advantages(changed, beta1=beta1)
    rest = torch.arange(16) != row
    assert torch.equal(before.values[rest], after.values[rest])
    assert torch.equal(before.baseline, after.baseline)
    assert torch.equal(before.scored[rest], after.scored[rest])


@given(rewards=st.lists(st.floats(-2, 2), min_size=8, max_size=8), order=st.permutations(range(4)))
def test_rows_of_a_group_may_come_in_any_order(rewards, order):
    is_control = torch.tensor([True, True, False, False] * 2)
    index = torch.tensor([*order, *(4 + place for place in order)])
    plain = advantages(rewards, is_control, 4)
    moved = advantages([rewards[place] for place in index], is_control[index], 4)
    assert torch.allclose(plain.values[index], moved.values)


def test_missing_control_rewards_leave_the_mean():
    controls = [1.0, NAN, 0.0, NAN, 1.0, NAN, 0.0, 0.0]  # mean over the five that are known
    result = advantages(controls + SEMI)
    assert result.baseline.tolist() == [0.4]
    assert result.scored.tolist() == [True, False, True, False, True, False, True, True] + [True] * 8
    assert result.values[1].item() == 0.0
    assert result.values[8].item() == pytest.approx(0.6)


def test_a_group_without_control_rewards_is_dropped_alone():
    result = advantages([NAN] * 8 + SEMI + CONTROLS + SEMI, IS_CONTROL.repeat(2))
    assert math.isnan(result.baseline[0].item())
    assert result.baseline[1].item() == 0.25
    assert not result.scored[:16].any()
    assert result.scored[16:].all()
    assert result.values[:16].tolist() == [0.0] * 16
    assert result.values[16:].tolist() == advantages(CONTROLS + SEMI).values.tolist()
    soft = advantages([NAN] * 8 + SEMI, beta1=0.5)
    assert not soft.scored.any()
    assert soft.values.tolist() == [0.0] * 16


def test_intervened_rewards_alone_are_enough_for_the_pooled_baseline_only():
    rewards = [NAN] * 8 + SEMI
    assert not advantages(rewards).scored.any()
    assert advantages(rewards, baseline=Baseline.POOLED).baseline.tolist() == [0.5]


def test_a_batch_without_any_reward_is_dropped_whole():
    result = advantages([NAN] * 16, baseline="pooled")
    assert not result.scored.any()
    assert result.values.tolist() == [0.0] * 16


def test_all_rows_control_is_a_plain_mean_baseline():
    result = compute_advantages(torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.tensor([True] * 4), 4)
    assert result.values.tolist() == [0.75, -0.25, -0.25, -0.25]
    assert result.values.dtype == torch.float32


def test_half_precision_rewards_are_worked_in_float32():
    rewards = torch.tensor([1.0, 0.0, 0.0], dtype=torch.bfloat16)
    result = compute_advantages(rewards, torch.tensor([True] * 3), 3)
    assert result.values.dtype == torch.float32
    assert result.values[0].item() == pytest.approx(2 / 3, rel=1e-6)


@pytest.mark.parametrize("beta1", [0.0, -1.0, NAN, math.inf, 1e-9])
def test_refuses_beta1(beta1):
    with pytest.raises(ConfigError, match="beta1"):
        advantages(CONTROLS + SEMI, beta1=beta1)


def test_refuses_an_unknown_baseline():
    with pytest.raises(ConfigError, match="'control' or 'pooled'"):
        advantages(CONTROLS + SEMI, baseline="group")


def test_refuses_an_infinite_reward():
    with pytest.raises(RewardError, match=r"rows \[3\]"):
        advantages([0.0, 0.0, 0.0, math.inf] + [0.0] * 12)


@pytest.mark.parametrize(
    ("rewards", "is_control", "group_size", "message"),
    [
        (torch.zeros(6), torch.ones(6, dtype=torch.bool), 4, "whole groups"),
        (torch.zeros(6), torch.ones(6, dtype=torch.bool), 0, "whole groups"),
        (torch.zeros(4), torch.ones(5, dtype=torch.bool), 4, "want"),
        (torch.zeros(4), torch.ones(4), 4, "want"),
        (torch.zeros(2, 2), torch.ones(2, 2, dtype=torch.bool), 2, "want"),
        (torch.zeros(4), torch.tensor([True, True, False, False]), 2, "without control"),
    ],
    ids=["ragged", "no-group", "lengths", "not-bool", "two-dimensional", "no-control"],
)
def test_refuses_what_makes_no_groups(rewards, is_control, group_size, message):
    with pytest.raises(ValueError, match=message):
        compute_advantages(rewards, is_control, group_size)
