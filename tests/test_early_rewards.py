"""Rewards that begin while rollouts are being made: the same numbers, sooner."""

import asyncio
import threading
from concurrent.futures import Future, wait

import pytest

from mintrl_trl.early_rewards import EarlyRewards, begin_of
from mintrl_trl.rewards.code import CodeChecker, code_reward
from mintrl_trl.rewards.jobs import Ending, Observation, SandboxError
from mintrl_trl.rewards.math import MathChecker, Why, math_reward
from mintrl_trl.rewards.worker import Failure, Outcome
from mintrl_trl.rollouts.rollout import Author, Problem, Role, Rollout, RolloutRequest, Span, StopReason

from .trainers import HashGenerator, make_trainer, parity_reward

ADD = [{"type": "call", "args": "[1, 2]", "expected": "3"}]
PROGRAM = "```python\ndef add(a, b):\n    return a + b\n```"


def rollout(row, *ids):
    request = RolloutRequest(row, (1,), Problem("?"), Role.CONTROL, 0)
    return Rollout(request, (Span(ids, Author.POLICY),), StopReason.END)


class Begun:
    """A reward function that remembers what was begun, and on which thread."""

    def __init__(self, error=None):
        self.begun, self.threads, self.error = [], set(), error

    def begin(self, completion, row):
        self.threads.add(threading.current_thread().name)
        if self.error is not None:
            raise self.error
        self.begun.append((completion, row["id"]))

    def reward(self, completions, **kwargs):
        return [0.0] * len(completions)


def spell(ids):
    return "".join(map(chr, ids))


def test_which_functions_can_begin():
    checker, scripted = MathChecker(), Begun()
    assert begin_of(checker.reward) == checker.begin
    assert begin_of(scripted.reward) == scripted.begin
    assert begin_of(math_reward) and begin_of(code_reward)
    assert begin_of(parity_reward) is None


def test_rollouts_reach_their_rows_on_a_thread_of_its_own():
    scripted = Begun()
    early = EarlyRewards([parity_reward, scripted.reward], spell)
    early.expect({4: {"id": "a"}, 7: {"id": "b"}})
    early.on_finished(rollout(7, 65, 66))
    early.on_finished(rollout(4, 67))
    wait(early._pending, timeout=10)
    early.finish()
    early.close()
    assert scripted.begun == [("AB", "b"), ("C", "a")]
    assert all(name.startswith("mintrl-early-rewards") for name in scripted.threads)


@pytest.mark.parametrize("error", [ValueError("bad row"), KeyError("tests")])
def test_what_goes_wrong_early_is_left_to_the_batch(error):
    scripted = Begun(error)
    early = EarlyRewards([scripted.reward], spell)
    early.expect({0: {"id": "a"}})
    early.on_finished(rollout(0, 65))
    early.on_finished(rollout(1, 65))  # of nobody's row
    early.finish()
    early.close()
    early.on_finished(rollout(0, 65))  # after the end
    assert scripted.begun == []


def test_checks_not_begun_when_the_batch_is_whole_are_left_to_it():
    started, go_on = threading.Event(), threading.Event()

    class Slow(Begun):
        def begin(self, completion, row):
            started.set()
            assert go_on.wait(10)
            super().begin(completion, row)

    scripted = Slow()
    early = EarlyRewards([scripted.reward], spell)
    early.expect({row: {"id": row} for row in range(3)})
    for row in range(3):
        early.on_finished(rollout(row, 65))
    assert started.wait(10)
    threading.Timer(0.1, go_on.set).start()
    early.finish()
    assert scripted.begun == [("A", 0)]
    early.close()


def test_the_trainer_begins_each_rollout_while_others_are_made(tmp_path):
    """The last rollout of a batch waits until all others have been begun, so they were begun before it was done."""
    scripted = Begun()
    others = threading.Event()

    class OneWaits(HashGenerator):
        def __init__(self):
            super().__init__()
            self.first: int | None = None

        async def stream(self, prefix_ids, max_tokens, seed):
            waits = self.first is None
            self.first = self.first if self.first is not None else seed
            async for token in super().stream(prefix_ids, max_tokens, seed):
                yield token
                if waits:
                    waits = False
                    assert await asyncio.to_thread(others.wait, 20)

    def begin(completion, row):
        scripted.begun.append((completion, row["answer"]))
        if len(scripted.begun) == 7:
            others.set()

    def reward(prompts, completions, answer, **kwargs):
        assert set(scripted.begun) <= set(zip(completions, answer, strict=True))
        return [float(len(completion) % 2) for completion in completions]

    reward.begin = begin
    trainer = make_trainer(
        tmp_path,
        reward=reward,
        generator=OneWaits(),
        judge=None,
        num_control=4,
        num_intervened=0,
        max_steps=1,
        intervention_updates=0,
    )
    trainer.train()
    trainer.close()
    assert len(scripted.begun) >= 7


def test_where_rollouts_need_the_cpu_rewards_wait(tmp_path):
    scripted = Begun()
    trainer = make_trainer(tmp_path, reward=scripted.reward, generator=None, max_steps=1, unscored_limit=1.0)
    trainer.train()
    trainer.close()
    assert scripted.begun == []


# Maths


class Pool:
    """Answers when told to."""

    def __init__(self):
        self.requests, self.futures = [], []

    def submit(self, request, *, seconds, deadline):
        self.requests.append(request)
        self.futures.append(Future())
        return self.futures[-1]


@pytest.fixture
def maths():
    checker = MathChecker()
    checker._pool = Pool()
    return checker


def ask(checker, completions, answer):
    kwargs = {"prompts": ["?"] * len(completions), "completions": completions, "answer": answer}
    return asyncio.run(checker.reward(**kwargs))


def test_a_comparison_that_has_begun_is_not_begun_again(maths):
    maths.begin(r"\boxed{\frac12}", {"prompt": "?", "answer": "0.5"})
    maths.begin(r"so \boxed{\frac12}", {"prompt": "?", "answer": "0.5"})
    maths.begin(r"\boxed{7}", {"prompt": "?", "answer": "7"})  # needs no child
    (future,) = maths._pool.futures
    future.set_result(Outcome(Why.CORRECT.value))
    assert ask(maths, [r"\boxed{\frac12}", r"\boxed{7}"], ["0.5", "7"]) == [1.0, 1.0]
    assert len(maths._pool.requests) == 1
    maths.begin(r"\boxed{\frac12}", {"prompt": "?", "answer": "0.5"})  # of the next batch
    assert len(maths._pool.requests) == 2


@pytest.mark.parametrize("how", ["timeout", "error", "cancelled"])
def test_a_comparison_that_failed_early_is_made_again(maths, how):
    maths.begin(r"\boxed{x}", {"prompt": "?", "answer": "y"})
    (early,) = maths._pool.futures
    if how == "timeout":
        early.set_result(Outcome(failure=Failure.TIMEOUT))
    elif how == "error":
        early.set_exception(RuntimeError("no child"))
    else:
        early.cancel()
    threading.Timer(0.1, lambda: maths._pool.futures[1].set_result(Outcome(Why.WRONG.value))).start()
    assert ask(maths, [r"\boxed{x}"], ["y"]) == [0.0]
    assert len(maths._pool.requests) == 2


# Programs


class Sandbox:
    """Gives its answers in turn."""

    def __init__(self, *answers):
        self.answers, self.jobs = list(answers), []

    def submit(self, job, judge, deadline):
        self.jobs.append(job)
        answer, future = self.answers.pop(0), Future()
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            judge(0, answer)
            future.set_result(True)
        return future


def run(checker):
    columns = {"tests": [ADD], "entry_point": ["add"]}
    return asyncio.run(checker.reward(prompts=["?"], completions=[PROGRAM], **columns))


def test_a_program_that_has_run_is_not_run_again():
    sandbox = Sandbox(Observation(Ending.VALUE, 3))
    checker = CodeChecker(sandbox)
    checker.begin(PROGRAM, {"tests": ADD, "entry_point": "add", "prompt": "?"})
    assert len(sandbox.jobs) == 1
    assert run(checker) == [1.0]
    assert len(sandbox.jobs) == 1


def test_a_program_that_the_sandbox_failed_at_runs_again():
    sandbox = Sandbox(SandboxError("no space"), Observation(Ending.VALUE, 3))
    checker = CodeChecker(sandbox)
    checker.begin(PROGRAM, {"tests": ADD, "entry_point": "add", "prompt": "?"})
    assert run(checker) == [1.0]
    assert len(sandbox.jobs) == 2
