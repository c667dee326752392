"""Completions on their way through their tests, and what is under way so far, so that nothing equal runs twice.

Owns no sandbox and starts nothing. Invariant: an attempt's result is that of its program, unless its tests ask nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from .code_task import CodeTask
from .verdicts import CodeCheck, Trial, Why

EMPTY_TESTS = CodeCheck(Why.EMPTY_TESTS, "a program that does nothing passes the row's tests")


@dataclass(frozen=True)
class Attempt:
    """A completion on its way: what is known of it, or its program at its tests.

    Args:
        known (`CodeCheck`, *optional*): The result, where it takes no run.
        trial (`Trial`, *optional*): The program's, otherwise.
        nothing (`tuple[Trial, ...]`): Those of programs that do nothing; none where the tests surely ask something.
    """

    known: CodeCheck | None = None
    trial: Trial | None = None
    nothing: tuple[Trial, ...] = ()

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All that it waits for."""
        return self.nothing if self.trial is None else (self.trial, *self.nothing)

    def check(self) -> CodeCheck:
        """The result; waits for it."""
        if all_pass(self.nothing):
            return EMPTY_TESTS
        return self.trial.check() if self.known is None else self.known


@dataclass(frozen=True)
class Begun:
    """What is under way, by what is asked.

    Args:
        attempts (`dict`): By program and task.
        tasks (`dict`): Tasks, with the trials of programs that do nothing.
    """

    attempts: dict[tuple, Attempt] = field(default_factory=dict)
    tasks: dict[tuple, tuple[CodeTask, tuple[Trial, ...]]] = field(default_factory=dict)

    def drop_failed(self) -> None:
        """Forget attempts that are over without a verdict."""
        for key, (_, nothing) in list(self.tasks.items()):
            if any(trial.failed for trial in nothing):
                del self.tasks[key]
        for key, attempt in list(self.attempts.items()):
            if any(trial.failed for trial in attempt.trials):
                del self.attempts[key]


def all_pass(trials: Sequence[Trial]) -> bool:
    """Whether there are trials, and all passed; waits for them."""
    return bool(trials) and all(trial.check().passed for trial in trials)
