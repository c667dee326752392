"""Figure 5 over groups of runs: where responses come from, and the shift of each keyword against a baseline.

Responses are a run's own, without any judge: its control rollouts from the last tenth of its updates. Invariant: every
group is counted on responses of one kind, so no shift comes from comparing rollouts with other ones.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..errors import DataError
from ..reporting.run_folder import RunFolder
from ..rollouts.rollout import Role
from .keywords import KEYWORDS, KeywordUse, keyword_use
from .runs import GRPO, Group, Run

_LAST_SHARE = 0.1  # of the updates: what the policy writes once it is trained


@dataclass(frozen=True)
class KeywordShift:
    """How much more of a group's responses use a keyword than of the baseline's.

    Args:
        group (`str`): The group.
        method (`str`): Its method.
        keyword (`str`): The keyword.
        share (`float`): Share of the group's responses that use it, in [0, 1].
        baseline_share (`float`): The same of the baseline.
        occurrences (`float`): Mean occurrences in a window.
        responses (`int`): Responses of the group.
    """

    group: str
    method: str
    keyword: str
    share: float
    baseline_share: float
    occurrences: float
    responses: int

    @property
    def shift(self) -> float:
        """Difference of the shares, in [-1, 1]."""
        return self.share - self.baseline_share


def last_responses(run: Run) -> Iterator[str]:
    """Text of the control rollouts of the last tenth of a run's updates; none in the small world: it has no words."""
    if run.settings.get("task") == "chains":
        return
    first = run.num_updates - max(1, round(_LAST_SHARE * run.num_updates)) + 1
    for record in RunFolder(run.folder).rollouts():
        if record.update >= first and record.role is Role.CONTROL:
            yield "".join(span.text for span in record.spans)


def keyword_shifts(
    groups: Sequence[Group], baseline: str | None = None, keywords: Sequence[str] = KEYWORDS
) -> tuple[str, list[KeywordShift]]:
    """Shifts of keywords against a baseline.

    Args:
        groups (`Sequence[Group]`): The runs.
        baseline (`str`, *optional*): Name of the group to compare with. By default the first that trains with GRPO.
        keywords (`Sequence[str]`, *optional*): What to count; by default the paper's eight.

    Returns:
        `tuple[str, list[KeywordShift]]`: The baseline's name, and for each other group one shift per keyword. Empty
        where there is no baseline, or no keyword in any response.

    Raises:
        DataError: `baseline` names no group.
    """
    names = [group.name for group in groups]
    if baseline is not None and baseline not in names:
        fix = "name a group as the legend does"
        raise DataError("groups", "baseline", baseline, f"one of {', '.join(names)}", fix)
    if baseline is None:
        baseline = next((group.name for group in groups if group.method == GRPO), None)
    if baseline is None or len(groups) < 2:
        return "", []
    use = {group.name: _use(group, keywords) for group in groups}
    if not use[baseline] or not any(one.using for own in use.values() for one in own):
        return baseline, []
    return baseline, [
        KeywordShift(
            group=group.name,
            method=group.method,
            keyword=own.keyword,
            share=own.share,
            baseline_share=reference.share,
            occurrences=own.occurrences / own.responses,
            responses=own.responses,
        )
        for group in groups
        if group.name != baseline and use[group.name]
        for own, reference in zip(use[group.name], use[baseline], strict=True)
    ]


def _use(group: Group, keywords: Sequence[str]) -> tuple[KeywordUse, ...]:
    return keyword_use((text for run in group.runs for text in last_responses(run)), keywords)
