"""Tests as they stand in a data row, read once.

Owns: the schema below and the split of a test into what a sandbox gets (`Stimulus`) and what only the trainer knows
(`TestCase.expected`). Never runs anything. Invariant: a row whose tests cannot be read raises `DataError`.

| `type` | to the sandbox | kept by the trainer |
|---|---|---|
| `stdin` | `stdin` | `stdout` |
| `call` | `args` (literal of a list) or `kwargs` (of a dict) | `expected` (literal), `atol` |
| `assert` | `code`, which has to compile; it runs in a process of its own, apart from the program | |

Assertions get a copy of what the program returns, and the program a copy of what they pass. So they cannot tell what it
changes in place, cannot pass it a function of theirs, and an object of a class of its own equals only itself; `mintrl
check-data` finds such rows by their reference solutions. Use tests of type `call` for them, or assert plain values.

`None` for a key means that the test does not have it: a `datasets.Dataset` gives every test the keys of all.
"""

import ast
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ..errors import DataError
from .comparison import RULES, same_output, same_value, shown
from .jobs import Stimulus, TestKind

_WHERE = "a row's tests"
_OUTPUT_BYTES = 2**20


@dataclass(frozen=True)
class TestCase:
    """One test.

    Args:
        stimulus (`Stimulus`): What the sandbox gets.
        group (`str`): `base`, `plus`, ...; for reports.
        expected (`object`): Expected standard output or value; `None` for assertions.
        args (`object`): The arguments of a call, for rules that look at them.
        atol (`float`): Tolerance for floats; 0 means none.
    """

    __test__ = False  # no test of ours, whatever its name begins with

    stimulus: Stimulus
    group: str = "base"
    expected: object = None
    args: object = None
    atol: float = 0.0

    def accepts(self, value: object, rule: str, rule_atol: float) -> bool:
        """Whether what the program gave is right."""
        match self.stimulus.kind:
            case TestKind.STDIN:
                return isinstance(value, str) and same_output(value, self.expected)
            case TestKind.CALL:
                return same_value(value, self.expected, rule, args=self.args, atol=self.atol, rule_atol=rule_atol)
            case TestKind.ASSERT:
                return True  # it got to its end

    def wanted(self) -> str:
        """What was expected, for the log."""
        return shown(self.expected)


def read_tests(tests: str | Sequence[Mapping[str, object]]) -> tuple[TestCase, ...]:
    """Read the tests of a row.

    Args:
        tests (`str` or `Sequence[Mapping]`): JSON text of a list of objects, or the list.

    Raises:
        DataError: Says what is wrong with which test.
    """
    return _read(tests if isinstance(tests, str) else json.dumps(list(tests)))


@lru_cache(maxsize=256)  # every rollout of a prompt brings the same tests
def _read(text: str) -> tuple[TestCase, ...]:
    try:
        tests = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(_WHERE, "tests", text, f"JSON ({error})", "write json.dumps(list of tests)") from error
    if not isinstance(tests, list) or not tests:
        raise DataError(_WHERE, "tests", tests, "a list of at least one test", "add tests or drop the row")
    return tuple(_read_one(f"test {number}", test) for number, test in enumerate(tests))


def _read_one(where: str, test: object) -> TestCase:
    kinds = " | ".join(TestKind)
    if not isinstance(test, dict) or test.get("type") not in list(TestKind):
        raise DataError(where, "tests", test, f"an object with `type`: {kinds}", "convert the test")
    kind, group = TestKind(test["type"]), test.get("group") or "base"
    match kind:
        case TestKind.STDIN:
            expected = _text(where, "stdout", test)
            limit = _OUTPUT_BYTES + 8 * len(expected)
            return TestCase(Stimulus(kind, _text(where, "stdin", test), output_bytes=limit), group, expected)
        case TestKind.ASSERT:
            code = _text(where, "code", test)
            check_code(where, "code", code)
            return TestCase(Stimulus(kind, code), group)
        case TestKind.CALL:
            by_keyword = test.get("kwargs") is not None
            given = _text(where, "kwargs" if by_keyword else "args", test)
            expected = _text(where, "expected", test)
            limit = _OUTPUT_BYTES + 8 * len(expected)
            stimulus = Stimulus(kind, given, by_keyword, limit)
            args, wanted = _literal(where, "args", given), _literal(where, "expected", expected)
            return TestCase(stimulus, group, wanted, args, float(test.get("atol") or 0.0))


def check_rule(rule: str | None) -> str:
    """A rule of comparison by name; `None` and an empty text mean `default`.

    Raises:
        DataError: There is no such rule.
    """
    rule = rule or "default"
    if rule not in RULES:
        raise DataError(_WHERE, "compare", rule, " | ".join(sorted(RULES)), "name the rule the tests were made for")
    return rule


def check_code(where: str, field: str, code: str) -> None:
    """Check that test code compiles; with code that does not, no program would pass.

    Raises:
        DataError: It does not.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # such as for an assertion that is always true
            ast.parse(code)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        fix = "correct it, or drop the row"
        raise DataError(where, field, code, f"Python code that compiles ({error})", fix) from error


def _text(where: str, key: str, test: Mapping[str, object]) -> str:
    if not isinstance(test.get(key), str):
        raise DataError(where, key, test.get(key), f"text, in a test of type {test['type']}", "write it as a string")
    return test[key]


def _literal(where: str, key: str, text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        fix = f"write `{key}` as repr(value) gives it"
        raise DataError(where, key, text, "the text of a Python literal", fix) from error
