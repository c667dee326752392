"""The rule-based reward for programs: a completion's program, put to its row's tests.

Owns: the reward function for TRL and the check of reference solutions at start-up. The verdict is made in this process
from data (`rewards.verdicts`) and never taken from the program's. Never runs or compiles a program in the calling
process: that is for a `Sandbox` (`rewards.runner`, which says what it protects against and what not). Invariant: one
result per row, in order; a fault of the sandbox is never a zero.

| what happened | reward, reason |
|---|---|
| every test passes | 1 `passed` |
| no program in the completion (see `rewards.extraction`) | 0 `no_code`, `unfinished_thinking` |
| it does not compile, or does not define the entry point | 0 `syntax`, `no_entry_point` |
| a value, printed text or assertion is wrong | 0 `wrong` |
| an exception, or an exit code other than 0 | 0 `error` |
| it ends before the last test has (`sys.exit(0)` too) | 0 `exited` |
| a limit is passed | 0 `timeout`, `output_limit`, `memory_limit` |
| the sandbox failed, twice | no reward (`None`) `sandbox_failed` |
| the batch's time was over before the row's | no reward (`None`) `batch_limit` |
| a program that does nothing passes the row's tests (`rewards.empty_tests`) | no reward (`None`) `empty_tests` |

The reason of a row is that of its first test that does not pass. Functions and classes find the usual imports, such as
those of `typing` and `math`, without importing them (`sandbox.harness` has the list); whole programs import their own.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

from ..errors import DataError, FailureLimitError, RewardError
from .attempts import EMPTY_TESTS, Attempt, Begun, all_pass
from .code_task import COLUMNS, CodeTask, read_task
from .empty_tests import asks_something, nothing_programs
from .extraction import find_program
from .jobs import Sandbox
from .math import text_of
from .runner import Runner
from .verdicts import NO_REWARD, CodeCheck, TestResult, Trial, Why

__all__ = [
    "CodeCheck",
    "CodeChecker",
    "TestResult",
    "Why",
    "check",
    "check_references",
    "check_tests",
    "code_reward",
    "require_tests",
    "start",
]

BATCH_SECONDS = 600.0
FAILURE_LIMIT = 0.2
FAILURE_WINDOW_ROWS = 200
FOREVER = float("inf")
_LEAST_ROWS = 20  # a share of fewer rows than this says nothing
_ADVICE = {
    Why.SANDBOX_FAILED: "Look at memory, processes and temporary space of this machine",
    Why.BATCH_LIMIT: "Look at the load of this machine, or give the batch more time (batch_seconds)",
    Why.EMPTY_TESTS: "Correct or drop the rows that `mintrl check-data` finds",
}


class CodeChecker:
    """Checks completions against tests, in a sandbox that starts with the first check.

    Args:
        sandbox (`Sandbox`, *optional*): Where programs run; by default a `Runner` on this machine.
        batch_seconds (`float`, defaults to 600.0): Limit for one call as a whole; rows not done by then get no reward.
        fraction (`bool`, defaults to `False`): Reward the share of tests that pass, and run all of them, instead of 1
            for all and 0 otherwise.
        failure_limit (`float`, defaults to 0.2): Share of the last 200 rows that may go without a reward before the run
            is stopped.
        **runner (*optional*): Arguments of `Runner`, such as `require_isolation=True`.
    """

    def __init__(
        self,
        sandbox: Sandbox | None = None,
        *,
        batch_seconds: float = BATCH_SECONDS,
        fraction: bool = False,
        failure_limit: float = FAILURE_LIMIT,
        **runner: object,
    ):
        self._sandbox = Runner(**runner) if sandbox is None else sandbox
        self._batch_seconds, self._fraction, self._failure_limit = batch_seconds, fraction, failure_limit
        self._recent: deque[bool] = deque(maxlen=FAILURE_WINDOW_ROWS)
        self._early = Begun()

    def check(
        self,
        completion: str,
        tests: str | Sequence[Mapping[str, object]],
        entry_point: str | None = None,
        *,
        compare: str = "default",
        test_setup: str = "",
        compare_atol: float = 0.0,
    ) -> CodeCheck:
        """Check one completion; see the function `check`. May be called from any thread (it blocks)."""
        columns = entry_point, compare, test_setup, compare_atol
        return self._start([completion], [tests], *([column] for column in columns))[0].check()

    async def reward(
        self,
        prompts: Sequence,
        completions: Sequence,
        tests: Sequence,
        entry_point: Sequence[str | None] | None = None,
        compare: Sequence[str | None] | None = None,
        test_setup: Sequence[str | None] | None = None,
        compare_atol: Sequence[float | None] | None = None,
        log_extra: Callable[[str, list], None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **kwargs: object,
    ) -> list[float | None]:
        """The reward function for TRL; see `code_reward`."""
        columns = [
            column if column is not None else [None] * len(completions)
            for column in (tests, entry_point, compare, test_setup, compare_atol)
        ]
        if any(len(column) != len(completions) for column in (prompts, *columns)):
            raise RewardError(f"columns of {[len(c) for c in columns]} rows for {len(completions)} completions")
        early, self._early = self._early, Begun()
        early.drop_failed()
        rows = self._start([text_of(completion) for completion in completions], *columns, begun=early)
        waiting = {trial.done for row in rows for trial in row.trials}
        await asyncio.gather(*map(asyncio.wrap_future, waiting), return_exceptions=True)
        checks = [row.check() for row in rows]
        if log_extra is not None:
            log_extra("why", [str(check.why) for check in checks])
            log_extra("detail", [check.detail for check in checks])
        if log_metric is not None and checks:
            for why in Why:  # all of them each time, so that means over processes and steps stay right
                if why is not Why.NOT_RUN:
                    log_metric(f"reward/{why}", sum(check.why is why for check in checks) / len(checks))
        self._count_failures(checks)
        return [check.fraction if self._fraction else check.reward for check in checks]

    def begin(self, completion: str, row: Mapping[str, object]) -> None:
        """Start the check of one completion before the batch is whole; the next call of `reward` finds it.

        One that the sandbox fails at meanwhile is made again then. Called from one thread at a time, and not during
        `reward`.

        Args:
            completion (`str`): Its text.
            row (`Mapping`): With `tests` and the other columns that `reward` reads.
        """
        self._start([completion], *([row.get(column)] for column in COLUMNS), begun=self._early)

    def check_references(self, rows: Iterable[Mapping[str, object]]) -> list[tuple[int, CodeCheck]]:
        """Put reference solutions to their tests; see the function `check_references`."""
        attempts = []
        for row in rows:
            task = _task_of(row)
            nothing = self._try_nothing(task, FOREVER)
            attempts.append(self._try(None, row["privileged_context"], task, nothing, FOREVER))
        return [(index, check) for index, attempt in enumerate(attempts) if not (check := attempt.check()).passed]

    def check_tests(self, rows: Iterable[Mapping[str, object]], *, run: bool = True) -> list[int]:
        """Find rows whose tests ask nothing; see the function `check_tests`."""
        tasks = [_task_of(row) for row in rows]
        tried = [self._try_nothing(task, FOREVER) if run else () for task in tasks]
        return [
            index
            for index, (task, trials) in enumerate(zip(tasks, tried, strict=True))
            if asks_something(task) is False or all_pass(trials)
        ]

    def start(self) -> object:
        """Start the sandbox now rather than with the first check; see the function `start`."""
        return self._sandbox.start()

    def close(self) -> None:
        """End whatever runs. Later checks start anew."""
        self._sandbox.close()

    def _start(self, completions: Sequence[str], *columns: Sequence, begun: Begun | None = None) -> list[Attempt]:
        """Per row its attempt; equal ones run once, those of `begun` not again."""
        deadline = time.monotonic() + self._batch_seconds
        begun = Begun() if begun is None else begun
        attempts: list[Attempt] = []
        for completion, tests, *others in zip(completions, *columns, strict=True):
            task = read_task(tests, *others)
            asked = id(task.cases), *others  # the cases live on in `begun.tasks`, and keep their id
            if asked not in begun.tasks:
                begun.tasks[asked] = task, self._try_nothing(task, deadline)
            _, nothing = begun.tasks[asked]
            no_program, program = find_program(completion, task.names)
            key = no_program, program, asked
            if key not in begun.attempts:
                known = None if no_program is None else CodeCheck(Why(no_program))
                begun.attempts[key] = self._try(known, program, task, nothing, deadline)
            attempts.append(begun.attempts[key])
        return attempts

    def _try(
        self, known: CodeCheck | None, program: str, task: CodeTask, nothing: tuple[Trial, ...], deadline: float
    ) -> Attempt:
        if asks_something(task) is False:
            known = EMPTY_TESTS
        trial = self._submit(program, task, self._fraction, deadline) if known is None else None
        return Attempt(known, trial, nothing)

    def _try_nothing(self, task: CodeTask, deadline: float) -> tuple[Trial, ...]:
        """Put programs that do nothing to the tests, if it takes that to tell whether they ask anything."""
        if asks_something(task) is not None:
            return ()
        return tuple(self._submit(program, task, False, deadline) for program in nothing_programs(task))

    def _submit(self, program: str, task: CodeTask, run_all: bool, deadline: float) -> Trial:
        trial = Trial(program, task.cases, task.rule, task.rule_atol, run_all)
        trial.done = self._sandbox.submit(task.job(program), trial.judge, deadline)
        return trial

    def _count_failures(self, checks: Sequence[CodeCheck]) -> None:
        self._recent.extend(check.why in NO_REWARD for check in checks)
        failed = sum(self._recent)
        if len(self._recent) >= _LEAST_ROWS and failed > self._failure_limit * len(self._recent):
            last = next(check for check in reversed(checks) if check.why in NO_REWARD)
            raise FailureLimitError(
                f"{failed} of the last {len(self._recent)} programs could not be judged (limit "
                f"{self._failure_limit:.0%}). The last: {last.why} {last.detail}. {_ADVICE[last.why]}."
            )


def _task_of(row: Mapping[str, object]) -> CodeTask:
    return read_task(*(row.get(column) for column in COLUMNS))


@cache
def _default_checker() -> CodeChecker:
    return CodeChecker()


async def code_reward(
    prompts: Sequence,
    completions: Sequence,
    tests: Sequence,
    entry_point: Sequence[str | None] | None = None,
    compare: Sequence[str | None] | None = None,
    test_setup: Sequence[str | None] | None = None,
    compare_atol: Sequence[float | None] | None = None,
    log_extra: Callable[[str, list], None] | None = None,
    log_metric: Callable[[str, float], None] | None = None,
    **kwargs: object,
) -> list[float | None]:
    """1.0 for a completion whose program passes all tests of its row, else 0.0. For TRL's `reward_funcs`.

    It serves any event loop and never blocks it. For other limits, a share of tests as reward, or required isolation
    pass `CodeChecker(...).reward`.

    Args:
        prompts (`Sequence`): Not read.
        completions (`Sequence`): Text, or lists of messages.
        tests (`Sequence`): Per row, JSON text or a list of tests; see `rewards.testcases`.
        entry_point (`Sequence[str]`, *optional*): Function or `Solution.method`; `None` or `"stdin"` for programs.
        compare (`Sequence[str]`, *optional*): Rule of comparison; see `rewards.comparison`.
        test_setup (`Sequence[str]`, *optional*): Code that assertions need first.
        compare_atol (`Sequence[float]`, *optional*): Tolerance of the rule.
        log_extra (`Callable`, *optional*): Gets the columns `why` and `detail` for the table of completions.
        log_metric (`Callable`, *optional*): Gets `reward/<why>`, the share of rows with each reason.
        **kwargs: Other columns and what else TRL passes; not read.

    Returns:
        `list[float | None]`: One reward per completion, in order; `None` where the sandbox failed.

    Raises:
        DataError: The tests of a row cannot be read.
        RewardError: Lengths differ, a completion is not text, or programs cannot be run on this machine.
        FailureLimitError: The sandbox failed for too many rows.
    """
    return await _default_checker().reward(
        prompts, completions, tests, entry_point, compare, test_setup, compare_atol, log_extra, log_metric, **kwargs
    )


def begin(completion: str, row: Mapping[str, object]) -> None:
    """Start the check of one completion before its batch is whole; see `CodeChecker.begin`."""
    _default_checker().begin(completion, row)


code_reward.begin = begin


def check(
    completion: str,
    tests: str | Sequence[Mapping[str, object]],
    entry_point: str | None = None,
    *,
    compare: str = "default",
    test_setup: str = "",
    compare_atol: float = 0.0,
) -> CodeCheck:
    """Check one completion; `.passed`, `.why`, `.detail` and `.tests` say what became of it."""
    return _default_checker().check(
        completion, tests, entry_point, compare=compare, test_setup=test_setup, compare_atol=compare_atol
    )


def start() -> object:
    """Start the default sandbox before training, so that a machine that cannot run programs is found at once.

    Returns:
        `object`: How programs are kept apart, as text with `str()`; on this machine an `Isolation`.

    Raises:
        RewardError: Programs cannot be run here. The message says why.
    """
    return _default_checker().start()


def check_references(rows: Iterable[Mapping[str, object]]) -> list[tuple[int, CodeCheck]]:
    """Find rows whose reference solution fails their tests, so that rewards would be wrong.

    Args:
        rows (`Iterable[Mapping]`): Data rows with `tests`, `entry_point`, `compare` and, as solution,
            `privileged_context`.

    Returns:
        `list[tuple[int, CodeCheck]]`: Row number (from 0) and result of each bad one; empty when all are good.
    """
    return _default_checker().check_references(rows)


def check_tests(rows: Iterable[Mapping[str, object]], *, run: bool = True) -> list[int]:
    """Find rows whose tests a program that does nothing passes, so that they would pay for anything.

    Args:
        rows (`Iterable[Mapping]`): Data rows with `tests`, `entry_point`, `compare` and so on.
        run (`bool`, defaults to `True`): Run such programs where the text of the tests does not tell.

    Returns:
        `list[int]`: Row number (from 0) of each bad one; empty when all are good.
    """
    return _default_checker().check_tests(rows, run=run)


def require_tests(rows: Sequence[Mapping[str, object]]) -> None:
    """Stop before training if the text of a row's tests tells that they ask nothing. It runs nothing.

    Raises:
        DataError: Names the rows and the tests of the first.
    """
    bad = check_tests(rows, run=False)
    if bad:
        numbers = ", ".join(map(str, bad[:10])) + (", ..." if len(bad) > 10 else "")
        raise DataError(
            f"{len(bad)} of {len(rows)} rows (number {numbers})",
            "tests",
            rows[bad[0]]["tests"],
            "tests that a program that does nothing does not pass",
            "add assertions that can fail, call the function that holds them, or drop the row",
        )
