"""The trainer against TRL's own: the same weights without interventions, and a gradient that is known with them."""

import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig

from tests.tiny import tiny_model, tiny_tokenizer
from tests.trainers import (
    ROWS,
    TRL_SETTINGS,
    AlwaysKeep,
    Recorder,
    Replayed,
    assert_same_weights,
    make_trainer,
    parity_reward,
    weights,
)


def trl_trainer(output_dir, script, reward=parity_reward, rows=ROWS, **overrides):
    args = GRPOConfig(
        str(output_dir),
        **TRL_SETTINGS
        | dict(
            per_device_train_batch_size=8,
            gradient_accumulation_steps=1,
            max_steps=3,
            learning_rate=1e-2,
        )
        | overrides,
    )
    trainer = Replayed(
        model=tiny_model(),
        reward_funcs=reward,
        args=args,
        train_dataset=Dataset.from_list(list(rows)),
        processing_class=tiny_tokenizer(),
    )
    trainer.script = list(script)
    return trainer


def test_without_interventions_three_updates_give_exactly_trls_weights(tmp_path):
    ours = make_trainer(
        tmp_path / "ours",
        trainer_class=Recorder,
        judge=None,
        num_control=4,
        num_intervened=0,
        intervention_updates=0,
        lean_updates=False,
        max_steps=3,
    )
    start = weights(ours)
    ours.train()
    theirs = trl_trainer(tmp_path / "theirs", ours.completions)
    theirs.train()
    assert_same_weights(weights(ours), weights(theirs))
    assert any(not torch.equal(start[name], after) for name, after in weights(ours).items())


def test_the_second_phase_after_a_checkpoint_is_grpo_resumed_there(tmp_path):
    """Metrics and weights of phase 2 equal those of TRL's trainer resumed at the switch."""
    common = dict(
        save_strategy="steps",
        save_steps=1,
        resumable_checkpoints=3,
        max_steps=3,
        intervention_updates=1,
        lean_updates=False,
    )
    ours = make_trainer(tmp_path / "ours", trainer_class=Recorder, **common)
    ours.train()
    theirs = trl_trainer(tmp_path / "theirs", ours.completions[1:], max_steps=3)
    theirs.train(resume_from_checkpoint=str(tmp_path / "ours" / "checkpoint-1"))
    assert_same_weights(weights(ours), weights(theirs))
    shared = ("loss", "grad_norm", "reward", "entropy", "completions/mean_length", "clip_ratio/region_mean")
    for left, right in zip(ours.state.log_history[1:3], theirs.state.log_history[1:3], strict=True):
        assert left["step"] == right["step"]
        assert [left[name] for name in shared] == pytest.approx([right[name] for name in shared], rel=1e-6)


def test_proxy_gradient_is_parallel_to_dr_grpo_with_factor_two_beta2_lmax(tmp_path):
    """Aligned Proxy is REINFORCE with a token sum; TRL's dr_grpo divides it by L_max."""
    beta2, l_max = 1e-3, 16
    ours = make_trainer(
        tmp_path / "ours",
        trainer_class=Recorder,
        anchor="proxy",
        beta2=beta2,
        max_grad_norm=0.0,
        max_steps=1,
        intervention_updates=1,
    )
    ours.train()
    batch = ours.batches[0]

    class OurAdvantages(Replayed):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            return output | {"advantages": batch["advantages"]}

    theirs = trl_trainer(
        tmp_path / "theirs",
        ours.completions,
        max_steps=1,
        loss_type="dr_grpo",
        scale_rewards="none",
        max_grad_norm=0.0,
    )
    theirs.__class__ = OurAdvantages
    theirs.train()
    (left,) = ours.gradients
    ours_flat = torch.cat([left[n].flatten() for n in sorted(left)]).double()
    theirs_flat = torch.cat([theirs.gradients[n].flatten() for n in sorted(left)]).double()
    cosine = torch.dot(ours_flat, theirs_flat) / (ours_flat.norm() * theirs_flat.norm())
    assert cosine.item() == pytest.approx(1.0, abs=1e-9)
    assert (ours_flat.norm() / theirs_flat.norm()).item() == pytest.approx(2 * beta2 * l_max, rel=1e-5)


def test_const_without_any_intervention_is_proxy(tmp_path):
    runs = []
    for anchor in ("const", "proxy"):
        trainer = make_trainer(tmp_path / anchor, judge=AlwaysKeep(), anchor=anchor)
        trainer.train()
        runs.append(weights(trainer))
    assert_same_weights(*runs)


def test_const_with_interventions_is_not_proxy(tmp_path):
    runs = []
    for anchor in ("const", "proxy"):
        trainer = make_trainer(tmp_path / anchor, anchor=anchor, beta2=0.1)
        trainer.train()
        runs.append(weights(trainer))
    assert any(not torch.equal(runs[0][name], runs[1][name]) for name in runs[0])
