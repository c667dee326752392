r"""The support of correct rollouts and what sparse corrections add to it (section 3 of the paper), by enumeration.

A *finite policy* is a function from a prefix to the probabilities of the next token; a sequence is whole at the end
token or at the length limit. Everything here is exact: all sequences are listed with their probabilities, so the
inclusions of Theorem 3.5 are checked and not estimated. Meant for a handful of tokens and steps.

Two corrected policies are told apart, because the theorem holds for one of them alone:

- `corrected`: whether a token is corrected depends on its prefix only (a set of positions, an expert at fixed places).
  This is Definition and proof in the paper: `mu(y) <= pi(y) / nu^N`.
- `judged`: as in Algorithm 1 the policy samples, and a judge replaces what is wrong while corrections are left. Whether
  `N` corrections were spent on a sequence cannot be read off it; its probability is a sum over the places where they
  may have been, and `pi(y) / nu^N` is not a bound. With `T` tokens

  `mu(y) <= pi(y) * sum_{j <= N} C(T, j) ((1 - nu) / nu)^j`,

  which `judged_factor` computes: the same power of `1 / nu`, times the number of places.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError

Prefix = tuple[Any, ...]
FinitePolicy = Callable[[Prefix], Mapping[Any, float]]  # prefix -> next token -> probability; no entry: impossible


@dataclass(frozen=True)
class Envelope:
    """Theorem 3.5 on one policy and one correction rule.

    Args:
        nu (`float`): The least probability of an optimal next token at any prefix (Assumption 3.4).
        visible (`frozenset`): Correct sequences more likely than epsilon under the policy (Definition 3.1).
        visible_with_corrections (`frozenset`): Under the policy or the corrected policy (Eq. 14).
        trainable (`frozenset`): More likely than epsilon over the factor under the policy; the right side of Eq. 15.
        factor (`float`): By how much the envelope is wider: `nu^-N` in the theorem.
        largest_ratio (`float`): The largest `mu(y) / pi(y)` of a correct sequence; 0 where none is possible.
    """

    nu: float
    visible: frozenset[Prefix]
    visible_with_corrections: frozenset[Prefix]
    trainable: frozenset[Prefix]
    factor: float
    largest_ratio: float

    @property
    def holds(self) -> bool:
        """Whether both inclusions of Eq. 15 hold."""
        return self.visible <= self.visible_with_corrections <= self.trainable


def enumerate_sequences(policy: FinitePolicy, length: int, end: Any) -> dict[Prefix, float]:
    """All whole sequences of a policy with their probabilities, which add up to 1.

    Args:
        policy (`FinitePolicy`): Next-token probabilities.
        length (`int`): A sequence has at most so many tokens.
        end (`Any`): The token that ends one.
    """
    return {y: probability for y, probability, _ in _walk(policy, length, end)}


def corrected(policy: FinitePolicy, optimal: Callable[[Prefix], Any], rule: Callable[[Prefix], bool]) -> FinitePolicy:
    """The policy that emits the optimal token wherever `rule` says so, and is `policy` elsewhere: the paper's `mu_N`.

    Args:
        policy (`FinitePolicy`): The current policy.
        optimal (`Callable`): Prefix -> optimal next token.
        rule (`Callable`): Prefix -> whether its next token is corrected. `N` is the most corrections on one sequence,
            which [`count_corrections`] counts.
    """
    return lambda prefix: {optimal(prefix): 1.0} if rule(prefix) else policy(prefix)


def count_corrections(rule: Callable[[Prefix], bool], sequence: Prefix) -> int:
    """Positions of a sequence that `rule` corrects."""
    return sum(rule(sequence[:position]) for position in range(len(sequence)))


def judged(
    policy: FinitePolicy, optimal: Callable[[Prefix], Any], corrections: int, length: int, end: Any
) -> dict[Prefix, float]:
    """Sequences under a perfect judge that replaces each wrong token while it has corrections left, with probabilities.

    Args:
        policy, optimal: As in [`corrected`].
        corrections (`int`): The most corrections, N.
        length, end: As in [`enumerate_sequences`].
    """
    total: dict[Prefix, float] = {}

    def extend(prefix: Prefix, probability: float, left: int) -> None:
        if len(prefix) == length or (prefix and prefix[-1] == end):
            total[prefix] = total.get(prefix, 0.0) + probability
            return
        right = optimal(prefix)
        for token, chance in policy(prefix).items():
            if chance > 0:
                replaced = token != right and left > 0
                extend((*prefix, right if replaced else token), probability * chance, left - replaced)

    extend((), 1.0, corrections)
    return total


def judged_factor(nu: float, corrections: int, length: int) -> float:
    """`sum_{j <= N} C(T, j) ((1 - nu) / nu)^j`: how much likelier a judge of N corrections can make a sequence.

    Examples:

    ```python
    >>> judged_factor(0.5, corrections=1, length=10)
    11.0

    ```
    """
    _check_nu(nu)
    return sum(math.comb(length, j) * ((1 - nu) / nu) ** j for j in range(corrections + 1))


def smallest_optimal_probability(
    policy: FinitePolicy, optimal: Callable[[Prefix], Any], length: int, end: Any
) -> float:
    """The largest `nu` for which Assumption 3.4 holds: over all prefixes that `policy` reaches."""
    return min(smallest for _, _, smallest in _walk(policy, length, end, optimal))


def envelope(
    policy: FinitePolicy,
    probabilities: Mapping[Prefix, float],
    correct: Collection[Prefix],
    *,
    nu: float,
    epsilon: float,
    factor: float,
    length: int,
    end: Any,
) -> Envelope:
    """Compare what is visible with corrections with what the envelope allows.

    Args:
        policy (`FinitePolicy`): The current policy.
        probabilities (`Mapping`): Sequences of the corrected policy, as `enumerate_sequences` or `judged` gives them.
        correct (`Collection`): The sequences whose reward is 1.
        nu (`float`): As [`smallest_optimal_probability`] gives it.
        epsilon (`float`): The threshold of inference, in (0, 1).
        factor (`float`): Of the envelope: `nu ** -N`, or [`judged_factor`].
        length, end: As in [`enumerate_sequences`].

    Returns:
        [`Envelope`].

    Raises:
        ConfigError: A number out of its range.
    """
    _check_nu(nu)
    if not 0 < epsilon < 1:
        raise ConfigError("epsilon", epsilon, "a probability between 0 and 1", "set epsilon to 1 / budget")
    plain = enumerate_sequences(policy, length, end)
    visible = frozenset(y for y in correct if plain.get(y, 0.0) > epsilon)
    added = frozenset(y for y in correct if probabilities.get(y, 0.0) > epsilon)
    # Compared as mu <= pi * factor is: a product of many factors is not exact, and equality is the theorem's limit.
    allowed = frozenset(y for y in correct if plain.get(y, 0.0) * factor * (1 + 1e-9) > epsilon)
    ratios = [probabilities[y] / plain[y] for y in correct if probabilities.get(y, 0.0) > 0 and plain.get(y, 0.0) > 0]
    return Envelope(nu, visible, visible | added, allowed, factor, max(ratios, default=0.0))


def log_with_corrections(logps: Sequence[float], corrections: int) -> float:
    """Log-probability of a right sequence under a policy with a perfect judge of N corrections.

    It comes out if the policy goes wrong at most N times, each time where the judge puts it right: the chance that of
    independent errors with probabilities `1 - exp(logps)` at most N happen.

    Args:
        logps (`Sequence[float]`): Log-probability of each right token after the right ones before it, in nats.
        corrections (`int`): N, at least 0; 0 gives the sum of `logps`.

    Returns:
        `float`: In nats, at most 0.

    Examples:

    ```python
    >>> log_with_corrections([math.log(0.5), math.log(0.25)], 0) == math.log(0.125)
    True
    >>> round(math.exp(log_with_corrections([math.log(0.5), math.log(0.25)], 1)), 6)  # 1 - 0.5 * 0.75
    0.625

    ```
    """
    errors = [0.0, *[-math.inf] * corrections]  # log-probability of exactly j errors so far
    for logp in logps:
        wrong = math.log(-math.expm1(logp)) if logp < 0 else -math.inf
        errors = [_log_sum(errors[j] + logp, errors[j - 1] + wrong if j else -math.inf) for j in range(corrections + 1)]
    total = -math.inf
    for error in errors:
        total = _log_sum(total, error)
    return min(total, 0.0)


def corrections_needed(logps: Sequence[float], log_epsilon: float) -> int:
    """The fewest positions to correct so that a right sequence becomes more likely than epsilon.

    Args:
        logps (`Sequence[float]`): Log-probability of each right token, in nats.
        log_epsilon (`float`): Log of the threshold, below 0.

    Examples:

    ```python
    >>> corrections_needed([-8.0, -0.1, -5.0], math.log(1 / 1024))
    1

    ```
    """
    total, needed = math.fsum(logps), 0
    for logp in sorted(logps):
        if total > log_epsilon:
            break
        total, needed = total - logp, needed + 1
    return needed


def _walk(
    policy: FinitePolicy, length: int, end: Any, optimal: Callable[[Prefix], Any] | None = None
) -> Iterator[tuple[Prefix, float, float]]:
    """Whole sequences, their probabilities, and the least probability of an optimal token on their way (1 without)."""

    def extend(prefix: Prefix, probability: float, smallest: float) -> Iterator[tuple[Prefix, float, float]]:
        if len(prefix) == length or (prefix and prefix[-1] == end):
            yield prefix, probability, smallest
            return
        chances = policy(prefix)
        here = chances.get(optimal(prefix), 0.0) if optimal is not None else 1.0
        for token, chance in chances.items():
            if chance > 0:
                yield from extend((*prefix, token), probability * chance, min(smallest, here))

    return extend((), 1.0, 1.0)


def _log_sum(a: float, b: float) -> float:
    if a < b:
        a, b = b, a
    return a if b == -math.inf else a + math.log1p(math.exp(b - a))


def _check_nu(nu: float) -> None:
    if not 0 < nu <= 1:
        raise ConfigError("nu", nu, "a probability above 0 and at most 1", "give every optimal token some probability")
