"""Pass@k while training: when it is measured, by whom, and that training does not notice."""

import asyncio
import logging
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from transformers import TrainerControl, TrainerState

from mintrl_trl.errors import ConfigError
from mintrl_trl.pass_at_k_callback import PassAtKCallback
from mintrl_trl.reporting import live
from mintrl_trl.tasks import Task
from tests.tiny import tiny_tokenizer
from tests.trainers import (
    HashGenerator,
    RejectLastStep,
    assert_same_weights,
    make_trainer,
    weights,
)

EVALUATION = [{"prompt": f"{i}+{i}=", "answer": str(2 * i)} for i in range(4)]


def odd_length(completions, completion_ids, answer, **kwargs):
    """1.0 for responses of odd length; reads a column as rewards do."""
    return [float(len(ids) % 2) for ids, _ in zip(completion_ids, answer, strict=True)]


def task(evaluation=EVALUATION, reward=odd_length) -> Task:
    return Task(
        "none", None, reward, evaluation=evaluation, subset=lambda row: "easy" if row["answer"] < "4" else "hard"
    )


def arguments(samples=3, every=0, length=None) -> SimpleNamespace:
    return SimpleNamespace(eval_samples=samples, eval_every=every, eval_max_completion_length=length)


def with_callback(tmp_path, *, every=0, samples=3, evaluation=EVALUATION, **overrides):
    trainer = make_trainer(tmp_path, **overrides)
    callback = PassAtKCallback(trainer, task(evaluation), arguments(samples, every))
    trainer.add_callback(callback)
    return trainer, callback


@pytest.mark.parametrize(
    ("every", "updates"), [(0, [0, 5]), (1, [0, 1, 2, 3, 4, 5]), (2, [0, 2, 4, 5]), (5, [0, 5]), (9, [0, 5])]
)
def test_before_every_few_updates_and_after_each_once(tmp_path, every, updates):
    trainer, callback = with_callback(tmp_path, every=every, max_steps=5)
    trainer.train()
    assert list(callback.results) == updates
    logged = [line["update"] for line in trainer.run_folder.metrics() if "eval/pass@1" in line]
    assert logged == updates


def test_a_generator_that_hangs_is_named_after_the_time_that_is_set(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    warned = threading.Event()
    log = logging.getLogger(live.__name__)
    log.addFilter(lambda record: warned.set() or True)

    def reward(completions, **kwargs):
        return [1.0] * len(completions)

    class Hanging(HashGenerator):
        async def stream(self, *args, **kwargs):
            assert await asyncio.to_thread(warned.wait, 20)
            async for piece in super().stream(*args, **kwargs):
                yield piece

    trainer = make_trainer(tmp_path, generator=Hanging(), show_progress=True, stall_seconds=0.05, max_steps=1)
    trainer.add_callback(PassAtKCallback(trainer, task(reward=reward), arguments(samples=1)))
    try:
        trainer.train()
    finally:
        trainer.close()
        log.filters.clear()
    first = next(record.message for record in caplog.records if record.name == live.__name__)
    assert first.startswith("evaluation after 0 updates: nothing has moved for 0 s; waiting for tokens for 4 rollouts")


def test_scores_are_counted_and_logged_for_each_subset(tmp_path):
    trainer, callback = with_callback(tmp_path, samples=3, max_steps=1)
    trainer.train()
    result = callback.results[1]
    assert [(problem.samples, problem.subset) for problem in result.problems] == [(3, "easy")] * 2 + [(3, "hard")] * 2
    (line,) = [line for line in trainer.run_folder.metrics() if line["update"] == 1 and "eval/pass@1" in line]
    scores = {name: value for name, value in line.items() if "pass@" in name}
    assert scores == {
        f"eval/{subset}pass@{k}": result.pass_at(k, subset.strip("/") or None)
        for subset in ("", "easy/", "hard/")
        for k in (1, 3)
    }
    assert 0 < result.pass_at(1) < 1


def test_one_sample_is_pass_at_1_alone(tmp_path):
    trainer, _ = with_callback(tmp_path, samples=1, max_steps=1)
    trainer.train()
    names = {name for line in trainer.run_folder.metrics() for name in line if "pass@" in name}
    assert names == {"eval/pass@1", "eval/easy/pass@1", "eval/hard/pass@1"}


def test_prompts_are_rendered_as_in_training_and_limits_are_those_of_the_run(tmp_path):
    generator = HashGenerator(end_every=10**9)  # never ends by itself
    trainer, callback = with_callback(tmp_path, generator=generator, max_completion_length=7)
    callback.on_train_begin(trainer.args, trainer.state, trainer.control)
    tokenizer = tiny_tokenizer()
    prompts = [tuple(tokenizer(row["prompt"])["input_ids"]) for row in EVALUATION]
    assert sorted(prefix for prefix, _, _ in generator.requests) == sorted(prompts * 3)
    assert {limit for _, limit, _ in generator.requests} == {7}
    assert len({seed for _, _, seed in generator.requests}) == 12
    assert [problem.truncated for problem in callback.results[0].problems] == [3] * 4


def test_evaluation_has_a_length_of_its_own(tmp_path):
    generator = HashGenerator(end_every=10**9)
    trainer = make_trainer(tmp_path, generator=generator, max_completion_length=7)
    callback = PassAtKCallback(trainer, task(), arguments(samples=1, length=11))
    callback.on_train_begin(trainer.args, trainer.state, trainer.control)
    assert {limit for _, limit, _ in generator.requests} == {11}


def test_a_length_that_does_not_fit_is_refused_before_training(tmp_path):
    generator, room = HashGenerator(), 40
    generator.max_positions = room
    trainer = make_trainer(tmp_path, generator=generator)
    longest = max(len(tiny_tokenizer()(row["prompt"])["input_ids"]) for row in EVALUATION)
    PassAtKCallback(trainer, task(), arguments(length=room - longest))
    with pytest.raises(ConfigError, match=f"set `eval_max_completion_length: {room - longest}`"):
        PassAtKCallback(trainer, task(), arguments(length=room - longest + 1))


def test_evaluation_may_ask_for_something_else_than_training_rewards(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=1)
    other = replace(task(), evaluation_reward=lambda prompts, **kwargs: [1.0] * len(prompts))
    callback = PassAtKCallback(trainer, other, arguments())
    callback.on_train_begin(trainer.args, trainer.state, trainer.control)
    assert callback.results[0].pass_at(1) == 1.0


def test_messages_go_through_the_chat_template(tmp_path):
    generator = HashGenerator()
    rows = [{"prompt": [{"role": "user", "content": "1+1="}], "answer": "2"}]
    trainer, callback = with_callback(tmp_path, generator=generator, evaluation=rows, samples=1)
    callback.on_train_begin(trainer.args, trainer.state, trainer.control)
    ((prefix, _, _),) = generator.requests
    assert tiny_tokenizer().decode(prefix) == "u?1+1=\na?"  # the tiny tokenizer has no colon


def test_the_judge_is_never_asked(tmp_path):
    judge = RejectLastStep()
    trainer, callback = with_callback(tmp_path, judge=judge)
    callback.on_train_begin(trainer.args, trainer.state, trainer.control)
    assert judge.problems == []
    assert callback.results


def test_without_problems_nothing_happens(tmp_path):
    generator = HashGenerator()
    trainer, callback = with_callback(tmp_path, generator=generator, evaluation=())
    callback.on_train_begin(trainer.args, trainer.state, trainer.control)
    callback.on_train_end(trainer.args, trainer.state, trainer.control)
    assert (callback.results, generator.requests) == ({}, [])


def test_training_does_not_notice(tmp_path):
    """The same weights with and without it, also where the model in training is what samples."""
    runs = []
    for name in ("with", "without"):
        trainer = make_trainer(tmp_path / name, generator=None, max_steps=3, intervention_updates=1)
        if name == "with":
            trainer.add_callback(PassAtKCallback(trainer, task(), arguments(2, 1)))
        trainer.train()
        trainer.close()
        runs.append(weights(trainer))
    assert_same_weights(*runs)


def test_the_current_weights_are_evaluated(tmp_path):
    trainer = make_trainer(tmp_path, generator=None, max_steps=2, learning_rate=0.1)
    seen = []

    def reward(completions, completion_ids, **kwargs):
        seen.append((trainer.policy.generator.weight_version, [list(ids) for ids in completion_ids]))
        return [0.0] * len(completion_ids)

    trainer.add_callback(PassAtKCallback(trainer, task(reward=reward), arguments(samples=2, every=1)))
    trainer.train()
    assert [version for version, _ in seen] == ["update-0", "update-1", "update-2"]
    assert seen[0][1] != seen[2][1]
    assert trainer.policy.generator.idle
    trainer.close()


def test_a_resumed_run_reads_back_what_was_measured(tmp_path):
    save = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    first, before = with_callback(tmp_path, **save)
    first.train()
    second, after = with_callback(tmp_path, **save)
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert (list(before.results), list(after.results)) == ([0, 4], [0, 4])
    assert after.results == before.results
    assert [line["update"] for line in second.run_folder.evaluations()] == [0, 4]


def test_a_run_that_goes_on_in_another_folder_measures_where_it_starts(tmp_path):
    save = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    first, before = with_callback(tmp_path / "first", **save)
    first.train()
    second, after = with_callback(tmp_path / "second", **save)
    second.train(resume_from_checkpoint=str(tmp_path / "first" / "checkpoint-2"))
    assert list(after.results) == [2, 4]
    assert after.results[4] == before.results[4]  # the seeds are those of the update


def test_other_processes_sync_weights_and_leave_the_rest_to_the_main_one(tmp_path):
    calls = []
    policy = SimpleNamespace(sync=lambda trainer: calls.append("sync"))
    accelerator = SimpleNamespace(is_main_process=False)
    args = SimpleNamespace(chat_template_kwargs=None, max_completion_length=8)
    trainer = SimpleNamespace(processing_class=tiny_tokenizer(), args=args, policy=policy, accelerator=accelerator)
    callback = PassAtKCallback(trainer, task(), arguments())
    callback.on_train_begin(None, TrainerState(global_step=0), TrainerControl())
    callback.on_train_end(None, TrainerState(global_step=0), TrainerControl())
    assert calls == ["sync"]  # as often as the main process, or they would wait for it for ever
    assert callback.results == {}
