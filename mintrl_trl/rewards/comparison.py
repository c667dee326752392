"""Whether what a program returned or printed is what a test expects.

Owns: the rules below. Sees plain data only (`sandbox.plain`), so nothing of a program's decides what is equal. Never
looks values up in a set or dict that a program sent more than its own elements. Invariant: rules state what is right;
whatever raises is wrong.

| rule | right when |
|---|---|
| `default` | equal; or, if the test has a tolerance: same type and length, within `atol + 1e-7 * abs(expected)` |
| `json` | as default, with tuples counted as lists, also inside |
| `set_equal` | same elements, in any order and number |
| `is_not_none` | a bool equals the expected one; anything else: whether it is not `None` |
| `poly_root` | the polynomial with the argument's coefficients is 0 there, within 1e-4 or the row's tolerance |
| `alt_surface_area`, `alt_digit_distance` | default, or the second reading of the task (MBPP 581 and 558) |
| `stdout` | same lines, blanks at ends ignored; in a line the same words, numbers by the rule below |

Printed numbers: whole ones exactly; a decimal for a whole one within 1e-6; others within 1e-6, absolute or relative.

Expected results of the class form (`Solution.method`) were JSON once, so `default` means `json` for them.
"""

import math
import re
from collections.abc import Callable
from numbers import Number

RELATIVE_TOLERANCE = 1e-7  # numpy.allclose's, as EvalPlus uses it
PRINTED_TOLERANCE = 1e-6
ROOT_TOLERANCE = 1e-4
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_MAX_NUMBER_CHARS = 400
_MAX_SHOWN_CHARS = 120
_MAX_ROOT = 1e9  # powers of a huge whole number take long


def same_value(
    value: object, expected: object, rule: str, *, args: object = None, atol: float = 0.0, rule_atol: float = 0.0
) -> bool:
    """Whether a returned value is right.

    Args:
        value (`object`): What came back, as plain data.
        expected (`object`): What the test expects.
        rule (`str`): A rule of the module's table.
        args (`object`, *optional*): The call's arguments, for rules that look at them.
        atol (`float`, defaults to 0.0): The test's tolerance; 0 means none.
        rule_atol (`float`, defaults to 0.0): The row's tolerance, for `poly_root`.

    Raises:
        KeyError: There is no such rule.
    """
    alternative = _ALTERNATIVES["default" if rule == "json" else rule]
    try:
        if rule == "json":
            value, expected, rule = _lists(value), _lists(expected), "default"
        if rule in ("default", "alt_surface_area", "alt_digit_distance") and _equal(value, expected, atol):
            return True
        return alternative(value, expected, args, rule_atol)
    except (TypeError, ValueError, ArithmeticError, IndexError, RecursionError):
        return False


def same_output(printed: str, expected: str) -> bool:
    """Whether printed text is right, by the rule `stdout`."""
    got, wanted = printed.strip().split("\n"), expected.strip().split("\n")
    return len(got) == len(wanted) and all(map(_same_line, got, wanted))


def shown(value: object) -> str:
    """A value for the log, short."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an int with too many digits, lists in lists in lists
        text = f"a large {type(value).__name__}"
    return text if len(text) <= _MAX_SHOWN_CHARS else text[: _MAX_SHOWN_CHARS - 3] + "..."


def _same_line(got: str, wanted: str) -> bool:
    if got.strip() == wanted.strip():
        return True
    got_words, wanted_words = got.split(), wanted.split()
    return len(got_words) == len(wanted_words) and all(map(_same_word, got_words, wanted_words))


def _same_word(got: str, wanted: str) -> bool:
    if got == wanted:
        return True
    if max(len(got), len(wanted)) > _MAX_NUMBER_CHARS or not (_NUMBER.fullmatch(got) and _NUMBER.fullmatch(wanted)):
        return False
    if not any(mark in word for word in (got, wanted) for mark in ".eE"):
        return False  # whole numbers are exact
    # A whole number stays one however large it is: a relative tolerance would forgive 1e9 for 1000000007.
    relative = PRINTED_TOLERANCE if any(mark in wanted for mark in ".eE") else 0.0
    if not relative and float(wanted) != int(wanted):
        return False  # more digits than a float holds, so a printed float cannot be it
    return math.isclose(float(got), float(wanted), rel_tol=relative, abs_tol=PRINTED_TOLERANCE)


def _equal(value: object, expected: object, atol: float) -> bool:
    return bool(value == expected) or (atol > 0 and type(value) is type(expected) and _close(value, expected, atol))


def _close(value: object, expected: object, atol: float) -> bool:
    if isinstance(expected, list | tuple):
        same_length = isinstance(value, list | tuple) and len(value) == len(expected)
        return same_length and all(_close(a, b, atol) for a, b in zip(value, expected, strict=True))
    if value == expected:
        return True
    return isinstance(value, Number) and abs(value - expected) <= atol + RELATIVE_TOLERANCE * abs(expected)


def _lists(value: object) -> object:
    if isinstance(value, list | tuple):
        return [_lists(item) for item in value]
    return {key: _lists(item) for key, item in value.items()} if isinstance(value, dict) else value


def _set_equal(value: object, expected: object, args: object, atol: float) -> bool:
    wanted = set(expected)
    return all(item in wanted for item in value) and set(value) == wanted  # the first stops at a range without end


def _is_not_none(value: object, expected: object, args: object, atol: float) -> bool:
    return value == expected if isinstance(value, bool) else (value is not None) == expected


def _poly_root(value: object, expected: object, args: object, atol: float) -> bool:
    (coefficients,) = args
    return abs(value) < _MAX_ROOT and abs(sum(c * value**power for power, c in enumerate(coefficients))) <= (
        atol or ROOT_TOLERANCE
    )


def _surface_area(value: object, expected: object, args: object, atol: float) -> bool:
    base, height = args
    return value == round(base**2 + 2 * base * math.sqrt((base / 2) ** 2 + height**2))


def _digit_distance(value: object, expected: object, args: object, atol: float) -> bool:
    first, second = (str(number) for number in args)
    width = max(len(first), len(second))
    return value == sum(abs(int(a) - int(b)) for a, b in zip(first.zfill(width), second.zfill(width), strict=True))


# rule: what else is right, where `default` says no or does not apply
_ALTERNATIVES: dict[str, Callable[[object, object, object, float], bool]] = {
    "default": lambda *_: False,
    "set_equal": _set_equal,
    "is_not_none": _is_not_none,
    "poly_root": _poly_root,
    "alt_surface_area": _surface_area,
    "alt_digit_distance": _digit_distance,
}
RULES = frozenset(_ALTERNATIVES) | {"json", "stdout", "assert"}
