"""What a code row asks: its tests, and how to judge what they show.

Owns: reading a row's columns into one object. Never runs anything. Invariant: what can be built can be run; everything
else raises `DataError`.
"""

import builtins
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import DataError
from .jobs import Job, TestKind
from .testcases import TestCase, check_code, check_rule, read_tests

STDIN = "stdin"  # entry point of rows whose tests run a whole program
COLUMNS = ("tests", "entry_point", "compare", "test_setup", "compare_atol")
_CALLED = re.compile(r"\b([A-Za-z_]\w*)\s*\(")


@dataclass(frozen=True)
class CodeTask:
    """What is asked of a program.

    Args:
        cases (`tuple[TestCase, ...]`): The tests, at least one.
        entry_point (`str`, *optional*): Function, or `Class.method`, that they call.
        rule (`str`): How values are compared; see `rewards.comparison`.
        rule_atol (`float`): Tolerance of the rule.
        setup (`str`): Code that assertions need first.
    """

    cases: tuple[TestCase, ...]
    entry_point: str | None = None
    rule: str = "default"
    rule_atol: float = 0.0
    setup: str = ""

    @property
    def names(self) -> set[str]:
        """Names of which the program has to define one; for assertions without entry point, those that they call."""
        if self.cases[0].stimulus.kind is TestKind.STDIN:
            return set()
        if self.entry_point:
            return {self.entry_point.partition(".")[0]}
        return {name for code in self.codes for name in _CALLED.findall(code) if not hasattr(builtins, name)}

    @property
    def codes(self) -> tuple[str, ...]:
        """The code of its assertions."""
        return tuple(case.stimulus.text for case in self.cases if case.stimulus.kind is TestKind.ASSERT)

    def job(self, program: str) -> Job:
        """What a sandbox gets; nothing of what is expected is in it."""
        return Job(program, tuple(case.stimulus for case in self.cases), self.entry_point, self.setup)


def read_task(
    tests: str | Sequence[Mapping[str, object]],
    entry_point: str | None = None,
    compare: str | None = None,
    test_setup: str | None = None,
    compare_atol: float | None = None,
) -> CodeTask:
    """Read the columns of a row.

    Args:
        tests (`str` or `Sequence[Mapping]`): JSON text or a list of tests; see `rewards.testcases`.
        entry_point (`str`, *optional*): Function or `Class.method`; `None` or `"stdin"` for programs.
        compare (`str`, *optional*): Rule of comparison.
        test_setup (`str`, *optional*): Code that assertions need first.
        compare_atol (`float`, *optional*): Tolerance of the rule.

    Raises:
        DataError: Says which column cannot be used.
    """
    cases = read_tests(tests)
    if entry_point in (None, "", STDIN) and any(case.stimulus.kind is TestKind.CALL for case in cases):
        fix = "name what the tests call"
        raise DataError("a row with tests of type call", "entry_point", entry_point, "a function or Class.method", fix)
    if test_setup:
        check_code("a row's tests", "test_setup", test_setup)
    rule = check_rule(compare)
    if rule == "default" and "." in (entry_point or ""):  # expected results of this form were JSON once
        rule = "json"
    return CodeTask(cases, entry_point, rule, compare_atol or 0.0, test_setup or "")
