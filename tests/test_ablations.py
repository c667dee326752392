"""Losses for ablations: worked numbers, what each is one change away from, and how recipes ask for them."""

import json
import math
from pathlib import Path

import pytest
import torch

from mintrl_trl import ConfigError, MInTRLConfig
from mintrl_trl.baselines.ablations import AblationTrainer
from mintrl_trl.config_ablations import SWITCHES, AblationConfig
from mintrl_trl.objective.ablations import (
    ConstBonus,
    Credit,
    IntervenedGRPO,
    const_bonus_loss,
    group_scaled,
    intervened_grpo_loss,
)
from mintrl_trl.objective.advantage import compute_advantages, soft_value
from mintrl_trl.objective.loss import RegressionSettings, regression_loss
from mintrl_trl.recipe import parse_recipe
from tests.trainers import RejectLastStep, assert_same_weights, make_trainer, parity_reward, weights

RECIPES = Path(__file__).parents[1] / "recipes"
NAN = math.nan

# Two rollouts with interventions and one without. At beta2 0.1 and kappa -0.2 the bonuses are 0.31, 0.04 and 0.
LOGPS = [[-0.5, -1.2, -2.0, -0.3], [-1.0, -0.4, 0.0, 0.0], [-1.0, -0.4, -0.7, 0.0]]
OLD_LOGPS = [[-0.6, -1.0, -2.5, -0.3], [-1.0, -0.6, 0.0, 0.0], [-0.9, -0.4, -0.9, 0.0]]
BY_JUDGE = [[0, 1, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
LENGTHS = [4, 2, 3]
ADVANTAGES = [0.75, -0.25, -0.25]
SETTINGS = RegressionSettings(beta2=0.1, kappa=-0.2)


def terms(rows=(0, 1, 2), intervention_logps=None) -> dict:
    rows = list(rows)
    response_mask = torch.arange(4) < torch.tensor(LENGTHS)[rows].unsqueeze(1)
    logps = torch.tensor(LOGPS, dtype=torch.float64)[rows].requires_grad_()
    return {
        "logps": logps,
        "old_logps": torch.tensor(OLD_LOGPS, dtype=torch.float64)[rows],
        "response_mask": response_mask,
        "policy_authored": ~torch.tensor(BY_JUDGE, dtype=torch.bool)[rows],
        "intervention_logps": intervention_logps,
    }


def bonus_loss(bonus, succeeded=(True, False, False), rows=(0, 1, 2), settings=SETTINGS):
    arguments = terms(rows)
    rows = list(rows)
    loss = const_bonus_loss(
        **arguments,
        advantages=torch.tensor(ADVANTAGES, dtype=torch.float64)[rows],
        scored=torch.ones(len(rows), dtype=torch.bool),
        succeeded=torch.tensor(succeeded)[rows],
        bonus=bonus,
        settings=settings,
    )
    loss.loss.backward()
    return loss, arguments["logps"].grad


@pytest.mark.parametrize(
    ("bonus", "given", "residuals"),
    [
        # The policy anchor's residuals are -0.71, 0.27 and 0.26.
        pytest.param(ConstBonus.ROLLOUT, (0.31, 0.04, 0.0), (-1.02, 0.23, 0.26), id="rollout"),
        pytest.param(ConstBonus.SUCCESSES, (0.31, 0.0, 0.0), (-1.02, 0.27, 0.26), id="successes"),
        pytest.param(ConstBonus.EQUAL, (0.175, 0.175, 0.0), (-0.885, 0.095, 0.26), id="equal"),
    ],
)
def test_bonus_of_whole_rollouts_by_hand(bonus, given, residuals):
    loss, gradient = bonus_loss(bonus)
    torch.testing.assert_close(loss.imitation_bonus.tolist(), list(given))
    torch.testing.assert_close(loss.residual.tolist(), list(residuals))
    assert loss.loss.item() == pytest.approx(sum(value**2 for value in residuals) / 3)
    for row, residual in enumerate(residuals):
        wanted = [2 * 0.1 * residual / 3] * LENGTHS[row] + [0.0] * (4 - LENGTHS[row])
        torch.testing.assert_close(gradient[row].tolist(), wanted)


def test_bonus_of_whole_rollouts_is_the_constant_anchor():
    loss, gradient = bonus_loss(ConstBonus.ROLLOUT)
    arguments = terms()
    advantages, scored = torch.tensor(ADVANTAGES, dtype=torch.float64), torch.ones(3, dtype=torch.bool)
    const = regression_loss(**arguments, advantages=advantages, scored=scored, settings=SETTINGS)
    const.loss.backward()
    torch.testing.assert_close(loss.loss, const.loss)
    torch.testing.assert_close(gradient, arguments["logps"].grad)


def test_bonus_of_intervention_tokens_pushes_these_as_the_constant_anchor_and_others_as_the_policy_anchor():
    loss, gradient = bonus_loss(ConstBonus.TOKENS, rows=[0])
    torch.testing.assert_close(gradient.tolist(), [[-0.142, -0.204, -0.204, -0.142]])
    # 0.71^2, and -2 x 0.1 x 0.31 for each of the 0.3 nats that the intervention tokens have gained
    assert loss.loss.item() == pytest.approx(0.5041 - 0.0186)
    assert loss.imitation_bonus.item() == pytest.approx(0.31)


def test_loss_scale_is_a_factor_on_the_bonus_of_tokens():
    scaled = RegressionSettings(beta2=0.1, kappa=-0.2, loss_scale=5.0)
    _, gradient = bonus_loss(ConstBonus.TOKENS, rows=[0], settings=scaled)
    torch.testing.assert_close(gradient.tolist(), [[-0.71, -1.02, -1.02, -0.71]])


@pytest.mark.parametrize(
    ("credit", "weights", "intervention_logps"),
    [
        pytest.param("full", (1, 1, 1, 1), None, id="full"),
        pytest.param("masked", (1, 0, 0, 1), None, id="masked"),
        # e^(-1.0 + 0.9); unknown: e^(-2.5 + 0.2)
        pytest.param("token_weights", (1, 0.904837418, 0.100258844, 1), (NAN, -0.9, NAN, NAN), id="token_weights"),
        pytest.param("token_weights", (1, 2, 0.100258844, 1), (NAN, -4.0, NAN, NAN), id="cap"),
        pytest.param("sequence_weights", (0.090717953,) * 4, (NAN, -0.9, NAN, NAN), id="sequence_weights"),
    ],
)
def test_grpo_on_an_intervened_rollout_by_hand(credit, weights, intervention_logps):
    given = None if intervention_logps is None else torch.tensor([intervention_logps], dtype=torch.float64)
    arguments = terms([0], given)
    loss, found = intervened_grpo_loss(
        **arguments,
        advantages=torch.tensor([0.75], dtype=torch.float64),
        denominator=torch.tensor(4.0, dtype=torch.float64),
        settings=IntervenedGRPO(Credit(credit), 2.0, -0.2, 0.2, 0.2, 3.0),
    )
    loss.backward()
    torch.testing.assert_close(found[0].tolist(), [float(w) for w in weights], rtol=1e-8, atol=0)
    ratios = (math.exp(0.1), math.exp(-0.2), math.exp(0.5), 1.0)  # the third is clipped at 1.2
    terms_by_hand = [-0.75 * min(ratio, 1.2) * weight for ratio, weight in zip(ratios, weights, strict=True)]
    assert loss.item() == pytest.approx(sum(terms_by_hand) / 4, rel=1e-8)
    moved = [0.0 if index == 2 else value / 4 for index, value in enumerate(terms_by_hand)]
    torch.testing.assert_close(arguments["logps"].grad[0].tolist(), moved, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("credit", list(Credit), ids=lambda credit: credit.value)
def test_broken_padding_reaches_neither_loss_nor_gradient(credit):
    def run(fill):
        arguments = terms([0, 1])
        padding = ~arguments["response_mask"]
        arguments["logps"] = arguments["logps"].detach().masked_fill(padding, fill).requires_grad_()
        arguments["old_logps"] = arguments["old_logps"].masked_fill(padding, fill)
        settings = IntervenedGRPO(credit, 2.0, -0.2, 0.2, 0.2, 3.0)
        advantages = torch.tensor([0.75, -0.25], dtype=torch.float64)
        loss, _ = intervened_grpo_loss(
            **arguments, advantages=advantages, denominator=torch.tensor(6.0), settings=settings
        )
        loss.backward()
        return loss.detach(), arguments["logps"].grad

    torch.testing.assert_close(run(NAN), run(0.0))


def test_grpo_is_clipped_twice_where_the_advantage_is_negative():
    logps = torch.tensor([[1.5, 0.3]], dtype=torch.float64, requires_grad=True)  # ratios e^1.5 and e^0.3
    everywhere = torch.ones(1, 2, dtype=torch.bool)
    loss, _ = intervened_grpo_loss(
        logps,
        torch.zeros(1, 2, dtype=torch.float64),
        everywhere,
        everywhere,
        torch.tensor([-1.0], dtype=torch.float64),
        None,
        torch.tensor(1.0),
        IntervenedGRPO(Credit.FULL, 2.0, -0.2, 0.2, 0.2, 3.0),
    )
    assert loss.item() == pytest.approx(3.0 + 1.3498588075760032)


def test_pooled_advantages_over_the_deviation_of_their_group_by_hand():
    rewards = torch.tensor([1.0, 0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 1, 0, 0, 1, 0], dtype=torch.float64)
    is_control = torch.arange(16) < 8
    pooled = compute_advantages(rewards, is_control, 16, baseline="pooled")
    scaled = group_scaled(pooled, rewards, 16).values
    torch.testing.assert_close(scaled[rewards == 1], torch.full((6,), 0.625 / 0.5001, dtype=torch.float64))
    torch.testing.assert_close(scaled[rewards == 0], torch.full((10,), -0.375 / 0.5001, dtype=torch.float64))
    rewards[1] = NAN  # one row of the group fewer: 6 of 15
    unscored = group_scaled(compute_advantages(rewards, is_control, 16, baseline="pooled"), rewards, 16).values
    assert unscored[1] == 0
    assert unscored[0].item() == pytest.approx(0.6 / (math.sqrt(0.24 * 15 / 14) + 1e-4))


@pytest.mark.parametrize(
    ("reward", "loss", "gradient"),
    [(1.0, 0.2726622437016487, -0.0010443414072067597), (0.0, 0.22832083649488916, 0.0009556585927932406)],
)
def test_advantage_regression_with_another_reference_is_our_loss(reward, loss, gradient):
    """A*-PO: the initial policy as reference, the soft value of eight of its samples as baseline."""
    values = torch.tensor([1.0, 0, 0, 1, 0, 0, 0, 0], dtype=torch.float64)
    value = soft_value(values, torch.ones(8, dtype=torch.bool), 0.5)
    logps = torch.tensor([[-0.5, -1.2, -2.0]], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([[-0.7, -1.0, -2.6]], dtype=torch.float64)
    everywhere, scored = torch.ones(1, 3, dtype=torch.bool), torch.ones(1, dtype=torch.bool)
    advantage, proxy = (reward - value).view(1), RegressionSettings(beta2=1e-3, anchor="proxy")
    result = regression_loss(logps, reference, everywhere, everywhere, advantage, scored, None, proxy)
    result.loss.backward()
    assert result.loss.item() == pytest.approx(loss, rel=1e-12)
    assert logps.grad[0].tolist() == pytest.approx([gradient] * 3, rel=1e-9)


@pytest.mark.parametrize(("reward", "ascent"), [(1.0, 0.69), (0.0, -0.31)])
def test_gradient_is_minus_two_tau_times_that_of_mirror_descent(reward, ascent):
    """Kimi k1.5's published ascent direction is r - mean - tau x log-ratio, at tau 0.1 and mean 0.25."""
    logps = torch.tensor([[-0.5, -1.2, -2.0]], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([[-0.7, -1.0, -2.6]], dtype=torch.float64)
    everywhere, scored = torch.ones(1, 3, dtype=torch.bool), torch.ones(1, dtype=torch.bool)
    advantage, settings = torch.tensor([reward - 0.25]), RegressionSettings(beta2=0.1, anchor="proxy")
    regression_loss(logps, reference, everywhere, everywhere, advantage, scored, None, settings).loss.backward()
    assert logps.grad[0].tolist() == pytest.approx([-2 * 0.1 * ascent] * 3)


# Runs


def trained(output_dir, **overrides) -> dict[str, torch.Tensor]:
    ablated = overrides.keys() & set(SWITCHES)
    classes = {"trainer_class": AblationTrainer, "config_class": AblationConfig} if ablated else {}
    trainer = make_trainer(output_dir, **classes, **overrides)
    trainer.train()
    trainer.close()
    return weights(trainer)


def test_grpo_on_rollouts_without_interventions_is_that_of_phase_2(tmp_path):
    alone = {"judge": None, "max_reviews": 0}
    phase_1 = trained(tmp_path / "a", phase1_loss="grpo", baseline="pooled", **alone)
    phase_2 = trained(tmp_path / "b", intervention_updates=0, **alone)
    assert_same_weights(phase_1, phase_2, rtol=1e-5, atol=1e-7)


def test_bonus_withheld_from_failures_is_the_policy_anchor_where_all_fail(tmp_path):
    def failing(**kwargs):
        return [reward - 1.0 for reward in parity_reward(**kwargs)]

    withheld = trained(tmp_path / "a", const_bonus="successes", reward=failing)
    proxy = trained(tmp_path / "b", anchor="proxy", reward=failing)
    assert_same_weights(withheld, proxy, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("credit", "logps", "weight"),
    [
        pytest.param("full", None, 1.0, id="full"),
        pytest.param("masked", None, 0.0, id="masked"),
        pytest.param("token_weights", (-50.0, -50.0), 2.0, id="token_weights at the cap"),
        pytest.param("sequence_weights", (-50.0, -50.0), 2.0, id="sequence_weights at the cap"),
    ],
)
def test_weight_of_intervention_tokens_is_a_metric(credit, logps, weight, tmp_path):
    judge = RejectLastStep(logps=logps)
    trained(tmp_path, phase1_loss="grpo", baseline="pooled", intervention_credit=credit, judge=judge)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["intervention/weight"] for line in lines if "intervention/weight" in line] == [weight, weight]


@pytest.mark.parametrize("bonus", ["tokens", "equal"])
def test_bonus_elsewhere_trains_otherwise(bonus, tmp_path):
    changed = trained(tmp_path / "a", const_bonus=bonus, beta2=0.1)
    const, proxy = (trained(tmp_path / anchor, anchor=anchor, beta2=0.1) for anchor in ("const", "proxy"))
    for other in (const, proxy):
        assert any(not torch.allclose(changed[name], other[name], rtol=1e-3, atol=1e-4) for name in other)


def test_optimizer_is_reset_after_the_updates_that_are_named(tmp_path):
    named = trained(tmp_path / "a", reset_optimizer_at=1, intervention_updates=1)
    at_switch = trained(tmp_path / "b", reset_optimizer_at_switch=True, intervention_updates=1)
    assert_same_weights(named, at_switch)


# Settings


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"phase1_loss": "reinforce"}, "phase1_loss"),
        ({"const_bonus": "none"}, "const_bonus"),
        ({"intervention_credit": "masked"}, "intervention_credit"),
        ({"phase1_loss": "grpo", "importance_cap": 3.0}, "importance_cap"),
        ({"phase1_loss": "grpo", "importance_cap": 0.0}, "importance_cap"),
        ({"const_bonus": "tokens", "anchor": "proxy"}, "const_bonus"),
        ({"const_bonus": "tokens", "phase1_loss": "grpo"}, "const_bonus"),
        ({"phase1_loss": "grpo", "intervention_updates": 0}, "phase1_loss"),
        ({"phase1_loss": "grpo", "loss_type": "dr_grpo"}, "loss_type"),
        ({"const_bonus": "tokens", "dry_run_worst_case": True}, "dry_run_worst_case"),
        ({"reset_optimizer_at": 0}, "reset_optimizer_at"),
        ({"reset_optimizer_at": 3, "updates_per_generation": 2}, "reset_optimizer_at"),
        ({"const_bonus": "tokens", "num_control": 16, "num_intervened": 0}, "const_bonus"),
        ({"const_bonus": "equal", "max_reviews": 0}, "const_bonus"),
        ({"const_bonus": "successes", "judge_variant": "placebo"}, "const_bonus"),
        ({"phase1_loss": "grpo", "intervention_credit": "masked", "max_reviews": 0}, "intervention_credit"),
        ({"reset_optimizer_at": 90, "max_steps": 90}, "reset_optimizer_at"),
    ],
)
def test_switch_that_would_not_act_is_refused(values, field, tmp_path):
    with pytest.raises(ConfigError) as error:
        AblationConfig(str(tmp_path), use_cpu=True, judge="self", save_strategy="no", **values)
    assert error.value.field == field


def test_recipe_is_read_with_switches_only_where_it_names_one(tmp_path):
    flags = [f"--output_dir={tmp_path}"]
    plain = parse_recipe(flags, default=RECIPES / "quickstart.yaml").config
    ablated = parse_recipe([*flags, "--const_bonus=tokens"], default=RECIPES / "quickstart.yaml").config
    assert type(plain) is MInTRLConfig
    assert type(ablated) is AblationConfig
    assert ablated.const_bonus == "tokens"


@pytest.mark.parametrize(
    ("recipe", "flag", "field"),
    [
        ("chains_mentor", "--phase1_loss=grpo", "phase1_loss"),
        ("chains_opd", "--reset_optimizer_at=9", "reset_optimizer_at"),
        ("chains_sft_grpo", "--reset_optimizer_at=9", "reset_optimizer_at"),
    ],
)
def test_methods_that_are_not_taken_apart_refuse_switches(recipe, flag, field, tmp_path):
    with pytest.raises(ConfigError) as error:
        parse_recipe([f"--output_dir={tmp_path}", flag], default=RECIPES / f"{recipe}.yaml")
    assert error.value.field == field
