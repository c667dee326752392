"""MENTOR's arithmetic against numbers worked out by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mintrl_trl.baselines.mentor_mixing import (
    acceptance,
    alpha,
    entropy,
    expert_weight,
    mentor_advantages,
    mixture_logps,
    quantile,
    residual_logits,
)

P = torch.tensor([0.5, 0.25, 0.15, 0.10], dtype=torch.float64)
E = torch.tensor([0.05, 0.05, 0.20, 0.70], dtype=torch.float64)


def close(found, expected, **tolerance):
    expected = torch.as_tensor(expected, dtype=found.dtype)
    torch.testing.assert_close(found, expected, **({"rtol": 1e-9, "atol": 1e-12} | tolerance))


def test_mixture_acceptance_and_residual():
    close(entropy(P.log()), 1.207973687592232)
    weight = expert_weight(entropy(P.log()), 2.0)
    close(weight, 0.603986843796116)
    mix = mixture_logps(P.log(), E.log(), weight).exp()
    close(mix, [0.228205920292, 0.129202631241, 0.18019934219, 0.462392106278], rtol=1e-10)
    accept = acceptance(P.log(), E.log(), weight)
    close(accept, [0.456411840583, 0.516810524963, 1.0, 1.0], rtol=1e-10)
    rejected = 1 - (P * accept).sum()
    close(rejected, 0.3925914484674754)
    residual = residual_logits(P.log(), E.log()).softmax(-1)
    close(residual, [0.0, 0.0, 1 / 13, 12 / 13])
    close(P * accept + rejected * residual, mix)


@pytest.mark.parametrize(
    ("gamma", "weight", "rejected"), [(1.0, 1.0, 0.65), (999.0, 0.0012091828704626946, 0.0012091828704626946 * 0.65)]
)
def test_ends_of_the_weight(gamma, weight, rejected):
    found = expert_weight(entropy(P.log()), gamma)
    close(found, weight)
    close(1 - (P * acceptance(P.log(), E.log(), found)).sum(), rejected)
    if weight == 1:
        close(mixture_logps(P.log(), E.log(), found).exp(), E)


def test_zero_probabilities_weights_and_thresholds():
    student, expert = torch.tensor([1.0, 0.0, 0.0]).log(), torch.tensor([0.0, 1.0, 0.0]).log()
    for weight, mix in ((0.0, [1.0, 0.0, 0.0]), (1.0, [0.0, 1.0, 0.0]), (0.25, [0.75, 0.25, 0.0])):
        close(mixture_logps(student, expert, torch.tensor(weight)).exp(), mix, atol=1e-6)
        close(acceptance(student[0], expert[0], torch.tensor(weight)), 1 - weight, atol=1e-6)
    close(residual_logits(student, expert).exp(), [0.0, 1.0, 0.0])
    assert entropy(student) == 0
    assert expert_weight(torch.tensor([0.0, 0.1]), 0.0).tolist() == [0.0, 1.0]


@settings(derandomize=True, max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.floats(0, 1), st.floats(0.1, 8))
def test_drafts_taken_and_replaced_follow_the_mixture(seed, weight, sharpness):
    logits = sharpness * torch.randn(2, 9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    student, expert = logits.log_softmax(-1)
    weight = torch.tensor(weight, dtype=torch.float64)
    accept = acceptance(student, expert, weight)
    taken = student.exp() * accept
    law = taken + (1 - taken.sum()) * residual_logits(student, expert).softmax(-1)
    close(law, mixture_logps(student, expert, weight).exp(), atol=1e-9)


def test_quantile_is_linear_between_neighbours():
    values = torch.randperm(101).float()
    for share in (0.0, 0.333, 0.95, 1.0):
        assert quantile(values, share) == pytest.approx(100 * share, abs=1e-4)
        assert quantile(values[:7], share) == pytest.approx(torch.quantile(values[:7], share).item(), abs=1e-4)
    assert quantile(torch.tensor([0.5]), 0.95) == 0.5


def test_alpha_falls_as_a_cosine_and_ends():
    assert alpha(1, 1.0, 120) == pytest.approx(0.9998286624877786, rel=1e-12)
    assert alpha(30, 1.0, 120) == pytest.approx(0.8535533905932737, rel=1e-12)
    assert alpha(60, 1.0, 120) == pytest.approx(0.5)
    assert alpha(119, 1.0, 120) > 0
    assert alpha(120, 1.0, 120) == alpha(500, 1.0, 120) == 0
    assert alpha(60, 0.4, 120) == pytest.approx(0.2)


def advantages(rewards, *, mixed, alpha, **options):
    group = len(rewards)
    is_control = torch.arange(group) < group - mixed
    return mentor_advantages(torch.tensor(rewards), is_control, group, alpha=alpha, **options)


def test_advantages_of_both_kinds():
    found = advantages([1.0, 0.0, 0.0, 1.0, 1.0, 0.0], mixed=2, alpha=alpha(30, 1.0, 120))
    unit = 0.8660239037870368
    close(found, [unit, -unit, -unit, unit, 0.42677669529663687, 0.0], rtol=1e-6)
    assert found.dtype == torch.float32
    # the mixed rewards change nothing for the others; a failure is never negative
    other = advantages([1.0, 0.0, 0.0, 1.0, 0.0, 0.0], mixed=2, alpha=1.0)
    assert other[:4].equal(found[:4]) and other[4:].tolist() == [0.0, 0.0]


def test_equal_on_policy_rewards_leave_imitation_alone():
    assert advantages([0.0, 0.0, 1.0, 0.0], mixed=2, alpha=0.5).tolist() == [0.0, 0.0, 0.5, 0.0]
    assert advantages([0.0, 1.0], mixed=1, alpha=1.0).tolist() == [0.0, 1.0]
    assert advantages([0.0, 0.0, 4.0], mixed=1, alpha=1.0, reward_range=8.0).tolist() == [0.0, 0.0, 0.5]


def test_rows_without_reward_count_for_nothing():
    nan = math.nan
    found = advantages([1.0, nan, 0.0, 1.0, nan], mixed=2, alpha=1.0)
    close(found, [math.sqrt(0.5), 0.0, -math.sqrt(0.5), 0.5, 0.0], rtol=1e-5)
    assert advantages([nan, nan, 1.0, 0.0], mixed=2, alpha=1.0).tolist() == [0.0] * 4


def test_groups_are_apart():
    rewards = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0, 1.0])
    is_control = torch.tensor([True, True, False] * 2)
    found = mentor_advantages(rewards, is_control, 3, alpha=1.0)
    assert found[2] == 0.5 and found[5] == 1.0
