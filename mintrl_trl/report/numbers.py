"""The numbers of a run as the page holds them: one column a metric, one row an update, and the clock beside it.

Computes no statistic. Invariant: a value that was not logged is null, and a column without any value is absent; of a
run with very many updates neighbours are averaged, so that the page stays small.
"""

import math
from dataclasses import dataclass
from statistics import fmean

from ..analysis.curves import seconds_until
from ..analysis.runs import Run

MOST_POINTS = 1000
_DIGITS = 6  # significant ones: more than a curve or a tile shows
_NO_METRICS = frozenset({"update", "epoch", "total_flos"})

Column = list[float | None]


@dataclass(frozen=True)
class Numbers:
    """Columns of one run, all of one length.

    Args:
        updates (`list[int]`): The updates, in order.
        clock (`Column`): Seconds of training until each was done.
        columns (`dict[str, Column]`): Values by metric.
    """

    updates: list[int]
    clock: Column
    columns: dict[str, Column]


def numbers_of(run: Run) -> Numbers:
    """Read a run's metrics. Lines of one update are one row; a later value of a metric replaces an earlier one."""
    rows: dict[int, dict[str, float]] = {}
    for line in run.metrics:
        row = rows.setdefault(line["update"], {})
        row |= {name: float(value) for name, value in line.items() if name not in _NO_METRICS and _is_number(value)}
    updates = sorted(rows)
    names = sorted({name for row in rows.values() for name in row})
    seconds = seconds_until(run)
    buckets = _buckets(len(updates))
    return Numbers(
        [updates[bucket[-1]] for bucket in buckets],
        [_round(seconds.get(updates[bucket[-1]])) for bucket in buckets],
        {name: [_mean([rows[updates[i]].get(name) for i in bucket]) for bucket in buckets] for name in names},
    )


def _buckets(count: int) -> list[range]:
    """Neighbours that become one point: one each where there is room."""
    width = math.ceil(count / MOST_POINTS) or 1
    return [range(start, min(start + width, count)) for start in range(0, count, width)]


def _mean(values: Column) -> float | None:
    known = [value for value in values if value is not None]
    return _round(fmean(known)) if known else None


def _round(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{_DIGITS}g}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
