"""Tests that ask nothing are no tests: no reward for anybody, and a finding before training."""

import pytest

from mintrl_trl.errors import DataError, FailureLimitError
from mintrl_trl.rewards.code import CodeChecker, Why, check_tests, require_tests
from mintrl_trl.rewards.code_task import read_task
from mintrl_trl.rewards.empty_tests import asks_something, nothing_programs

from .test_code_reward import asserts, reward, stdin_test

RIGHT = "```python\ndef f(x): return x * x\n```"
WRONG = "```python\ndef f(x): return 0\n```"


@pytest.fixture(scope="module")
def checker():
    checker = CodeChecker(slots=2, test_seconds=5, row_seconds=10, memory_mb=512)
    yield checker
    checker.close()


def row(*codes: str, **columns: object) -> dict:
    return {"tests": asserts(*codes), "entry_point": "f"} | columns


def named(cases: dict[str, str]) -> dict[str, object]:
    return {"argvalues": list(cases.values()), "ids": list(cases)}


def call_test(expected: str) -> list[dict]:
    return [{"type": "call", "args": "[3]", "expected": expected}]


SEEN_FROM_THE_TEXT = {
    "empty": "",
    "comment": "# to do",
    "docstring": '"""assert f(3) == 9"""',
    "result-thrown-away": "f(3) == 9",
    "result-kept": "x = f(3)\nx == 9",
    "printed": "print(f(3))",
    "tuple": "assert (f(3) == 9, 'message')",
    "list": "assert [f(3) == 9]",
    "true": "assert True",
    "not-false": "assert not False",
    "lambda": "assert lambda: f(3) == 9",
    "never-called": "def check(candidate):\n    assert candidate(3) == 9",
    "never-called-by-a-runner": "def test_f():\n    assert f(3) == 9",
    "never-called-async": "async def test_f():\n    assert f(3) == 9",
    "never-used-class": "class T:\n    def test(self):\n        assert f(3) == 9",
    "called-by-what-is-never-called": "def check(c):\n    assert c(3) == 9\ndef main():\n    check(f)",
    "if-false": "if False:\n    assert f(3) == 9",
    "else-of-if-true": "if 1:\n    f(3)\nelse:\n    assert f(3) == 9",
    "while-false": "while 0:\n    assert f(3) == 9",
    "loop-without-assertion": "for x, y in [(3, 9)]:\n    f(x) == y",
    "objects": "s = Stack()\ns.push(3)\ns.pop() == 3",
}
SEEN_BY_RUNNING = {
    "sum": "assert 1 + 1 == 2",
    "or-true": "assert f(3) == 9 or True",
    "swallowed": "try:\n    assert f(3) == 9\nexcept Exception:\n    pass",
    "suppressed": "import contextlib\nwith contextlib.suppress(AssertionError):\n    assert f(3) == 9",
    "of-nothing": "assert all(f(x) == x for x in [])",
    "loop-over-nothing": "for x, y in []:\n    assert f(x) == y",
    "behind-return": "def check():\n    return\n    assert f(3) == 9\ncheck()",
    "name": "assert callable(f)",
    "something-else": "import math\nassert math.pi > 3",
    "unequal-alone": "assert f(3) != 4",
}


@pytest.mark.parametrize("code", **named(SEEN_FROM_THE_TEXT))
def test_tests_whose_text_asks_nothing(code):
    assert asks_something(read_task(asserts(code), "f")) is False
    assert check_tests([row(code)], run=False) == [0]
    with pytest.raises(DataError, match=r"1 of 2 rows \(number 1\): `tests` is .*a program that does nothing"):
        require_tests([row("assert f(3) == 9"), row(code)])


@pytest.mark.parametrize("code", **named(SEEN_BY_RUNNING))
def test_tests_that_turn_out_to_ask_nothing(checker, code):
    assert asks_something(read_task(asserts(code), "f")) is None
    assert checker.check_tests([row(code)], run=False) == []
    assert checker.check_tests([row(code), row("assert f(3) == 9")]) == [0]
    check = checker.check(RIGHT, asserts(code), "f")
    assert (check.why, check.reward, check.passed) == (Why.EMPTY_TESTS, None, False)


ASK = {
    "equal": "assert f(3) == 9",
    "turned-round": "assert 9 == f(3)",
    "called": "def check(candidate):\n    assert candidate(3) == 9\ncheck(f)",
    "nested": "def outer():\n    def inner():\n        assert f(3) == 9\n    return inner\nouter()()",
    "method": "class T:\n    def test(self):\n        assert f(3) == 9\nT().test()",
    "constructor": "class T:\n    def __init__(self):\n        assert f(3) == 9\nT()",
    "unittest": "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n        self.assertEqual(f(3), 9)\n"
    "T('test').debug()",
    "decorator": "def run(g):\n    g()\n    return g\n@run\ndef check():\n    assert f(3) == 9",
    "main": "if __name__ == '__main__':\n    assert f(3) == 9",
    "loop": "for x, y in [(3, 9)]:\n    assert f(x) == y",
    "close": "import math\nassert math.isclose(f(3), 9)",
    "in": "assert f(3) in [9]",
    "not-unequal": "assert not f(3) != 9",
    "truth": "assert (f(3) == 9) is True",
    "variable": "y = f(3)\nassert y == 9",
    "escape": "assert f(3) == 9, '\\d'",
}


@pytest.mark.parametrize("code", **named(ASK))
def test_tests_that_ask_something(checker, code):
    assert checker.check(RIGHT, asserts(code), "f").passed
    assert checker.check(WRONG, asserts(code), "f").why is Why.WRONG
    assert checker.check_tests([row(code)]) == []


def test_exceptions_can_be_what_is_asked(checker):
    code = "try:\n    f(-1)\n    assert False\nexcept ValueError:\n    pass"
    raises = "```python\ndef f(x): raise ValueError\n```"
    assert checker.check(raises, asserts(code), "f").passed
    assert checker.check(RIGHT, asserts(code), "f").why is Why.WRONG
    code = "if f(3) != 9:\n    raise ValueError"
    assert checker.check(RIGHT, asserts(code), "f").passed and not checker.check(WRONG, asserts(code), "f").passed


def test_nothing_may_be_the_right_answer(checker):
    assert checker.check("```python\ndef f(x): pass\n```", asserts("assert f(3) is None"), "f").passed
    assert checker.check(RIGHT, asserts("assert f(3) is None"), "f").why is Why.WRONG
    assert checker.check(RIGHT, asserts("assert f(3)"), "f").passed


def test_tests_of_a_row_ask_together(checker):
    defined = "def check(candidate):\n    assert candidate(3) == 9"
    assert checker.check(RIGHT, asserts(defined, "check(f)"), "f").passed
    assert checker.check(WRONG, asserts("# to do", "assert f(3) == 9"), "f").why is Why.WRONG
    assert checker.check(WRONG, asserts("check(f)"), "f", test_setup=defined).why is Why.WRONG
    assert checker.check(WRONG, asserts("f(3)"), "f", test_setup=defined).why is Why.EMPTY_TESTS


@pytest.mark.parametrize(
    ("tests", "columns", "asks"),
    [
        (call_test("None"), {}, False),
        (call_test("None") + call_test("9"), {}, True),
        (call_test("False"), {"compare": "is_not_none"}, False),
        (call_test("True"), {"compare": "is_not_none"}, True),
        (call_test("[]"), {"compare": "set_equal"}, True),
        (stdin_test("1", "\n"), {"entry_point": "stdin"}, False),
        (stdin_test("1", "0\n"), {"entry_point": "stdin"}, True),
        (call_test("None") + asserts("f(3) == 9"), {}, False),
        (call_test("None") + asserts("assert f(3) == 9"), {}, True),
    ],
)
def test_values_and_output_that_a_program_without_content_gives(tests, columns, asks):
    task = read_task(tests, columns.get("entry_point", "f"), columns.get("compare"))
    assert asks_something(task) is asks
    assert check_tests([{"tests": tests, "entry_point": "f"} | columns], run=False) == ([] if asks else [0])


def test_programs_that_do_nothing_have_all_names():
    task = read_task(asserts("s = Stack(3)\nassert s.pop() == g(math.pi)"), "f", test_setup="import math")
    for program in nothing_programs(task):
        names = {}
        exec(program, names)
        assert {"Stack", "f", "g"} <= names.keys()


def test_rows_without_a_question_get_no_reward_whatever_the_completion(checker):
    empty, running = asserts("f(3) == 9"), asserts("assert 1 + 1 == 2")
    completions = [RIGHT, WRONG, "no code", "<think>", RIGHT]
    extra, metrics = {}, {}
    logs = {"log_extra": extra.__setitem__, "log_metric": metrics.__setitem__}
    columns = {"entry_point": ["f"] * 5}
    assert reward(checker, completions, [empty] * 4 + [asserts("assert f(3) == 9")], **columns, **logs) == [
        None
    ] * 4 + [1]
    assert extra["why"] == ["empty_tests"] * 4 + ["passed"]
    assert metrics["reward/empty_tests"] == 0.8
    assert reward(checker, completions, [running] * 5, **columns) == [None] * 5


def test_a_run_with_many_such_rows_is_stopped_with_advice():
    checker = CodeChecker(slots=1)
    with pytest.raises(FailureLimitError, match=r"20 of the last 20 .* empty_tests .* `mintrl check-data`"):
        reward(checker, [RIGHT] * 20, [asserts("")] * 20)


@pytest.mark.parametrize("code", ["assert (", "print 'x'", "  assert f(3) == 9", "assert f(3) == 9\n\0"])
def test_test_code_that_does_not_compile_is_a_bad_row(code):
    for tests, setup in ((asserts(code), ""), (asserts("assert f(3) == 9"), code)):
        with pytest.raises(DataError, match="Python code that compiles"):
            read_task(tests, "f", test_setup=setup)


def test_references_of_such_rows_are_no_good(checker):
    rows = [
        row(code, privileged_context="def f(x): return x * x")
        for code in ("f(3)", "assert 1 + 1 == 2", "assert f(3) == 9")
    ]
    assert [(index, check.why) for index, check in checker.check_references(rows)] == [
        (0, Why.EMPTY_TESTS),
        (1, Why.EMPTY_TESTS),
    ]
