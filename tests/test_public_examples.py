"""Public tests: those whose input and output stand in the question, and no others."""

import pytest

from mintrl_trl.judges.examples import as_call, public_tests, stated_tests


def call(args: str, expected: str, **more: object) -> dict:
    return {"type": "call", "args": args, "expected": expected, **more}


def stdin(given: str, printed: str) -> dict:
    return {"type": "stdin", "stdin": given, "stdout": printed}


CALLS = {
    "equals": ("f(2) == 19", call("[2]", "19")),
    "arrow": ("f([1, 2], 'a') ➞ [3]", call("[[1, 2], 'a']", "[3]")),
    "session": (">>> f( [1,2] )\n    True", call("[[1, 2]]", "True")),
    "words": ('f("ab") should return "ba".', call("['ab']", "'ba'")),
    "assertion": ("assert set(f((3, 4),(5, 4))) == set((4,))", call("[(3, 4), (5, 4)]", "(4,)")),
    "labels": ("Input: nums = [1,2], k = -3\nOutput: true", call("[[1, 2], -3]", "True")),
    "labels-by-keyword": (
        "Input: s = \"ab\"\nOutput: 'b'",
        {"type": "call", "kwargs": "{'s': 'ab'}", "expected": "'b'"},
    ),
    "labels-glued": ("Input: nums = [1,2]\nOutput: [2]\nExplanation: none", call("[[1, 2]]", "[2]")),
    "method": ("f(7) gives 8", call("[7]", "8")),
}


@pytest.mark.parametrize(("question", "test"), list(CALLS.values()), ids=list(CALLS))
def test_calls_that_the_question_shows(question, test):
    question = f"Do it.\n{question}\n\nConstraints: none"
    assert public_tests(question, [test], "f") == [test]
    assert public_tests(question.replace("f(", "obj.f("), [test], "Solution.f") == [test]


HIDDEN = {
    "other-input": ("f(2) == 19", call("[3]", "19")),
    "other-output": ("f(2) == 19", call("[2]", "1")),
    "longer-number": ("f(12) == 19", call("[2]", "19")),
    "longer-output": ("f(2) == 19.5", call("[2]", "19")),
    "negative-output": ("f(2) == -19", call("[2]", "19")),
    "other-function": ("g(2) == 19", call("[2]", "19")),
    "output-of-the-next-call": ("f(1), f(2) == 19", call("[1]", "19")),
    "far-away": ("f(2) is easy. " + "Read on. " * 9 + "19", call("[2]", "19")),
    "input-alone": ("Input: n = 2", call("[2]", "2")),
    "more-arguments": ("f(2, 3) == 19", call("[2]", "19")),
}


@pytest.mark.parametrize(("question", "test"), list(HIDDEN.values()), ids=list(HIDDEN))
def test_calls_that_the_question_does_not_show(question, test):
    assert public_tests(question, [test], "f") == []


@pytest.mark.parametrize(
    ("question", "shown"),
    [
        ("Sample Input 1:\n2\n\n1 2\n\n\n\nSample Output 1:\n\n3\n", True),
        ("Sample Input 1\n\n2\n1 2\n\nSample Output 1\n\n3", True),
        ("Examples\n\nInput\n\n\n2\n1 2\n\n\nOutput\n\n\n3\n\nNote: none", True),
        ("Input: 2\n1 2\nOutput: 34", False),
        ("Input: 2\n1 2 3\nOutput: 3", False),
        ("Input: 1 2\n1 2\nOutput: 3", False),
        ("Input\n7 2\n1 2\nOutput\n3", False),
        ("Input: 2\n1 2", False),
    ],
    ids=[
        "sample",
        "sample-without-colon",
        "examples",
        "longer-output",
        "longer-input",
        "end-of-an-input",
        "end-behind-a-number",
        "no-output",
    ],
)
def test_whole_programs(question, shown):
    test = stdin("2\n1 2\n", "3\n")
    assert public_tests(question, [test], "stdin") == [test] * shown


def test_assertions_and_order():
    tests = [{"type": "assert", "code": f"assert f({n}) == '{n}'"} for n in (1, 2, 3)]
    question = 'Such as:\n```python\nassert f(3)=="3"\n```\nand assert f( 1 ) == "1".'
    assert public_tests(question, tests, "f") == [tests[0], tests[2]]


@pytest.mark.parametrize(
    "code",
    [
        "assert f(1) != 2",
        "assert g(1) == 2",
        "assert f(n=1) == 2",
        "assert f(x) == 2",
        "assert f(1) == 2 == 2",
        "x = 1",
    ],
)
def test_other_assertions_stay(code):
    test = {"type": "assert", "code": code}
    assert as_call(test, "f") is test


def test_long_hidden_tests_cost_no_search():
    tests = [stdin("9 " * 200_000, "9"), call(f"[{[9] * 100_000}]", "9"), call("[9]", "9")]
    assert public_tests("f(9) == 9", tests, "f") == [tests[2]]


SESSION = """
    >>> f([1, 2], 'a')
    {'a': 2}
    >>> f([], x)
    {}
    >>> round(f([3], 'b'), 2)
    3
    >>> f([4], 'c')
    Traceback (most recent call last):
    >>> f([5], 'd')
    {'d': 1}
"""


def test_sessions_state_examples():
    known = call("[[5], 'd']", "{'d': 1}", atol=1e-6)
    stated = {"type": "call", "group": "public", "args": "[[1, 2], 'a']", "expected": "{'a': 2}", "atol": 1e-6}
    assert stated_tests(SESSION, [known], "f") == [stated]
    assert stated_tests(SESSION, [known], "Solution.f") == []
    assert stated_tests(SESSION, [{"type": "assert", "code": "assert f([], 'a') == {}"}], "f") == []
    assert stated_tests(">>> f(" + "(" * 500 + ")" * 500 + ")\n1\n", [known], "f") == []
