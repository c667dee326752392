"""Pass@k: the chance that at least one of k responses is right, estimated without bias from n >= k of them.

Owns one formula. It never samples, scores or averages over problems.
"""

from math import comb

from ..errors import ConfigError

SOLVED_ABOVE = 0.5  # rewards are 0 or 1; a response above this is right


def pass_at_k(n: int, c: int, k: int) -> float:
    r"""Unbiased Pass@k of one problem: `1 - C(n - c, k) / C(n, k)`.

    The binomials are exact integers and are divided once, so the result is correctly rounded for every `n`.

    Args:
        n (`int`): Responses that were sampled, at least `k`.
        c (`int`): How many of them are right, in [0, `n`].
        k (`int`): Responses that a try may use, at least 1.

    Returns:
        `float`: In [0, 1].

    Raises:
        ConfigError: A number is out of its range; `n < k` above all, since k responses say nothing of more.

    Examples:

    ```python
    >>> pass_at_k(4, 1, 2)
    0.5
    >>> pass_at_k(32, 5, 1)
    0.15625

    ```
    """
    if not 0 <= c <= n:
        raise ConfigError("c", c, f"0 to n = {n}", "count the right ones among the n responses")
    if not 1 <= k <= n:
        raise ConfigError("k", k, f"1 to n = {n}", "sample at least k responses of every problem, or lower k")
    tries = comb(n, k)
    return (tries - comb(n - c, k)) / tries
