"""A byte vocabulary and hand-written rollouts for the tests of reporting."""

from dataclasses import replace

from mintrl_trl.reporting.records import RolloutRecord, rollout_record
from mintrl_trl.rollouts.rollout import (
    Author,
    Decision,
    Problem,
    ReviewRecord,
    Role,
    Rollout,
    RolloutRequest,
    Span,
    StopReason,
)

END = 256


class ByteVocabulary:
    """One token per byte, and an end token without text."""

    size = 257
    end_ids = frozenset({END})
    special_ids = frozenset({END})
    special_texts = ("<end>",)

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < END else b""

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(text.encode())


def ids(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


def policy(text: str, *, end: bool = False, version: str = "7") -> Span:
    return Span(ids(text) + (END,) * end, Author.POLICY, version)


def judge(text: str) -> Span:
    return Span(ids(text), Author.INTERVENTION)


def corrected_rollout() -> Rollout:
    """`7+5=` and then: `13;` thrown away, `12;` by the judge, `ok` and the end by the policy."""
    review = ReviewRecord(
        chunk_start=0,
        chunk_tokens=7,
        num_steps=2,
        first_new=0,
        decision=Decision.REVISE,
        step=1,
        reason="7+5 is 12",
        kept_tokens=4,
        correction_tokens=3,
        discarded_ids=ids("13;"),
        lookahead_tokens=2,
        review_seconds=0.5,
        correction_seconds=0.25,
    )
    kept = ReviewRecord(chunk_start=7, chunk_tokens=3, num_steps=4, first_new=3, decision=Decision.KEEP, kept_tokens=3)
    return Rollout(
        request=RolloutRequest(row=9, prompt_ids=ids("7+5?"), problem=Problem("7+5?"), role=Role.INTERVENED, update=2),
        spans=(policy("7+5="), judge("12;"), policy("ok", end=True)),
        stop=StopReason.END,
        reviews=(review, kept),
        seconds=1.5,
    )


def corrected_record(**changes: object) -> RolloutRecord:
    record = rollout_record(
        corrected_rollout(), vocabulary=ByteVocabulary(), update=3, group=1, reward=1.0, advantage=0.75
    )
    return replace(record, **changes)
