r"""Rows of the paper's two training sets, as the hub publishes them, turned into ours.

Owns: what their columns mean. Never downloads anything: the mappers are pure functions of one raw row. Invariant: a
mapped row passes the same checks as a row from a file.

`nvidia/AceReason-Math` (prompts of AceReason-Nemotron): `problem`, `answer`.

`agentica-org/DeepCoder-Preview-Dataset`: `problem`, `tests` (JSON text) and, by subset, `solutions` (list of texts),
`starter_code`, `metadata` (JSON text or object with `func_name`). The tests come in these forms:

| subset | tests |
|---|---|
| primeintellect | list of `{"type": "stdin_stdout" \| "function_call", "input", "output", "fn_name"}` |
| taco | `{"inputs": [...], "outputs": [...]}`, with `fn_name` for function calls |
| lcbv5 | list of `{"input", "output", "testtype": "stdin" \| "functional"}`; arguments are JSON values, one a line |
| codeforces | list of `{"input", "output"}` |

A function call's expected value often stands in a list of one; it is taken out, as the sets' own graders do.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from ..errors import DataError
from .rows import CODE_INSTRUCTION, MATH_INSTRUCTION, STDIN_ENTRY, code_row, math_row, optional_text

ACEREASON = "nvidia/AceReason-Math"
DEEPCODER = "agentica-org/DeepCoder-Preview-Dataset"
DEEPCODER_SUBSETS = {"train": ("primeintellect", "taco", "lcbv5"), "test": ("codeforces", "lcbv5")}

_STDIN_TYPES, _CALL_TYPES = (None, "stdin", "stdin_stdout"), ("functional", "function_call")
_FENCED = re.compile(r"\s*```\w*\s*\n(.*?)\n?```\s*", re.DOTALL)


def map_acereason(row: Mapping[str, Any], index: int = 0, instruction: str = MATH_INSTRUCTION) -> dict[str, Any]:
    """Turn a row of `nvidia/AceReason-Math` into a maths row. It has no solution, so no privileged context.

    Raises:
        DataError: `problem` or `answer` is missing, empty or no text.
    """
    where = f"{ACEREASON}, row {index}"
    problem, answer = row.get("problem"), row.get("answer")
    return math_row(where, id=f"acereason/{index}", problem=problem, answer=answer, instruction=instruction)


def map_deepcoder(
    row: Mapping[str, Any], index: int = 0, subset: str = "deepcoder", instruction: str = CODE_INSTRUCTION
) -> dict[str, Any]:
    """Turn a row of `agentica-org/DeepCoder-Preview-Dataset` into a code row.

    Args:
        row (`Mapping`): The raw row of any subset.
        index (`int`, defaults to 0): Its number in the subset.
        subset (`str`, *optional*): Name of the subset, for the id.
        instruction (`str`, *optional*): Text after the task in the prompt.

    Raises:
        DataError: The tests are no JSON, of an unknown type, of two kinds at once, or do not name their function.
    """
    where = f"{DEEPCODER} ({subset}), row {index}"
    starter = optional_text(where, "starter_code", row.get("starter_code"))
    solution = _first_solution(where, row.get("solutions"))
    raw_tests = _listed(where, _from_json(where, "tests", row.get("tests")))
    tests = [_test(f"{where}, test {number}", test) for number, test in enumerate(raw_tests)]
    entry_point = STDIN_ENTRY
    if any(test["type"] == "call" for test in tests):
        metadata = _from_json(where, "metadata", row.get("metadata") or {})
        names = {str(name) for test in raw_tests if (name := _function_name(test, metadata))}
        if len(names) != 1:
            fix = "drop the row: its tests call no function, or several"
            raise DataError(where, "fn_name", sorted(names), "one function name for all tests", fix)
        in_class = any("class Solution" in text for text in (starter, solution, row.get("problem")) if text)
        entry_point = f"Solution.{names.pop()}" if in_class else names.pop()
    return code_row(
        where,
        id=f"{subset}/{index}",
        prompt=row.get("problem"),
        entry_point=entry_point,
        tests=tests,
        compare="stdout" if entry_point == STDIN_ENTRY else "json",  # expected values were JSON: no tuples
        reference_solution=solution,
        starter_code=starter,
        instruction=instruction,
    )


def _listed(where: str, tests: Any) -> list[dict[str, Any]]:
    """The tests as a list of objects, whichever of the two outer forms they came in."""
    if isinstance(tests, dict) and {"inputs", "outputs"} <= tests.keys():
        inputs, outputs = tests["inputs"], tests["outputs"]
        if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
            raise DataError(where, "tests", tests, "as many `inputs` as `outputs`", "drop the row")
        kind = {"type": "function_call", "fn_name": tests["fn_name"]} if tests.get("fn_name") else {"type": "stdin"}
        return [{"input": i, "output": o, **kind} for i, o in zip(inputs, outputs, strict=True)]
    if not isinstance(tests, list) or not all(isinstance(test, dict) for test in tests):
        raise DataError(where, "tests", tests, "a list of objects, or `inputs` and `outputs`", "drop the row")
    return tests


def _test(where: str, test: Mapping[str, Any]) -> dict[str, Any]:
    kind = test.get("testtype", test.get("type"))
    given, wanted = test.get("input"), test.get("output")
    if kind in _STDIN_TYPES:
        return {"type": "stdin", "group": "hidden", "stdin": _lines(given), "stdout": _lines(wanted)}
    if kind not in _CALL_TYPES:
        allowed = " | ".join(str(name) for name in (*_STDIN_TYPES[1:], *_CALL_TYPES))
        raise DataError(where, "type", kind, allowed, "drop the row, or convert the test")
    try:
        if isinstance(given, str):
            given = [json.loads(line) for line in given.splitlines() if line.strip()]
        if isinstance(wanted, str):
            wanted = json.loads(wanted)
        elif isinstance(wanted, list) and len(wanted) == 1:
            wanted = wanted[0]
    except json.JSONDecodeError as error:
        raise DataError(where, "input", given, "JSON values, one a line", "drop the row") from error
    if not isinstance(given, list):
        raise DataError(where, "input", given, "a list of arguments", "drop the row")
    return {"type": "call", "group": "hidden", "args": repr(given), "expected": repr(wanted)}


def _lines(value: Any) -> Any:
    """Standard input or output as one text; some rows hold a list of lines."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(line.rstrip("\n") for line in value)
    return value


def _function_name(test: Mapping[str, Any], metadata: Any) -> Any:
    inner = test.get("metadata")
    for place in (test, inner if isinstance(inner, dict) else {}, metadata if isinstance(metadata, dict) else {}):
        if name := place.get("fn_name") or place.get("func_name"):
            return name
    return None


def _first_solution(where: str, solutions: Any) -> str | None:
    first = solutions[0] if isinstance(solutions, list) and solutions else solutions or None
    text = optional_text(where, "solutions", first)
    fenced = _FENCED.fullmatch(text) if text else None
    return fenced[1] if fenced else text


def _from_json(where: str, field: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        raise DataError(where, field, value, f"JSON ({error})", "drop the row") from error
