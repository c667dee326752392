"""What a sandbox is asked to run, what it answers, and the door behind which sandboxes differ.

Owns: `Job`, `Observation` and the protocol `Sandbox`. Never holds an expected result: the sandbox reports what a
program did, and `rewards.code` decides what that is worth. Invariant: an observation says what happened, `SandboxError`
says that nothing can be known.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from ..errors import RewardError


class SandboxError(RewardError):
    """The sandbox failed, not the program. The row gets no reward."""


class TestKind(StrEnum):
    """How a test puts a program to work."""

    __test__ = False  # no test of ours, whatever its name begins with

    STDIN = "stdin"  # a whole program: text in, text out
    CALL = "call"  # a function: arguments in, value out
    ASSERT = "assert"  # code that uses the program's names and raises if they are wrong


@dataclass(frozen=True)
class Stimulus:
    """The half of a test that the sandbox gets.

    Args:
        kind (`TestKind`): How the program is put to work.
        text (`str`): Standard input; or the literal of a list of arguments or of a dict of keyword arguments; or code.
        by_keyword (`bool`, defaults to `False`): Whether the arguments of a call are keyword arguments.
        output_bytes (`int`, defaults to 1 MiB): What the program may write at most.
    """

    kind: TestKind
    text: str
    by_keyword: bool = False
    output_bytes: int = 2**20


@dataclass(frozen=True)
class Job:
    """One program and what to do with it.

    Args:
        program (`str`): Python source.
        stimuli (`tuple[Stimulus, ...]`): In order.
        entry_point (`str`, *optional*): Function, or `Class.method`, that calls go to.
        setup (`str`, *optional*): Code that `ASSERT` tests need first.
    """

    program: str
    stimuli: tuple[Stimulus, ...]
    entry_point: str | None = None
    setup: str = ""


class Ending(StrEnum):
    """How a test ended."""

    VALUE = "value"  # there is something to compare
    ERROR = "error"  # an exception, or an exit code other than 0
    ASSERTION = "assertion"  # the test's own assertion does not hold
    SYNTAX = "syntax"  # the program does not compile
    NO_ENTRY_POINT = "no_entry_point"
    EXITED = "exited"  # the program ended before the test did
    TIMEOUT = "timeout"
    OUTPUT_LIMIT = "output_limit"
    MEMORY_LIMIT = "memory_limit"


@dataclass(frozen=True)
class Observation:
    """What a program did with one stimulus.

    Args:
        ending (`Ending`): How it ended.
        value (`object`, *optional*): For `VALUE`: standard output as text; or the value returned, as plain data (see
            `sandbox.plain`); `None` for an assertion that holds.
        detail (`str`, *optional*): What was seen, for the log.
    """

    ending: Ending
    value: object = None
    detail: str = ""


class Sandbox(Protocol):
    """Runs programs somewhere: `rewards.runner.Runner` on this machine, a service of your own elsewhere."""

    def start(self) -> object:
        """Make ready. Needed for nothing but to fail early.

        Returns:
            `object`: How programs are kept apart, as text with `str()`.

        Raises:
            RewardError: Programs cannot be run.
        """

    def submit(self, job: Job, judge: Callable[[int, Observation], bool], deadline: float) -> "Future[bool]":
        """Queue a job.

        Args:
            job (`Job`): What to run.
            judge (`Callable`): To be called, from one thread at a time, with the number of each stimulus and what came
                of it, in order; when it returns false, the rest may be left out. After a retry it may see the same
                numbers again.
            deadline (`float`): Moment on `time.monotonic`'s clock after which the job is cut off.

        Returns:
            `Future[bool]`: Whether the job came to its end before the deadline. Raises `SandboxError` if the sandbox
            failed.
        """

    def close(self) -> None:
        """End whatever runs."""
