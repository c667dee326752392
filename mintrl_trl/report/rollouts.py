"""Which rollouts of a run the page holds, as the browser reads them, and what all of them say together.

One pass over the index counts everything and draws candidates; only the chosen rollouts are read. Invariant: the choice
depends on the rollouts alone, and the page's size is bounded, however many and however long they are. All text of a
model is made visible here: no character is left that a browser would obey or hide.
"""

import heapq
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..reporting.colours import visible
from ..reporting.records import RecordedReview, RecordedSpan, RolloutRecord
from ..reporting.rollout_index import RolloutEntry, RolloutFilter, RolloutIndex
from ..rollouts.rollout import Author, Decision, Role

# What is shown of a run, by what makes a rollout telling; whoever is short leaves its places to the others.
_PLACES = {
    "rescued": 8,
    "derailed": 5,
    "no_verdict": 4,
    "revised": 4,
    "strong": 3,
    "right": 3,
    "wrong": 3,
    "unscored": 2,
}
_LONGEST = {"p": 6000, "j": 4000, "d": 4000, "prompt": 6000, "reason": 1000, "why": 2000}  # characters
MOST_CHARACTERS = 6_000_000  # of one page

Part = tuple[str, str]


@dataclass
class Survey:
    """What all rollouts of a run say together.

    Args:
        total (`int`): How many there are.
        counts (`dict[str, int]`): Those that are rescued, derailed, revised, without a verdict, cut at the limit.
        reviews (`int`): Calls of the judge for a verdict.
        dead (`dict[str, int]`): Groups, and those in which all rewards are equal: all right, all wrong.
        advantage_scale (`float`, *optional*): Mean size of the advantage of rollouts with intervention tokens.
    """

    total: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    reviews: int = 0
    dead: dict[str, int] = field(default_factory=lambda: {"groups": 0, "right": 0, "wrong": 0})
    advantage_scale: float | None = None


def survey_of(index: RolloutIndex, places: int) -> tuple[Survey, list[RolloutEntry]]:
    """Count all rollouts of a run, and choose telling ones.

    Args:
        index ([`RolloutIndex`]): The run's rollouts.
        places (`int`): How many to choose, at most.

    Returns:
        `tuple`: The [`Survey`], and the chosen entries, most telling kinds in turn.
    """
    survey, candidates = Survey(), _Draw(places)
    advantages: list[float] = [0.0, 0.0]  # sum, count
    for entries in _by_update(index):
        for entry in entries:
            survey.total += 1
            survey.reviews += entry.reviews
            for name, holds in _flags(entry).items():
                survey.counts[name] = survey.counts.get(name, 0) + holds
            if entry.judge_tokens and entry.advantage is not None:
                advantages[0] += abs(entry.advantage)
                advantages[1] += 1
            candidates.add(entry)
        _count_groups(entries, survey.dead)
    if advantages[1]:
        survey.advantage_scale = advantages[0] / advantages[1]
    return survey, candidates.chosen()


def shown_rollouts(
    index: RolloutIndex, chosen: Iterable[RolloutEntry], characters: int, places: int
) -> list[dict[str, Any]]:
    """The chosen rollouts as the page reads them, in the order of the run.

    Args:
        index ([`RolloutIndex`]): The run's rollouts.
        chosen (`Iterable[RolloutEntry]`): The most telling ones first. With a rescued or derailed one comes a control
            of its group.
        characters (`int`): No further rollout is taken once so much text is.
        places (`int`): Nor once so many are.
    """
    groups: dict[tuple[int, int], list[RolloutEntry]] = {}
    taken: dict[int, dict[str, Any]] = {}
    for entry in chosen:
        if characters <= 0 or len(taken) >= places:
            break
        place = (entry.update, entry.group)
        if place not in groups:
            for other in index.find(RolloutFilter(update=entry.update)):
                groups.setdefault((other.update, other.group), []).append(other)
        mates = groups[place]
        contrast = next((mate for mate in mates if mate.role is Role.CONTROL), None)
        for one in (entry, contrast) if entry.rescued or entry.derailed else (entry,):
            if one is not None and one.number not in taken and len(taken) < places:
                taken[one.number] = _rollout(index.read(one), one, mates)
                characters -= sum(len(text) for _, text in taken[one.number]["parts"])
                characters -= len(taken[one.number]["prompt"])
    return [rollout for _, rollout in sorted(taken.items())]


class _Draw:
    """Candidates of each kind, as likely from one part of the run as from another; never more than there are places."""

    def __init__(self, places: int):
        self._places, self._random = places, random.Random(0)
        self._seen: Counter[str] = Counter()
        self._kept: dict[str, list[RolloutEntry]] = {kind: [] for kind in _PLACES}
        self._strong: list[tuple[float, int, RolloutEntry]] = []

    def add(self, entry: RolloutEntry) -> None:
        """Offer a rollout."""
        if not self._places:
            return
        if entry.advantage is not None:
            strong = (abs(entry.advantage), -entry.number, entry)
            if len(self._strong) < self._places:
                heapq.heappush(self._strong, strong)
            else:
                heapq.heappushpop(self._strong, strong)
        kind = _kind(entry)
        self._seen[kind] += 1
        kept = self._kept[kind]
        if len(kept) < self._places:
            kept.append(entry)
        elif (place := self._random.randrange(self._seen[kind])) < self._places:
            kept[place] = entry

    def chosen(self) -> list[RolloutEntry]:
        """Kinds in turn, each by its number of places."""
        waiting = {kind: iter(self._random.sample(kept, len(kept))) for kind, kept in self._kept.items()}
        waiting["strong"] = (entry for *_, entry in sorted(self._strong, reverse=True))
        chosen: dict[int, RolloutEntry] = {}
        while waiting and len(chosen) < self._places:
            for kind in list(waiting):
                for _ in range(_PLACES[kind]):
                    entry = next(waiting[kind], None)
                    if entry is None:
                        del waiting[kind]
                        break
                    chosen.setdefault(entry.number, entry)
        return list(chosen.values())[: self._places]


def _flags(entry: RolloutEntry) -> dict[str, bool]:
    """What the page filters by."""
    return {
        "rescued": entry.rescued,
        "derailed": entry.derailed,
        "revised": entry.revisions > 0,
        "no_verdict": entry.no_verdicts > 0,
        "truncated": entry.truncated,
    }


def _kind(entry: RolloutEntry) -> str:
    """What makes a rollout telling."""
    if entry.rescued:
        return "rescued"
    if entry.derailed:
        return "derailed"
    if entry.no_verdicts:
        return "no_verdict"
    if entry.revisions:
        return "revised"
    if entry.reward is None:
        return "unscored"
    return "right" if entry.reward > 0 else "wrong"


def _by_update(index: RolloutIndex) -> Iterator[list[RolloutEntry]]:
    """All rollouts, those of one update together as they stand in the file."""
    entries: list[RolloutEntry] = []
    for entry in index.find():
        if entries and entries[-1].update != entry.update:
            yield entries
            entries = []
        entries.append(entry)
    if entries:
        yield entries


def _count_groups(entries: list[RolloutEntry], dead: dict[str, int]) -> None:
    rewards = defaultdict(set)
    for entry in entries:
        rewards[entry.group].add(entry.reward)
    dead["groups"] += len(rewards)
    for found in rewards.values():
        if len(found) == 1 and None not in found:
            dead["right" if found.pop() > 0 else "wrong"] += 1


def _rollout(record: RolloutRecord, entry: RolloutEntry, mates: list[RolloutEntry]) -> dict[str, Any]:
    return {
        "update": record.update,
        "row": record.row,
        "role": record.role.value,
        "flags": [name for name, holds in _flags(entry).items() if holds],
        "prompt": "".join(text for _, text in _clipped("prompt", record.prompt)),
        "parts": [part for kind, text in _parts(record) for part in _clipped(kind, text)],
        "strip": _strip(record),
        "reviews": [_review(review) for review in record.reviews],
        "reward": _finite(record.reward),
        "why": _short(record.reward_why or "", _LONGEST["why"]),
        "advantage": _finite(record.advantage),
        "share": entry.judge_tokens / entry.tokens,
        "tokens": entry.tokens,
        "stop": record.stop.value,
        "seconds": _finite(record.seconds),
        "row_id": None if record.row_id is None else _short(str(record.row_id), 200),
        "mates": [[mate.role.value, _finite(mate.reward), mate.row] for mate in mates],
    }


def _finite(value: float | None) -> float | None:
    """A number as JSON has it; one that is not finite, which another program may have written, is unknown."""
    return value if value is not None and math.isfinite(value) else None


def _parts(record: RolloutRecord) -> Iterator[Part]:
    """The response in pieces: p by the policy, j by the judge, d discarded, n the judge's note."""
    for piece in record.pieces():
        if isinstance(piece, RecordedReview):
            review = piece.review
            yield "d", piece.discarded_text
            step = "" if review.step is None else f"step {review.step + 1}"  # as the judge counts
            yield "n", ": ".join(part for part in (step, _short(review.reason, _LONGEST["reason"])) if part)
        else:
            yield _author(piece), piece.text


def _strip(record: RolloutRecord) -> list[tuple[str, int]]:
    """The pieces' lengths in tokens."""
    return [
        ("d", len(piece.review.discarded_ids))
        if isinstance(piece, RecordedReview)
        else (_author(piece), piece.end - piece.start)
        for piece in record.pieces()
    ]


def _author(span: RecordedSpan) -> str:
    return "j" if span.author is Author.INTERVENTION else "p"


def _clipped(kind: str, text: str) -> list[Part]:
    """A piece without its middle, where it is very long: what happened stands at its ends."""
    longest = _LONGEST.get(kind, len(text))
    if not text:
        return []
    if len(text) <= longest:
        return [(kind, visible(text))]
    half = longest // 2
    gap = f" … {len(text) - 2 * half:,} characters are left out here … "
    return [(kind, visible(text[:half])), ("g", gap), (kind, visible(text[-half:]))]


def _short(text: str, longest: int) -> str:
    return visible(text if len(text) <= longest else f"{text[:longest]} …")


def _review(recorded: RecordedReview) -> dict[str, Any]:
    review = recorded.review
    return {
        "from": review.chunk_start,
        "to": review.chunk_start + review.chunk_tokens,
        "decision": review.decision.value,
        "step": review.step if review.decision is Decision.REVISE else None,
        "reason": _short(review.reason, _LONGEST["reason"]),
        "kept": review.kept_tokens,
        "correction": review.correction_tokens,
        "seconds": round(review.review_seconds + review.correction_seconds, 4),
    }
