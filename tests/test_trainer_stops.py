"""Runs that stop midway: what an interrupt or a broken number leaves behind, and that the same trainer can go on."""

import pytest
import torch

from mintrl_trl import MInTRLTrainer, NumericsError
from tests.trainers import assert_same_weights, make_trainer, weights

CHECKPOINTS = {"save_strategy": "steps", "save_steps": 1}


class InterruptedOnce(MInTRLTrainer):
    """A keyboard interrupt at the third of the four micro-batches of update 3."""

    micro_batches = 0

    def compute_loss(self, *args, **kwargs):
        self.micro_batches += 1
        if self.micro_batches == 11:
            raise KeyboardInterrupt
        return super().compute_loss(*args, **kwargs)


def test_a_run_interrupted_within_an_update_resumes_in_the_same_trainer(tmp_path):
    """P10: rows that were made for the interrupted update are not trained on, and batches start with updates."""
    common = {"per_device_train_batch_size": 2, "max_steps": 4, "intervention_updates": 3} | CHECKPOINTS
    whole = make_trainer(tmp_path / "whole", **common)
    whole.train()
    trainer = make_trainer(tmp_path / "interrupted", trainer_class=InterruptedOnce, **common)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer.train(resume_from_checkpoint=str(tmp_path / "interrupted" / "checkpoint-2"))
    assert_same_weights(weights(whole), weights(trainer))
    for ours, theirs in zip(trainer.state.log_history[2:4], whole.state.log_history[2:4], strict=True):
        names = ("loss", "rewards/control", "log_ratio", "lengths/control")
        assert [ours.get(name) for name in names] == [theirs.get(name) for name in names]


def test_an_interrupt_while_rollouts_are_started_leaves_none_running(tmp_path):
    trainer = make_trainer(tmp_path, generator=None, max_steps=1)
    start = trainer.sampler.start

    def interrupted(requests):
        start(requests)
        raise KeyboardInterrupt

    trainer.sampler.start = interrupted
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert trainer.policy.generator.idle
    trainer.sampler.start = start
    trainer.train()
    assert trainer.state.global_step == 1
    trainer.close()


@pytest.mark.parametrize("intervention_updates", [0, 1])
def test_a_loss_that_is_not_a_number_stops_either_phase(tmp_path, intervention_updates):
    class Broken(MInTRLTrainer):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            return output | {"advantages": output["advantages"].fill_(torch.nan)}

    trainer = make_trainer(
        tmp_path, trainer_class=Broken, max_steps=1, intervention_updates=intervention_updates, unscored_limit=1.0
    )
    before = weights(trainer)
    with pytest.raises(NumericsError, match="update 1 is nan; no weight was changed"):
        trainer.train()
    assert_same_weights(before, weights(trainer))
    assert not list(tmp_path.glob("weights-before-*")), "save_strategy is no"


def test_the_weights_of_a_broken_update_that_cannot_be_saved_do_not_hide_it(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=2, save_strategy="steps", save_steps=2)
    with torch.no_grad():
        trainer.model.lm_head.weight.fill_(torch.nan)

    def full(*args, **kwargs):
        raise OSError("No space left on device")

    trainer.save_model = full
    with pytest.raises(NumericsError) as caught:
        trainer.train()
    assert caught.value.__notes__ == ["Saving the weights before it failed, too: OSError: No space left on device"]
