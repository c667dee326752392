r"""Which of a row's tests are public: their input and output stand in the question.

Owns: the rules below. Never runs anything, never invents a test. Invariant: a test whose input or output the question
does not show is never public, so whoever knows only the public ones knows no more than the policy.

| test | public where the question shows |
|---|---|
| `assert` | the assertion itself |
| `call` | `name(arguments)` and, up to 40 characters on and before the next call, the expected value |
| `call` | `Input` with the arguments in order, with or without names, and behind `Output` the expected value |
| `stdin` | `Input` with the text and, after `Output`, the printed text |

Compared are normal forms: blanks count as one and not at all beside punctuation, quotation marks are alike, and JSON's
`true`, `false` and `null` are Python's. Values are looked for as `repr` writes them, whole words and numbers only.
`Input` and `Output` may have `Sample`, `Example` or `Expected` in front, and a number and a colon behind.

Examples that the question states and the row does not test are read from sessions: `>>> name(arguments)` and on the
next line the value, all of them literals. Questions have misprints, so such an example is to be confirmed first. An
assertion that a call equals a literal can be run as that call, so that the value that came instead can be named.
"""

import ast
import re
from collections.abc import Mapping, Sequence

_BESIDE_MARKS = re.compile(r"\s*([\[\](){},:=<>])\s*")
_JSON_WORDS = {"true": "True", "false": "False", "null": "None"}
_JSON_WORD = re.compile(rf"\b(?:{'|'.join(_JSON_WORDS)})\b")
_LABEL = (
    r"\b(?i:(?:(?:sample|example|expected) )?{0}(?:(?: ?\d{{1,2}})? ?: ?|\s)"
    r"|(?:sample|example) {0} \d{{1,2}} )"  # without a colon, a number might be the text's first
)
_INPUT, _OUTPUT = _LABEL.format("input"), _LABEL.format("output")
_KEYWORD = r"(?:\w+[:=])?"
_BETWEEN = r"(?:[,\s]|and)+"
_GAP_CHARS = 40


def public_tests(
    question: str, tests: Sequence[Mapping[str, object]], entry_point: str | None = None
) -> list[Mapping[str, object]]:
    r"""Find the tests whose input and output stand in the question, by the rules of the module's table.

    Args:
        question (`str`): What the policy is shown.
        tests (`Sequence[Mapping]`): The row's tests; see `rewards.testcases`.
        entry_point (`str`, *optional*): The function that calls go to.

    Returns:
        `list[Mapping]`: Those of the row's tests, in order.

    Example:

    ```python
    >>> tests = [{"type": "call", "args": f"[{n}]", "expected": f"{n * n}"} for n in (2, 3)]
    >>> public_tests("Square a number: square(3) == 9.", tests, "square")
    [{'type': 'call', 'args': '[3]', 'expected': '9'}]

    ```
    """
    name = (entry_point or "").rpartition(".")[2]
    collapsed, normal = " ".join(question.split()), _normal(question)
    return [test for test in tests if _is_public(test, name, collapsed, normal)]


def stated_tests(
    question: str, tests: Sequence[Mapping[str, object]], entry_point: str | None = None
) -> list[Mapping[str, object]]:
    r"""Read the examples of interpreter sessions that the row does not test itself, where its tests are calls.

    Args:
        question (`str`): What the policy is shown.
        tests (`Sequence[Mapping]`): The row's tests; theirs is the tolerance.
        entry_point (`str`, *optional*): The function that calls go to.

    Returns:
        `list[Mapping]`: Tests of type `call`.

    Example:

    ```python
    >>> tests = [{"type": "call", "args": "[3]", "expected": "9"}]
    >>> stated_tests(">>> square(2)\n4\n>>> square(3)\n9", tests, "square")
    [{'type': 'call', 'group': 'public', 'args': '[2]', 'expected': '4', 'atol': 0.0}]

    ```
    """
    if not entry_point or "." in entry_point or any(test["type"] != "call" for test in tests):
        return []
    known = [test.get("args") for test in tests]
    atol = max(test.get("atol") or 0.0 for test in tests)
    found = []
    session = rf"^[ \t]*>>> *({re.escape(entry_point)}\(.*\))[ \t]*\n[ \t]*(\S.*)$"
    for match in re.finditer(session, question, re.MULTILINE):
        try:
            call = ast.parse(match[1], mode="eval").body
            arguments = repr([ast.literal_eval(argument) for argument in call.args])
            expected = repr(ast.literal_eval(match[2].strip()))
        except (ValueError, TypeError, SyntaxError, AttributeError, MemoryError, RecursionError):
            continue
        if not call.keywords and arguments not in known:
            found.append({"type": "call", "group": "public", "args": arguments, "expected": expected, "atol": atol})
    return found


def as_call(test: Mapping[str, object], entry_point: str | None = None) -> Mapping[str, object]:
    r"""A test as a call, where it asserts that a call equals a literal, so that one sees what came instead.

    Args:
        test (`Mapping`): A test of any type.
        entry_point (`str`, *optional*): The function that is tested.

    Returns:
        `Mapping`: A test of type `call`; `test` itself where it is of another form.

    Example:

    ```python
    >>> as_call({"type": "assert", "code": "assert square(3) == 9"}, "square")
    {'type': 'call', 'args': '[3]', 'expected': '9'}

    ```
    """
    try:
        (assertion,) = ast.parse(test.get("code") or "").body
        comparison = assertion.test
        (equals,), (wanted,) = comparison.ops, comparison.comparators
        call = comparison.left
        arguments = repr([ast.literal_eval(argument) for argument in call.args])
        expected = repr(ast.literal_eval(wanted))
        fits = isinstance(equals, ast.Eq) and call.func.id == entry_point and not call.keywords
    except (ValueError, TypeError, SyntaxError, AttributeError, MemoryError, RecursionError):
        return test
    return {"type": "call", "args": arguments, "expected": expected} if fits else test


def _is_public(test: Mapping[str, object], name: str, collapsed: str, normal: str) -> bool:
    match test["type"]:
        case "assert":
            return _short_enough(test["code"], normal) and _normal(test["code"]) in normal
        case "stdin":
            return _shows_text(collapsed, test["stdin"], test["stdout"])
        case _:
            return _shows_call(normal, name, test)


def _shows_text(question: str, stdin: str, stdout: str) -> bool:
    if not (_short_enough(stdin, question) and _short_enough(stdout, question)):
        return False
    given, printed = " ".join(stdin.split()), " ".join(stdout.split())
    if not printed or given not in question or printed not in question:
        return False
    return bool(
        re.search(
            rf"{_INPUT}{re.escape(given)}\s?(?:(?i:sample|example|expected) )?{_OUTPUT}{re.escape(printed)}(?!\S)",
            question,
        )
    )


def _shows_call(question: str, name: str, test: Mapping[str, object]) -> bool:
    by_keyword = test.get("kwargs") is not None
    given = test["kwargs" if by_keyword else "args"]
    if not (_short_enough(given, question) and _short_enough(test["expected"], question)):
        return False
    arguments = ast.literal_eval(given)
    values = [_spelled(value) for value in (arguments.values() if by_keyword else arguments)]
    expected = _spelled(ast.literal_eval(test["expected"]))
    if not all(value in question for value in (expected, *values)):
        return False
    result = rf"(?<![\w.-]){_whole(expected)}"
    values = [f"{_KEYWORD}{_whole(value)}" for value in values]
    call = rf"\b{re.escape(name)}\({','.join(values)}\)(?:(?!{re.escape(name)}\().){{0,{_GAP_CHARS}}}?"
    labelled = rf"{_INPUT}{_BETWEEN.join(values)}[\s.;]*{_OUTPUT}{_KEYWORD}"
    return any(re.search(f"{shown}{result}", question) for shown in ([call] if name else []) + [labelled])


def _short_enough(text: str, question: str) -> bool:
    """Whether the question could hold it; long hidden tests are not worth a search."""
    return len(text) <= 2 * len(question)


def _normal(text: str) -> str:
    text = _BESIDE_MARKS.sub(r"\1", " ".join(text.replace("'", '"').split()))
    return _JSON_WORD.sub(lambda match: _JSON_WORDS[match[0]], text)


def _spelled(value: object) -> str:
    return _normal(repr(value))


def _whole(value: str) -> str:
    """A pattern for a value that is no part of a longer word or number."""
    return re.escape(value) + (r"(?![\w(]|\.\d)" if value[-1].isalnum() else "")
