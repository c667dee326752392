"""What counts as equal: printed text, returned values, and tests as they stand in a row."""

import json
import math

import pytest

from mintrl_trl.errors import DataError
from mintrl_trl.rewards.comparison import same_output, same_value, shown
from mintrl_trl.rewards.jobs import TestKind
from mintrl_trl.rewards.sandbox.plain import Opaque
from mintrl_trl.rewards.testcases import check_rule, read_tests


@pytest.mark.parametrize(
    ("printed", "expected", "right"),
    [
        ("0.333333", "0.333333333333", True),
        ("3.0000001 2.9999999", "3 3", True),
        ("1000000000000000001", "1000000000000000000", False),
        ("10000001.0", "10000000", False),
        ("1e9", "1000000007", False),
        ("1e18", "1000000000000000001", False),
        ("10000000.0", "10000000", True),
        ("1234567.1", "1234567.2", True),
        ("1 2 \n3\n\n", "1 2\n3", True),
        ("1  2", "1 2", True),
        ("1\n2", "1 2", False),
        ("1\r\n2\r\n", "1\n2\n", True),
        ("1e3", "1000", True),
        ("yes 0.5", "yes 0.50000000001", True),
        ("YES", "yes", False),
        ("nan", "nan", True),
        ("nan", "0.0", False),
        ("1_000", "1000", False),
        ("", "", True),
        ("", "0", False),
        ("0.1", "0.10001", False),
        ("9" * 5000 + ".0", "9" * 5000, False),
    ],
)
def test_printed_text(printed, expected, right):
    assert same_output(printed, expected) is right


@pytest.mark.parametrize(
    ("value", "expected", "rule", "options", "right"),
    [
        (4, 4, "default", {}, True),
        (4.0, 4, "default", {}, True),
        ((1, 2), [1, 2], "default", {}, False),
        ((1, (2,)), [1, [2]], "json", {}, True),
        ({"a": (1,)}, {"a": [1]}, "json", {}, True),
        (Opaque("solution.A"), 4, "default", {}, False),
        (0.3, 0.30000000000000004, "default", {}, False),
        (0.3, 0.30000000000000004, "default", {"atol": 1e-6}, True),
        ([1.0, 2.0], [1.0, 2.0000001], "default", {"atol": 1e-6}, True),
        ([1.0], [1.0, 2.0], "default", {"atol": 1e-6}, False),
        (1, 1.0000001, "default", {"atol": 1e-6}, False),  # another type
        (math.inf, math.inf, "default", {"atol": 1e-6}, True),
        (math.nan, math.nan, "default", {"atol": 1e-6}, False),
        (None, 1.5, "default", {"atol": 1e-6}, False),
        ([2, 1, 1], (1, 2), "set_equal", {}, True),
        ([2, 1, 3], (1, 2), "set_equal", {}, False),
        ([2], (1, 2), "set_equal", {}, False),
        (None, (1, 2), "set_equal", {}, False),
        (range(1, 3), (1, 2), "set_equal", {}, True),
        (range(1, 10**18), (1, 2), "set_equal", {}, False),  # not gone through to its end
        ([[1]], ((1,),), "set_equal", {}, False),  # not hashable
        (True, True, "is_not_none", {}, True),
        (False, True, "is_not_none", {}, False),
        ("found", True, "is_not_none", {}, True),
        (None, False, "is_not_none", {}, True),
        (-0.5, -0.5, "poly_root", {"args": [[1, 2]], "rule_atol": 1e-4}, True),  # 1 + 2x
        (0.5, 0.5, "poly_root", {"args": [[1, 2]]}, False),
        (2.0, -2.0, "poly_root", {"args": [[-4, 0, 1]]}, True),  # the other root of x^2 - 4
        (10**400, 2.0, "poly_root", {"args": [[-4, 0, 1]]}, False),
        ("2", 2.0, "poly_root", {"args": [[-4, 0, 1]]}, False),
        (33, 0, "alt_surface_area", {"args": [3, 4]}, False),
        (35, 0, "alt_surface_area", {"args": [3, 4]}, True),  # 9 + 6 * sqrt(2.25 + 16) = 34.63
        (6, 0, "alt_digit_distance", {"args": [123, 9]}, False),
        (9, 0, "alt_digit_distance", {"args": [123, 9]}, True),  # 123 and 009: 1 + 2 + 6
    ],
)
def test_returned_values(value, expected, rule, options, right):
    assert same_value(value, expected, rule, **options) is right


def test_deep_values_are_wrong_and_no_accident():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert same_value(deep, [1], "json") is False
    assert shown(deep) == "a large list"
    while deep:  # taken apart by hand: the interpreter would recurse
        deep = deep.pop()


def test_shown_is_short():
    assert shown("a" * 500) == "'" + "a" * 116 + "..."
    assert shown(10**5000) == "a large int"


def test_tests_are_read_from_text_and_from_merged_columns():
    stdin = {"type": "stdin", "group": "hidden", "stdin": "1\n", "stdout": "2\n"}
    call = {"type": "call", "group": "plus", "args": "[1, {2}]", "expected": "(1e999,)", "atol": 1e-6}
    merged = [dict.fromkeys([*stdin, *call, "kwargs", "code"]) | test for test in (stdin, call)]
    for form in (json.dumps([stdin, call]), [stdin, call], merged):
        first, second = read_tests(form)
        assert (first.stimulus.kind, first.stimulus.text, first.expected) == (TestKind.STDIN, "1\n", "2\n")
        assert (second.stimulus.text, second.args, second.expected) == ("[1, {2}]", [1, {2}], (math.inf,))
        assert (second.group, second.atol, second.stimulus.by_keyword) == ("plus", 1e-6, False)
    (by_keyword,) = read_tests([{"type": "call", "kwargs": "{'n': 3}", "expected": "'III'"}])
    assert by_keyword.stimulus.by_keyword and by_keyword.group == "base"


def test_expected_results_never_reach_the_sandbox():
    tests = [
        {"type": "stdin", "stdin": "1", "stdout": "SECRET"},
        {"type": "call", "args": "[1]", "expected": "'SECRET'"},
    ]
    assert not any("SECRET" in repr(test.stimulus) for test in read_tests(tests))


@pytest.mark.parametrize(
    ("tests", "field"),
    [
        ("{", "tests"),
        ("[]", "tests"),
        ([{"type": "unit"}], "tests"),
        (["assert True"], "tests"),
        ([{"type": "stdin", "stdin": "1"}], "stdout"),
        ([{"type": "assert", "code": 3}], "code"),
        ([{"type": "call", "args": "[1]", "expected": 1}], "expected"),
        ([{"type": "call", "args": "[x]", "expected": "1"}], "args"),
    ],
)
def test_tests_that_cannot_be_read_are_refused_by_name(tests, field):
    with pytest.raises(DataError) as caught:
        read_tests(tests)
    assert caught.value.field == field


def test_unknown_rules_are_refused():
    assert check_rule(None) == check_rule("") == "default"
    with pytest.raises(DataError, match="`compare` is 'fuzzy'"):
        check_rule("fuzzy")
