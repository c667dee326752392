"""The code reward: one result per row whatever a completion does, and no zero for what is no fault of the program."""

import asyncio
import json
import time
from concurrent.futures import Future

import pytest

from mintrl_trl.errors import DataError, FailureLimitError, RewardError
from mintrl_trl.rewards.code import CodeChecker, Why
from mintrl_trl.rewards.jobs import Ending, Observation, SandboxError

ADD = [
    {"type": "call", "group": "base", "args": "[1, 2]", "expected": "3"},
    {"type": "call", "group": "plus", "args": "[-1, 1]", "expected": "0"},
]
RIGHT = "```python\ndef add(a, b):\n    return a + b\n```"


@pytest.fixture(scope="module")
def checker():
    checker = CodeChecker(slots=2, test_seconds=2, row_seconds=6, memory_mb=512)
    yield checker
    checker.close()


def stdin_test(stdin: str, stdout: str) -> list[dict]:
    return [{"type": "stdin", "stdin": stdin, "stdout": stdout}]


def asserts(*codes: str) -> list[dict]:
    return [{"type": "assert", "code": code} for code in codes]


def reward(checker: CodeChecker, completions: list, tests: list, **columns) -> list[float | None]:
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(checker.reward([""] * len(completions), completions, tests, **columns))
    finally:
        loop.close()


def test_right_and_wrong_programs(checker):
    right = checker.check(RIGHT, ADD, "add")
    assert (right.passed, right.why, right.reward, right.fraction) == (True, Why.PASSED, 1.0, 1.0)
    assert right.program == "def add(a, b):\n    return a + b\n"
    wrong = checker.check(RIGHT.replace("+", "-"), ADD, "add")
    assert (wrong.passed, wrong.why, wrong.detail, wrong.reward) == (False, Why.WRONG, "-1 is not 3", 0.0)
    assert [(test.why, test.group) for test in wrong.tests] == [(Why.WRONG, "base"), (Why.NOT_RUN, "plus")]


@pytest.mark.parametrize(
    ("program", "stdout", "passed"),
    [
        ("print('0.333333')", "0.333333333333", True),
        ("print('3.0000001 2.9999999')", "3 3", True),
        ("print('1000000000000000001')", "1000000000000000000", False),
        ("print('1  \\n2\\n')", "1\n2", True),
    ],
    ids=["digits", "nearly-whole", "whole-numbers-are-exact", "blanks"],
)
def test_printed_numbers(checker, program, stdout, passed):
    assert checker.check(f"```python\n{program}\n```", stdin_test("", stdout), "stdin").passed is passed


ZEROES = {
    "raises": ("def add(a, b): raise ValueError('failed call')", Why.ERROR),
    "exits": ("import sys\nsys.exit(0)", Why.EXITED),
    "exits-hard": ("import os\nos._exit(0)", Why.EXITED),
    "endless": ("while True: pass", Why.TIMEOUT),
    "equals-everything": ("class A:\n  def __eq__(s, o): return True\ndef add(a, b): return A()", Why.WRONG),
    "other-name": ("def sub(a, b): return a - b", Why.NO_ENTRY_POINT),
    "syntax": ("def add(a, b) return a + b", Why.SYNTAX),
    "memory": ("def add(a, b): return 'A' * 10**10", Why.MEMORY_LIMIT),
}


@pytest.mark.parametrize(("program", "why"), list(ZEROES.values()), ids=list(ZEROES))
def test_reasons_for_a_zero(checker, program, why):
    for tests in ([{"type": "call", "args": "[1, 2]", "expected": "''"}], asserts("assert add(1, 2) == ''")):
        check = checker.check(f"```python\n{program}\n```", tests, "add")
        assert (check.why, check.reward) == (why, 0.0)


def test_completions_without_a_program(checker):
    assert checker.check("I cannot.", ADD, "add").why is Why.NO_CODE
    check = checker.check(f"<think>{RIGHT}", ADD, "add")
    assert (check.why, check.tests, check.fraction) == (Why.UNFINISHED_THINKING, (), 0.0)


def test_assertions_with_setup(checker):
    program = "```python\nclass Node:\n  def __init__(self, v): self.v = v\ndef value(n): return n.v\n```"
    tests = asserts("assert value(root) == 5")
    assert checker.check(program, tests, "value", compare="assert", test_setup="root = Node(5)").passed
    assert checker.check(program, tests, compare="assert", test_setup="root = Node(5)").passed  # name found in the test
    assert checker.check(program, tests, "value", test_setup="root = Node(6)").why is Why.WRONG


def test_class_form_counts_tuples_as_lists(checker):
    tests = [{"type": "call", "kwargs": "{'n': 2}", "expected": "[0, 1]"}]
    completion = "```python\nclass Solution:\n  def f(self, n: int) -> List[int]:\n    return tuple(range(n))\n```"
    assert checker.check(completion, tests, "Solution.f").passed
    assert checker.check("```python\ndef f(n): return tuple(range(n))\n```", tests, "f").why is Why.WRONG


def test_rows_of_a_batch_in_order_in_parallel_with_reasons(checker):
    slow = "```python\nimport time\ndef add(a, b):\n    time.sleep(0.2)\n    return a + b\n```"
    completions = [RIGHT, "no", slow, RIGHT.replace("+", "*"), [{"role": "assistant", "content": RIGHT}], "```\n3\n```"]
    merged = [dict.fromkeys(["stdin", "kwargs", "atol"]) | test for test in ADD]  # as a Dataset gives them
    tests = [ADD, ADD, json.dumps(ADD), merged, ADD, ADD]
    extra, metrics = {}, {}
    rewards = reward(
        checker,
        completions,
        tests,
        entry_point=["add"] * 6,
        compare=[None] * 6,
        log_extra=extra.__setitem__,
        log_metric=metrics.__setitem__,
        trainer_state=None,
    )
    assert rewards == [1.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    assert extra["why"] == ["passed", "no_code", "passed", "wrong", "passed", "no_entry_point"]
    assert extra["detail"][3] == "2 is not 3"
    assert metrics["reward/passed"] == 0.5 and metrics["reward/timeout"] == 0.0
    assert sum(metrics.values()) == pytest.approx(1.0) and len(metrics) == len(Why) - 1


def test_event_loop_is_not_blocked(checker):
    ticks = []

    async def tick():
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.01)

    async def both():
        ticking = asyncio.ensure_future(tick())
        sleepy = "```python\nimport time\ntime.sleep(0.4)\nprint(1)\n```"
        rewards = await checker.reward([""], [sleepy], [stdin_test("", "1")])
        inner = checker.check(RIGHT, ADD, "add")  # also inside a running loop
        ticking.cancel()
        return rewards, inner.passed

    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(both()) == ([1.0], True)
    loop.close()
    assert len(ticks) > 10


def test_fraction_runs_every_test():
    checker = CodeChecker(slots=1, test_seconds=1, row_seconds=10, fraction=True)
    program = "```python\nimport os\ndef f(n):\n  if n == 2: os._exit(1)\n  return n if n != 3 else None\n```"
    tests = [{"type": "call", "args": f"[{n}]", "expected": str(n)} for n in range(5)]
    check = checker.check(program, tests, "f")
    assert [test.why for test in check.tests] == [Why.PASSED, Why.PASSED, Why.EXITED, Why.WRONG, Why.PASSED]
    assert (check.why, check.reward, check.fraction) == (Why.EXITED, 0.0, 0.6)
    assert reward(checker, [program, "no"], [tests] * 2, entry_point=["f"] * 2) == [0.6, 0.0]
    checker.close()


def test_rows_that_the_batch_has_no_time_for_get_no_reward():
    checker = CodeChecker(slots=1, batch_seconds=1.5, test_seconds=9)
    checker.check(RIGHT, ADD, "add")
    sleepy = "```python\nimport time\ntime.sleep({})\nprint(1)\n```"
    completions = [sleepy.format(0.1), sleepy.format(60), sleepy.format(0.2)]
    extra = {}
    assert reward(checker, completions, [stdin_test("", "1")] * 3, log_extra=extra.__setitem__) == [1.0, None, None]
    assert extra["why"] == ["passed", "batch_limit", "batch_limit"]
    checker.close()


class ScriptedSandbox:
    """Answers every job with the same observation or error, and records the jobs."""

    def __init__(self, answer: Observation | Exception):
        self.answer, self.jobs = answer, []

    def submit(self, job, judge, deadline):
        self.jobs.append(job)
        future = Future()
        if isinstance(self.answer, Exception):
            future.set_exception(self.answer)
        else:
            future.set_result(all(judge(index, self.answer) for index in range(len(job.stimuli))) or True)
        return future

    def start(self):
        return "scripted"

    def close(self):
        pass


def test_broken_sandbox_gives_no_reward_and_stops_the_run_above_the_limit():
    checker = CodeChecker(ScriptedSandbox(SandboxError("no temporary space")))
    extra = {}
    columns = {"entry_point": ["add"] * 5, "log_extra": extra.__setitem__}
    for _ in range(3):
        assert reward(checker, [RIGHT] * 4 + ["no"], [ADD] * 5, **columns) == [None] * 4 + [0.0]
    assert extra["why"] == ["sandbox_failed"] * 4 + ["no_code"]
    assert checker.check(RIGHT, ADD, "add").reward is None
    with pytest.raises(FailureLimitError, match=r"16 of the last 20 programs .* no temporary space"):
        reward(checker, [RIGHT] * 4 + ["no"], [ADD] * 5, **columns)


def test_sandbox_can_be_started_before_training(checker):
    assert "resource limits" in str(checker.start())
    assert CodeChecker(ScriptedSandbox(Observation(Ending.VALUE, 3))).start() == "scripted"


def test_a_machine_that_cannot_run_programs_stops_the_run():
    checker = CodeChecker(ScriptedSandbox(RewardError("Linux only")))
    with pytest.raises(RewardError, match="Linux only"):
        reward(checker, [RIGHT], [ADD], entry_point=["add"])
    with pytest.raises(RewardError, match="Linux only"):
        checker.check(RIGHT, ADD, "add")


class ForgetfulSandbox(ScriptedSandbox):
    """Comes to its end without having shown every test."""

    def submit(self, job, judge, deadline):
        judge(0, self.answer)
        future = Future()
        future.set_result(True)
        return future


def test_tests_that_nobody_saw_are_no_pass():
    check = CodeChecker(ForgetfulSandbox(Observation(Ending.VALUE, 3))).check(RIGHT, ADD, "add")
    assert (check.why, check.reward, check.detail) == (Why.SANDBOX_FAILED, None, "1 of 2 tests were observed")


def test_equal_programs_run_once_and_no_expected_result_leaves():
    sandbox = ScriptedSandbox(Observation(Ending.VALUE, 3))
    checker = CodeChecker(sandbox)
    other = [{"type": "call", "args": "[1, 2]", "expected": "3"}]
    rewards = reward(checker, [RIGHT, RIGHT, RIGHT], [ADD, ADD, other], entry_point=["add"] * 3)
    assert rewards == [0.0, 0.0, 1.0] and len(sandbox.jobs) == 2
    assert [stimulus.text for stimulus in sandbox.jobs[0].stimuli] == ["[1, 2]", "[-1, 1]"]


def test_bad_rows_are_refused_by_name(checker):
    with pytest.raises(DataError, match="`entry_point` is None"):
        checker.check(RIGHT, ADD)
    with pytest.raises(DataError, match="`compare` is 'near'"):
        checker.check(RIGHT, ADD, "add", compare="near")
    with pytest.raises(DataError, match="`tests` is 'x'"):
        reward(checker, [RIGHT], ["x"], entry_point=["add"])
    with pytest.raises(RewardError, match="columns of"):
        reward(checker, [RIGHT, RIGHT], [ADD], entry_point=["add"] * 2)
    with pytest.raises(RewardError, match="a completion is text"):
        reward(checker, [3], [ADD], entry_point=["add"])


def test_references_that_fail_are_found(checker):
    rows = [
        {"privileged_context": "def add(a, b): return a + b", "tests": ADD, "entry_point": "add", "compare": "default"},
        {"privileged_context": "def add(a, b): return a * b", "tests": ADD, "entry_point": "add", "compare": "default"},
        {"privileged_context": "print(int(input()) + 1)", "tests": stdin_test("1", "2"), "entry_point": "stdin"},
    ]
    ((index, check),) = checker.check_references(rows)
    assert (index, check.why, check.detail) == (1, Why.WRONG, "2 is not 3")
