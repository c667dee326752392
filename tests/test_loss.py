"""The regression loss: worked numbers, limits, symmetries, gradients, and what must never reach it."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mintrl_trl.errors import ConfigError
from mintrl_trl.objective.loss import Anchor, RegressionSettings, regression_loss

NAN = math.nan
LOGPS = [-0.5, -1.2, -2.0, -0.3]
OLD_LOGPS = [-0.6, -1.0, -2.5, -0.3]
POLICY_AUTHORED = [True, False, False, True]

# beta2, anchor, kappa, log-ratio, residual, loss, gradient of each of the four log-probabilities
WORKED = [
    pytest.param(1e-3, "proxy", -0.2, 0.4, -0.7496, 0.56190016, -0.0014992, id="proxy-1e-3"),
    pytest.param(1e-3, "const", -0.2, -2.7, -0.7527, 0.56655729, -0.0015054, id="const-0.2-1e-3"),
    pytest.param(1e-3, "const", -0.1, -2.9, -0.7529, 0.56685841, -0.0015058, id="const-0.1-1e-3"),
    pytest.param(0.1, "proxy", -0.2, 0.4, -0.71, 0.5041, -0.142, id="proxy-0.1"),
    pytest.param(0.1, "const", -0.2, -2.7, -1.02, 1.0404, -0.204, id="const-0.2-0.1"),
    pytest.param(0.1, "const", -0.1, -2.9, -1.04, 1.0816, -0.208, id="const-0.1-0.1"),
]


def batch(rows, *, pad=0.0, extra_columns=0, dtype=torch.float64):
    """Tensors of `rows` = (logps, old_logps or None, policy_authored, advantage), padded on the right."""
    width = max(len(row[0]) for row in rows) + extra_columns

    def padded(values, fill):
        return list(values) + [fill] * (width - len(values))

    aligned = rows[0][1] is None
    return {
        "logps": torch.tensor([padded(row[0], pad) for row in rows], dtype=dtype, requires_grad=True),
        "old_logps": None if aligned else torch.tensor([padded(row[1], pad) for row in rows], dtype=dtype),
        "response_mask": torch.tensor([padded([True] * len(row[0]), False) for row in rows]),
        "policy_authored": torch.tensor([padded(row[2], True) for row in rows]),
        "advantages": torch.tensor([row[3] for row in rows], dtype=dtype),
        "scored": torch.ones(len(rows), dtype=torch.bool),
        "intervention_logps": None,
    }


def run(arguments, **settings):
    result = regression_loss(**arguments, settings=RegressionSettings(**settings))
    arguments["logps"].grad = None
    result.loss.backward()
    return result, arguments["logps"].grad


ROW = (LOGPS, OLD_LOGPS, POLICY_AUTHORED, 0.75)
CONTROL_ROW = ([-1.0, -0.4, -0.7], [-0.9, -0.4, -0.9], [True] * 3, -0.25)


@pytest.mark.parametrize(("beta2", "anchor", "kappa", "log_ratio", "residual", "loss", "gradient"), WORKED)
def test_one_sequence_by_hand(beta2, anchor, kappa, log_ratio, residual, loss, gradient):
    result, grad = run(batch([ROW]), beta2=beta2, anchor=anchor, kappa=kappa)
    assert result.log_ratio.item() == pytest.approx(log_ratio, rel=1e-9)
    assert result.residual.item() == pytest.approx(residual, rel=1e-9)
    assert result.loss.item() == pytest.approx(loss, rel=1e-9)
    assert result.per_sequence.item() == pytest.approx(loss, rel=1e-9)
    assert grad.flatten().tolist() == pytest.approx([gradient] * 4, rel=1e-9)


@pytest.mark.parametrize(
    ("anchor", "advantage", "loss", "gradient"),
    [
        ("proxy", 0.75, 0.5625, -0.0015),
        ("proxy", -0.25, 0.0625, 0.0005),
        ("const", 0.75, 0.56715961, -0.0015062),
        ("const", -0.25, 0.06095961, 0.0004938),
    ],
)
def test_one_optimizer_step_per_batch_by_hand(anchor, advantage, loss, gradient):
    row = (OLD_LOGPS, None, POLICY_AUTHORED, advantage)
    for arguments in (batch([row]), batch([(OLD_LOGPS, OLD_LOGPS, POLICY_AUTHORED, advantage)])):
        result, grad = run(arguments, anchor=anchor)
        assert result.loss.item() == pytest.approx(loss, rel=1e-9)
        assert grad.flatten().tolist() == pytest.approx([gradient] * 4, rel=1e-9)
        assert result.log_ratio.item() == pytest.approx(0.0 if anchor == "proxy" else -3.1, rel=1e-9)


@pytest.mark.parametrize(
    ("anchor", "loss", "first", "second"), [("proxy", 0.28585, -0.071, 0.026), ("const", 0.554, -0.102, 0.026)]
)
@pytest.mark.parametrize("pad", [0.0, NAN, -math.inf, 3.0e38])
@pytest.mark.parametrize("extra_columns", [0, 5])
def test_batch_of_two_by_hand_whatever_the_padding(anchor, loss, first, second, pad, extra_columns):
    result, grad = run(batch([ROW, CONTROL_ROW], pad=pad, extra_columns=extra_columns), beta2=0.1, anchor=anchor)
    assert result.loss.item() == pytest.approx(loss, rel=1e-9)
    assert grad[0, :4].tolist() == pytest.approx([first] * 4, rel=1e-9)
    assert grad[1, :3].tolist() == pytest.approx([second] * 3, rel=1e-9)
    assert grad[0, 4:].eq(0).all()
    assert grad[1, 3:].eq(0).all()


@pytest.mark.parametrize("anchor", ["proxy", "const"])
def test_two_micro_batches_average_to_the_batch(anchor):
    whole, whole_grad = run(batch([ROW, CONTROL_ROW]), beta2=0.1, anchor=anchor)
    parts = [run(batch([row], extra_columns=4 - len(row[0])), beta2=0.1, anchor=anchor) for row in (ROW, CONTROL_ROW)]
    assert sum(part.loss.item() for part, _ in parts) / 2 == pytest.approx(whole.loss.item(), rel=1e-12)
    assert torch.allclose(torch.cat([grad for _, grad in parts]) / 2, whole_grad, rtol=1e-12, atol=0)


log_probabilities = st.lists(st.floats(-8.0, -0.01), min_size=6, max_size=6)
masks = st.lists(st.booleans(), min_size=6, max_size=6)


@given(logps=log_probabilities, old=log_probabilities, advantage=st.floats(-1, 1), kappa=st.floats(-3, -0.01))
def test_const_without_intervention_is_proxy(logps, old, advantage, kappa):
    row = (logps, old, [True] * 6, advantage)
    const, const_grad = run(batch([row]), anchor="const", kappa=kappa)
    proxy, proxy_grad = run(batch([row]), anchor="proxy")
    assert const.loss.item() == proxy.loss.item()
    assert torch.equal(const_grad, proxy_grad)
    assert const.imitation_bonus.item() == 0.0


@given(logps=log_probabilities, value=st.floats(-3, -0.01), authored=masks, advantage=st.floats(-1, 1))
def test_kappa_at_the_old_logp_of_each_token_is_proxy(logps, value, authored, advantage):
    old = [0.5 * logp if policy else value for logp, policy in zip(logps, authored, strict=True)]
    const, const_grad = run(batch([(logps, old, authored, advantage)]), anchor="const", kappa=value)
    proxy, proxy_grad = run(batch([(logps, old, authored, advantage)]), anchor="proxy")
    assert const.loss.item() == proxy.loss.item()
    assert torch.equal(const_grad, proxy_grad)


@given(logps=log_probabilities, old=log_probabilities, authored=masks, advantage=st.floats(-1, 1))
def test_judge_anchor_at_the_old_logps_is_proxy(logps, old, authored, advantage):
    arguments = batch([(logps, old, authored, advantage)])
    proxy, proxy_grad = run(arguments, anchor="proxy")
    judge, judge_grad = run(arguments | {"intervention_logps": arguments["old_logps"]}, anchor="judge")
    assert judge.loss.item() == proxy.loss.item()
    assert torch.equal(judge_grad, proxy_grad)


@given(order=st.permutations(range(4)), anchor=st.sampled_from(["const", "proxy", "judge"]))
def test_rows_may_come_in_any_order(order, anchor):
    generator = torch.Generator().manual_seed(3)
    arguments = {
        "logps": -torch.rand(4, 6, generator=generator, dtype=torch.float64),
        "old_logps": -torch.rand(4, 6, generator=generator, dtype=torch.float64),
        "response_mask": torch.arange(6) < torch.tensor([[6], [3], [0], [5]]),
        "policy_authored": torch.rand(4, 6, generator=generator) < 0.6,
        "advantages": torch.tensor([1.0, -0.5, 0.25, 0.0], dtype=torch.float64),
        "scored": torch.tensor([True, True, True, False]),
        "intervention_logps": -torch.rand(4, 6, generator=generator, dtype=torch.float64),
    }
    plain, plain_grad = run(arguments | {"logps": arguments["logps"].clone().requires_grad_()}, anchor=anchor)
    moved = {name: tensor[list(order)] for name, tensor in arguments.items()}
    other, other_grad = run(moved | {"logps": moved["logps"].requires_grad_()}, anchor=anchor)
    assert other.loss.item() == pytest.approx(plain.loss.item(), rel=1e-12)
    assert torch.equal(other_grad, plain_grad[list(order)])
    for name in ("per_sequence", "log_ratio", "residual", "imitation_bonus"):
        assert torch.equal(getattr(other, name), getattr(plain, name)[list(order)])


def test_judge_anchor_falls_back_to_kappa_where_unknown():
    arguments = batch([ROW])
    known = torch.tensor([[NAN, -0.4, NAN, NAN]], dtype=torch.float64)
    result, _ = run(arguments | {"intervention_logps": known}, anchor="judge", kappa=-0.2)
    # 0.1 + (-1.2 + 0.4) + (-2.0 + 0.2) + 0.0
    assert result.log_ratio.item() == pytest.approx(-2.5, rel=1e-9)
    unknown, _ = run(arguments, anchor="judge", kappa=-0.2)
    const, _ = run(arguments, anchor="const", kappa=-0.2)
    assert unknown.loss.item() == const.loss.item()
    infinite, _ = run(arguments | {"intervention_logps": torch.full_like(known, -math.inf)}, anchor="judge")
    assert infinite.loss.item() == const.loss.item()


def test_judge_logps_on_policy_tokens_are_ignored():
    everywhere = torch.full((1, 4), -0.4, dtype=torch.float64)
    result, _ = run(batch([ROW]) | {"intervention_logps": everywhere}, anchor="judge")
    assert result.log_ratio.item() == pytest.approx(0.1 - 0.8 - 1.6 + 0.0, rel=1e-9)


@pytest.mark.parametrize("anchor", list(Anchor))
def test_gradient_reaches_intervention_tokens(anchor):
    _, grad = run(batch([ROW]), anchor=anchor)
    assert (grad < 0).all()  # a success pushes every token up, whoever wrote it


def test_intervention_tokens_count_towards_the_log_ratio():
    # Four judge tokens of -3.0 against kappa -0.2: 4 x -2.8.
    row = ([-1.0, -3.0, -3.0, -3.0, -3.0], [-1.0] + [-3.0] * 4, [True] + [False] * 4, 0.0)
    result, grad = run(batch([row]), kappa=-0.2)
    assert result.log_ratio.item() == pytest.approx(-11.2, rel=1e-9)
    assert grad[0, 1:].abs().min() > 0


@pytest.mark.parametrize(
    ("tokens", "logp", "bonus"), [(128, -1.5, 0.1664), (256, -2.0, 0.4608), (64, -0.2, 0.0), (64, -0.1, -0.0064)]
)
def test_imitation_bonus_is_added_to_the_advantage(tokens, logp, bonus):
    row = ([-0.7] * 10 + [logp] * tokens, None, [True] * 10 + [False] * tokens, -0.25)
    result, grad = run(batch([row]), kappa=-0.2)
    assert result.imitation_bonus.item() == pytest.approx(bonus, abs=1e-12)
    assert -result.residual.item() == pytest.approx(-0.25 + bonus, abs=1e-12)
    # The whole row moves with the effective advantage: a failure can be reinforced.
    assert grad.flatten().tolist() == pytest.approx([-2e-3 * (-0.25 + bonus)] * (10 + tokens), rel=1e-9)


def test_imitation_bonus_of_the_proxy_is_zero_in_the_aligned_case():
    result, _ = run(batch([(LOGPS, None, POLICY_AUTHORED, 0.75)]), anchor="proxy")
    assert result.imitation_bonus.item() == 0.0


def test_proxy_in_the_aligned_case_is_reinforce_with_the_token_sum():
    advantages = [1.0, -0.5, 0.25]
    logps = (-torch.rand(3, 5, dtype=torch.float64)).tolist()
    _, grad = run(
        batch([(row, None, [True] * 5, advantage) for row, advantage in zip(logps, advantages, strict=True)]),
        beta2=0.01,
        anchor="proxy",
    )
    assert grad.tolist() == [pytest.approx([-0.02 * advantage / 3] * 5, rel=1e-9) for advantage in advantages]


def test_unscored_rows_add_nothing_and_stay_in_the_denominator():
    arguments = batch([ROW, CONTROL_ROW])
    arguments["scored"] = torch.tensor([True, False])
    arguments["advantages"] = torch.tensor([0.75, NAN], dtype=torch.float64)
    with torch.no_grad():
        arguments["logps"][1] = NAN
    arguments["old_logps"][1] = math.inf
    result, grad = run(arguments, beta2=0.1, anchor="const")
    assert result.loss.item() == pytest.approx(1.0404 / 2, rel=1e-9)
    assert grad[1].eq(0).all()
    for name in ("per_sequence", "log_ratio", "residual", "imitation_bonus"):
        assert getattr(result, name)[1].item() == 0.0


@pytest.mark.parametrize("aligned", [True, False], ids=["aligned", "stored"])
def test_differentiable_with_nothing_to_learn_from(aligned):
    arguments = batch([(LOGPS, None if aligned else OLD_LOGPS, POLICY_AUTHORED, 0.75)] * 2)
    empty, grad = run(arguments | {"response_mask": torch.zeros(2, 4, dtype=torch.bool)})
    assert empty.loss.item() == pytest.approx(0.5625)
    assert grad.eq(0).all()
    none, grad = run(arguments | {"scored": torch.zeros(2, dtype=torch.bool)})
    assert none.loss.item() == 0.0
    assert grad.eq(0).all()


def test_broken_logits_are_not_hidden():
    arguments = batch([ROW, CONTROL_ROW])
    with torch.no_grad():
        arguments["logps"][0, 2] = NAN
    result, _ = run(arguments)
    assert math.isnan(result.loss.item())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_cast_before_the_difference(dtype):
    # 16,384 tokens: summed in bfloat16 these would be -5152 or worse, and a shift of 2^-9 a token would vanish.
    logps = torch.full((1, 16384), -0.3125, dtype=dtype, requires_grad=True)
    old = torch.full((1, 16384), -0.3125 - 2**-9, dtype=dtype)
    everything = torch.ones(1, 16384, dtype=torch.bool)
    result = regression_loss(
        logps, old, everything, everything, torch.zeros(1), torch.tensor([True]), None, RegressionSettings()
    )
    assert result.log_ratio.dtype == torch.float32
    assert result.log_ratio.item() == 32.0
    result.loss.backward()
    assert logps.grad.dtype == dtype
    assert logps.grad.abs().min() > 0


def test_a_small_shift_of_long_float32_rows_survives():
    logps = torch.full((1, 16384), -0.3137)
    old = torch.full((1, 16384), -0.3138)
    everything = torch.ones(1, 16384, dtype=torch.bool)
    result = regression_loss(
        logps, old, everything, everything, torch.zeros(1), torch.tensor([True]), None, RegressionSettings()
    )
    assert result.log_ratio.item() == pytest.approx(1.6384, rel=1e-3)


def test_long_rows_are_summed_in_float32():
    # In bfloat16 the sum would be -5152.
    everything = torch.ones(1, 16384, dtype=torch.bool)
    logps = torch.full((1, 16384), -0.3137)
    result = regression_loss(
        logps,
        torch.zeros_like(logps),
        everything,
        everything,
        torch.zeros(1),
        torch.tensor([True]),
        None,
        RegressionSettings(),
    )
    assert result.log_ratio.item() == pytest.approx(-5139.66, abs=0.01)


def test_loss_scale_is_a_factor():
    plain, plain_grad = run(batch([ROW, CONTROL_ROW]), beta2=1e-3)
    scaled, scaled_grad = run(batch([ROW, CONTROL_ROW]), beta2=1e-3, loss_scale=125.0)
    assert scaled.loss.item() == pytest.approx(125 * plain.loss.item(), rel=1e-12)
    assert torch.allclose(scaled_grad, 125 * plain_grad, rtol=1e-12, atol=0)
    assert torch.equal(scaled.residual, plain.residual)


def test_only_the_loss_carries_a_gradient():
    arguments = batch([ROW])
    arguments["old_logps"].requires_grad_()
    arguments["advantages"].requires_grad_()
    result, _ = run(arguments, anchor="judge")
    assert arguments["old_logps"].grad is None
    assert arguments["advantages"].grad is None
    for name in ("per_sequence", "log_ratio", "residual", "imitation_bonus"):
        assert not getattr(result, name).requires_grad


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("beta2", 0.0),
        ("beta2", NAN),
        ("kappa", 0.0),
        ("kappa", 0.2),
        ("kappa", -math.inf),
        ("anchor", "teacher"),
        ("loss_scale", 0.0),
        ("loss_scale", math.inf),
    ],
)
def test_refuses_settings(setting, value):
    with pytest.raises(ConfigError, match=setting):
        RegressionSettings(**{setting: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("old_logps", torch.zeros(1, 5)),
        ("response_mask", torch.ones(1, 4)),
        ("policy_authored", torch.ones(1, 5, dtype=torch.bool)),
        ("policy_authored", torch.ones(1, 4, dtype=torch.long)),
        ("advantages", torch.zeros(2)),
        ("scored", torch.ones(1)),
        ("intervention_logps", torch.zeros(4)),
        ("logps", torch.zeros(4)),
    ],
)
def test_refuses_tensors_that_do_not_fit(name, value):
    with pytest.raises(ValueError, match=name):
        regression_loss(**batch([ROW]) | {name: value}, settings=RegressionSettings())
