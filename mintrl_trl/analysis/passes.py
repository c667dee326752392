"""Pass@k against k (Figure 4a) from counts per problem. Pure functions; averages over problems, then over runs.

A point has two measures of doubt: the spread over runs, and the interval over the draw of problems (of the mean over
runs, problem by problem).
"""

from collections.abc import Sequence
from statistics import fmean, stdev

from ..evaluation import EvalResult, pass_at_k
from ..evaluation.intervals import average_interval, mean_interval
from .curves import Curve, Point
from .runs import BASE, Group
from .stored import ModelEvaluation

ALL = "all problems"


def pass_curves(groups: Sequence[Group], subset: str | None = None) -> list[Curve]:
    """Pass@k of the last evaluation of every run, and of the first one, before any update, as `Base`.

    Args:
        groups (`Sequence[Group]`): The runs.
        subset (`str`, *optional*): A subset of the problems; `None` for all.

    Returns:
        `list[Curve]`: `x` is k: powers of two, and the number of samples. Groups with a run that was not evaluated
        are left out.
    """
    finals = [(group, [run.evaluations for run in group.runs]) for group in groups]
    finals = [(group, by_run) for group, by_run in finals if all(by_run)]
    before = [found[0] for _, by_run in finals for found in by_run if 0 in found]
    curves = []
    if before:
        curves.append(_curve(BASE, BASE, before, subset))
    for group, by_run in finals:
        last = [found[max(found)] for found in by_run]
        curves.append(_curve(group.name, group.method, last, subset))
    return [curve for curve in curves if curve is not None]


def domain_curves(models: Sequence[ModelEvaluation], domain: str, subset: str | None = None) -> list[Curve]:
    """Pass@k of evaluated models averaged over the benchmarks of a domain, as in the paper's figure.

    Args:
        models (`Sequence[ModelEvaluation]`): Evaluations.
        domain (`str`): `math`, `code` or `chains`.
        subset (`str`, *optional*): A subset of the problems; benchmarks without it are left out. `None` for all.

    Returns:
        `list[Curve]`: One for each model that was evaluated so; `x` is k, up to the fewest samples of any of its
        benchmarks. Intervals are over problems, drawn within each benchmark.
    """
    curves = []
    for model in models:
        results = {
            name: [one for one in result.problems if subset is None or one.subset == subset]
            for name, result in model.results.get(domain, {}).items()
        }
        results = {name: problems for name, problems in results.items() if problems}
        if not results:
            continue
        points = []
        for k in powers_of_two(min(one.samples for problems in results.values() for one in problems)):
            scores = [[pass_at_k(one.samples, one.solved, k) for one in problems] for problems in results.values()]
            own = average_interval(scores)
            points.append(Point(float(k), own.value, own.value, None, own.low, own.high))
        of = subset or f"{domain} ({', '.join(results)})"
        curves.append(Curve(model.name, model.method, f"Pass@k, {of}", 1, tuple(points)))
    return curves


def domain_panels(models: Sequence[ModelEvaluation]) -> list[tuple[str, str | None]]:
    """Domain and subset of each panel: the subsets of a domain that has some, as the small world, else the whole."""
    panels: dict[tuple[str, str | None], None] = {}
    for model in models:
        for domain, results in model.results.items():
            named = [name for result in results.values() for name in result.subsets]
            panels |= dict.fromkeys((domain, name) for name in named or [None])
    return list(panels)


def subsets(groups: Sequence[Group]) -> tuple[str, ...]:
    """Names of the subsets that evaluations report, in order of appearance."""
    results = (result for group in groups for run in group.runs for result in run.evaluations.values())
    return tuple(dict.fromkeys(name for result in results for name in result.subsets))


def powers_of_two(largest: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to `largest`, which is the last.

    Examples:

    ```python
    >>> powers_of_two(12)
    (1, 2, 4, 8, 12)

    ```
    """
    return (*(2**i for i in range(largest.bit_length()) if 2**i < largest), largest)


def _curve(name: str, method: str, results: Sequence[EvalResult], subset: str | None) -> Curve | None:
    """The mean over evaluations, with its interval over problems; `None` where one of them lacks the subset."""
    if subset is not None and any(subset not in result.subsets for result in results):
        return None
    chosen = [[p for p in result.problems if subset is None or p.subset == subset] for result in results]
    points = []
    for k in powers_of_two(min(problem.samples for problems in chosen for problem in problems)):
        by_run = [[pass_at_k(problem.samples, problem.solved, k) for problem in problems] for problems in chosen]
        scores = [fmean(own) for own in by_run]
        value, spread = fmean(scores), stdev(scores) if len(scores) > 1 else None
        same = len({len(own) for own in by_run}) == 1  # runs on the same problems: one score for each of them
        interval = mean_interval([fmean(own) for own in zip(*by_run, strict=True)]) if same else None
        low, high = (interval.low, interval.high) if interval is not None else (None, None)
        points.append(Point(x=float(k), value=value, smoothed=value, spread=spread, low=low, high=high))
    return Curve(name, method, f"Pass@k, {subset or ALL}", len(results), tuple(points))
