"""The few numbers that say how a run went. Invariant: what a run did not log has no tile."""

from statistics import fmean
from typing import Any

from ..analysis.curves import seconds_until
from ..analysis.runs import Run, Series
from .charts import ENTROPY, REWARD, pass_metrics


def tiles_of(run: Run) -> list[dict[str, Any]]:
    """The numbers: name, value and form, what it is, what to compare it with, its metric, and which way is better."""
    tiles = [
        _trend(run, "reward", REWARD, "policy alone", better="more"),
        *_passes(run),
        _mean(run, "reward gap", "reward_gap", "intervened minus control, mean"),
    ]
    tiles += [
        _mean(run, "off-policy share", "off_policy_share", "tokens by the judge, mean", "share"),
        _mean(run, "groups rescued", "groups/rescued", "mean while interventions last", "share"),
        _mean(run, "no verdict", "judge/no_verdict", "of the reviews, mean", "share"),
        _trend(run, "entropy", ENTROPY, "nats per token"),
        _updates(run),
        _time(run),
    ]
    return [tile for tile in tiles if tile is not None]


def tenths(series: Series) -> tuple[float, float]:
    """Mean over the first and over the last tenth of a series, of one value at least."""
    values = [value for _, value in series]
    width = max(1, len(values) // 10)
    return fmean(values[:width]), fmean(values[-width:])


def _tile(
    name: str,
    value: float,
    about: str,
    note: str = "",
    *,
    form: str = "number",
    metric: str | None = None,
    better: str | None = None,
) -> dict[str, Any]:
    known = {"name": name, "value": value, "form": form, "about": about, "note": note}
    return known | {"metric": metric, "better": better}


def _trend(
    run: Run, name: str, metrics: tuple[str, ...], about: str, better: str | None = None
) -> dict[str, Any] | None:
    """Where a metric ended, beside where it began."""
    metric = next((one for one in metrics if run.series(one)), None)
    if metric is None:
        return None
    first, last = tenths(run.series(metric))
    return _tile(name, last, f"{about}, last tenth", f"first {first:.3g}", metric=metric, better=better)


def _passes(run: Run) -> list[dict[str, Any]]:
    """Pass@k of the smallest k, of all problems and of each subset, and of the largest one."""
    metrics = pass_metrics({name for line in run.metrics for name in line})
    tiles = []
    for k in sorted({min(metrics), max(metrics)} if metrics else ()):
        for subset, metric in metrics[k]:
            series = run.series(metric)
            if series:
                best_update, best = max(series, key=lambda point: point[1])
                note = f"first {series[0][1]:.1%}, best {best:.1%} at {best_update:,}" if len(series) > 1 else ""
                name, form = f"Pass@{k}, {subset}" if subset else f"Pass@{k}", "share"
                tiles.append(
                    _tile(name, series[-1][1], "on fixed problems", note, form=form, metric=metric, better="more")
                )
    return tiles


def _mean(run: Run, name: str, metric: str, about: str, form: str = "number") -> dict[str, Any] | None:
    series = run.series(metric)
    return _tile(name, fmean(value for _, value in series), about, form=form, metric=metric) if series else None


def _updates(run: Run) -> dict[str, Any]:
    planned = run.settings.get("max_steps")
    notes = [f"of {planned:,}"] if isinstance(planned, int) and planned > 0 else []
    notes += [f"{run.switch:,} with interventions"] if run.switch is not None else []
    return _tile("updates", run.num_updates, "", ", ".join(notes), form="count")


def _time(run: Run) -> dict[str, Any] | None:
    seconds = max(seconds_until(run).values(), default=0.0)
    if not seconds:
        return None
    return _tile(
        "training time",
        seconds,
        "of the updates",
        f"{seconds / run.num_updates:.3g} s each",
        form="seconds",
        better="less",
    )
