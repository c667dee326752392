"""Figure 5: where responses come from, and the shift of each keyword against a baseline.

Responses are the policy's own, without any judge: samples of an evaluation, as in the paper, or else a run's control
rollouts from the last tenth of its updates. Invariant: one figure has responses of one kind, so no shift comes from
comparing evaluations with rollouts.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

from ..errors import DataError
from ..evaluation.benchmarks import CHAINS, DOMAINS
from ..reporting.run_folder import RunFolder
from ..rollouts.rollout import Role
from .keywords import KEYWORDS, keyword_use
from .runs import GRPO, Group, Run
from .stored import ModelEvaluation, shared_benchmarks

_WITH_WORDS = tuple(domain for domain in DOMAINS if domain != CHAINS)
_LAST_SHARE = 0.1  # of the updates: what the policy writes once it is trained


@dataclass(frozen=True)
class Responses:
    """Responses of one model or group.

    Args:
        name (`str`): Its name in legends.
        method (`str`): Its method.
        texts (`Callable`): Gives the texts, anew at each call.
    """

    name: str
    method: str
    texts: Callable[[], Iterable[str]]


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
    if run.settings.get("task") == CHAINS:
        return
    first = run.num_updates - max(1, round(_LAST_SHARE * run.num_updates)) + 1
    for record in RunFolder(run.folder).rollouts(first):
        if record.role is Role.CONTROL:
            yield "".join(span.text for span in record.spans)


def responses_of(groups: Sequence[Group], models: Sequence[ModelEvaluation] = ()) -> list[Responses]:
    """The responses that are compared: those of evaluated models on the benchmarks that all of them have, or of runs
    where no model is given. None are the small world's, which has no words.

    Raises:
        UnlikeProblemsError: Models were evaluated on unlike problems of a benchmark.
    """
    if models:
        names = shared_benchmarks(models, _WITH_WORDS)
        return [Responses(model.name, model.method, partial(model.responses, names)) for model in models]
    return [Responses(group.name, group.method, partial(_rollouts, group)) for group in groups]


def keyword_shifts(
    sources: Sequence[Responses], baseline: str | None = None, keywords: Sequence[str] = KEYWORDS
) -> tuple[str, list[KeywordShift]]:
    """Shifts of keywords against a baseline.

    Args:
        sources (`Sequence[Responses]`): From [`responses_of`].
        baseline (`str`, *optional*): Name of the responses to compare with. By default the first of GRPO.
        keywords (`Sequence[str]`, *optional*): What to count; by default the paper's eight.

    Returns:
        `tuple[str, list[KeywordShift]]`: The baseline's name, and for each of the others one shift per keyword. Empty
        where there is no baseline, or no keyword in any response.

    Raises:
        DataError: `baseline` names none of them.
    """
    names = [source.name for source in sources]
    if baseline is not None and baseline not in names:
        fix = "name it as the legend does"
        raise DataError("responses", "baseline", baseline, f"one of {', '.join(names)}", fix)
    if baseline is None:
        baseline = next((source.name for source in sources if source.method == GRPO), None)
    if baseline is None or len(sources) < 2:
        return "", []
    use = {source.name: keyword_use(source.texts(), keywords) for source in sources}
    if not use[baseline] or not any(one.using for own in use.values() for one in own):
        return baseline, []
    return baseline, [
        KeywordShift(
            group=source.name,
            method=source.method,
            keyword=own.keyword,
            share=own.share,
            baseline_share=reference.share,
            occurrences=own.occurrences / own.responses,
            responses=own.responses,
        )
        for source in sources
        if source.name != baseline and use[source.name]
        for own, reference in zip(use[source.name], use[baseline], strict=True)
    ]


def _rollouts(group: Group) -> Iterator[str]:
    return chain.from_iterable(map(last_responses, group.runs))
