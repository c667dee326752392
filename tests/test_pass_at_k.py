"""Pass@k against worked numbers, its limits, and the definition itself by enumeration."""

from itertools import combinations
from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mintrl_trl.errors import ConfigError
from mintrl_trl.evaluation import pass_at_k


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [
        (32, 5, 1, 0.15625),
        (32, 5, 8, 0.7889321468298109),
        (32, 5, 16, 0.9783092324805339),
        (4, 1, 2, 0.5),
        (1, 0, 1, 0.0),
        (1, 1, 1, 1.0),
        (16, 1, 16, 1.0),
        (16, 0, 16, 0.0),
    ],
)
def test_worked_numbers(n, c, k, expected):
    assert pass_at_k(n, c, k) == expected


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_is_the_share_of_subsets_that_hold_a_right_response(case):
    n, c, k = case
    subsets = list(combinations(range(n), k))
    assert isclose(pass_at_k(n, c, k), sum(min(subset) < c for subset in subsets) / len(subsets), abs_tol=1e-15)


@given(st.integers(2, 64).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n - 1))))
def test_rises_with_k_and_with_c(case):
    n, c, k = case
    assert pass_at_k(n, c, k) <= pass_at_k(n, c, k + 1)
    assert c == n or pass_at_k(n, c, k) < pass_at_k(n, c + 1, k) or pass_at_k(n, c, k) == 1


def test_pass_at_1_is_the_mean():
    assert all(pass_at_k(20, c, 1) == c / 20 for c in range(21))


def test_thousands_of_samples_neither_overflow_nor_lose_digits():
    assert pass_at_k(10_000, 1, 5_000) == 0.5
    assert pass_at_k(10_000, 1, 1) == 1e-4


@pytest.mark.parametrize(
    ("n", "c", "k", "field"), [(4, 2, 5, "k"), (4, 2, 0, "k"), (4, 5, 1, "c"), (4, -1, 1, "c"), (0, 0, 1, "k")]
)
def test_numbers_out_of_range_are_errors_that_name_the_field(n, c, k, field):
    with pytest.raises(ConfigError, match=f"`{field}`"):
        pass_at_k(n, c, k)
