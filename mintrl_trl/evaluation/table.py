"""Models side by side: scores with intervals, averages by domain, differences, and which checkpoint of a run to report.

Arithmetic on counts alone; drawing is `reporting.evaluation_table`'s. Invariants: every model of a table has the same
problems and samples in a column, so differences are paired; what is held out of the averages never chooses by them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..errors import ConfigError
from .intervals import Comparison, Interval, average_interval, compare_averages, holm, mean_interval
from .results import EvalResult
from .samples import differences

HELD_OUT = "held-out"


@dataclass(frozen=True)
class Evaluated:
    """What was measured of one model.

    Args:
        label (`str`): Its name.
        results (`Mapping[str, EvalResult]`): Counts by benchmark.
        run (`str`): The run that it is a checkpoint of; empty for other models.
        update (`int`, *optional*): Of a checkpoint: optimizer steps taken.
        conditions (`Mapping[str, Mapping]`, *optional*): By benchmark: `prompts`, the fingerprint of its problems, and
            `sampling`, the settings that decided samples.
    """

    label: str
    results: Mapping[str, EvalResult]
    run: str = ""
    update: int | None = None
    conditions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """One model on one benchmark, or on one subset of it.

    Args:
        model (`str`): Label.
        benchmark (`str`): Name, for a subset `name/subset`.
        problems, samples (`int`): Problems, and responses of each.
        pass_at (`dict[int, Interval]`): Pass@k in [0, 1] by k, with its interval over the draw of problems.
        length (`float`): Mean response length in tokens.
        truncated, no_answer, unscored (`float`): Shares of responses that reached the length limit, that hold no
            answer, and that got no reward (they count as not solved).
    """

    model: str
    benchmark: str
    problems: int
    samples: int
    pass_at: dict[int, Interval]
    length: float
    truncated: float
    no_answer: float
    unscored: float


@dataclass(frozen=True)
class Average:
    """One model's mean over the benchmarks of a domain, each with the same weight."""

    model: str
    domain: str
    benchmarks: tuple[str, ...]
    pass_at: dict[int, Interval]


@dataclass(frozen=True)
class Difference:
    """A model against the first of the table, in Pass@1 on the same problems.

    Args:
        model, against (`str`): Labels.
        column (`str`): A benchmark, a subset of one as `name/subset`, or a domain for its average.
        comparison (`Comparison`): Model minus the first, with its interval and p-value.
        corrected (`float`): The p-value after Holm's correction for all models compared in this column.
    """

    model: str
    against: str
    column: str
    comparison: Comparison
    corrected: float


@dataclass(frozen=True)
class Choice:
    """A checkpoint of a run by a rule.

    Args:
        run (`str`): Label of the run.
        domain (`str`): Whose average is reported.
        rule (`str`): `"best average"`, which looks at the test sets, as the paper does in its main tables; `"final"`,
            the last one; `"held-out"`, the best on held-out problems, the smaller update on a tie.
        model (`str`): Label of the checkpoint.
        average (`Interval`): Its domain average of Pass@1.
    """

    run: str
    domain: str
    rule: str
    model: str
    average: Interval


@dataclass(frozen=True)
class Table:
    """All that is shown of several models; see its parts. `domains` has the benchmarks of each, `notes` says which
    models were sampled under other settings than the first."""

    domains: dict[str, tuple[str, ...]]
    cells: tuple[Cell, ...]
    averages: tuple[Average, ...]
    differences: tuple[Difference, ...]
    choices: tuple[Choice, ...]
    notes: tuple[str, ...] = ()

    def as_json(self) -> str:
        """All of it as a JSON object, its parts under their names."""
        return json.dumps(asdict(self), indent=2) + "\n"


def make_table(models: Sequence[Evaluated], domains: Mapping[str, str]) -> Table:
    """Put models side by side.

    Args:
        models (`Sequence[Evaluated]`): At least one; all with the same benchmarks.
        domains (`Mapping[str, str]`): Domain of each benchmark. One named `held-out` is in no average.

    Raises:
        ConfigError: Models of unlike benchmarks, problems or numbers of samples, or of one label.
    """
    _check_alike(models)
    by_domain: dict[str, tuple[str, ...]] = {}
    for name in models[0].results:
        if name != HELD_OUT:
            by_domain[domains[name]] = (*by_domain.get(domains[name], ()), name)
    cells = [cell for model in models for name in model.results for cell in _cells(model, name)]
    averages = [_average(model, domain, names) for model in models for domain, names in by_domain.items()]
    columns: dict[str, tuple[tuple[str, str | None], ...]] = {}
    for name in (name for names in by_domain.values() for name in names):
        subsets = models[0].results[name].subsets
        columns[name] = ((name, None),)
        columns |= {f"{name}/{subset}": ((name, subset),) for subset in (subsets if len(subsets) > 1 else ())}
    columns |= {domain: tuple((name, None) for name in names) for domain, names in by_domain.items() if len(names) > 1}
    return Table(
        domains=by_domain,
        cells=tuple(cells),
        averages=tuple(averages),
        differences=tuple(one for column, parts in columns.items() for one in _differences(models, column, parts)),
        choices=tuple(_choices(models, averages, by_domain)),
        notes=tuple(_unlike_settings(models)),
    )


def powers_up_to(samples: int) -> tuple[int, ...]:
    """The values of k that are reported for n samples: 1, 2, 4, ... and n.

    Examples:
        >>> powers_up_to(6)
        (1, 2, 4, 6)
    """
    return tuple(sorted({1 << power for power in range(samples.bit_length())} | {samples}))


def _check_alike(models: Sequence[Evaluated]) -> None:
    if not models:
        raise ConfigError("model", [], "at least one model", "name one")
    first, labels = models[0], [model.label for model in models]
    for model in models[1:]:
        if labels.count(model.label) > 1:
            raise ConfigError("model", model.label, "each model once", "name it, or the folder that holds it, once")
        if list(model.results) != list(first.results):
            allowed = f"models with results on {', '.join(first.results)}, as {first.label} has"
            raise ConfigError("model", f"{model.label}: {', '.join(model.results)}", allowed, "name the benchmarks")
        for name, result in model.results.items():
            ours, theirs = ([(p.id, p.samples) for p in one.problems] for one in (result, first.results[name]))
            prompts = {one.conditions.get(name, {}).get("prompts") for one in (model, first)} - {None}
            if ours != theirs or len(prompts) > 1:
                allowed = f"the problems and the number of samples that {first.label} has on {name}"
                raise ConfigError("model", model.label, allowed, "evaluate both with the same settings")


def _unlike_settings(models: Sequence[Evaluated]) -> list[str]:
    """For each model and benchmark, the settings of sampling that are not those of the first model, in words."""
    first, notes = models[0], []
    for model in models[1:]:
        for name in model.results:
            theirs, ours = (one.conditions.get(name, {}).get("sampling", {}) for one in (first, model))
            for one in differences(theirs, ours, there=f"for {first.label}", now=f"for {model.label}"):
                notes.append(f"{name}: sampled under unlike settings: {one}")
    return notes


def _cells(model: Evaluated, name: str) -> list[Cell]:
    result = model.results[name]
    return [
        _cell(model.label, name if subset is None else f"{name}/{subset}", result.part(subset))
        for subset in (None, *result.subsets)
    ]


def _cell(label: str, name: str, result: EvalResult) -> Cell:
    samples = min(problem.samples for problem in result.problems)
    return Cell(
        model=label,
        benchmark=name,
        problems=len(result.problems),
        samples=samples,
        pass_at={k: mean_interval(result.scores(k)) for k in powers_up_to(samples)},
        length=result.per_sample("tokens"),
        truncated=result.per_sample("truncated"),
        no_answer=result.per_sample("no_answer"),
        unscored=result.per_sample("unscored"),
    )


def _average(model: Evaluated, domain: str, names: Sequence[str]) -> Average:
    results = [model.results[name] for name in names]
    samples = min(problem.samples for result in results for problem in result.problems)
    pass_at = {k: average_interval([result.scores(k) for result in results]) for k in powers_up_to(samples)}
    return Average(model.label, domain, tuple(names), pass_at)


def _differences(models: Sequence[Evaluated], column: str, parts: Sequence[tuple[str, str | None]]) -> list[Difference]:
    """Of each model from the first, averaged over benchmarks or subsets of one."""
    first, *others = models
    scores = [[model.results[name].part(subset).scores(1) for name, subset in parts] for model in models]
    comparisons = [compare_averages(scores[0], own) for own in scores[1:]]
    corrected = holm([comparison.p_value for comparison in comparisons])
    return [
        Difference(model.label, first.label, column, comparison, p_value)
        for model, comparison, p_value in zip(others, comparisons, corrected, strict=True)
    ]


def _choices(
    models: Sequence[Evaluated], averages: Sequence[Average], by_domain: Mapping[str, Sequence[str]]
) -> list[Choice]:
    """For each run and domain: the best checkpoint by the average, the final one, and the best on held-out problems."""
    means = {(average.model, average.domain): average.pass_at[1] for average in averages}
    found = []
    for run in dict.fromkeys(model.run for model in models if model.run):
        own = sorted((model for model in models if model.run == run), key=lambda model: model.update)
        for domain in by_domain:
            rules = {
                "best average": max(own, key=lambda model: means[model.label, domain].value),
                "final": own[-1],
            }
            if HELD_OUT in own[0].results:
                rules[HELD_OUT] = max(own, key=lambda model: model.results[HELD_OUT].pass_at(1))
            found += [
                Choice(run, domain, rule, model.label, means[model.label, domain]) for rule, model in rules.items()
            ]
    return found
