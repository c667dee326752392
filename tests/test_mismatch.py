"""Trainer against sampler: the number that catches stale weights, a wrong adapter or a wrong temperature."""

import logging
import math

import pytest
import torch

from mintrl_trl.generation.local import LocalGenerator
from mintrl_trl.objective.mismatch import mismatch_terms
from mintrl_trl.rollouts.doors import SampledToken
from mintrl_trl.rollouts.rollout import Author, Problem, Role, Rollout, RolloutRequest, Span, StopReason
from mintrl_trl.trl_seams import SAMPLED_LOGPS, sampled_logps

from .tiny import tiny_model, tiny_tokenizer
from .trainers import make_trainer


class Shifted:
    """A local generator on a copy of the weights that adds a constant to what it reports, by update."""

    weight_version = "copy"

    def __init__(self, *shifts: float, **options):
        model, tokenizer = tiny_model(), tiny_tokenizer()
        self.inner = LocalGenerator(model, end_ids=[tokenizer.eos_token_id], pad_id=tokenizer.pad_token_id, **options)
        self.shifts, self.update = shifts, 0

    async def stream(self, prefix_ids, max_tokens, seed):
        async for token, logp in self.inner.stream(prefix_ids, max_tokens, seed):
            yield SampledToken(token, logp + self.shifts[self.update])

    def counters(self):
        self.update += 1  # asked once for each batch
        return {}

    def close(self):
        self.inner.close()


def train(folder, generator=None, **overrides):
    """One line of metrics for each update."""
    trainer = make_trainer(folder, generator=generator, **overrides)
    trainer.train()
    trainer.close()
    return [line for line in trainer.state.log_history if "loss" in line]


def test_terms_by_hand():
    trainer = torch.tensor([[0.5, 0.2, 0.9], [0.1, 0.3, 0.4]]).log()
    sampler = torch.tensor([[0.25, 0.4, math.nan], [0.9, 0.3, 0.4]]).log()
    counted = torch.tensor([[True, True, True], [False, True, False]])
    total, number, largest = mismatch_terms(trainer, sampler, counted).tolist()
    assert total == pytest.approx((2 - 1 - math.log(2)) + (0.5 - 1 + math.log(2)))
    assert number == 3
    assert largest == pytest.approx(math.log(2))


def test_without_any_known_token_there_is_nothing():
    unknown = torch.full((2, 3), math.nan)
    assert mismatch_terms(unknown, unknown, torch.ones(2, 3, dtype=torch.bool)).tolist() == [0, 0, 0]


def test_the_kl_is_that_of_the_distributions_on_average():
    generator = torch.Generator().manual_seed(0)
    sampler = torch.tensor([0.5, 0.3, 0.2])
    trainer = torch.tensor([0.4, 0.4, 0.2])
    drawn = torch.multinomial(sampler, 200_000, replacement=True, generator=generator)
    total, number, _ = mismatch_terms(
        trainer.log()[drawn].unsqueeze(0), sampler.log()[drawn].unsqueeze(0), torch.ones(1, 200_000, dtype=torch.bool)
    ).tolist()
    assert total / number == pytest.approx((sampler * (sampler / trainer).log()).sum().item(), rel=0.02)


def test_one_impossible_token_gives_a_finite_number():
    total, number, largest = mismatch_terms(
        torch.tensor([[-0.1, -150.0]]), torch.tensor([[-150.0, -0.1]]), torch.ones(1, 2, dtype=torch.bool)
    ).tolist()
    assert math.isfinite(total) and number == 2 and largest == pytest.approx(149.9)


def test_only_the_policys_known_tokens_are_carried():
    spans = (
        Span((5, 6), Author.POLICY, "v1", (-0.5, -1.0)),
        Span((7,), Author.INTERVENTION, "judge", (-2.0,)),
        Span((8,), Author.POLICY, "v1"),
        Span((9,), Author.POLICY, "v2", (-3.0,)),
    )
    request = RolloutRequest(0, (1,), Problem("?"), Role.INTERVENED, 0)
    logps = sampled_logps([Rollout(request, spans, StopReason.END)], torch.zeros(1, 6, dtype=torch.long))[SAMPLED_LOGPS]
    expected = [-0.5, -1.0, math.nan, math.nan, -3.0, math.nan]
    assert torch.equal(logps.nan_to_num(9), torch.tensor([expected]).nan_to_num(9))


@pytest.mark.parametrize(
    "overrides",
    [
        {"max_steps": 3, "intervention_updates": 2},
        {"max_steps": 2, "updates_per_generation": 2, "per_device_train_batch_size": 4},
        {"max_steps": 2, "intervention_updates": 0, "num_iterations": 2, "temperature": 0.7},
        {"max_steps": 2, "lean_updates": False},
    ],
    ids=["both phases", "several updates of a batch", "several passes, cooled", "TRL's layout"],
)
def test_the_model_in_training_agrees_with_itself(tmp_path, overrides):
    lines = train(tmp_path, **overrides)
    assert len(lines) == overrides["max_steps"]
    for line in lines:
        assert 0 <= line["mismatch/kl"] < 1e-6
        assert line["mismatch/max"] < 1e-3


def test_a_sampler_without_log_probabilities_leaves_no_number(tmp_path):
    (line,) = train(tmp_path, "hash", max_steps=1)
    assert not [name for name in line if name.startswith("mismatch")]


def test_what_is_off_is_measured_and_said_once_for_each_stretch(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="mintrl_trl.update_window"):
        lines = train(tmp_path, Shifted(0.5, 0.5, 0.0, 0.5), max_steps=4, intervention_updates=2, learning_rate=0.0)
    kl = math.exp(-0.5) - 1 + 0.5
    assert [line["mismatch/kl"] for line in lines] == pytest.approx([kl, kl, 0.0, kl], abs=1e-5)
    assert [line["mismatch/max"] for line in lines] == pytest.approx([0.5, 0.5, 0.0, 0.5], abs=1e-4)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert said[0].startswith("Update 1: trainer and sampler disagree on the sampled tokens by a KL of 0.107 nats")
    assert said[1].startswith("Update 4: ")


def test_stale_weights_show(tmp_path):
    """The sampler goes on with the initial weights while the trainer learns."""
    first, second, third = train(tmp_path, Shifted(0, 0, 0), max_steps=3, learning_rate=0.05)
    assert first["mismatch/kl"] < 1e-6
    assert second["mismatch/kl"] > 1e-3
    assert third["mismatch/kl"] > second["mismatch/kl"]


def test_another_temperature_shows(tmp_path):
    (line,) = train(tmp_path, Shifted(0, temperature=0.05), max_steps=1)
    assert line["mismatch/kl"] > 0.02


def test_without_a_limit_nothing_is_said(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="mintrl_trl.update_window"):
        (line,) = train(tmp_path, Shifted(1.0), max_steps=1, mismatch_limit=None)
    assert line["mismatch/kl"] > 0.1 and not caplog.records
