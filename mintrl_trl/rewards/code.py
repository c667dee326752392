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

The reason of a row is that of its first test that does not pass.
"""

import asyncio
import builtins
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

from ..errors import DataError, FailureLimitError, RewardError
from .extraction import find_program
from .jobs import Job, Sandbox, TestKind
from .math import text_of
from .runner import Runner
from .testcases import TestCase, check_rule, read_tests
from .verdicts import NO_REWARD, CodeCheck, TestResult, Trial, Why

__all__ = ["CodeCheck", "CodeChecker", "TestResult", "Why", "check", "check_references", "code_reward", "start"]

BATCH_SECONDS = 600.0
FAILURE_LIMIT = 0.2
FAILURE_WINDOW_ROWS = 200
_LEAST_ROWS = 20  # a share of fewer rows than this says nothing
STDIN = "stdin"  # entry point of rows whose tests run a whole program
_CALLED = re.compile(r"\b([A-Za-z_]\w*)\s*\(")


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
        return _result(self._start([completion], [tests], *([column] for column in columns))[0])

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
        rows = self._start([text_of(completion) for completion in completions], *columns)
        waiting = {row.done for row in rows if isinstance(row, Trial)}
        await asyncio.gather(*map(asyncio.wrap_future, waiting), return_exceptions=True)
        checks = [_result(row) for row in rows]
        if log_extra is not None:
            log_extra("why", [str(check.why) for check in checks])
            log_extra("detail", [check.detail for check in checks])
        if log_metric is not None and checks:
            for why in Why:  # all of them each time, so that means over processes and steps stay right
                if why is not Why.NOT_RUN:
                    log_metric(f"reward/{why}", sum(check.why is why for check in checks) / len(checks))
        self._count_failures(checks)
        return [check.fraction if self._fraction else check.reward for check in checks]

    def check_references(self, rows: Iterable[Mapping[str, object]]) -> list[tuple[int, CodeCheck]]:
        """Put reference solutions to their tests; see the function `check_references`."""
        trials = [
            self._try(
                row["privileged_context"],
                _read(row["tests"], row.get("entry_point")),
                *(row.get(column) for column in ("entry_point", "compare", "test_setup", "compare_atol")),
                deadline=float("inf"),
            )
            for row in rows
        ]
        return [(index, check) for index, trial in enumerate(trials) if not (check := trial.check()).passed]

    def start(self) -> object:
        """Start the sandbox now rather than with the first check; see the function `start`."""
        return self._sandbox.start()

    def close(self) -> None:
        """End whatever runs. Later checks start anew."""
        self._sandbox.close()

    def _start(
        self, completions: Sequence[str], tests: Sequence, entry_points: Sequence, *others: Sequence
    ) -> list[CodeCheck | Trial]:
        """Per row its result, where the text alone decides, or its trial; equal ones run once."""
        deadline = time.monotonic() + self._batch_seconds
        trials: dict[tuple, Trial] = {}
        rows: list[CodeCheck | Trial] = []
        for completion, own_tests, entry_point, *rule in zip(completions, tests, entry_points, *others, strict=True):
            cases = _read(own_tests, entry_point)
            no_program, program = find_program(completion, _names(cases, entry_point))
            if no_program is not None:
                rows.append(CodeCheck(Why(no_program)))
                continue
            key = program, id(cases), entry_point, *rule
            if key not in trials:
                trials[key] = self._try(program, cases, entry_point, *rule, deadline=deadline)
            rows.append(trials[key])
        return rows

    def _try(
        self,
        program: str,
        cases: tuple[TestCase, ...],
        entry_point: str | None,
        compare: str | None,
        test_setup: str | None,
        compare_atol: float | None,
        *,
        deadline: float,
    ) -> Trial:
        rule = check_rule(compare)
        if rule == "default" and "." in (entry_point or ""):
            rule = "json"
        trial = Trial(program, cases, rule, compare_atol or 0.0, self._fraction)
        job = Job(program, tuple(case.stimulus for case in cases), entry_point, test_setup or "")
        trial.done = self._sandbox.submit(job, trial.judge, deadline)
        return trial

    def _count_failures(self, checks: Sequence[CodeCheck]) -> None:
        self._recent.extend(check.why in NO_REWARD for check in checks)
        failed = sum(self._recent)
        if len(self._recent) >= _LEAST_ROWS and failed > self._failure_limit * len(self._recent):
            last = next(check for check in reversed(checks) if check.why in NO_REWARD)
            raise FailureLimitError(
                f"{failed} of the last {len(self._recent)} programs could not be judged (limit "
                f"{self._failure_limit:.0%}). The last: {last.why} {last.detail}. Look at memory, processes and "
                "temporary space of this machine, or give the batch more time (batch_seconds)."
            )


def _result(row: CodeCheck | Trial) -> CodeCheck:
    return row.check() if isinstance(row, Trial) else row


def _read(tests: str | Sequence[Mapping[str, object]], entry_point: str | None) -> tuple[TestCase, ...]:
    cases = read_tests(tests)
    if entry_point in (None, "", STDIN) and any(case.stimulus.kind is TestKind.CALL for case in cases):
        fix = "name what the tests call"
        raise DataError("a row with tests of type call", "entry_point", entry_point, "a function or Class.method", fix)
    return cases


def _names(cases: Sequence[TestCase], entry_point: str | None) -> set[str]:
    """Names of which the program has to define one; for assertions without entry point, those that they call."""
    if cases[0].stimulus.kind is TestKind.STDIN:
        return set()
    if entry_point:
        return {entry_point.partition(".")[0]}
    codes = [case.stimulus.text for case in cases if case.stimulus.kind is TestKind.ASSERT]
    return {name for code in codes for name in _CALLED.findall(code) if not hasattr(builtins, name)}


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
