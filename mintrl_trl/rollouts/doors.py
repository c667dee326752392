"""The two narrow doors between the core and the world, and the values that pass through them.

A `PolicyGenerator` continues token ids; it has no text parameter, so nothing a judge knows can reach the policy. A
`Judge` reads text and may answer with a correction. A `Vocabulary` says which bytes a token spells. All three are
protocols: pass any object with these methods; there is nothing to inherit from and nothing to register.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from .rollout import Problem


class SampledToken(NamedTuple):
    """One token of a stream, with its log-probability in nats under the sampling weights, or `None`."""

    id: int
    logp: float | None


class TokenText(str):
    """Text together with the token ids that spell it. To a judge that reads text it is a plain string."""

    __slots__ = ("ids",)
    ids: tuple[int, ...]

    def __new__(cls, text: str, ids: Sequence[int] = ()):
        self = super().__new__(cls, text)
        self.ids = tuple(ids)
        return self


@dataclass(frozen=True)
class Keep:
    """The judge accepts the chunk."""


KEEP = Keep()


@dataclass(frozen=True)
class Revise:
    """The judge rejects the chunk from `step` (0-based index into the steps it was shown) on.

    Args:
        step (`int`): The first rejected step.
        reason (`str`, *optional*): Why.
        resample (`bool`, *optional*, defaults to `False`): Whether the policy itself writes on from the cut, with new
            noise, instead of a correction. For experiments: it tells what a cut alone does.
    """

    step: int
    reason: str = ""
    resample: bool = False


Verdict = Keep | Revise


@dataclass(frozen=True)
class Correction:
    """A short continuation by the judge: either text, or ids of the policy's own vocabulary.

    Args:
        text (`str`, *optional*): Plain text; it is encoded alone, never together with policy text.
        ids (`tuple[int, ...]`, *optional*): Ids, where judge and policy share the tokenizer.
        logps (`tuple[float, ...]`, *optional*): The judge's log-probability of each id; only with `ids`.

    Raises:
        ValueError: Both or neither of `text` and `ids`, or `logps` that do not match `ids`.
    """

    text: str | None = None
    ids: tuple[int, ...] | None = None
    logps: tuple[float, ...] | None = None

    def __post_init__(self):
        if (self.text is None) == (self.ids is None):
            raise ValueError("a correction is either text or ids")
        if self.logps is not None and (self.ids is None or len(self.logps) != len(self.ids)):
            raise ValueError("a correction's log-probabilities must match its ids one to one")


@runtime_checkable
class Vocabulary(Protocol):
    """What the core needs to know of the policy's tokenizer."""

    size: int  # number of ids the model can be fed
    end_ids: frozenset[int]  # any of these ends a response
    special_ids: frozenset[int]  # control tokens, end ids included; never allowed in a correction
    special_texts: tuple[str, ...]  # the texts that spell them; a correction is cut at the first one

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that `token_id` spells in running text; empty for special tokens."""

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of plain text, without adding any special token."""


class PolicyGenerator(Protocol):
    """Continues token ids with the current policy.

    Optional: a method `for_rollout()`, whose value is a context manager that gives the generator of one rollout and is
    left when the rollout ends. It is for a policy on several servers, where a rollout had better stay on one.
    """

    weight_version: str  # changes whenever the weights behind the door change

    def stream(self, prefix_ids: Sequence[int], max_tokens: int, seed: int) -> AsyncIterator[SampledToken]:
        """Sample a continuation of `prefix_ids`, token by token.

        The stream ends after an end id (which it yields) or after `max_tokens`. Closing it early (`aclose`) really
        stops the work behind it. A token depends on `prefix_ids` so far, `seed` and its absolute position only: a
        rollout may be continued by several requests with one seed. Where the noise of a server starts anew with every
        request, the generator mixes `len(prefix_ids)` into the seed it sends, or continuations repeat the noise.

        Optional: an iterator with a method `take() -> list[SampledToken]`, which returns at once the tokens that are
        ready (maybe none), is read without awaiting each token.

        Raises:
            GenerationError: The policy cannot go on.
        """


class Judge(Protocol):
    """Reads the policy's text and corrects it.

    Optional: an attribute `exhausted`. While it is true no chunk is reviewed and rollouts are the policy's own: such
    rollouts depend on when it became true.
    """

    async def review(self, problem: Problem, steps: Sequence[str], first_new: int, *, seed: int) -> Verdict:
        """Accept the newest chunk or name the earliest wrong step.

        Args:
            problem (`Problem`): The task.
            steps (`Sequence[str]`): All steps so far (`TokenText`, so ids are at hand); the last may be unfinished.
            first_new (`int`): Only steps from this index on may be rejected.
            seed (`int`): For whatever is sampled.

        Raises:
            NoVerdict: Nothing usable came of it; the chunk is kept and the reason counted. Any other exception but
                `JudgeError` counts the same, with its type as the reason.
            JudgeError: The judge is set up wrongly; the run stops.
        """

    async def intervene(
        self, problem: Problem, accepted: str, verdict: Revise, max_tokens: int, *, seed: int
    ) -> Correction:
        """Continue `accepted` (a `TokenText`) in the policy's voice with at most `max_tokens` tokens.

        An empty correction means Keep. Raises as `review` does.
        """
