"""What travels through the trainer's batches, its models and seeds, and what the run folder says."""

import json
import math
from pathlib import Path

import pytest
import torch
from peft import LoraConfig

from mintrl_trl import FailureLimitError, JudgeError, NumericsError, trl_seams
from mintrl_trl.objective.loss import regression_loss
from tests.histories import read_lines
from tests.tiny import double_precision, tiny_model
from tests.trainers import (
    AlwaysKeep,
    HashGenerator,
    Recorder,
    RejectLastStep,
    assert_same_weights,
    make_trainer,
    settings,
    weights,
)

# What travels with a batch


def test_masks_follow_their_rows_through_the_shuffle(tmp_path):
    """Every correction token 5, 6 at a cut is marked, and nothing else is, after TRL permuted the rows."""
    trainer = make_trainer(tmp_path, trainer_class=Recorder, judge=RejectLastStep((45, 45)), max_steps=1)
    trainer.policy.generator.size = 45  # the policy never samples id 45, so it marks the judge's tokens
    trainer.train()
    (inputs,) = trainer.micro_batches
    foreign = inputs["completion_ids"] == 45
    assert torch.equal(~inputs[trl_seams.POLICY_AUTHORED], foreign)
    assert foreign.any(dim=1).sum() == 4
    assert torch.equal(foreign.any(dim=1), ~inputs[trl_seams.IS_CONTROL])
    assert not torch.equal(inputs["completion_ids"], trainer.batches[0]["completion_ids"])


def test_correction_tokens_are_trained_on(tmp_path):
    """Authorship never removes a token from the loss."""
    trainer = make_trainer(tmp_path, trainer_class=Recorder, max_steps=1)
    trainer.train()
    (inputs,) = trainer.micro_batches
    assert (inputs["completion_mask"].bool() & ~inputs[trl_seams.POLICY_AUTHORED]).any()
    assert "tool_mask" not in inputs
    foreign = ~inputs[trl_seams.POLICY_AUTHORED]
    assert (inputs["completion_mask"].bool() | ~foreign).all()


def test_advantages_use_the_controls_alone_and_reach_the_table(tmp_path):
    """The baseline is the controls' mean, whatever the intervened rollouts earn."""

    def reward(completions, **kwargs):  # groups of 4: controls 0, 0, intervened 1, 1
        return [0.0, 0.0, 1.0, 1.0] * 2

    trainer = make_trainer(tmp_path, trainer_class=Recorder, reward=reward, max_steps=1)
    trainer.train()
    assert trainer.batches[0]["advantages"].tolist() == [0.0, 0.0, 1.0, 1.0] * 2
    assert list(trainer._logs["advantages"]) == [0.0, 0.0, 1.0, 1.0] * 2


def test_rows_without_reward_leave_loss_and_baseline(tmp_path):
    rewards = [1.0, None, 1.0, 0.0, None, None, 1.0, 1.0]  # second group: no control has a reward
    trainer = make_trainer(
        tmp_path,
        trainer_class=Recorder,
        reward=lambda completions, **kwargs: list(rewards),
        max_steps=1,
        unscored_limit=0.5,
    )
    trainer.train()
    assert trainer.batches[0]["advantages"].tolist() == [0.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.0, 0.0]
    assert trainer.batches[0][trl_seams.SCORED].tolist() == [True, False, True, True, False, False, False, False]
    recorded = [record["advantage"] for record in read_lines(tmp_path / "rollouts.jsonl")]
    assert recorded == [0.0, None, 0.0, -1.0, None, None, None, None]


def test_reasons_of_all_reward_functions_are_recorded(tmp_path):
    def because(word):
        def reward(completions, log_extra, **kwargs):
            log_extra("why", [f"{word} {row}" for row in range(len(completions))])
            return [1.0] * len(completions)

        return reward

    def silent_at_times(completions, log_extra, **kwargs):
        log_extra("why", [None] * len(completions))
        return [None] * len(completions)

    make_trainer(tmp_path, reward=[because("right"), silent_at_times, because("neat")], max_steps=1).train()
    reasons = [record["reward_why"] for record in read_lines(tmp_path / "rollouts.jsonl")]
    assert reasons == [f"right {row}; neat {row}" for row in range(8)]


def test_too_many_rows_without_reward_stop_the_run(tmp_path):
    trainer = make_trainer(tmp_path, reward=lambda completions, **kwargs: [None] * 3 + [1.0] * 5)
    with pytest.raises(FailureLimitError, match=r"38% .*unscored_limit.* 20%"):
        trainer.train()


def test_a_loss_that_is_not_a_number_stops_the_run_before_the_step(tmp_path):
    model = tiny_model()
    trainer = make_trainer(tmp_path, model=model, max_steps=1)
    with torch.no_grad():
        model.model.norm.weight[0] = torch.nan
    before = weights(trainer)
    with pytest.raises(NumericsError, match="update 1 is nan; no weight was changed"):
        trainer.train()
    for name, value in weights(trainer).items():
        torch.testing.assert_close(value, before[name], equal_nan=True, rtol=0, atol=0)


def test_a_judge_that_cannot_answer_stops_the_run_before_any_rollout(tmp_path):
    class Unreachable(RejectLastStep):
        async def probe(self):
            raise JudgeError("no such model")

    generator = HashGenerator()
    trainer = make_trainer(tmp_path, judge=Unreachable(), generator=generator)
    with pytest.raises(JudgeError, match="no such model"):
        trainer.train()
    assert generator.requests == []


def test_the_judges_counters_become_metrics_of_each_update(tmp_path):
    class Counting(RejectLastStep):
        def counters(self):
            return {"judge/review/calls": float(len(self.problems))}

    trainer = make_trainer(tmp_path, judge=Counting())
    trainer.train()
    lines = read_lines(tmp_path / "metrics.jsonl")
    calls = [line["judge/review/calls"] for line in lines if "judge/review/calls" in line]
    assert sum(calls) == len(trainer.judge.problems) > 0
    assert len(calls) == 2


@double_precision()
def test_micro_batches_add_up_to_the_whole_batch(tmp_path):
    """Accumulating over micro-batches changes nothing."""
    runs = []
    for size in (8, 2):
        trainer = make_trainer(tmp_path / str(size), model=tiny_model().double(), per_device_train_batch_size=size)
        trainer.train()
        runs.append(weights(trainer))
    assert_same_weights(*runs, rtol=1e-9, atol=1e-9)


def test_two_updates_per_generation_regress_on_the_old_policy(tmp_path):
    trainer = make_trainer(
        tmp_path, trainer_class=Recorder, updates_per_generation=2, max_steps=2, intervention_updates=2
    )
    trainer.train()
    assert len(trainer.batches) == 1
    assert trainer.batches[0]["completion_ids"].size(0) == 16
    first, second = trainer.micro_batches
    assert "old_per_token_logps" in first
    with torch.no_grad():
        now = trl_seams.forward(trainer, trainer.model, second)
        result = regression_loss(
            now.logps,
            second["old_per_token_logps"],
            second["completion_mask"].bool(),
            torch.ones_like(second["completion_mask"]).bool(),
            second["advantages"],
            second[trl_seams.SCORED],
            None,
            trainer.regression,
        )
    assert result.log_ratio.abs().max() > 1e-3  # the policy has moved since the batch was made


def test_the_judges_own_log_probabilities_reach_the_loss(tmp_path):
    trainer = make_trainer(
        tmp_path, trainer_class=Recorder, judge=RejectLastStep((5, 6), logps=(-0.25, -0.5)), anchor="judge", max_steps=1
    )
    trainer.train()
    (inputs,) = trainer.micro_batches
    known = inputs[trl_seams.INTERVENTION_LOGPS]
    assert torch.equal(known.isfinite(), ~inputs[trl_seams.POLICY_AUTHORED])
    assert set(known[known.isfinite()].tolist()) == {-0.25, -0.5}


# Models, seeds, the run folder


def test_an_adapter_trains_and_the_base_stays(tmp_path):
    model = tiny_model()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    trainer = make_trainer(
        tmp_path,
        model=model,
        generator=None,
        trainer_kwargs={"peft_config": LoraConfig(r=2, target_modules=["q_proj"], lora_dropout=0.0)},
    )
    trainer.train()
    trainer.close()
    after = weights(trainer)
    moved = [name for name in after if "lora_B" in name and after[name].abs().sum() > 0]
    assert moved
    for name, parameter in trainer.model.get_base_model().named_parameters():
        plain = name.replace(".base_layer", "")
        if plain in before:
            assert torch.equal(parameter, before[plain]), name


def test_the_model_in_training_is_the_generator_and_comes_back_as_it_was(tmp_path):
    trainer = make_trainer(tmp_path, generator=None, trainer_class=Recorder)
    trainer.train()
    assert trainer.policy.generator.idle
    spans = [span for record in read_lines(tmp_path / "rollouts.jsonl") for span in record["spans"]]
    versions = [span["weight_version"] for span in spans if span["author"] == "policy"]
    assert list(dict.fromkeys(versions)) == ["update-0", "update-1"]
    for inputs in trainer.micro_batches:
        assert (inputs["completion_mask"].sum(1) >= 1).all()
    trainer.close()


def test_the_same_seed_gives_the_same_rollouts_and_another_seed_others(tmp_path):
    runs = {}
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        trainer = make_trainer(tmp_path / name, trainer_class=Recorder, seed=seed, max_steps=1, shuffle_dataset=False)
        trainer.train()
        runs[name] = trainer.completions
    assert runs["a"] == runs["b"] != runs["c"]


def test_entries_of_one_prompt_get_rollouts_of_their_own(tmp_path):
    """Prompts come repeated; each entry is one request with its own seed, and answers keep their order."""
    generator = HashGenerator()
    trainer = make_trainer(
        tmp_path, trainer_class=Recorder, generator=generator, judge=AlwaysKeep(), max_steps=1, shuffle_dataset=False
    )
    trainer.train()
    assert len(generator.requests) == 8
    assert len({seed for _, _, seed in generator.requests}) == 8
    assert len({tuple(ids) for ids in trainer.completions[0]}) > 4
    prompts = trainer.batches[0]["prompt_ids"]
    assert torch.equal(prompts[0], prompts[3])
    assert not torch.equal(prompts[3], prompts[4])


def test_the_run_folder_says_what_happened(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.train()
    metrics = read_lines(tmp_path / "metrics.jsonl")
    expected = {
        "rewards/control",
        "rewards/intervened",
        "reward_gap",
        "groups/dead",
        "groups/rescued",
        "off_policy_share",
        "judge/revise_rate",
        "judge/no_verdict",
        "intervention/nll",
        "entropy/sample",
        "lengths/control",
        "lengths/intervened",
        "imitation_bonus",
        "grad_norm",
        "seconds/rollout",
        "seconds/reward",
    }
    assert expected <= metrics[0].keys()
    records = read_lines(tmp_path / "rollouts.jsonl")
    assert len(records) == 16
    assert [record["role"] for record in records[:4]] == ["control", "control", "intervened", "intervened"]
    for record in records:
        assert record["spans"][-1]["end"] == len(record["ids"])
        foreign = [span for span in record["spans"] if span["author"] == "intervention"]
        assert bool(foreign) == (record["role"] == "intervened")
        assert record["reward"] in (0.0, 1.0)
        assert math.isfinite(record["advantage"])
    assert json.loads(Path(tmp_path, "settings.json").read_text())["num_control"] == 2


def test_a_second_run_in_the_same_folder_starts_its_files_anew_when_asked(tmp_path, caplog):
    for _ in range(2):
        make_trainer(tmp_path, set_aside_older_run=True).train()
    assert len(read_lines(tmp_path / "rollouts.jsonl")) == 16
    assert len(read_lines(tmp_path / "previous-1" / "rollouts.jsonl")) == 16
    assert "previous-1" in caplog.text


def test_settings_of_the_helper_are_the_ones_the_trainer_runs_with(tmp_path):
    trainer = make_trainer(tmp_path)
    assert trainer.args.max_steps == settings()["max_steps"]
    assert trainer.num_generations == 4
