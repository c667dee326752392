"""What the paper claims, and what a careful reader would ask, each with a rule that turns numbers into a verdict.

It owns the forms of rules and their words; `claim_list.py` lists the claims. Invariant: a verdict follows from numbers
and spreads by the rule that is printed beside it, and names them; a claim without all seeds of its runs has none.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from .scores import LEAST_ERROR, Results, Score, margin, margin_of_best, matched, read, short

SHARE = "mean/off_policy_share"
CEILING, FLOOR = 0.98, 0.02  # of Pass@k: beyond, two methods cannot be told apart
ALIKE, NO_GAIN = 0.05, 0.10  # of Pass@k: what may differ where two are called alike, or nothing gained


class Status(Enum):
    """What became of a claim."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    NOT_TESTABLE = "not testable here"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Verdict:
    """A status, and the numbers behind it."""

    status: Status
    numbers: str


Rule = Callable[[Results], Verdict]


@dataclass(frozen=True)
class Claim:
    """A claim and its rule.

    Args:
        source (`str`): Where the paper makes it, or `question`.
        text (`str`): The claim.
        rule (`Callable`): From results to a verdict.
        rule_text (`str`): The rule in words.
    """

    source: str
    text: str
    rule: Rule
    rule_text: str


NOT_RUN = Verdict(Status.NOT_RUN, "-")


def higher(arms: Sequence[str], than: Sequence[str], metric: str, *, share: bool = True) -> Rule:
    """Each of `arms` above each of `than`, by more than chance.

    Args:
        arms, than (`Sequence[str]`): Compared pairwise.
        metric (`str`): As for `scores.read`.
        share (`bool`, *optional*, defaults to `True`): Whether the metric lies between 0 and 1, and says nothing at
            its ends.
    """

    def rule(results: Results) -> Verdict:
        scores = _scores(results, (*arms, *than), metric)
        if scores is None:
            return NOT_RUN
        shown = _listed(scores, metric)
        pairs = [(scores[left], scores[right]) for left in arms for right in than]
        if share and all(_at_an_end(left, right) for left, right in pairs):
            return Verdict(Status.NOT_TESTABLE, f"{shown}: at an end of the scale")
        passed = [_above(left, right, share) for left, right in pairs]
        if all(passed):
            return Verdict(Status.REPRODUCED, shown)
        reverse = any(_above(right, left, share) for left, right in pairs)
        why = "the other way round" if reverse else "no difference beyond the spread"
        return Verdict(Status.NOT_REPRODUCED, f"{shown}: {why}{' for some' if any(passed) else ''}")

    return rule


def all_of(rules: Mapping[str, Rule]) -> Rule:
    """All rules that can be decided hold; they go by what they are about."""

    def rule(results: Results) -> Verdict:
        verdicts = {name: each(results) for name, each in rules.items()}
        statuses = {verdict.status for verdict in verdicts.values()}
        if Status.NOT_RUN in statuses:
            return NOT_RUN
        shown = "; ".join(f"{name}: {verdict.numbers}" for name, verdict in verdicts.items())
        decided = statuses - {Status.NOT_TESTABLE}
        if len(decided) == 1:
            return Verdict(decided.pop(), shown)
        return Verdict(Status.NOT_REPRODUCED if decided else Status.NOT_TESTABLE, shown)

    return rule


def alike(left: str, right: str, metric: str) -> Rule:
    """The two differ by less than `ALIKE`, chance included; where seeds are too far apart for that, nothing is said."""

    def rule(results: Results) -> Verdict:
        scores = _scores(results, (left, right), metric)
        if scores is None:
            return NOT_RUN
        pair = (scores[left], scores[right])
        return _ruled_out(ALIKE, (pair, pair[::-1]), _listed(scores, metric), "they may differ by")

    return rule


def not_higher(left: str, right: str, metric: str) -> Rule:
    """The first is not above the second by `ALIKE`, chance included; where seeds are too far apart, nothing is said."""

    def rule(results: Results) -> Verdict:
        scores = _scores(results, (left, right), metric)
        if scores is None:
            return NOT_RUN
        return _ruled_out(ALIKE, [(scores[left], scores[right])], _listed(scores, metric), "the gain may be")

    return rule


def above_base(arms: Sequence[str], metric: str) -> Rule:
    """Each arm above the model it began with, by more than chance."""

    def rule(results: Results) -> Verdict:
        scores, bases = _scores(results, arms, metric), _scores(results, arms, metric, at=0)
        if scores is None or bases is None:
            return NOT_RUN
        passed = [_above(scores[name], bases[name], True) for name in arms]
        shown = f"base {_show(bases[arms[0]], metric)}, {_listed(scores, metric)}"
        return Verdict(Status.REPRODUCED if all(passed) else Status.NOT_REPRODUCED, shown)

    return rule


def not_above_base(arms: Sequence[str], metric: str) -> Rule:
    """No arm above the model it began with; each gains less than `NO_GAIN`, chance included."""

    def rule(results: Results) -> Verdict:
        scores, bases = _scores(results, arms, metric), _scores(results, arms, metric, at=0)
        if scores is None or bases is None:
            return NOT_RUN
        shown = f"base {_show(bases[arms[0]], metric)}, {_listed(scores, metric)}"
        return _ruled_out(NO_GAIN, [(scores[name], bases[name]) for name in arms], shown, "the gain may be")

    return rule


def falls(arms: Sequence[str], curve: str) -> Rule:
    """A curve is lower in the last fifth of its points than in the first, on every seed."""

    def rule(results: Results) -> Verdict:
        shown, passed = [], []
        for name in arms:
            found = [[read(s, f"{curve}:{end}") for end in ("first", "last")] for s in results.summaries(name)]
            pairs = [(first, last) for first, last in found if first is not None and last is not None]
            if not pairs or len(pairs) < len(results.seeds(name)):
                return NOT_RUN
            passed += [last < first for first, last in pairs]
            first, last = (Score(values) for values in zip(*pairs, strict=True))
            shown.append(f"{short(name)} {first.number()} to {last.number()}")
        return Verdict(Status.REPRODUCED if all(passed) else Status.NOT_REPRODUCED, ", ".join(shown))

    return rule


def within(arms: Sequence[str], metric: str, low: float, high: float) -> Rule:
    """The mean over seeds lies in a range, for each arm."""

    def rule(results: Results) -> Verdict:
        scores = _scores(results, arms, metric)
        if scores is None:
            return NOT_RUN
        passed = all(low <= score.mean <= high for score in scores.values())
        return Verdict(Status.REPRODUCED if passed else Status.NOT_REPRODUCED, _listed(scores, metric))

    return rule


def higher_at_cost(arms: Sequence[str], than: str, metric: str, cost: str) -> Rule:
    """Each arm, at its end, above a longer run of another one on the same seed that has spent as much.

    Args:
        arms (`Sequence[str]`): Read at their ends.
        than (`str`): Read at its first evaluation with at least that cost.
        metric (`str`): `<subset>@<k>`.
        cost (`str`): `tokens` or `seconds`, as for `scores.matched`.
    """
    subset, _, k = metric.partition("@")

    def rule(results: Results) -> Verdict:
        others = {summary["seed"]: summary for summary in results.summaries(than)}
        shown, passed = [], []
        for name in arms:
            own = [summary for summary in results.summaries(name) if summary["seed"] in others]
            lines = [matched(others[summary["seed"]], summary, cost) for summary in own]
            if not lines or len(lines) < len(results.seeds(name)):
                return NOT_RUN
            if None in lines:
                text = f"{short(than)} was not trained for as long as {short(name)} costs"
                return Verdict(Status.NOT_TESTABLE, text)
            left = Score(tuple(read(summary, metric) for summary in own))
            right = Score(tuple(line["pass"][subset][k] for line in lines))
            updates = sorted(line["update"] for line in lines)
            passed.append(_above(left, right, True))
            shown.append(
                f"{short(name)} {left.percent()}, {short(than)} {right.percent()} after {updates[0]} to "
                f"{updates[-1]} updates"
            )
        return Verdict(Status.REPRODUCED if all(passed) else Status.NOT_REPRODUCED, "; ".join(shown))

    return rule


def ratio_within(left: str, right: str, metric: str, low: float, high: float) -> Rule:
    """The ratio of two means lies in a range."""

    def rule(results: Results) -> Verdict:
        scores = _scores(results, (left, right), metric)
        if scores is None:
            return NOT_RUN
        ratio = scores[left].mean / scores[right].mean
        shown = f"{_listed(scores, metric)}: ratio {ratio:.2f}"
        return Verdict(Status.REPRODUCED if low <= ratio <= high else Status.NOT_REPRODUCED, shown)

    return rule


def peaks(arms: Sequence[str], none: str, metric: str) -> Rule:
    """The best gain over no intervention lies at a moderate share of foreign tokens, not at the largest.

    As the best of several arms is best by luck, too, it has to pass 99 %, with the spreads of all arms pooled.

    Args:
        arms (`Sequence[str]`): Of different intensity.
        none (`str`): The same without interventions.
        metric (`str`): `<subset>@<k>`.
    """

    def rule(results: Results) -> Verdict:
        scores, shares = _scores(results, arms, metric), _scores(results, arms, SHARE)
        bases = _scores(results, [none], metric)
        if scores is None or shares is None or bases is None:
            return NOT_RUN
        base, among = bases[none], [*scores.values(), bases[none]]
        best = max(arms, key=lambda name: scores[name].mean)
        most = max(arms, key=lambda name: shares[name].mean)
        gain, last = (scores[name].mean - base.mean for name in (best, most))
        shown = (
            f"gain {100 * gain:+.1f} points at a share of {shares[best].percent()} ({short(best)}), "
            f"{100 * last:+.1f} at the largest, {shares[most].percent()} ({short(most)})"
        )
        passed = all(
            scores[best].mean - other.mean > margin_of_best(scores[best], other, among)
            for other in (base, scores[most])
        )
        return Verdict(Status.REPRODUCED if passed else Status.NOT_REPRODUCED, shown)

    return rule


def peaks_within(arms: Sequence[str], none: str, metric: str, low: float, high: float) -> Rule:
    """Where there is a peak by [`peaks`], it lies at a share of foreign tokens in a range."""
    has_peak = peaks(arms, none, metric)

    def rule(results: Results) -> Verdict:
        verdict = has_peak(results)
        if verdict.status is Status.NOT_RUN:
            return NOT_RUN
        if verdict.status is Status.NOT_REPRODUCED:
            return Verdict(Status.NOT_TESTABLE, f"{verdict.numbers}: no peak")
        best = max(arms, key=lambda name: results.score(name, metric).mean)
        inside = low <= results.score(best, SHARE).mean <= high
        return Verdict(Status.REPRODUCED if inside else Status.NOT_REPRODUCED, verdict.numbers)

    return rule


def not_testable(reason: str, arms: Sequence[str] = (), metric: str = "all@1") -> Rule:
    """Nothing here could decide it; the numbers that there are, are named all the same."""

    def rule(results: Results) -> Verdict:
        scores = {name: results.score(name, metric) for name in arms}
        shown = f"{_listed(scores, metric)}: " if scores and all(scores.values()) else ""
        return Verdict(Status.NOT_TESTABLE, shown + reason)

    return rule


def _scores(results: Results, arms: Sequence[str], metric: str, at: int | None = None) -> dict[str, Score] | None:
    """A metric of arms by name; `None` unless all seeds of all of them are there."""
    scores = {name: results.score(name, metric, at) for name in arms}
    whole = all(score and len(score.values) == len(results.seeds(name)) for name, score in scores.items())
    return scores if whole else None


def _ruled_out(limit: float, pairs: Sequence[tuple[Score, Score]], shown: str, words: str) -> Verdict:
    """No left side above its right one, and none by `limit` with chance included; else how far it may be, in words."""
    if any(_above(left, right, True) for left, right in pairs):
        return Verdict(Status.NOT_REPRODUCED, shown)
    most = max(left.mean - right.mean + margin(left, right) for left, right in pairs)
    if most > limit:
        return Verdict(Status.NOT_TESTABLE, f"{shown}: with this spread {words} {100 * most:.0f} points")
    return Verdict(Status.REPRODUCED, shown)


def _above(left: Score, right: Score, share: bool) -> bool:
    return left.mean - right.mean > margin(left, right, LEAST_ERROR if share else 0.0)


def _at_an_end(left: Score, right: Score) -> bool:
    return min(left.mean, right.mean) >= CEILING or max(left.mean, right.mean) <= FLOOR


def _listed(scores: Mapping[str, Score], metric: str) -> str:
    return ", ".join(f"{short(name)} {_show(score, metric)}" for name, score in scores.items())


def _show(score: Score, metric: str) -> str:
    return score.percent() if "@" in metric or "share" in metric else score.number()
