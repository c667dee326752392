"""Pass@k against k (Figure 4a) from counts per problem. Pure functions; averages over problems, then over runs.

A point has two measures of doubt: the spread over runs, and the interval over the draw of problems (of the mean over
runs, problem by problem).
"""

from collections.abc import Sequence
from statistics import fmean, stdev

from ..evaluation import EvalResult, pass_at_k
from ..evaluation.intervals import average_interval, mean_interval
from ..evaluation.table import powers_up_to
from .curves import Curve, Point
from .runs import BASE, Group, UnlikeProblemsError
from .stored import ModelEvaluation, shared_benchmarks

ALL = "all problems"


def pass_curves(groups: Sequence[Group], subset: str | None = None) -> list[Curve]:
    """Pass@k of every run's last evaluation after an update, and of those before any update, as `Base`.

    Args:
        groups (`Sequence[Group]`): The runs.
        subset (`str`, *optional*): A subset of the problems; `None` for all.

    Returns:
        `list[Curve]`: `x` is k: powers of two, and the number of samples. Groups with a run that was not evaluated
        are left out.

    Raises:
        UnlikeProblemsError: Runs were evaluated on unlike problems.
    """
    finals = [(group, [run.last_evaluation for run in group.runs]) for group in groups]
    finals = [(group, last) for group, last in finals if None not in last]
    check_same_problems([group for group, _ in finals])
    before = [run.evaluations[0] for group, _ in finals for run in group.runs if 0 in run.evaluations]
    curves = []
    if before:
        curves.append(_curve(BASE, BASE, before, subset))
    curves += [_curve(group.name, group.method, last, subset) for group, last in finals]
    return [curve for curve in curves if curve is not None]


def domain_curves(models: Sequence[ModelEvaluation], domain: str, subset: str | None = None) -> list[Curve]:
    """Pass@k of evaluated models averaged over the benchmarks of a domain that all of them have, as in the paper's
    figure.

    Args:
        models (`Sequence[ModelEvaluation]`): Evaluations.
        domain (`str`): `math`, `code` or `chains`.
        subset (`str`, *optional*): A subset of the problems; benchmarks without it are left out. `None` for all.

    Returns:
        `list[Curve]`: One for each model that was evaluated so; `x` is k, up to the fewest samples of any of its
        benchmarks. Intervals are over problems, drawn within each benchmark.

    Raises:
        UnlikeProblemsError: Models were evaluated on unlike problems of a benchmark.
    """
    curves, shared = [], shared_benchmarks(models, (domain,))
    for model in models:
        found = model.results.get(domain, {})
        results = {
            name: [one for one in found[name].problems if subset is None or one.subset == subset]
            for name in shared
            if name in found
        }
        results = {name: problems for name, problems in results.items() if problems}
        if not results:
            continue
        points = []
        for k in powers_up_to(min(one.samples for problems in results.values() for one in problems)):
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


def check_same_problems(groups: Sequence[Group]) -> None:
    """Refuse runs whose evaluations are not of the same problems: their scores cannot be compared.

    Raises:
        UnlikeProblemsError: Names two runs.
    """
    runs = [run for group in groups for run in group.runs if run.evaluations]
    known = [
        (run.folder, [(one.id, one.subset) for one in result.problems])
        for run in runs
        for result in run.evaluations.values()
    ]
    for folder, problems in known[1:]:
        if problems != known[0][1]:
            found, allowed = f"{len(problems)} others", f"the {len(known[0][1])} that {known[0][0]} was evaluated on"
            fix = "leave one of them out, or evaluate both anew"
            raise UnlikeProblemsError(str(folder), "problems", found, allowed, fix)


def subsets(groups: Sequence[Group]) -> tuple[str, ...]:
    """Names of the subsets that evaluations report, in order of appearance."""
    results = (result for group in groups for run in group.runs for result in run.evaluations.values())
    return tuple(dict.fromkeys(name for result in results for name in result.subsets))


def _curve(name: str, method: str, results: Sequence[EvalResult], subset: str | None) -> Curve | None:
    """The mean over evaluations, with its interval over problems; `None` where one of them lacks the subset."""
    if subset is not None and any(subset not in result.subsets for result in results):
        return None
    chosen = [[p for p in result.problems if subset is None or p.subset == subset] for result in results]
    points = []
    for k in powers_up_to(min(problem.samples for problems in chosen for problem in problems)):
        by_run = [[pass_at_k(problem.samples, problem.solved, k) for problem in problems] for problems in chosen]
        scores = [fmean(own) for own in by_run]
        value, spread = fmean(scores), stdev(scores) if len(scores) > 1 else None
        interval = mean_interval([fmean(own) for own in zip(*by_run, strict=True)])  # a score for each problem
        points.append(Point(float(k), value, value, spread, interval.low, interval.high))
    return Curve(name, method, f"Pass@k, {subset or ALL}", len(results), tuple(points))
