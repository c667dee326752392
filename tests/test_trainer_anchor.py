"""What the loss compares the policy with: the trainer's own log-probabilities, at the sampling temperature."""

import pytest
import torch

from mintrl_trl import MInTRLTrainer, trl_seams
from mintrl_trl.objective.loss import regression_loss
from mintrl_trl.rollouts.doors import SampledToken
from tests.tiny import tiny_model
from tests.trainers import AlwaysKeep, HashGenerator, RejectLastStep, make_trainer


class Keeper(MInTRLTrainer):
    """Keeps rollouts, batches, and for each micro-batch its inputs and what the policy gives them before its step."""

    def __init__(self, *args, **kwargs):
        self.rollouts, self.batches, self.steps = [], [], []
        super().__init__(*args, **kwargs)

    def _sample(self, requests, **kwargs):
        rollouts = super()._sample(requests, **kwargs)
        self.rollouts += rollouts
        return rollouts

    def _generate_and_score_completions(self, inputs):
        self.batches.append(super()._generate_and_score_completions(inputs))
        return self.batches[-1]

    def compute_loss(self, model, inputs, *args, **kwargs):
        with torch.no_grad():
            self.steps.append((inputs, trl_seams.forward(self, model, inputs).logps))
        return super().compute_loss(model, inputs, *args, **kwargs)


def sharp_model():
    """A policy far from uniform, so that a temperature changes every log-probability."""
    model = tiny_model()
    with torch.no_grad():
        model.model.embed_tokens.weight *= 5
    return model


@pytest.fixture(scope="module")
def cooled(tmp_path_factory):
    """Two updates on one generated batch at temperature 0.6, sampled by the model in training."""
    trainer = make_trainer(
        tmp_path_factory.mktemp("cooled"),
        trainer_class=Keeper,
        model=sharp_model(),
        generator=None,
        judge=AlwaysKeep(),
        reward=lambda completions, completion_ids, **kwargs: [float(sum(ids) % 2) for ids in completion_ids],
        temperature=0.6,
        updates_per_generation=2,
    )
    trainer.train()
    yield trainer
    trainer.close()


def test_the_ratio_is_one_before_the_first_update_whatever_the_temperature(cooled):
    assert len(cooled.batches) == 1 and len(cooled.steps) == 2
    (first, before), (second, after) = cooled.steps
    mask = first["completion_mask"].bool()
    ratio = (before - first["old_per_token_logps"]).exp()[mask]
    torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=1e-6)
    moved = (after - second["old_per_token_logps"])[second["completion_mask"].bool()]
    assert moved.abs().max() > 1e-3, "the second update sees a policy that has moved"


def test_the_generator_samples_from_the_distribution_that_the_trainer_scores(cooled):
    """Log-probabilities of sampling and of training agree at temperature 0.6, and differ from those at 1."""
    assert all(
        len(rollout.spans) == 1 and len(rollout.spans[0].logps) == len(rollout.ids) for rollout in cooled.rollouts
    )
    sampled = {(rollout.request.prompt_ids, rollout.ids): rollout.spans[0].logps for rollout in cooled.rollouts}
    seen = 0
    for inputs, _ in cooled.steps:
        for row, length in enumerate(inputs["completion_mask"].sum(1).tolist()):
            prompt = inputs["prompt_ids"][row][inputs["prompt_mask"][row].bool()]
            response = inputs["completion_ids"][row, :length]
            drawn = torch.tensor(sampled[tuple(prompt.tolist()), tuple(response.tolist())])
            torch.testing.assert_close(inputs["old_per_token_logps"][row, :length], drawn, rtol=0, atol=1e-5)
            with torch.no_grad():
                logits = sharp_model()(torch.cat([prompt, response])[None]).logits[0, len(prompt) - 1 : -1]
            for temperature, agrees in ((0.6, True), (1.0, False)):
                other = (logits / temperature).log_softmax(-1).gather(-1, response[:, None])[:, 0]
                assert torch.allclose(other, drawn, rtol=0, atol=1e-4) == agrees
            seen += 1
    assert seen == len(cooled.rollouts) == 16


class WrongLogps(HashGenerator):
    """A generator whose log-probabilities belong to nothing."""

    async def stream(self, prefix_ids, max_tokens, seed):
        async for token in super().stream(prefix_ids, max_tokens, seed):
            yield SampledToken(token.id, -0.001)


def test_log_probabilities_of_the_generator_never_reach_the_loss(tmp_path):
    """In both phases: without them, there is nothing an importance correction could be made of."""
    trainer = make_trainer(
        tmp_path, trainer_class=Keeper, generator=WrongLogps(), updates_per_generation=2, max_steps=4
    )
    trainer.train()
    assert [trl_seams.is_regression_batch(batch) for batch in trainer.batches] == [True, False]
    for batch in trainer.batches:
        assert not {"sampling_per_token_logps", "importance_sampling_ratio"} & batch.keys()
        assert not (batch["old_per_token_logps"] == -0.001).any()


def test_a_long_intervention_keeps_its_whole_gradient(tmp_path):
    """An importance factor, exp(64 x (policy - judge)), would remove the row; here it weighs as much as any other."""
    trainer = make_trainer(
        tmp_path,
        trainer_class=Keeper,
        anchor="judge",
        judge=RejectLastStep((45,) * 64, logps=(-0.2,) * 64),
        correction_tokens=64,
        max_completion_length=80,
        max_reviews=1,
        max_steps=1,
    )
    trainer.train()
    ((inputs, logps),) = trainer.steps
    foreign = ~inputs[trl_seams.POLICY_AUTHORED]
    assert foreign.sum(1).unique().tolist() == [0, 64]
    assert ((logps + 0.2) * foreign).sum(1).min() < -64 * 2.8, "the factor would be below exp(-179)"
    logps.requires_grad_()
    regression = regression_loss(
        logps=logps,
        old_logps=None,
        response_mask=inputs["completion_mask"].bool(),
        policy_authored=inputs[trl_seams.POLICY_AUTHORED],
        advantages=torch.ones(8),
        scored=inputs[trl_seams.SCORED],
        intervention_logps=inputs[trl_seams.INTERVENTION_LOGPS],
        settings=trainer.regression,
    )
    regression.loss.backward()
    assert regression.imitation_bonus.min() == 0 and regression.imitation_bonus.max() > 0.1
    for row, length in enumerate(inputs["completion_mask"].sum(1).tolist()):
        token = -2 * trainer.regression.beta2 * (1 + regression.imitation_bonus[row]) / 8
        torch.testing.assert_close(logps.grad[row, :length], token.expand(length))


def test_a_bfloat16_model_gives_float32_log_probabilities(tmp_path):
    trainer = make_trainer(tmp_path, trainer_class=Keeper, model=tiny_model().to(torch.bfloat16), max_steps=1)
    trainer.train()
    ((inputs, logps),) = trainer.steps
    assert next(trainer.model.parameters()).dtype == torch.bfloat16
    assert logps.dtype == torch.float32
    distinct = logps[inputs["completion_mask"].bool()]
    assert (distinct != distinct.to(torch.bfloat16).float()).any(), "not rounded to bfloat16 on the way"
