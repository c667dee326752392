"""Who is reviewed, when, how often, and with which seeds.

Pure arithmetic on update and row numbers, so every process finds the same answer without a word to the others. It never
looks at a rollout. The invariant: within a group the controls come first, and the on-policy phase has only controls.
"""

from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from typing import Literal, get_args

from ..errors import ConfigError
from .rollout import Role

SeedPurpose = Literal["policy", "review", "correction", "eval", "layout"]


class Phase(Enum):
    """Which objective an update belongs to."""

    INTERVENTION = "intervention"  # controls and intervened rollouts, the regression of Eq. 7
    ON_POLICY = "on_policy"  # controls alone, GRPO


@dataclass(frozen=True)
class Schedule:
    """Phase of an update and role of a row.

    Args:
        num_control (`int`): Control rollouts in a group, at least 1: the baseline is made of them.
        num_intervened (`int`): Intervened rollouts in a group, at least 0.
        intervention_updates (`int`): Updates of the intervention phase, at least 0; the on-policy phase follows.

    Raises:
        ConfigError: A number is out of its range.
    """

    num_control: int
    num_intervened: int
    intervention_updates: int

    def __post_init__(self):
        _at_least(1, "num_control", self.num_control)
        _at_least(0, "num_intervened", self.num_intervened)
        _at_least(0, "intervention_updates", self.intervention_updates)

    @property
    def group_size(self) -> int:
        """Rollouts of one prompt."""
        return self.num_control + self.num_intervened

    def phase(self, update: int) -> Phase:
        """Phase of the update that follows `update` optimizer steps."""
        return Phase.INTERVENTION if update < self.intervention_updates else Phase.ON_POLICY

    def role(self, row: int, phase: Phase) -> Role:
        """Role of the rollout in global row `row`, by its position in its group."""
        intervened = phase is Phase.INTERVENTION and row % self.group_size >= self.num_control
        return Role.INTERVENED if intervened else Role.CONTROL


@dataclass(frozen=True)
class InterventionBudget:
    """Limits of one rollout.

    Args:
        chunk_tokens (`int`): Policy tokens between two reviews, at least 1.
        max_reviews (`int`): Reviews, those that keep the chunk included, at least 0.
        correction_tokens (`int`): Tokens of one correction at most, at least 1.
        max_completion_tokens (`int`): Tokens of the whole response at most, corrections included, at least 1.
        review_final_chunk (`bool`, *optional*, defaults to `True`): Whether a chunk in which the policy ended its
            response is reviewed.

    Raises:
        ConfigError: A number is out of its range.
    """

    chunk_tokens: int
    max_reviews: int
    correction_tokens: int
    max_completion_tokens: int
    review_final_chunk: bool = True

    def __post_init__(self):
        _at_least(1, "chunk_tokens", self.chunk_tokens)
        _at_least(0, "max_reviews", self.max_reviews)
        _at_least(1, "correction_tokens", self.correction_tokens)
        _at_least(1, "max_completion_tokens", self.max_completion_tokens)


def request_seed(run_seed: int, update: int, row: int, revisions: int, purpose: SeedPurpose = "policy") -> int:
    """Seed of one request, in [0, 2**63): the same on every machine, unlike any other request's of the run.

    Args:
        run_seed (`int`): Seed of the run.
        update (`int`): Update the rollout is made for.
        row (`int`): Global row of the rollout.
        revisions (`int`): Corrections spliced in so far; for reviews and corrections, the review's index.
        purpose (`str`, *optional*, defaults to `"policy"`): `"policy"`, `"review"`, `"correction"`, `"eval"`, or
            `"layout"` (which rows an update trains on).

    Raises:
        ValueError: Another purpose.

    Example:

    >>> request_seed(0, update=3, row=17, revisions=0)
    4241270017995322695
    >>> request_seed(0, update=3, row=17, revisions=0, purpose="review")
    5194124829612443099
    """
    if purpose not in get_args(SeedPurpose):
        raise ValueError(f"purpose is {purpose!r}; allowed: {', '.join(get_args(SeedPurpose))}")
    digest = blake2b(f"{run_seed},{update},{row},{revisions},{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _at_least(minimum: int, field: str, value: int) -> None:
    if value < minimum:
        raise ConfigError(field, value, f"{minimum} or more", f"set {field}={minimum} or higher")
