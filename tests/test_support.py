"""Theorem 3.5 by enumeration: all sequences of finite policies, all sets of positions, and a judge's own rule."""

import math
import re
from itertools import combinations, product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mintrl_trl.analysis.support import (
    corrected,
    corrections_needed,
    count_corrections,
    enumerate_sequences,
    envelope,
    judged,
    judged_factor,
    log_with_corrections,
    smallest_optimal_probability,
)
from mintrl_trl.errors import ConfigError

END = "."
LENGTH = 4
RIGHT = ("a", "b", "a", END)


def optimal(prefix):
    """The right sequence goes on as it is; off it, the best is to end."""
    return RIGHT[len(prefix)] if prefix == RIGHT[: len(prefix)] else END


def policy_of(weights):
    """A policy over three tokens whose probabilities depend on the whole prefix."""

    def policy(prefix):
        places = [(len(prefix) * 7 + sum(map(ord, prefix)) + shift) % len(weights) for shift in range(3)]
        own = [weights[place] for place in places]
        return {token: one / sum(own) for token, one in zip(("a", "b", END), own, strict=True)}

    return policy


POLICIES = st.lists(st.floats(0.02, 1.0), min_size=5, max_size=9).map(policy_of)


@given(policy=POLICIES)
@settings(max_examples=20, derandomize=True, deadline=None)
def test_probabilities_of_all_sequences_add_up_to_one(policy):
    sequences = enumerate_sequences(policy, LENGTH, END)
    assert math.fsum(sequences.values()) == pytest.approx(1.0)
    assert len(sequences) == 1 + 2 + 4 + 8 * 3  # those that end after one, two, three tokens, and the rest
    assert math.fsum(judged(policy, optimal, 2, LENGTH, END).values()) == pytest.approx(1.0)


@given(policy=POLICIES, epsilon=st.floats(0.001, 0.5))
@settings(max_examples=20, derandomize=True, deadline=None)
def test_the_envelope_holds_for_every_set_of_positions(policy, epsilon):
    nu = smallest_optimal_probability(policy, optimal, LENGTH, END)
    correct = [y for y in enumerate_sequences(policy, LENGTH, END) if y.count("b") == 1]  # several are right
    for number in range(LENGTH + 1):
        for positions in combinations(range(LENGTH), number):
            rule = lambda prefix, positions=positions: len(prefix) in positions  # noqa: E731
            probabilities = enumerate_sequences(corrected(policy, optimal, rule), LENGTH, END)
            assert all(count_corrections(rule, y) <= number for y in probabilities)
            found = envelope(
                policy, probabilities, correct, nu=nu, epsilon=epsilon, factor=nu**-number, length=LENGTH, end=END
            )
            assert found.holds
            assert found.largest_ratio <= found.factor * (1 + 1e-9)


@given(policy=POLICIES, corrections=st.integers(0, 4), epsilon=st.floats(0.001, 0.5))
@settings(max_examples=40, derandomize=True, deadline=None)
def test_a_judge_stays_within_the_wider_envelope(policy, corrections, epsilon):
    nu = smallest_optimal_probability(policy, optimal, LENGTH, END)
    probabilities = judged(policy, optimal, corrections, LENGTH, END)
    factor = judged_factor(nu, corrections, LENGTH)
    correct = list(enumerate_sequences(policy, LENGTH, END))
    found = envelope(policy, probabilities, correct, nu=nu, epsilon=epsilon, factor=factor, length=LENGTH, end=END)
    assert found.holds
    assert found.largest_ratio <= factor * (1 + 1e-9)


def coin(prefix):
    return {"a": 0.5, "b": 0.5}


def test_a_judge_that_corrects_what_is_wrong_reaches_further_than_the_theorem_says():
    # Ten fair coins, one correction, right is all "a": pi = 2^-10, mu = P(at most one wrong) = 11 * 2^-10.
    right, epsilon = ("a",) * 10, 2.0**-8
    numbers = {"nu": 0.5, "epsilon": epsilon, "length": 10, "end": END}
    probabilities = judged(coin, lambda prefix: "a", 1, 10, END)
    found = envelope(coin, probabilities, [right], factor=0.5**-1, **numbers)
    assert found.largest_ratio == 11.0
    assert found.visible_with_corrections == {right}
    assert not found.holds
    assert envelope(coin, probabilities, [right], factor=judged_factor(0.5, 1, 10), **numbers).holds


def test_the_factor_of_positions_known_beforehand_is_reached():
    rule = lambda prefix: len(prefix) == 3  # noqa: E731
    probabilities = enumerate_sequences(corrected(coin, lambda prefix: "a", rule), 10, END)
    numbers = {"nu": 0.5, "epsilon": 2.0**-9.5, "factor": 2.0, "length": 10, "end": END}
    found = envelope(coin, probabilities, [("a",) * 10], **numbers)
    assert (found.largest_ratio, found.holds, len(found.visible)) == (2.0, True, 0)
    assert found.visible_with_corrections == found.trainable == {("a",) * 10}


@given(chances=st.lists(st.floats(0.001, 1.0), min_size=1, max_size=6), corrections=st.integers(0, 6))
@settings(max_examples=60, derandomize=True, deadline=None)
def test_probability_with_corrections_is_that_of_few_enough_errors(chances, corrections):
    total = math.fsum(
        math.prod(1 - chance if wrong else chance for chance, wrong in zip(chances, errors, strict=True))
        for errors in product((False, True), repeat=len(chances))
        if sum(errors) <= corrections
    )
    got = log_with_corrections([math.log(chance) for chance in chances], corrections)
    assert got <= 0.0
    assert math.exp(got) == pytest.approx(total, rel=1e-9)


def test_probability_with_corrections_is_what_the_judge_makes_of_the_right_sequence():
    policy = policy_of([0.3, 0.9, 0.2, 0.5, 0.7])
    logps = [math.log(policy(RIGHT[:t])[RIGHT[t]]) for t in range(LENGTH)]
    for corrections in range(LENGTH + 1):
        expected = judged(policy, optimal, corrections, LENGTH, END)[RIGHT]
        assert math.exp(log_with_corrections(logps, corrections)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("logps", "needed"), [([-1.0, -2.0], 0), ([-8.0, -0.1, -5.0], 1), ([-8.0, -8.0, -8.0], 3), ([-8.0, -6.0], 1)]
)
def test_corrections_are_counted_from_the_least_likely_token(logps, needed):
    assert corrections_needed(logps, math.log(1 / 1024)) == needed


def test_numbers_out_of_range_are_refused():
    with pytest.raises(ConfigError, match="nu"):
        judged_factor(0.0, 1, 4)
    with pytest.raises(ConfigError, match="epsilon"):
        envelope(coin, {}, [], nu=0.5, epsilon=1.0, factor=1.0, length=1, end=END)


def test_the_documents_example_says_what_it_prints():
    page = (Path(__file__).parents[1] / "docs" / "analysis.md").read_text(encoding="utf-8")
    (block,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "judged_factor" in block]
    names: dict = {}
    exec(block, names)
    shown = [line.partition("#") for line in block.splitlines() if line.startswith("envelope(")]
    values = [str(eval(call, names)) for call, _, _ in shown]
    assert values == ["2.0", "False", "True"]
    assert all(said.strip().startswith(value) for (_, _, said), value in zip(shown, values, strict=True))
