"""Pilot rollouts: a folder of them, and what one budget of interventions does with the base model.

Owns the file `reviews.jsonl` beside an evaluation's samples (who wrote which tokens, every review) and the numbers that
follow. It samples nothing and asks nobody. Invariants: a rollout counts once, with its sample; the numbers have the
names and meanings of training's metrics, because they are made by the same functions.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import DataError
from ..evaluation.intervals import Comparison, Interval, compare_means, mean_interval
from ..evaluation.results import EvalResult
from ..evaluation.run import sample_row
from ..evaluation.samples import Key, SampleFolder
from ..judges.reply import leaks_answer
from ..objective.metrics import rollout_totals
from ..rollouts.doors import Vocabulary
from ..rollouts.rollout import (
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
from ..rollouts.schedule import InterventionBudget
from ..rollouts.segmentation import decode

REVIEWS = "reviews.jsonl"


class PilotFolder(SampleFolder):
    """A folder of samples, each with its spans and reviews."""

    def begin(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """As of [`SampleFolder`]."""
        header = super().begin(settings)
        self._cut_torn_line(REVIEWS)
        return header

    def recorder(self, counters: Callable[[], Mapping[str, float]]) -> Callable[[Key, Rollout], None]:
        """What to call with each rollout before its sample is saved.

        Args:
            counters (`Callable`): What the judge has counted so far; what it gained since the last call is written
                beside the rollout, so sums over the folder are what all of it has cost.
        """
        last = dict(counters())

        def record(key: Key, rollout: Rollout) -> None:
            now = dict(counters())
            gained = {name: value - last.get(name, 0.0) for name, value in now.items()}
            last.update(now)
            self._append(REVIEWS, [_line(key, rollout, gained)])

        return record

    def rollouts(self) -> dict[Key, Rollout]:
        """The rollouts of all samples, without their prompts.

        Raises:
            DataError: A sample whose spans and reviews are missing.
        """
        lines = {(line["problem"], line["sample"]): line for line in self._read(REVIEWS, dict)}
        found = {}
        for sample in self.samples():
            if sample.key not in lines:
                allowed = "a line for every sample"
                raise DataError(str(self.path / REVIEWS), "sample", sample.key, allowed, "remove the folder")
            found[sample.key] = _rollout(sample.ids, sample.stop, lines[sample.key])
        return found

    def counted(self) -> dict[str, float]:
        """What the judge counted over all rollouts, those included that were interrupted after it was asked."""
        totals: dict[str, float] = {}
        for line in self._read(REVIEWS, dict):
            for name, value in line["counters"].items():
                totals[name] = totals.get(name, 0.0) + value
        return totals


@dataclass(frozen=True)
class Pilot:
    """What interventions under one budget do.

    Args:
        budget (`InterventionBudget`): Chunk, reviews, correction, limits.
        rollouts (`int`): Intervened rollouts.
        reward (`Interval`): Share of them that is right, over the draw of problems.
        gain (`Comparison`): That minus the controls' share, on the same problems.
        gains (`tuple[float, ...]`): The same for each problem, in [-1, 1].
        rescued (`float`): Share of problems without a right control that have a right intervened rollout; of all.
        metrics (`dict[str, float]`): As of a training batch: `off_policy_share`, `judge/revise_rate` and so on.
        kappa (`float`, *optional*): Mean log-probability of a correction's token under the judge that wrote it, in
            nats; `None` where the judge gives none.
        kappa_tokens (`int`): Over how many tokens.
        leak_rate (`float`, *optional*): Of the corrections asked for, those that give the answer away, withheld or not;
            `None` where none was asked for.
        cost (`dict[str, float]`): What the judge counted, such as tokens, for each rollout.
    """

    budget: InterventionBudget
    rollouts: int
    reward: Interval
    gain: Comparison
    gains: tuple[float, ...]
    rescued: float
    metrics: dict[str, float]
    kappa: float | None
    kappa_tokens: int
    leak_rate: float | None
    cost: dict[str, float]

    @property
    def off_policy_share(self) -> float:
        """Tokens of the judge over all tokens of the rollouts, in [0, 1]."""
        return self.metrics["off_policy_share"]

    @property
    def thrown_away(self) -> float:
        """Policy tokens that were cut or read ahead in vain, of all that were sampled, in [0, 1]."""
        vain = self.metrics["tokens/discarded"] + self.metrics["tokens/lookahead"]
        return vain / (vain + self.metrics["tokens/policy"])


def measure(
    folder: PilotFolder,
    budget: InterventionBudget,
    own: EvalResult,
    controls: EvalResult,
    *,
    answers: Mapping[str, str | None],
    vocabulary: Vocabulary,
) -> Pilot:
    """The numbers of a complete and scored folder.

    Args:
        folder ([`PilotFolder`]): Of the intervened rollouts.
        budget (`InterventionBudget`): Theirs.
        own, controls (`EvalResult`): Their counts and the controls', of the same problems in the same order.
        answers (`Mapping[str, str]`): By problem, to see whether a correction gives one away.
        vocabulary ([`Vocabulary`]): Spells the ids.
    """
    by_key = folder.rollouts()
    rollouts = list(by_key.values())
    logps = [
        value
        for rollout in rollouts
        for span in rollout.spans
        if span.author is Author.INTERVENTION and span.logps is not None
        for value in span.logps
    ]
    asked = sum(review.decision is Decision.REVISE for rollout in rollouts for review in rollout.reviews)
    counted = folder.counted()
    leaks = counted.pop("judge/leak", 0.0)
    leaks += sum(
        leaks_answer(str(decode(ids, vocabulary)), answers[problem])
        for (problem, _), rollout in by_key.items()
        for ids in corrections(rollout)
    )
    first, second = controls.scores(1), own.scores(1)
    rescued = sum(not a.solved and b.solved > 0 for a, b in zip(controls.problems, own.problems, strict=True))
    return Pilot(
        budget=budget,
        rollouts=len(rollouts),
        reward=mean_interval(second),
        gain=compare_means(first, second),
        gains=tuple(b - a for a, b in zip(first, second, strict=True)),
        rescued=rescued / len(first),
        metrics=rollout_totals(rollouts).means(),
        kappa=sum(logps) / len(logps) if logps else None,
        kappa_tokens=len(logps),
        leak_rate=leaks / asked if asked else None,
        cost={name: value / len(rollouts) for name, value in counted.items()},
    )


def corrections(rollout: Rollout) -> list[tuple[int, ...]]:
    """The ids of each correction in a rollout, in order."""
    starts = [(review.chunk_start + review.kept_tokens, review.correction_tokens) for review in rollout.reviews]
    return [rollout.ids[start : start + tokens] for start, tokens in starts if tokens]


def _line(key: Key, rollout: Rollout, counters: Mapping[str, float]) -> dict[str, Any]:
    spans = [
        {
            "author": span.author.value,
            "tokens": len(span),
            "version": span.weight_version,
            "logps": span.logps if span.author is Author.INTERVENTION else None,
        }
        for span in rollout.spans
    ]
    return {
        "problem": key[0],
        "sample": key[1],
        "spans": spans,
        "reviews": [review.to_json() for review in rollout.reviews],
        "seconds": rollout.seconds,
        "held_up_seconds": rollout.held_up_seconds,
        "counters": dict(counters),
    }


def _rollout(ids: Sequence[int], stop: str, line: Mapping[str, Any]) -> Rollout:
    spans, start = [], 0
    for span in line["spans"]:
        end = start + span["tokens"]
        logps = None if span["logps"] is None else tuple(span["logps"])
        spans.append(Span(tuple(ids[start:end]), Author(span["author"]), span["version"], logps))
        start = end
    reviews = tuple(map(ReviewRecord.from_json, line["reviews"]))
    row = sample_row(line["problem"], line["sample"])
    request = RolloutRequest(row, (0,), Problem(""), Role.INTERVENED, update=0)  # what was asked is in the header
    seconds, held_up = line["seconds"], line["held_up_seconds"]
    return Rollout(request, tuple(spans), StopReason(stop), reviews, seconds=seconds, held_up_seconds=held_up)


def pilot_json(pilot: Pilot) -> dict[str, Any]:
    """All of a pilot's numbers as plain JSON values."""
    return json.loads(json.dumps(asdict(pilot) | {"thrown_away": pilot.thrown_away}))
