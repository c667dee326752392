"""The two phases of a run: when interventions end, what changes then, and that evaluation has none."""

import pytest
from datasets import Dataset

from mintrl_trl import trl_seams
from tests.trainers import ROWS, Recorder, RejectLastStep, assert_same_weights, make_trainer, weights


def test_interventions_end_after_their_updates(tmp_path):
    judge = RejectLastStep()
    trainer = make_trainer(tmp_path, trainer_class=Recorder, judge=judge, intervention_updates=1, max_steps=3)
    trainer.train()
    assert [trl_seams.is_regression_batch(batch) for batch in trainer.batches] == [True, False, False]
    assert {len(problem.question) for problem in judge.problems} == {4}
    assert len(judge.problems) <= 8  # 4 intervened rollouts x 2 reviews, of the first update only


def test_resuming_after_the_switch_calls_no_judge(tmp_path):
    """The phase is read from the update the checkpoint was written at."""
    first = make_trainer(
        tmp_path, trainer_class=Recorder, intervention_updates=1, max_steps=3, save_strategy="steps", save_steps=2
    )
    first.train()
    judge = RejectLastStep()
    second = make_trainer(
        tmp_path,
        trainer_class=Recorder,
        judge=judge,
        intervention_updates=1,
        max_steps=3,
        save_strategy="steps",
        save_steps=2,
    )
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert judge.problems == []
    assert second.completions == first.completions[2:]
    assert_same_weights(weights(first), weights(second))


@pytest.mark.parametrize("reset", [True, False], ids=["reset", "kept"])
def test_the_optimizer_is_cleared_at_the_switch_when_asked(tmp_path, reset):
    trainer = make_trainer(tmp_path, intervention_updates=2, max_steps=3, reset_optimizer_at_switch=reset)
    trainer.train()
    steps = {int(state["step"]) for state in trainer.optimizer.state.values()}
    assert steps == ({1} if reset else {3})


def test_evaluation_never_intervenes(tmp_path):
    judge = RejectLastStep()
    trainer = make_trainer(
        tmp_path,
        judge=judge,
        trainer_kwargs={"eval_dataset": Dataset.from_list(ROWS[:2])},
        per_device_eval_batch_size=4,
        num_generations_eval=4,
    )
    first, second = trainer.evaluate(), trainer.evaluate()
    assert judge.problems == []
    assert first["eval_reward"] == second["eval_reward"]
    assert 0 <= first["eval_reward"] <= 1
    assert trainer.policy.generator.open == 0


@pytest.mark.parametrize("several", [False, True])
def test_evaluation_rows_with_long_prompts_are_dropped_too(tmp_path, several):
    """A prompt without room must not stop the run at its first evaluation."""
    rows = Dataset.from_list([{"prompt": "1" * 600, "answer": "1"}, *ROWS[:2]])
    trainer = make_trainer(
        tmp_path,
        generator=None,
        trainer_kwargs={"eval_dataset": {"hard": rows} if several else rows},
        per_device_eval_batch_size=4,
    )
    assert trainer.evaluate()
    kept = trainer.eval_dataset["hard"] if several else trainer.eval_dataset
    assert kept["answer"][:] == ["1", "2"]
    trainer.close()
