"""What a judge costs: calls, tokens, seconds and money, by role, and whether its budget is spent.

Owns the sums and the names of their metrics. It makes no request and stops nothing: who asks looks at `exhausted`.
Invariant: numbers only grow, and a price that is not known makes no cost, never one of 0.
"""

import dataclasses
import math
from dataclasses import dataclass

from ..errors import ConfigError

_MILLION = 1e6


@dataclass(frozen=True)
class Usage:
    """What calls of one kind cost: calls, repeated requests, tokens (those read from a cache among the prompt's), and
    wall-clock seconds with retries and pauses."""

    calls: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    cached_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(*map(sum, zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))


class Account:
    """Usage by role, its price and its budget.

    Args:
        price_per_million_input (`float`, *optional*): Price of a million tokens read, in any currency. Those from a
            cache count in full, so the cost is an upper bound.
        price_per_million_output (`float`, *optional*): Price of a million tokens written.
        budget_tokens (`int`, *optional*): Tokens, read and written, after which the judge is exhausted.
        budget_cost (`float`, *optional*): The same in money.

    Raises:
        ConfigError: A price below 0, a budget that is not above 0, or one in money without both prices.

    Example:

    ```python
    >>> account = Account(price_per_million_input=0.5, price_per_million_output=2.0, budget_cost=0.001)
    >>> account.add("review", Usage(calls=1, prompt_tokens=1000, completion_tokens=100))
    >>> round(account.cost, 6), account.exhausted
    (0.0007, False)
    >>> account.add("correction", Usage(calls=1, prompt_tokens=600))
    >>> account.exhausted
    True

    ```
    """

    def __init__(
        self,
        *,
        price_per_million_input: float | None = None,
        price_per_million_output: float | None = None,
        budget_tokens: int | None = None,
        budget_cost: float | None = None,
    ):
        self.prices = (price_per_million_input, price_per_million_output)
        for name, price in zip(("price_per_million_input", "price_per_million_output"), self.prices, strict=True):
            if price is not None and not (math.isfinite(price) and price >= 0):
                raise ConfigError(name, price, "a finite number of at least 0", f"remove {name}")
        for name, budget in (("budget_tokens", budget_tokens), ("budget_cost", budget_cost)):
            if budget is not None and not (math.isfinite(budget) and budget > 0):
                raise ConfigError(name, budget, "a finite number above 0", f"remove {name} for a judge without limit")
        if budget_cost is not None and None in self.prices:
            allowed = "unset without price_per_million_input and price_per_million_output"
            raise ConfigError("budget_cost", budget_cost, allowed, "set both prices, or budget_tokens instead")
        self.budget_tokens, self.budget_cost = budget_tokens, budget_cost
        self.usage = {"review": Usage(), "correction": Usage()}
        self._spent_before = (0, 0.0)

    def add(self, role: str, usage: Usage) -> None:
        """Count what one call took."""
        self.usage[role] += usage

    @property
    def spent(self) -> tuple[int, float]:
        """Tokens and money spent, earlier parts of the run included. May be set, when a run goes on."""
        tokens, cost = self._spent_before
        for usage in self.usage.values():
            tokens += usage.prompt_tokens + usage.completion_tokens
        return tokens, cost + (self.cost or 0.0)

    @spent.setter
    def spent(self, spent: tuple[int, float]) -> None:
        self._spent_before = (0, 0.0)
        (tokens, cost), (tokens_here, cost_here) = spent, self.spent
        self._spent_before = (tokens - tokens_here, cost - cost_here)

    @property
    def cost(self) -> float | None:
        """Price of what was counted here; `None` where a price is not known."""
        if None in self.prices:
            return None
        read, written = self.prices
        return sum(
            (usage.prompt_tokens * read + usage.completion_tokens * written) / _MILLION for usage in self.usage.values()
        )

    @property
    def is_limited(self) -> bool:
        """Whether there is a budget."""
        return self.budget_tokens is not None or self.budget_cost is not None

    @property
    def exhausted(self) -> bool:
        """Whether a budget is spent. Calls in flight still end, so a little more than the budget may be spent."""
        tokens, cost = self.spent
        return (self.budget_tokens is not None and tokens >= self.budget_tokens) or (
            self.budget_cost is not None and cost >= self.budget_cost
        )

    def counters(self) -> dict[str, float]:
        """Everything counted here, by metric name."""
        counted = {
            f"judge/{role}/{field.name}": float(getattr(usage, field.name))
            for role, usage in self.usage.items()
            for field in dataclasses.fields(Usage)
        }
        return counted if self.cost is None else counted | {"judge/cost": self.cost}
