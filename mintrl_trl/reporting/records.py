"""A rollout as one JSON record, and back: what was asked, who wrote which tokens, what the judge said, what it earned.

Owns the record's form and nothing else; it opens no file. A span of a record ends where the author changes and also
where a correction begins, so a discarded suffix has a place between two spans.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..errors import DataError
from ..rollouts.doors import Vocabulary
from ..rollouts.rollout import (
    Author,
    Problem,
    ReviewRecord,
    Role,
    Rollout,
    RolloutRequest,
    Span,
    StopReason,
    merge_spans,
)
from ..rollouts.segmentation import decode


@dataclass(frozen=True)
class RecordedSpan:
    """Response tokens `start` to `end` (exclusive), who wrote them under which weights, and their text.

    Args:
        start, end (`int`): Places in the response.
        author (`Author`): Who wrote them.
        weight_version (`str`): Of the weights that sampled them.
        text (`str`): Theirs.
        logps (`tuple[float or None, ...]`, *optional*): Log-probability of each token under its author, in nats, where
            a loss is made of it; `None` where it is unknown or not needed.
    """

    start: int
    end: int
    author: Author
    weight_version: str
    text: str
    logps: tuple[float | None, ...] | None = None


@dataclass(frozen=True)
class RecordedReview:
    """A review and the text of what it discarded."""

    review: ReviewRecord
    discarded_text: str

    @property
    def cut(self) -> int:
        """Response token at which the discarded suffix began and the correction, if there is one, begins."""
        return self.review.chunk_start + self.review.kept_tokens


@dataclass(frozen=True)
class RolloutRecord:
    """Everything worth keeping of a rollout.

    Args:
        update (`int`): The update the rollout was made for, counted from 1.
        row (`int`): Global row in the batch.
        group (`int`): Group of the batch; rollouts of one prompt share it.
        role (`Role`): Control or intervened.
        prompt (`str`): The rendered prompt's text, without special tokens.
        ids (`tuple[int, ...]`): Response token ids.
        spans (`tuple[RecordedSpan, ...]`): They cover `ids` without a gap.
        stop (`StopReason`): Why it ended.
        seconds (`float`): Wall-clock time.
        reviews (`tuple[RecordedReview, ...]`): The judge's calls, in order.
        reward (`float`, *optional*): `None`: no reward was given.
        reward_why (`str`, *optional*): The reward function's explanation.
        advantage (`float`, *optional*): What the rollout is trained with. `None`: it is not.
        row_id (`str` or `int`, *optional*): Id of the data row.
        prompt_ids (`tuple[int, ...]`, *optional*): Prompt token ids; `None` in records of older versions.

    Raises:
        ValueError: The spans do not cover the ids.
    """

    update: int
    row: int
    group: int
    role: Role
    prompt: str
    ids: tuple[int, ...]
    spans: tuple[RecordedSpan, ...]
    stop: StopReason
    seconds: float
    reviews: tuple[RecordedReview, ...] = ()
    reward: float | None = None
    reward_why: str | None = None
    advantage: float | None = None
    row_id: str | int | None = None
    prompt_ids: tuple[int, ...] | None = None

    def __post_init__(self):
        edges = [0, *(span.end for span in self.spans)]
        if [span.start for span in self.spans] != edges[:-1] or edges[-1] != len(self.ids):
            raise ValueError("the spans of a record must cover its ids without a gap")

    @property
    def off_policy_share(self) -> float:
        """Intervention-authored tokens over all response tokens, in [0, 1]."""
        written = sum(span.end - span.start for span in self.spans if span.author is Author.INTERVENTION)
        return written / len(self.ids)

    def pieces(self) -> Iterator[RecordedSpan | RecordedReview]:
        """Spans and, where they cut, reviews, as they are read: a cut stands before what was written in its place."""
        cuts = [review for review in self.reviews if review.review.cuts]
        for span in self.spans:
            yield from (review for review in cuts if review.cut == span.start)
            yield span
        yield from (review for review in cuts if review.cut == len(self.ids))  # nothing came after the cut

    def to_json(self) -> dict[str, Any]:
        """A JSON object; `from_json` gives back an equal record."""
        return vars(self) | {
            "role": self.role.value,
            "ids": list(self.ids),
            "spans": [_span_to_json(span) for span in self.spans],
            "stop": self.stop.value,
            "reviews": [_review_to_json(review) for review in self.reviews],
            "prompt_ids": None if self.prompt_ids is None else list(self.prompt_ids),
        }

    def to_rollout(self) -> Rollout:
        """The rollout that the record was made of, as far as training needs it: the judge's problem is its prompt.

        Raises:
            ValueError: The record has no prompt ids.
        """
        if self.prompt_ids is None:
            raise ValueError("the record has no `prompt_ids`: an older version made it")
        spans = []
        for span in self.spans:
            logps = None if span.logps is None else tuple(math.nan if logp is None else logp for logp in span.logps)
            spans.append(Span(self.ids[span.start : span.end], span.author, span.weight_version, logps))
        return Rollout(
            request=RolloutRequest(self.row, self.prompt_ids, Problem(self.prompt), self.role, self.update - 1),
            spans=merge_spans(spans),
            stop=self.stop,
            reviews=tuple(review.review for review in self.reviews),
            seconds=self.seconds,
        )

    @classmethod
    def from_json(cls, record: Mapping[str, Any], where: str = "record") -> "RolloutRecord":
        """Read `to_json`'s object back.

        Args:
            record (`Mapping[str, Any]`): The object.
            where (`str`, *optional*): File and line, for the message.

        Raises:
            DataError: A field is missing, unknown or holds something else.
        """
        try:
            return cls(
                **dict(record)
                | {
                    "role": Role(record["role"]),
                    "ids": tuple(record["ids"]),
                    "spans": tuple(_span_from_json(span) for span in record["spans"]),
                    "stop": StopReason(record["stop"]),
                    "reviews": tuple(_review_from_json(review) for review in record["reviews"]),
                    "prompt_ids": None if (prompt := record.get("prompt_ids")) is None else tuple(prompt),
                }
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            allowed = "an object as RolloutRecord.to_json writes it"
            raise DataError(where, "record", record, allowed, f"remove the line ({error!r})") from error


def rollout_record(
    rollout: Rollout,
    *,
    vocabulary: Vocabulary,
    update: int,
    group: int,
    reward: float | None = None,
    reward_why: str | None = None,
    advantage: float | None = None,
    row_id: str | int | None = None,
    policy_logps: bool = False,
) -> RolloutRecord:
    """Make the record of a finished rollout.

    Args:
        rollout (`Rollout`): The rollout.
        vocabulary (`Vocabulary`): Spells its ids; special tokens have no text.
        update, group, reward, reward_why, advantage, row_id: As in [`RolloutRecord`]; a NaN is taken as `None`.
        policy_logps (`bool`, *optional*, defaults to `False`): Whether to keep the log-probabilities of the policy's
            tokens, which are long; those of the judge's are always kept.

    Returns:
        `RolloutRecord`: The record.
    """
    reviews = tuple(RecordedReview(r, str(decode(r.discarded_ids, vocabulary))) for r in rollout.reviews)
    cuts = {review.cut for review in reviews if review.review.cuts}
    spans = []
    start = 0
    for span in rollout.spans:
        end = start + len(span)
        edges = [start, *sorted(cut for cut in cuts if start < cut < end), end]
        for left, right in pairwise(edges):
            text = str(decode(rollout.ids[left:right], vocabulary))
            kept = span.logps is not None and (policy_logps or span.author is Author.INTERVENTION)
            logps = tuple(_known(logp) for logp in span.logps[left - start : right - start]) if kept else None
            spans.append(RecordedSpan(left, right, span.author, span.weight_version, text, logps))
        start = end
    return RolloutRecord(
        update=update,
        row=rollout.request.row,
        group=group,
        role=rollout.request.role,
        prompt=str(decode(rollout.request.prompt_ids, vocabulary)),
        ids=rollout.ids,
        spans=tuple(spans),
        stop=rollout.stop,
        seconds=rollout.seconds,
        reviews=reviews,
        reward=_known(reward),
        reward_why=reward_why,
        advantage=_known(advantage),
        row_id=row_id,
        prompt_ids=rollout.request.prompt_ids,
    )


def _span_to_json(span: RecordedSpan) -> dict[str, Any]:
    fields = vars(span) | {"author": span.author.value}
    logps = fields.pop("logps")
    return fields if logps is None else fields | {"logps": list(logps)}


def _span_from_json(fields: Mapping[str, Any]) -> RecordedSpan:
    span = dict(fields) | {"author": Author(fields["author"])}
    logps = span.pop("logps", None)
    return RecordedSpan(**span, logps=None if logps is None else tuple(logps))


def _review_to_json(recorded: RecordedReview) -> dict[str, Any]:
    return recorded.review.to_json() | {"discarded_text": recorded.discarded_text}


def _review_from_json(fields: Mapping[str, Any]) -> RecordedReview:
    review = dict(fields)
    return RecordedReview(discarded_text=review.pop("discarded_text"), review=ReviewRecord.from_json(review))


def _known(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value
