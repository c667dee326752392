"""Phases, roles, budgets and seeds."""

import pytest

from mintrl_trl.errors import ConfigError
from mintrl_trl.rollouts.rollout import Role
from mintrl_trl.rollouts.schedule import InterventionBudget, Phase, Schedule, request_seed


def test_phase_by_update():
    """200 updates with interventions, then GRPO: a run resumed at 250 asks no judge."""
    schedule = Schedule(num_control=8, num_intervened=8, intervention_updates=200)
    phases = {update: schedule.phase(update) for update in (0, 199, 200, 250)}
    assert phases == {0: Phase.INTERVENTION, 199: Phase.INTERVENTION, 200: Phase.ON_POLICY, 250: Phase.ON_POLICY}


def test_controls_come_first_in_every_group():
    schedule = Schedule(num_control=1, num_intervened=2, intervention_updates=1)
    roles = [schedule.role(row, Phase.INTERVENTION) for row in range(6)]
    assert roles == [Role.CONTROL, Role.INTERVENED, Role.INTERVENED] * 2
    assert schedule.group_size == 3


def test_all_are_controls_in_the_on_policy_phase():
    schedule = Schedule(num_control=1, num_intervened=2, intervention_updates=1)
    assert {schedule.role(row, Phase.ON_POLICY) for row in range(6)} == {Role.CONTROL}


def test_no_intervened_rollouts_is_allowed():
    schedule = Schedule(num_control=4, num_intervened=0, intervention_updates=5)
    assert {schedule.role(row, Phase.INTERVENTION) for row in range(8)} == {Role.CONTROL}


@pytest.mark.parametrize(
    ("values", "field"),
    [((0, 8, 200), "num_control"), ((8, -1, 200), "num_intervened"), ((8, 8, -1), "intervention_updates")],
)
def test_schedule_refuses(values, field):
    with pytest.raises(ConfigError, match=f"`{field}`"):
        Schedule(*values)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ((0, 4, 64, 100), "chunk_tokens"),
        ((1, -1, 64, 100), "max_reviews"),
        ((1, 4, 0, 100), "correction_tokens"),
        ((1, 4, 64, 0), "max_completion_tokens"),
    ],
)
def test_budget_refuses(values, field):
    with pytest.raises(ConfigError, match=f"`{field}`"):
        InterventionBudget(*values)


def test_seeds_are_in_range_stable_and_all_different():
    requests = [
        (run_seed, update, row, revisions, purpose)
        for run_seed in (0, 1, 12)
        for update in (0, 1, 2)
        for row in (0, 1, 21)
        for revisions in (0, 1, 2)
        for purpose in ("policy", "review", "correction", "eval")
    ]
    seeds = [request_seed(*request) for request in requests]
    assert len(set(seeds)) == len(requests)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seeds == [request_seed(*request) for request in requests]
    assert request_seed(0, 3, 17, 0) == 4241270017995322695  # runs can be repeated with later versions
    assert request_seed(0, 1, 23, 0) != request_seed(0, 12, 3, 0)


def test_seed_refuses_an_unknown_purpose():
    with pytest.raises(ValueError, match="purpose is 'judge'"):
        request_seed(0, 0, 0, 0, "judge")
