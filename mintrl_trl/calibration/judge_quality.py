"""How good a judge is: false alarms, what its corrections are worth, and whether it finds the first error.

Owns the counting; rollouts come from `pilot`. Invariant: intervals are over problems, since rollouts of one problem
are alike.

| question | from |
|---|---|
| does it object to what ends right? | reviews of controls that nothing follows from ([`Alarms`]) |
| does a correction help? | continuations from the same cut, with and without it ([`Rescue`]) |
| does it name the first wrong step? | solutions whose first wrong step is known ([`FirstErrors`]) |
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from statistics import fmean

from ..evaluation.intervals import Comparison, Interval, compare_means, mean_interval
from ..evaluation.results import EvalResult
from ..evaluation.samples import Key
from ..rollouts.doors import Vocabulary
from ..rollouts.rollout import Decision, Rollout
from ..rollouts.segmentation import segment
from .labelled import LabelledSolution


@dataclass(frozen=True)
class Alarms:
    """A judge's objections to rollouts of the policy alone, which nothing followed from.

    Args:
        right, wrong (`int`): Rollouts that ended right and wrong.
        false_alarms (`Interval`, *optional*): Share of right ones with at least one objection, as a mean over problems;
            `None` without any. An objection to a mistake that the policy repaired later is among them, so it is an
            upper bound.
        detections (`Interval`, *optional*): The same of wrong ones.
        reviews (`int`): Reviews in all.
        no_verdict (`float`): Share of reviews without a usable verdict.
    """

    right: int
    wrong: int
    false_alarms: Interval | None
    detections: Interval | None
    reviews: int
    no_verdict: float


def alarms(rollouts: Mapping[Key, Rollout], solved: Mapping[Key, bool]) -> Alarms:
    """Count objections.

    Args:
        rollouts (`Mapping[Key, Rollout]`): Controls with the reviews of a [`ShadowJudge`].
        solved (`Mapping[Key, bool]`): Whether each ended right.
    """
    objections: dict[bool, dict[str, list[float]]] = {True: defaultdict(list), False: defaultdict(list)}
    for key, rollout in rollouts.items():
        objected = any(review.decision is Decision.REVISE for review in rollout.reviews)
        objections[solved[key]][key[0]].append(float(objected))
    reviews = [review for rollout in rollouts.values() for review in rollout.reviews]
    without = sum(review.decision is Decision.NO_VERDICT for review in reviews)
    return Alarms(
        right=sum(map(len, objections[True].values())),
        wrong=sum(map(len, objections[False].values())),
        false_alarms=_over_problems(objections[True]),
        detections=_over_problems(objections[False]),
        reviews=len(reviews),
        no_verdict=without / len(reviews) if reviews else 0.0,
    )


@dataclass(frozen=True)
class RescueCase:
    """The first intervention of a rollout: everything before it is the policy's.

    Args:
        id (`str`): Names the case.
        problem (`str`): Id of the problem.
        kept (`tuple[int, ...]`): Response ids before the cut.
        correction (`tuple[int, ...]`): Ids that the judge wrote there.
    """

    id: str
    problem: str
    kept: tuple[int, ...]
    correction: tuple[int, ...]


@dataclass(frozen=True)
class Rescue:
    """What corrections are worth: continuations of the policy from the same cuts, with and without them.

    Args:
        cases, problems (`int`): Corrections that were looked at, and of how many problems they are.
        continuations (`int`): Of each case, with and without.
        without, with_correction (`float`): Share of continuations that end right.
        difference (`Comparison`): The second minus the first, over problems.
    """

    cases: int
    problems: int
    continuations: int
    without: float
    with_correction: float
    difference: Comparison


def rescue_cases(rollouts: Mapping[Key, Rollout], limit: int) -> list[RescueCase]:
    """First interventions, at most `limit`: one of each problem, then a second of each, in an order without meaning."""
    by_problem: dict[str, list[RescueCase]] = defaultdict(list)
    for (problem, sample), rollout in sorted(rollouts.items(), key=lambda item: _shuffled(item[0])):
        review = next((review for review in rollout.reviews if review.intervened), None)
        if review is not None:
            cut = review.chunk_start + review.kept_tokens
            correction = rollout.ids[cut : cut + review.correction_tokens]
            by_problem[problem].append(RescueCase(f"{problem}#{sample}", problem, rollout.ids[:cut], correction))
    rounds = range(max(map(len, by_problem.values()), default=0))
    return [cases[turn] for turn in rounds for cases in by_problem.values() if turn < len(cases)][:limit]


def rescue(cases: Sequence[RescueCase], without: EvalResult, with_correction: EvalResult) -> Rescue:
    """Compare continuations.

    Args:
        cases (`Sequence[RescueCase]`): At least one.
        without, with_correction (`EvalResult`): Counts of the continuations, in the order of the cases.
    """
    shares = []
    for result in (without, with_correction):
        by_problem: dict[str, list[float]] = defaultdict(list)
        for case, score in zip(cases, result.scores(1), strict=True):
            by_problem[case.problem].append(score)
        shares.append([fmean(scores) for scores in by_problem.values()])
    before, after = shares
    samples = without.problems[0].samples
    return Rescue(len(cases), len(before), samples, fmean(before), fmean(after), compare_means(before, after))


@dataclass(frozen=True)
class FirstErrors:
    """Whether a judge names the first wrong step of solutions where it is known, each shown as a whole.

    Args:
        erroneous, correct (`int`): Solutions with and without a wrong step.
        precision (`Interval`, *optional*): Share of objections that name the first wrong step; `None` without any.
        recall (`Interval`, *optional*): Share of erroneous solutions whose first wrong step is named.
        correct_kept (`Interval`, *optional*): Share of correct solutions without objection.
        f1 (`float`, *optional*): Harmonic mean of the last two, ProcessBench's score.
        no_verdict (`int`): Solutions without a usable verdict; they count as no objection, and as not kept.
    """

    erroneous: int
    correct: int
    precision: Interval | None
    recall: Interval | None
    correct_kept: Interval | None
    f1: float | None
    no_verdict: int


def first_errors(
    solutions: Iterable[LabelledSolution], rollouts: Mapping[str, Rollout], vocabulary: Vocabulary
) -> FirstErrors:
    """Compare objections with labels.

    Args:
        solutions (`Iterable[LabelledSolution]`): At least one.
        rollouts (`Mapping[str, Rollout]`): Of each, by its id, the replayed solution with its one review.
        vocabulary (`Vocabulary`): Spells the ids.
    """
    hits, found, kept, without = [], [], [], 0
    for solution in solutions:
        review = rollouts[solution.id].reviews[0]
        objected = review.decision is Decision.REVISE
        without += review.decision is Decision.NO_VERDICT
        named = _named_step(solution, review.step, vocabulary) if objected else None
        if objected:
            hits.append(float(named == solution.first_error))
        if solution.first_error is None:
            kept.append(float(review.decision is Decision.KEEP))
        else:
            found.append(float(named == solution.first_error))
    recall, correct_kept = fmean(found) if found else None, fmean(kept) if kept else None
    both = None if recall is None or correct_kept is None else recall + correct_kept
    return FirstErrors(
        erroneous=len(found),
        correct=len(kept),
        precision=mean_interval(hits) if hits else None,
        recall=mean_interval(found) if found else None,
        correct_kept=mean_interval(kept) if kept else None,
        f1=None if both is None else 2 * recall * correct_kept / both if both else 0.0,
        no_verdict=without,
    )


def _named_step(solution: LabelledSolution, step: int, vocabulary: Vocabulary) -> int:
    """The labelled step in which the judge's step begins: steps of a label may hold several of ours."""
    before = segment(solution.ids, vocabulary).steps[:step]
    place = sum(len(vocabulary.token_bytes(token)) for text in before for token in text.ids)
    return bisect_right(solution.borders, place) - 1


def _over_problems(rates: Mapping[str, Sequence[float]]) -> Interval | None:
    """The mean over problems of their rollouts' means."""
    return mean_interval([fmean(own) for own in rates.values()]) if rates else None


def _shuffled(key: Key) -> bytes:
    return blake2b(repr(key).encode(), digest_size=8).digest()
