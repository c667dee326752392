"""Verdicts on programs: from what a sandbox observed to a reason and a reward.

Owns: the closed set of reasons (`Why`), the results for a test and for a completion, and the comparison of what a
program gave with what its tests expect. Never runs anything, never believes a process that says it passed. Invariant:
a completion passes only if every one of its tests was seen to pass.
"""

from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from enum import StrEnum

from .comparison import shown
from .jobs import Ending, Observation, SandboxError
from .testcases import TestCase


class Why(StrEnum):
    """Why a row got its reward; `rewards.code` says when. A closed set."""

    PASSED = "passed"
    WRONG = "wrong"
    ERROR = "error"
    SYNTAX = "syntax"
    NO_ENTRY_POINT = "no_entry_point"
    EXITED = "exited"
    TIMEOUT = "timeout"
    OUTPUT_LIMIT = "output_limit"
    MEMORY_LIMIT = "memory_limit"
    NO_CODE = "no_code"
    UNFINISHED_THINKING = "unfinished_thinking"
    SANDBOX_FAILED = "sandbox_failed"
    BATCH_LIMIT = "batch_limit"
    EMPTY_TESTS = "empty_tests"
    NOT_RUN = "not_run"  # of a test only: an earlier one had decided


NO_REWARD = (Why.SANDBOX_FAILED, Why.BATCH_LIMIT, Why.EMPTY_TESTS)


@dataclass(frozen=True)
class TestResult:
    """What became of one test."""

    __test__ = False  # no test of ours, whatever its name begins with

    why: Why
    group: str
    detail: str = ""

    @property
    def passed(self) -> bool:
        """Whether the test passes."""
        return self.why is Why.PASSED


@dataclass(frozen=True)
class CodeCheck:
    """What became of one completion.

    Args:
        why (`Why`): The reason; it decides the reward.
        detail (`str`): What was seen, for the log.
        program (`str`): The program that was found; empty without one.
        tests (`tuple[TestResult, ...]`): One per test, in order; empty if none could be run.
    """

    why: Why
    detail: str = ""
    program: str = ""
    tests: tuple[TestResult, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every test passes."""
        return self.why is Why.PASSED

    @property
    def fraction(self) -> float | None:
        """Share of tests that pass; `None` where nothing is known."""
        if self.why in NO_REWARD:
            return None
        return sum(test.passed for test in self.tests) / len(self.tests) if self.tests else 0.0

    @property
    def reward(self) -> float | None:
        """1.0 if every test passes, else 0.0; `None` where nothing is known."""
        return None if self.why in NO_REWARD else float(self.passed)


@dataclass(eq=False)
class Trial:
    """A program on its way through its tests.

    Args:
        program (`str`): Its source.
        tests (`tuple[TestCase, ...]`): What it is put to.
        rule (`str`): How values are compared; see `rewards.comparison`.
        rule_atol (`float`): Tolerance of the rule.
        run_all (`bool`): Whether to go on after a test that does not pass.
        results (`list[TestResult]`): Those so far.
        done (`Future[bool]`): From `Sandbox.submit`.
    """

    program: str
    tests: tuple[TestCase, ...]
    rule: str
    rule_atol: float
    run_all: bool
    results: list[TestResult] = field(default_factory=list)
    done: "Future[bool]" = field(default_factory=Future)

    def judge(self, index: int, observation: Observation) -> bool:
        """Take in what a test showed; whether to go on."""
        test = self.tests[index]
        del self.results[index:]
        if observation.ending is Ending.VALUE:
            passed = test.accepts(observation.value, self.rule, self.rule_atol)
            why = Why.PASSED if passed else Why.WRONG
            detail = "" if passed else f"{shown(observation.value)} is not {test.wanted()}"
        else:
            why = Why.WRONG if observation.ending is Ending.ASSERTION else Why(observation.ending)
            detail = observation.detail
        self.results.append(TestResult(why, test.group, detail))
        return why is Why.PASSED or self.run_all

    @property
    def failed(self) -> bool:
        """Whether it is over without a verdict."""
        if not self.done.done():
            return False
        if self.done.cancelled() or self.done.exception() is not None:
            return True
        return self.check().why in NO_REWARD

    def check(self) -> CodeCheck:
        """The result; waits for it."""
        try:
            finished = self.done.result()
        except (SandboxError, CancelledError) as error:
            return CodeCheck(Why.SANDBOX_FAILED, str(error), self.program)
        if not finished:
            return CodeCheck(Why.BATCH_LIMIT, "", self.program)
        if len(self.results) < len(self.tests) and all(result.passed for result in self.results):
            seen = f"{len(self.results)} of {len(self.tests)} tests were observed"
            return CodeCheck(Why.SANDBOX_FAILED, seen, self.program)
        missing = [TestResult(Why.NOT_RUN, test.group) for test in self.tests[len(self.results) :]]
        first = next((result for result in self.results if not result.passed), self.results[-1])
        return CodeCheck(first.why, first.detail, self.program, (*self.results, *missing))
