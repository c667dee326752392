"""What a rollout is: frozen values with one representation each; masks are derived, never stored beside it.

Invariant: concatenating the spans of a `Rollout` gives exactly the response ids that the policy is trained on, each
with its author. Nothing here knows text, a tokenizer, a model, a server or a file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from itertools import pairwise
from typing import Any


class Author(Enum):
    """Who wrote a token (Eq. 11)."""

    POLICY = "policy"  # sampled by the current policy
    INTERVENTION = "intervention"  # spliced in by the judge-intervention policy


class Role(Enum):
    """What a rollout is for (section 2.3)."""

    CONTROL = "control"  # the policy alone; the only rollouts the baseline is made of
    INTERVENED = "intervened"  # semi-on-policy: the judge reviews and may intervene


class StopReason(Enum):
    """Why a rollout ended."""

    END = "end"  # the policy sampled one of its end ids
    LENGTH = "length"  # the response reached its length limit


class Decision(Enum):
    """What a review led to."""

    KEEP = "keep"
    REVISE = "revise"
    NO_VERDICT = "no_verdict"  # nothing usable came back; the chunk is kept and the reason is counted


@dataclass(frozen=True)
class Span:
    """Consecutive response tokens of one author.

    Args:
        ids (`tuple[int, ...]`): Token ids, at least one, verbatim as sampled.
        author (`Author`): Who wrote them.
        weight_version (`str`): Version of the weights that sampled them, as the generator or judge names it.
        logps (`tuple[float, ...]`, *optional*): Log-probability of each id under its author, in nats; `None` where
            the author does not give them.

    Raises:
        ValueError: The span is empty, or `logps` has another length.
    """

    ids: tuple[int, ...]
    author: Author
    weight_version: str = ""
    logps: tuple[float, ...] | None = None

    def __post_init__(self):
        if not self.ids:
            raise ValueError("a span holds at least one token")
        if self.logps is not None and len(self.logps) != len(self.ids):
            raise ValueError(f"{len(self.logps)} log-probabilities for {len(self.ids)} tokens")

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class ReviewRecord:
    """One call of the judge and what became of it. Positions count response tokens from 0.

    Args:
        chunk_start (`int`): Where the reviewed chunk starts.
        chunk_tokens (`int`): Its length.
        num_steps (`int`): Steps that were shown, earlier ones included.
        first_new (`int`): Index of the first step that could be rejected.
        decision (`Decision`): Outcome.
        step (`int`, *optional*): The rejected step (0-based), with `REVISE`.
        reason (`str`): The judge's reason, or why there was no verdict (`no_verdict` reasons are snake_case words).
        kept_tokens (`int`): Tokens of the chunk that stayed.
        correction_tokens (`int`): Tokens spliced in. 0 with `REVISE` means that the correction came back empty and the
            chunk was kept, or, where tokens were discarded, that the policy went on from the cut by itself.
        discarded_ids (`tuple[int, ...]`): The cut suffix of the chunk.
        lookahead_tokens (`int`): Tokens read beyond the chunk during the review and thrown away by a Revise.
        review_seconds (`float`): Time of the review.
        correction_seconds (`float`): Time of the correction; 0 without one.
    """

    chunk_start: int
    chunk_tokens: int
    num_steps: int
    first_new: int
    decision: Decision
    step: int | None = None
    reason: str = ""
    kept_tokens: int = 0
    correction_tokens: int = 0
    discarded_ids: tuple[int, ...] = ()
    lookahead_tokens: int = 0
    review_seconds: float = field(default=0.0, compare=False)
    correction_seconds: float = field(default=0.0, compare=False)

    @property
    def intervened(self) -> bool:
        """Whether the judge wrote into the rollout after this review."""
        return self.correction_tokens > 0

    @property
    def cuts(self) -> bool:
        """Whether the chunk was cut at this review, with a correction or without."""
        return self.intervened or bool(self.discarded_ids)

    def to_json(self) -> dict[str, Any]:
        """The call as plain JSON values."""
        return vars(self) | {"decision": self.decision.value, "discarded_ids": list(self.discarded_ids)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "ReviewRecord":
        """Read `to_json`'s object back.

        Raises:
            KeyError, TypeError, ValueError: A field is missing, unknown or holds something else.
        """
        read = {"decision": Decision(fields["decision"]), "discarded_ids": tuple(fields["discarded_ids"])}
        return cls(**{**fields, **read})


@dataclass(frozen=True)
class Problem:
    """What a judge may know about the task. It never reaches the policy: the generator's door takes ids only.

    Args:
        question (`str`): The task in words.
        privileged_context (`str`, *optional*): A reference solution, for self-judges only.
        answer (`str`, *optional*): The final answer, used only to catch corrections that give it away.
    """

    question: str
    privileged_context: str | None = None
    answer: str | None = None


@dataclass(frozen=True)
class RolloutRequest:
    """One rollout to make.

    Args:
        row (`int`): Global row: unique among the rollouts in flight, the same for every number of processes.
        prompt_ids (`tuple[int, ...]`): The rendered prompt.
        problem (`Problem`): For the judge.
        role (`Role`): Control, or open to intervention.
        update (`int`): The update the rollout is made for; enters the seeds.
    """

    row: int
    prompt_ids: tuple[int, ...]
    problem: Problem
    role: Role
    update: int

    def __post_init__(self):
        if not self.prompt_ids:
            raise ValueError("a prompt holds at least one token")


@dataclass(frozen=True)
class Rollout:
    """A finished response.

    Args:
        request (`RolloutRequest`): What was asked for.
        spans (`tuple[Span, ...]`): The response; neighbours differ in author or weight version.
        stop (`StopReason`): Why it ended.
        reviews (`tuple[ReviewRecord, ...]`): The judge's calls, in order.
        seconds (`float`): Wall-clock time from start to finish.
        held_up_seconds (`float`): Of these, the time in which the judge was waited for and the policy sampled nothing.

    Raises:
        ValueError: No spans, or neighbouring spans that should be one.
    """

    request: RolloutRequest
    spans: tuple[Span, ...]
    stop: StopReason
    reviews: tuple[ReviewRecord, ...] = ()
    seconds: float = field(default=0.0, compare=False)
    held_up_seconds: float = field(default=0.0, compare=False)

    def __post_init__(self):
        if not self.spans:
            raise ValueError("a rollout holds at least one token")
        for left, right in pairwise(self.spans):
            if left.author is right.author and left.weight_version == right.weight_version:
                raise ValueError("neighbouring spans of one author and version must be one span")

    @cached_property
    def ids(self) -> tuple[int, ...]:
        """Response token ids, the end id included when the policy ended."""
        return tuple(token for span in self.spans for token in span.ids)

    @cached_property
    def policy_authored(self) -> tuple[bool, ...]:
        """Per response token: true where the policy wrote it."""
        return tuple(span.author is Author.POLICY for span in self.spans for _ in span.ids)

    @cached_property
    def intervention_logps(self) -> tuple[float | None, ...]:
        """Per response token: the intervention policy's log-probability; `None` elsewhere and where unknown."""
        values: list[float | None] = []
        for span in self.spans:
            known = span.author is Author.INTERVENTION and span.logps is not None
            values.extend(span.logps if known else [None] * len(span))
        return tuple(values)

    @property
    def intervention_tokens(self) -> int:
        """Number of tokens the policy did not write."""
        return sum(len(span) for span in self.spans if span.author is Author.INTERVENTION)

    @property
    def off_policy_share(self) -> float:
        """Intervention-authored tokens over all response tokens, in [0, 1]."""
        return self.intervention_tokens / len(self.ids)

    @property
    def num_interventions(self) -> int:
        """Number of reviews after which the judge wrote into the rollout."""
        return sum(review.intervened for review in self.reviews)


def merge_spans(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Join neighbours of one author and weight version, keeping log-probabilities only where both have them."""
    merged: list[Span] = []
    for span in spans:
        last = merged[-1] if merged else None
        if last is not None and last.author is span.author and last.weight_version == span.weight_version:
            both = last.logps is not None and span.logps is not None
            logps = last.logps + span.logps if both else None
            merged[-1] = Span(last.ids + span.ids, span.author, span.weight_version, logps)
        else:
            merged.append(span)
    return tuple(merged)
