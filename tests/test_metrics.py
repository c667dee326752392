"""Metrics: what each number is divided by, merging, and what stays absent."""

import math
import pickle

import pytest
import torch

from mintrl_trl.objective.loss import RegressionSettings, regression_loss
from mintrl_trl.objective.metrics import (
    Totals,
    counter_totals,
    entropy_totals,
    loss_totals,
    reward_metrics,
    rollout_totals,
)
from mintrl_trl.rollouts.rollout import (
    Author,
    Decision,
    Problem,
    ReviewRecord,
    Role,
    Rollout,
    RolloutRequest,
    Span,
    StopReason,
)

NAN = math.nan


def rollout(role, *spans, stop=StopReason.END, reviews=()):
    request = RolloutRequest(row=0, prompt_ids=(1,), problem=Problem("q"), role=role, update=0)
    return Rollout(request, spans, stop, reviews)


def policy(tokens):
    return Span(tuple(range(tokens)), Author.POLICY)


def judge(tokens, logps=None):
    return Span(tuple(range(tokens)), Author.INTERVENTION, logps=logps)


def review(decision, **fields):
    return ReviewRecord(chunk_start=0, chunk_tokens=fields.pop("chunk_tokens", 8), num_steps=3, first_new=0,
                        decision=decision, **fields)  # fmt: skip


CONTROL = rollout(Role.CONTROL, policy(10))
INTERVENED = rollout(
    Role.INTERVENED,
    policy(4),
    judge(2, logps=(-0.1, -0.4)),
    policy(10),
    judge(4),
    stop=StopReason.LENGTH,
    reviews=(
        review(Decision.REVISE, step=1, kept_tokens=4, correction_tokens=2, discarded_ids=(7, 8, 9, 9),
               lookahead_tokens=3, review_seconds=1.0, correction_seconds=0.5),
        review(Decision.KEEP, kept_tokens=8, review_seconds=3.0),
        review(Decision.NO_VERDICT, reason="timeout", kept_tokens=8),
        review(Decision.REVISE, step=2, kept_tokens=8, correction_tokens=0),
        review(Decision.REVISE, step=2, kept_tokens=2, correction_tokens=4, discarded_ids=(1,) * 6),
    ),
)  # fmt: skip
UNTOUCHED = rollout(Role.INTERVENED, policy(20), reviews=(review(Decision.KEEP),) * 3)


def test_rollout_totals_by_hand():
    means = rollout_totals([CONTROL, INTERVENED, UNTOUCHED]).means()
    assert means == {
        "lengths/control": 10.0,
        "lengths/intervened": 20.0,
        "lengths/truncated": pytest.approx(1 / 3),
        "lengths/correction": 3.0,
        "off_policy_share": 6 / 40,
        "off_policy_share/all": 6 / 50,
        "judge/reviews": 4.0,
        "judge/interventions": 1.0,
        "judge/revise_rate": 3 / 8,
        "judge/no_verdict": 1 / 8,
        "judge/no_verdict/timeout": 1.0,
        "judge/empty_correction": pytest.approx(1 / 3),
        "judge/kept_share": 6 / 16,
        "seconds/review": 0.5,
        "seconds/correction": pytest.approx(0.5 / 3),
        "tokens/policy": 44.0,
        "tokens/intervention": 6.0,
        "tokens/intervention_with_logps": 2.0,
        "tokens/discarded": 10.0,
        "tokens/lookahead": 3.0,
    }


def test_without_intervened_rollouts_their_numbers_are_absent():
    means = rollout_totals([CONTROL]).means()
    assert means["off_policy_share/all"] == 0.0
    assert not [
        name for name in means if name.startswith("judge") or name in ("off_policy_share", "lengths/intervened")
    ]
    assert rollout_totals([]).means()["tokens/policy"] == 0.0


def test_processes_reduce_to_what_one_process_would_see():
    together = rollout_totals([CONTROL, INTERVENED, UNTOUCHED])
    parts = [rollout_totals([CONTROL]), rollout_totals([INTERVENED]), rollout_totals([UNTOUCHED])]
    assert Totals.merge(pickle.loads(pickle.dumps(parts))).means() == pytest.approx(together.means())
    assert Totals.merge([together, Totals()]).means() == together.means()


def test_totals_know_nothing_of_nothing():
    totals = Totals()
    totals.add("mean", 0.0, count=0)
    assert totals.means() == {}
    totals.add_number("number", 0)
    totals.add("mean", 1.0, count=4)
    assert totals.means() == {"mean": 0.25, "number": 0.0}
    assert repr(totals) == "Totals({'mean': (1.0, 4), 'number': (0.0, 0)})"


def test_counters_report_what_they_gained():
    gained = counter_totals({"judge/leak": 2.0}, {"judge/leak": 5.0, "judge/retries": 1.0})
    assert gained.means() == {"judge/leak": 3.0, "judge/retries": 1.0}


def test_reward_metrics_by_hand():
    rewards = torch.tensor([
        [0.0, 0.0, 1.0, 0.0],  # rescued; controls dead
        [1.0, 1.0, 1.0, 1.0],  # dead
        [0.0, 1.0, 1.0, 0.0],  # alive
        [0.0, 0.0, 0.0, 0.0],  # dead, not rescued
    ])  # fmt: skip
    is_control = torch.tensor([True, True, False, False] * 4)
    assert reward_metrics(rewards.flatten(), is_control, 4) == {
        "rewards/control": 3 / 8,
        "rewards/intervened": 4 / 8,
        "reward_gap": 1 / 8,
        "rewards/unscored": 0.0,
        "groups/dead": 0.5,
        "groups/dead_control": 0.75,
        "groups/rescued": 0.25,
        "groups/dropped": 0.0,
    }


def test_reward_metrics_with_missing_rewards():
    rewards = torch.tensor([
        [NAN, NAN, 1.0, 0.0],  # dropped: no control reward, so it cannot count as rescued
        [0.0, NAN, NAN, 1.0],  # rescued, by what is known
        [NAN, NAN, NAN, NAN],  # dropped
        [-1.0, -1.0, NAN, NAN],  # no intervened reward: not among the groups that can be rescued
    ])  # fmt: skip
    is_control = torch.tensor([True, True, False, False] * 4)
    means = reward_metrics(rewards.flatten(), is_control, 4)
    assert means["rewards/control"] == pytest.approx(-2 / 3)
    assert means["rewards/intervened"] == pytest.approx(2 / 3)
    assert means["rewards/unscored"] == 10 / 16
    assert means["groups/dropped"] == 0.5
    assert means["groups/rescued"] == 1.0
    assert means["groups/dead"] == pytest.approx(1 / 3)
    assert means["groups/dead_control"] == 1.0


def test_reward_metrics_without_intervened_rows():
    means = reward_metrics(torch.tensor([1.0, 0.0]), torch.tensor([True, True]), 2)
    assert set(means) == {"rewards/control", "rewards/unscored", "groups/dead", "groups/dead_control", "groups/dropped"}


def test_nearly_equal_rewards_are_not_dead():
    rewards = torch.tensor([0.1, 0.1 + 1e-9], dtype=torch.float64)
    assert reward_metrics(rewards, torch.tensor([True, True]), 2)["groups/dead"] == 0.0


def terms(intervention_logps, **changes):
    logps = torch.tensor([[-1.2, -0.9, -3.0, -0.5], [-0.1, -0.2, -0.3, NAN], [-9.0, -9.0, -9.0, -9.0]])
    arguments = {
        "logps": logps,
        "old_logps": None,
        "response_mask": torch.tensor([[True] * 4, [True, True, True, False], [True] * 4]),
        "policy_authored": torch.tensor([[False, False, False, True], [True] * 4, [False] * 4]),
        "intervention_logps": intervention_logps,
    } | changes
    regression = regression_loss(
        **arguments,
        advantages=torch.tensor([0.75, -0.25, NAN]),
        scored=torch.tensor([True, True, False]),
        settings=RegressionSettings(beta2=0.1),
    )
    return loss_totals(regression, **arguments)


def test_loss_totals_by_hand():
    known = torch.tensor([[-0.1, -0.4, -0.05, NAN], [NAN] * 4, [-0.1] * 4])
    means = terms(known).means()
    assert means["intervention/kl"] == pytest.approx(1.5166666666666666, rel=1e-6)
    assert means["intervention/nll"] == pytest.approx(5.1 / 3, rel=1e-6)
    assert means["imitation_bonus"] == pytest.approx(0.1 * (5.1 - 0.6), rel=1e-6)  # one row holds a correction
    assert means["log_ratio"] == pytest.approx(-4.5 / 2, rel=1e-6)
    assert means["squared_residual"] == pytest.approx(((-0.45 - 0.75) ** 2 + 0.25**2) / 2, rel=1e-6)


def test_entropy_by_hand():
    entropies = torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, NAN], [8.0, NAN, NAN, NAN]])
    response = torch.tensor([[True] * 4, [True, True, True, False], [True, False, False, False]])
    live, sample = torch.tensor([True, True, False]), torch.tensor([False, True, False])
    assert entropy_totals(entropies, response, live, sample).means() == {"entropy/live": 4.0, "entropy/sample": 6.0}
    none = torch.zeros(3, dtype=torch.bool)
    assert entropy_totals(entropies, response, none, none).means() == {}


def test_kl_covers_known_logps_only():
    partly = torch.tensor([[-0.1, NAN, -math.inf, NAN], [NAN] * 4, [NAN] * 4])
    assert terms(partly).means()["intervention/kl"] == pytest.approx(1.1, rel=1e-6)
    assert "intervention/kl" not in terms(torch.full((3, 4), NAN)).means()
    assert "intervention/kl" not in terms(None).means()


def test_kl_is_taken_against_the_policy_that_generated_the_batch():
    known = torch.tensor([[-0.1, -0.4, -0.05, NAN], [NAN] * 4, [NAN] * 4])
    means = terms(known, old_logps=torch.full((3, 4), -1.0)).means()
    assert means["intervention/kl"] == pytest.approx((0.9 + 0.6 + 0.95) / 3, rel=1e-6)
    assert means["intervention/nll"] == pytest.approx(1.0)


def test_loss_totals_of_micro_batches_merge_by_their_counts():
    def part(rows):
        size = len(rows)
        everything = torch.ones(size, 2, dtype=torch.bool)
        arguments = {
            "logps": torch.tensor(rows),
            "old_logps": None,
            "response_mask": everything,
            "policy_authored": torch.tensor([[True, False]] * size),
            "intervention_logps": None,
        }
        regression = regression_loss(
            **arguments, advantages=torch.zeros(size), scored=everything[:, 0], settings=RegressionSettings()
        )
        return loss_totals(regression, **arguments)

    rows = [[-1.0, -2.0], [-1.0, -4.0], [-1.0, -9.0]]
    merged = Totals.merge([part(rows[:1]), part(rows[1:])]).means()
    assert merged["intervention/nll"] == pytest.approx(5.0)
    assert merged == pytest.approx(part(rows).means(), rel=1e-6)
