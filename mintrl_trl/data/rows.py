r"""What a data row is: the checks it passes and the columns it gets, for maths and for code.

Owns: the row schema below, the text added to a question, and the message for every row that cannot be used. Never
reads a file and never asks the hub. Invariant: a row that leaves this module has all its columns, of the right type.

| column | maths | code |
|---|---|---|
| `prompt` | messages: the question and an instruction | the same |
| `question` | the problem, for judges | the task with its starter code or first test |
| `answer` | short, LaTeX without `$` | `None` |
| `privileged_context` | reference solution or `None` | reference solution or `None` |
| `id` | unique in its source | the same |
| `tests` | | dicts: `type`, `group`, and by type `stdin` `stdout`, `code`, or `args`/`kwargs` `expected` `atol` |
| `entry_point` | | a function, `Solution.method`, or `stdin` for a whole program |
| `compare`, `compare_atol` | | how results are compared with `expected` |
| `test_setup` | | code to run before the tests; it compiles, as does the `code` of tests |

`args`, `kwargs` and `expected` are texts of Python literals, since JSON has no tuples, sets or integer keys.
"""

import ast
import math
import warnings
from collections.abc import Mapping
from typing import Any

from ..errors import DataError

MATH_INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."
CODE_INSTRUCTION = "Write the solution in Python. Put the complete program in one ```python code block."
STDIN_NOTE = "The program reads from standard input and writes to standard output."

STDIN_ENTRY = "stdin"  # entry point of a whole program
COMPARE_RULES = (
    "default",
    "json",
    "set_equal",
    "is_not_none",
    "poly_root",
    "alt_surface_area",
    "alt_digit_distance",
    "stdout",
    "assert",
)
TEST_GROUPS = ("base", "plus", "public", "hidden")
_TEST_TEXTS = {"stdin": ("stdin", "stdout"), "assert": ("code",), "call": ("expected",)}


def math_row(
    where: str,
    *,
    id: str,
    problem: Any,
    answer: Any,
    solution: Any = None,
    instruction: str = MATH_INSTRUCTION,
) -> dict[str, Any]:
    """Build a maths row.

    Args:
        where (`str`): File and line, or row, for messages.
        id (`str`): Name of the row.
        problem (`str`): The problem in words.
        answer (`str` or `int`): The final answer, short; a whole number becomes its digits.
        solution (`str`, *optional*): A worked solution; it becomes the privileged context.
        instruction (`str`, *optional*): Text after the problem in the prompt.

    Returns:
        `dict`: The columns of the module's table.

    Raises:
        DataError: A value is missing, empty or no text.
    """
    question = required_text(where, "problem", problem)
    return {
        "prompt": user_prompt(question, instruction),
        "question": question,
        "answer": required_text(where, "answer", _digits(answer)),
        "privileged_context": optional_text(where, "solution", solution),
        "id": id,
    }


def code_row(
    where: str,
    *,
    id: str,
    prompt: Any,
    entry_point: Any,
    tests: Any,
    compare: Any,
    reference_solution: Any = None,
    starter_code: Any = None,
    test_setup: Any = None,
    compare_atol: Any = 0.0,
    instruction: str = CODE_INSTRUCTION,
) -> dict[str, Any]:
    """Build a code row.

    Args:
        where (`str`): File and line, or row, for messages.
        id (`str`): Name of the row.
        prompt (`str`): The task in words, or a function head to complete.
        entry_point (`str`): A function, `Solution.method`, or `"stdin"`.
        tests (`list[dict]`): At least one test; see the module's table.
        compare (`str`): One of `COMPARE_RULES`.
        reference_solution (`str`, *optional*): A solution; it becomes the privileged context.
        starter_code (`str`, *optional*): Code that the solution has to begin with.
        test_setup (`str`, *optional*): Code to run before the tests.
        compare_atol (`float`, defaults to 0.0): Tolerance of the compare rule.
        instruction (`str`, *optional*): Text after the task in the prompt.

    Returns:
        `dict`: The columns of the module's table.

    Raises:
        DataError: A value is missing, of the wrong type, or does not go with the others.
    """
    task = required_text(where, "prompt", prompt)
    entry_point = required_text(where, "entry_point", entry_point)
    if compare not in COMPARE_RULES:
        raise DataError(
            where, "compare", compare, " | ".join(COMPARE_RULES), "name the rule that the tests were made for"
        )
    if not isinstance(compare_atol, int | float) or not 0 <= compare_atol < math.inf:
        raise DataError(where, "compare_atol", compare_atol, "a number, 0 or more", "write a number or leave it out")
    if not isinstance(tests, list) or not tests:
        raise DataError(where, "tests", tests, "a list of at least one test", "add tests or drop the row")
    tests = [code_test(f"{where}, test {number}", test) for number, test in enumerate(tests)]
    for number, test in enumerate(tests):
        if (test["type"] == "stdin") != (entry_point == STDIN_ENTRY):
            raise DataError(
                f"{where}, test {number}",
                "entry_point",
                entry_point,
                "`stdin` for tests of type stdin, a function or Solution.method for all others",
                "make entry_point and the types of the tests agree",
            )
    question = _code_question(task, entry_point, tests, optional_text(where, "starter_code", starter_code))
    setup = optional_text(where, "test_setup", test_setup) or ""
    _check_code(where, "test_setup", setup)
    solution = optional_text(where, "reference_solution", reference_solution)
    if solution and solution[0].isspace():  # the body of the function whose head is the task
        solution = f"{task}\n{solution}"
    return {
        "prompt": user_prompt(question, instruction),
        "question": question,
        "answer": None,
        "privileged_context": solution,
        "id": id,
        "tests": tests,
        "entry_point": entry_point,
        "compare": compare,
        "compare_atol": float(compare_atol),
        "test_setup": setup,
    }


def ready_row(where: str, *, id: str, row: Mapping[str, Any], needs_answer: bool = True) -> dict[str, Any]:
    """Check a row that is already in the trainer's form; its prompt stays as it is.

    Args:
        where (`str`): File and line, or row, for messages.
        id (`str`): Name of the row.
        row (`Mapping`): `prompt` (text or messages), `answer` (text or a whole number), and optionally `question` and
            `privileged_context`.
        needs_answer (`bool`): Whether `answer` has to be there.

    Returns:
        `dict`: `prompt`, `question`, `answer`, `privileged_context`, `id`.

    Raises:
        DataError: A value is missing, empty or of the wrong type.
    """
    prompt = row["prompt"]
    if isinstance(prompt, list):
        texts = [_message_text(f"{where}, message {number}", message) for number, message in enumerate(prompt)]
        if not texts or prompt[-1]["role"] == "assistant":
            raise DataError(where, "prompt", prompt, "messages that end with the user's", "end with the user's message")
        asked = "\n\n".join(text for text, message in zip(texts, prompt, strict=True) if message["role"] == "user")
    else:
        asked = required_text(where, "prompt", prompt)
    answer = _digits(row.get("answer"))
    return {
        "prompt": prompt,
        "question": optional_text(where, "question", row.get("question")) or asked,
        "answer": required_text(where, "answer", answer) if needs_answer else optional_text(where, "answer", answer),
        "privileged_context": optional_text(where, "privileged_context", row.get("privileged_context")),
        "id": id,
    }


def ready_code_row(where: str, *, id: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Check a code row that is already in the trainer's form; its prompt stays as it is.

    Args:
        where (`str`): File and line, or row, for messages.
        id (`str`): Name of the row.
        row (`Mapping`): `prompt` as messages, `tests`, `entry_point`, `compare`, and optionally the other columns of
            the module's table.

    Returns:
        `dict`: The columns of the module's table.

    Raises:
        DataError: A value is missing, of the wrong type, or does not go with the others.
    """
    ready = ready_row(where, id=id, row=row, needs_answer=False)
    given = {name: row.get(name) for name in ("entry_point", "tests", "compare", "test_setup")}
    made = code_row(where, id=id, prompt=ready["question"], compare_atol=row.get("compare_atol") or 0.0, **given)
    return made | ready


def code_test(where: str, test: Any) -> dict[str, Any]:
    """Check one test and keep the keys that its type has.

    Raises:
        DataError: Its type or group is unknown, a text is missing, `args`, `kwargs` or `expected` is no literal, or
            `code` does not compile.
    """
    if not isinstance(test, dict):
        raise DataError(where, "tests", test, "an object with `type`", "write one object for each test")
    kind, group = test.get("type"), test.get("group", "base")
    if not isinstance(kind, str) or kind not in _TEST_TEXTS:
        raise DataError(where, "type", kind, " | ".join(_TEST_TEXTS), "convert the test to one of these types")
    if group not in TEST_GROUPS:
        raise DataError(where, "group", group, " | ".join(TEST_GROUPS), "use one of these, or leave it out for base")
    checked = {"type": kind, "group": group}
    for field in _TEST_TEXTS[kind]:
        if not isinstance(test.get(field), str):
            raise DataError(where, field, test.get(field), f"text, for a test of type {kind}", "write it as a string")
        checked[field] = test[field]
    if kind == "assert":
        _check_code(where, "code", test["code"])
    if kind == "call":
        given = [(field, of) for field, of in (("args", list), ("kwargs", dict)) if test.get(field) is not None]
        if len(given) != 1:
            raise DataError(where, "args", test.get("args"), "either `args` or `kwargs`", "give one of the two")
        field, of = given[0]
        _check_literal(where, field, test[field], of)
        _check_literal(where, "expected", test["expected"], object)
        checked[field] = test[field]
        atol = test.get("atol")
        if atol is not None:
            if not isinstance(atol, int | float) or not 0 <= atol < math.inf:
                raise DataError(where, "atol", atol, "a number, 0 or more", "write a number or leave it out")
            checked["atol"] = float(atol)
    return checked


def user_prompt(question: str, instruction: str) -> list[dict[str, str]]:
    """The question and the instruction as one user message."""
    return [{"role": "user", "content": f"{question}\n\n{instruction}" if instruction else question}]


def required_text(where: str, field: str, value: Any) -> str:
    """`value` without blanks at its ends.

    Raises:
        DataError: It is missing, empty or no text.
    """
    if isinstance(value, str) and value.strip():
        return value.strip()
    if value is None:
        fix = f"add `{field}` or drop the row"
    elif isinstance(value, str):
        fix = "fill it in or drop the row"
    else:
        fix = f'write it as text, such as "{value}"'
    raise DataError(where, field, value, "text that is not empty", fix)


def optional_text(where: str, field: str, value: Any) -> str | None:
    """`value` without blank lines at its ends, or `None` where it is missing or empty. Indentation stays.

    Raises:
        DataError: It is there and no text.
    """
    if value is None:
        return None
    if not isinstance(value, str):
        raise DataError(where, field, value, "text or nothing", "write it as a string, or leave it out")
    return value.rstrip().lstrip("\r\n") or None


def _digits(answer: Any) -> Any:
    """A whole number as text, anything else as it is: `15` can be written in one way alone, unlike `0.5` or `true`."""
    return str(answer) if isinstance(answer, int) and not isinstance(answer, bool) else answer


def _code_question(task: str, entry_point: str, tests: list[dict[str, Any]], starter_code: str | None) -> str:
    """The task with what a solver has to know of the form: starter code, first assert, or the function's name."""
    if starter_code:
        return f"{task}\n\nBegin with this code:\n```python\n{starter_code}\n```"
    if entry_point == STDIN_ENTRY:
        return f"{task}\n\n{STDIN_NOTE}"
    if f"def {entry_point}(" in task:
        return f"Complete this function:\n```python\n{task}\n```"
    if tests[0]["type"] == "assert":
        return f"{task}\n\nThe solution has to pass tests such as:\n```python\n{tests[0]['code']}\n```"
    return task if entry_point in task else f"{task}\n\nName the function `{entry_point.rpartition('.')[2]}`."


def _message_text(where: str, message: Any) -> str:
    ok = isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))
    if not ok:
        raise DataError(where, "prompt", message, "an object with text in `role` and `content`", "give it both as text")
    return message["content"]


def _check_code(where: str, field: str, code: str) -> None:
    try:
        with warnings.catch_warnings(action="ignore"):  # such as for an assertion that is always true
            ast.parse(code)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        allowed = f"Python code that compiles ({error})"
        raise DataError(where, field, code, allowed, "correct it, or drop the row") from error


def _check_literal(where: str, field: str, text: Any, of: type) -> None:
    try:
        value = ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        value = None
        ok = False
    else:
        ok = isinstance(value, of)
    if not ok:
        allowed = "the text of a Python literal" + ("" if of is object else f" of type {of.__name__}")
        raise DataError(where, field, text, allowed, f"write `{field}` as repr(value) gives it")
