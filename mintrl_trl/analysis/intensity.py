"""What interventions gain against how much of the rollouts they write (Figure 6). Pure functions of groups of runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from ..errors import DataError
from .passes import check_same_problems
from .runs import Group, Run


@dataclass(frozen=True)
class Intensity:
    """One setting of the interventions.

    Args:
        group (`str`): The group's name.
        method (`str`): Its method.
        reviews (`int`): Reviews per rollout at most.
        correction_tokens (`int`): Tokens per correction at most.
        share (`float`): Intervention tokens over tokens of intervened rollouts, averaged over the updates that have
            interventions and over runs, in [0, 1].
        gain (`float`): Pass@1 of the last evaluation minus that of the baseline, in [-1, 1].
        spread (`float`, *optional*): Sample standard deviation over runs of the Pass@1; `None` for one run.
        runs (`int`): Runs behind it.
        baseline (`str`): Name of the group that the gain is measured from.
    """

    group: str
    method: str
    reviews: int
    correction_tokens: int
    share: float
    gain: float
    spread: float | None
    runs: int
    baseline: str


def intensities(groups: Sequence[Group], baseline: str | None = None, subset: str | None = None) -> list[Intensity]:
    """Gain over runs without interventions, by setting of the interventions.

    Args:
        groups (`Sequence[Group]`): The runs.
        baseline (`str`, *optional*): Name of the group that gains are measured from. By default the group without
            interventions: one that trains by the same regression, without reviews, before GRPO.
        subset (`str`, *optional*): Problems that Pass@1 is averaged over; `None` for all.

    Returns:
        `list[Intensity]`: One for each group with interventions and evaluations, by method, then by share. Empty
        without a baseline or without such a group.

    Raises:
        DataError: `baseline` names no group with evaluations.
        UnlikeProblemsError: Runs were evaluated on unlike problems.
    """
    scores = {group.name: [_score(run, subset) for run in group.runs] for group in groups}
    scores = {name: own for name, own in scores.items() if None not in own}
    check_same_problems([group for group in groups if group.name in scores])
    if baseline is not None and baseline not in scores:
        fix = "name a group as the legend does"
        raise DataError("groups", "baseline", baseline, f"one of {', '.join(scores) or 'none'}", fix)
    if baseline is None:
        without = [group for group in groups if group.name in scores and not _shares(group)]
        regression = [group for group in without if group.runs[0].is_mintrl]
        named = [group.name for group in (*regression, *(g for g in without if g.method == "GRPO"))]
        if not named:
            return []
        baseline = named[0]
    reference = fmean(scores[baseline])
    found = []
    for group in groups:
        shares, own = _shares(group), scores.get(group.name)
        if not shares or not own or group.name == baseline:
            continue
        settings = group.runs[0].settings
        found.append(
            Intensity(
                group=group.name,
                method=group.method,
                reviews=settings["max_reviews"],
                correction_tokens=settings["correction_tokens"],
                share=fmean(shares),
                gain=fmean(own) - reference,
                spread=stdev(own) if len(own) > 1 else None,
                runs=len(own),
                baseline=baseline,
            )
        )
    return sorted(found, key=lambda point: (point.method, point.share))


def _score(run: Run, subset: str | None) -> float | None:
    result = run.last_evaluation
    if result is None or (subset is not None and subset not in result.subsets):
        return None
    return result.pass_at(1, subset)


def _shares(group: Group) -> list[float]:
    """The mean off-policy share of every run; empty where a run has no interventions by reviews."""
    by_run = [[share for _, share in run.series("off_policy_share")] if run.was_reviewed else [] for run in group.runs]
    return [fmean(shares) for shares in by_run] if all(any(shares) for shares in by_run) else []
