"""Rows as the hub publishes them: the columns and forms are the published ones, the content is our own."""

import ast
import json

import pytest

from mintrl_trl.data.sources import map_acereason, map_deepcoder
from mintrl_trl.errors import DataError


def test_acereason_row():
    raw = {"problem": "Find $x$ with $2x = 1$.", "answer": r"\frac{1}{2}"}
    row = map_acereason(raw, 7)
    assert (row["id"], row["answer"], row["privileged_context"]) == ("acereason/7", r"\frac{1}{2}", None)
    assert row["prompt"][0]["content"].startswith("Find $x$ with $2x = 1$.\n\n")
    with pytest.raises(DataError, match=r"nvidia/AceReason-Math, row 3: `answer`"):
        map_acereason({"problem": "p", "answer": None}, 3)


PRIMEINTELLECT_STDIN = {
    "problem": "Read a number and print it doubled.",
    "solutions": ["```python\nprint(2 * int(input()))\n```"],
    "tests": json.dumps([{"type": "stdin_stdout", "input": "4\n", "output": "8\n"}]),
}
PRIMEINTELLECT_CALL = {
    "problem": "Double a list.",
    "solutions": ["def twice(x):\n    return x + x"],
    "tests": json.dumps(
        [{"type": "function_call", "fn_name": "twice", "input": [[1, None]], "output": [[1, None] * 2]}]
    ),
}
TACO_STDIN = {
    "problem": "Echo two lines.",
    "solutions": ["print(input())\nprint(input())"],
    "tests": json.dumps({"inputs": ["a\nb\n", ["c", "d"]], "outputs": ["a\nb\n", ["c", "d"]]}),
}
TACO_CALL = {
    "problem": "Add.",
    "solutions": [],
    "tests": json.dumps({"fn_name": "add", "inputs": [[1, 2], [3, 4]], "outputs": [[3], 7]}),
}
LCB_CALL = {
    "problem": "Count the elements.",
    "starter_code": "class Solution:\n    def count(self, items: List[int], deep: bool) -> int:\n        ",
    "tests": json.dumps([{"input": "[1, 2]\ntrue", "output": "2", "testtype": "functional"}]),
    "metadata": json.dumps({"func_name": "count"}),
}
LCB_CALL_BY_TEST = LCB_CALL | {
    "tests": json.dumps(
        [{"input": '"a b"', "output": '["a", "b"]', "testtype": "functional", "metadata": {"func_name": "count"}}]
    ),
    "metadata": {},
}
CODEFORCES = {"problem": "Print one.", "tests": json.dumps([{"input": "", "output": "1"}])}


@pytest.mark.parametrize(
    ("raw", "entry_point", "compare", "tests", "solution"),
    [
        (PRIMEINTELLECT_STDIN, "stdin", "stdout", [("4\n", "8\n")], "print(2 * int(input()))"),
        (
            PRIMEINTELLECT_CALL,
            "twice",
            "json",
            [([[1, None]], [1, None, 1, None])],
            "def twice(x):\n    return x + x",
        ),
        (TACO_STDIN, "stdin", "stdout", [("a\nb\n", "a\nb\n"), ("c\nd", "c\nd")], "print(input())\nprint(input())"),
        (TACO_CALL, "add", "json", [([1, 2], 3), ([3, 4], 7)], None),
        (LCB_CALL, "Solution.count", "json", [([[1, 2], True], 2)], None),
        (LCB_CALL_BY_TEST, "Solution.count", "json", [(["a b"], ["a", "b"])], None),
        (CODEFORCES, "stdin", "stdout", [("", "1")], None),
    ],
    ids=[
        "primeintellect stdin",
        "primeintellect call",
        "taco stdin",
        "taco call",
        "lcb call",
        "lcb test name",
        "codeforces",
    ],
)
def test_deepcoder_row(raw, entry_point, compare, tests, solution):
    row = map_deepcoder(raw, 5, "taco")
    assert (row["id"], row["entry_point"], row["compare"]) == ("taco/5", entry_point, compare)
    assert row["privileged_context"] == solution
    assert row["question"].startswith(raw["problem"])
    assert all(test["group"] == "hidden" for test in row["tests"])
    if entry_point == "stdin":
        assert [(test["stdin"], test["stdout"]) for test in row["tests"]] == tests
    else:
        read = [(ast.literal_eval(test["args"]), ast.literal_eval(test["expected"])) for test in row["tests"]]
        assert read == tests


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        ({"tests": "[{"}, "tests", "JSON ("),
        ({"tests": json.dumps("x")}, "tests", "a list of objects"),
        ({"tests": json.dumps([])}, "tests", "at least one test"),
        ({"tests": None}, "tests", "a list of objects"),
        ({"tests": json.dumps({"inputs": ["1"], "outputs": []})}, "tests", "as many `inputs` as `outputs`"),
        ({"tests": json.dumps([{"type": "interactive"}])}, "type", "stdin | stdin_stdout | functional | function_call"),
        ({"tests": json.dumps([{"type": "function_call", "input": [1], "output": 1}])}, "fn_name", "one function name"),
        ({"tests": json.dumps([{"testtype": "functional", "input": "x", "output": "1"}])}, "input", "JSON values"),
        (
            {"tests": json.dumps([{"type": "stdin", "input": 5, "output": "1"}])},
            "stdin",
            "text, for a test of type stdin",
        ),
        ({"problem": ""}, "prompt", "not empty"),
        ({"solutions": [5]}, "solutions", "text or nothing"),
    ],
)
def test_bad_deepcoder_row_is_refused(change, field, message):
    with pytest.raises(DataError) as refused:
        map_deepcoder(PRIMEINTELLECT_STDIN | change, 2, "primeintellect")
    assert refused.value.field == field
    assert message in str(refused.value)
    assert "(primeintellect), row 2" in str(refused.value)


def test_mixed_tests_are_refused():
    tests = json.loads(PRIMEINTELLECT_STDIN["tests"]) + json.loads(PRIMEINTELLECT_CALL["tests"])
    with pytest.raises(DataError, match="`entry_point`"):
        map_deepcoder(PRIMEINTELLECT_CALL | {"tests": json.dumps(tests)})
