"""Values that cross from a program to the trainer: data, exactly, and nothing else."""

import json
import math
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from time import thread_time

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mintrl_trl.rewards.sandbox.plain import Opaque, decode, encode

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
    | st.fractions()
    | st.decimals(allow_nan=False)
    | st.dates()
    | st.datetimes()
    | st.times()
    | st.timedeltas()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.lists(inner).map(deque)
        | st.sets(SCALARS)
        | st.frozensets(SCALARS)
        | st.dictionaries(SCALARS, inner)
    ),
    max_leaves=10,
)


def crossed(value: object) -> object:
    return decode(json.loads(json.dumps(encode(value))))


@given(VALUES)
def test_plain_values_come_back_equal_and_of_the_same_type(value):
    assert crossed(value) == value
    assert type(crossed(value)) is type(value)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (10**5000, 10**5000),
        (-(2**9000), -(2**9000)),
        (range(1, 9, 2), range(1, 9, 2)),
        (Counter("aab"), {"a": 2, "b": 1}),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (defaultdict(list, a=[1]), {"a": [1]}),
        (namedtuple("P", "x y")(1, 2), (1, 2)),
        (IntEnum("E", "A B").B, 2),
        (numpy.int64(5), 5),
        (numpy.float64(0.5), 0.5),
        (numpy.float32(0.5), 0.5),
        (numpy.bool_(True), True),
        ([numpy.int8(1)], [1]),
        (bytearray(b"ab"), b"ab"),
        ("\ud800", "\ud800"),
        (-0.0, 0.0),
        (math.inf, math.inf),
    ],
    ids=lambda value: type(value).__name__,
)
def test_subclasses_are_reduced(value, plain):
    assert crossed(value) == plain
    assert type(crossed(value)) is type(plain)


def test_behaviour_does_not_cross():
    class Equal:
        def __eq__(self, other):
            return True

    class EqualList(list):
        def __eq__(self, other):
            return True

        def __iter__(self):
            return iter([4])

    assert crossed(Equal()) != 4
    assert isinstance(crossed(Equal()), Opaque) and "Equal" in crossed(Equal()).type_name
    assert crossed(EqualList([1])) == [1]
    assert crossed([Equal()]) != [4]
    assert isinstance(crossed(numpy.arange(3)), Opaque)


@pytest.mark.parametrize(
    "item",
    [
        {},
        {"set": [[1]]},
        {"tuple": 3},
        {"dict": [1]},
        {"unknown": 1},
        {"a": 1, "b": 2},
        {"int": "zz"},
        {"fraction": [1, 0]},
        {"decimal": "one"},
        {"range": ["a"]},
        {"date": "tomorrow"},
        {"set": list(range(20_001))},
        {"fraction": ["1e999999999"]},
        {"fraction": [{"decimal": "1e999999999"}, 1]},
        {"fraction": [{"int": hex(3**999_999)}, {"int": hex(2**999_999)}]},
        {"set": [{"fraction": [(2**61 - 1) * index + 1, 1]} for index in range(20_000)]},
        {"dict": [[{"tuple": [(2**61 - 1) * index + 1]}, 0] for index in range(20_000)]},
    ],
    ids=lambda item: str(item)[:40],
)
def test_forged_values_are_refused_at_once(item):
    start = thread_time()
    with pytest.raises(ValueError):
        decode(item)
    assert thread_time() - start < 1


def test_dates_keep_their_kind():
    assert crossed(datetime(2020, 1, 2, 3)) == datetime(2020, 1, 2, 3)
    assert crossed(date(2020, 1, 2)) == date(2020, 1, 2)
    assert crossed(time(3, 4)) == time(3, 4)
    assert crossed(timedelta(days=-1, seconds=5)) == timedelta(days=-1, seconds=5)
    assert crossed({Fraction(1, 3): Decimal("1.50")}) == {Fraction(1, 3): Decimal("1.50")}
