"""Pictures of the tables: one function for each figure, from a table to a PNG. Computes nothing that a table lacks."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, MaxNLocator, PercentFormatter

from .curves import Curve
from .intensity import Intensity
from .keyword_shifts import KeywordShift
from .keywords import EXECUTION, RECONSIDERATION
from .runs import BASE
from .solutions import SupportTable
from .style import GREY, INK, looks, mark, panels, spelled

_MINUTE = 60.0
_FLOOR = -18  # powers of ten; what is less likely is drawn here


def draw_training(columns: Sequence[Sequence[Curve]], switch: int | None, path: Path) -> None:
    """Figures 3 and 4b: a panel for each quantity, curves over updates.

    Args:
        columns (`Sequence[Sequence[Curve]]`): The curves of each panel; none of them empty.
        switch (`int`, *optional*): The last update with interventions, where one is common to all.
        path (`Path`): The PNG.
    """
    look = looks((curve.group, curve.method) for curves in columns for curve in curves)
    with panels(len(columns), path) as axes:
        for one, curves in zip(axes, columns, strict=True):
            one.set_title(spelled(curves[0].quantity))
            _draw_curves(one, curves, look)
            one.set_xlabel("update")
            one.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 2.5, 5, 10], min_n_ticks=1))
            values = [point.smoothed for curve in curves for point in curve.points]
            if min(values) >= 0:
                one.set_ylim(0.0, max(one.get_ylim()[1], 1.1 * max(values)))
            else:
                one.axhline(0.0, color=GREY, linewidth=1.0, zorder=1)
            if switch is not None and switch < max(curve.points[-1].x for curve in curves):
                mark(one, switch, "interventions end" if one is axes[0] else "")


def draw_wall_clock(columns: Sequence[Sequence[Curve]], path: Path) -> None:
    """Figure 10: rewards over minutes of training; evaluations have a marker each."""
    look = looks((curve.group, curve.method) for curves in columns for curve in curves)
    with panels(len(columns), path, sharex=True) as axes:
        for one, curves in zip(axes, columns, strict=True):
            one.set_title(spelled(curves[0].quantity))
            _draw_curves(one, curves, look, scale=_MINUTE, markers="evaluation" in curves[0].quantity)
            one.set_xlabel("wall-clock time of the updates (minutes)")
            highest = max(point.value for curve in curves for point in curve.points)
            one.set_ylim(0.0, max(one.get_ylim()[1], 1.05 * highest))  # room for markers on the highest point
            one.set_xlim(left=0.0)


def draw_passes(columns: Sequence[Sequence[Curve]], path: Path) -> None:
    """Figure 4a: Pass@k over k, a panel for each set of problems."""
    look = looks((curve.group, curve.method) for curves in columns for curve in curves)
    ks = sorted({point.x for curves in columns for curve in curves for point in curve.points})
    with panels(len(columns), path, sharex=True) as axes:
        for one, curves in zip(axes, columns, strict=True):
            one.set_title(spelled(curves[0].quantity))
            _draw_curves(one, curves, look, markers=True)
            one.set_xscale("log", base=2)
            one.xaxis.set_major_locator(FixedLocator(ks))
            one.xaxis.set_major_formatter(FixedFormatter([f"{k:.0f}" for k in ks]))
            one.set_xlabel("k (samples per problem)")
            one.yaxis.set_major_formatter(PercentFormatter(xmax=1.0, decimals=0))
            one.set_ylim(-0.02, 1.04)


def draw_keywords(shifts: Sequence[KeywordShift], baseline: str, path: Path) -> None:
    """Figure 5: shift of each keyword against the baseline, reconsideration above, execution below."""
    groups = list(dict.fromkeys((shift.group, shift.method) for shift in shifts))
    look = looks(groups)
    order = list(dict.fromkeys(shift.keyword for shift in shifts))
    places, at, previous = {}, 0.0, None
    for keyword in order:
        kind = keyword in EXECUTION
        at += 0.0 if previous is None else (1.55 if kind != previous else 1.0)
        places[keyword], previous = at, kind
    width = 0.76 / len(groups)
    height = 0.9 + 0.3 * (places[order[-1]] + 1) * max(1.0, len(groups) / 2)
    with panels(1, path, size=(5.6, height)) as (axes,):
        for number, (name, _) in enumerate(groups):
            own = [shift for shift in shifts if shift.group == name]
            offset = (number - (len(groups) - 1) / 2) * width
            ys = [places[shift.keyword] + offset for shift in own]
            bars = [100 * shift.shift for shift in own]
            axes.barh(ys, bars, height=width * 0.9, color=look[name].colour, label=spelled(name))
        axes.axvline(0.0, color=INK, linewidth=0.9)
        axes.set_yticks(list(places.values()), list(places))
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_title("keywords in the first 512 narrative words")
        axes.set_xlabel(f"share of responses, percentage points against {spelled(baseline)}")
        for kind, words in (("reconsideration", RECONSIDERATION), ("execution", EXECUTION)):
            first = next((places[keyword] for keyword in order if keyword in words), None)
            if first is not None:
                axes.annotate(
                    kind,
                    (1.0, first - 0.55),
                    xycoords=("axes fraction", "data"),
                    ha="right",
                    va="center",
                    fontsize=8,
                    color=GREY,
                    style="italic",
                )


def draw_intensity(points: Sequence[Intensity], path: Path) -> None:
    """Figure 6: gain in Pass@1 against the share of tokens that interventions wrote; a line for each method."""
    methods = list(dict.fromkeys((point.method, point.method) for point in points))
    look = looks(methods)
    lowest = min((name for name, _ in methods), key=lambda name: fmean(p.gain for p in points if p.method == name))
    with panels(1, path, size=(5.6, 3.3)) as (axes,):
        axes.axhline(0.0, color=GREY, linewidth=1.0, zorder=1)
        for name, _ in methods:
            own = [point for point in points if point.method == name]
            one = look[name]
            xs, ys = [point.share for point in own], [100 * point.gain for point in own]
            errors = [100 * (point.spread or 0.0) for point in own]
            axes.errorbar(
                xs,
                ys,
                yerr=errors if any(errors) else None,
                color=one.colour,
                marker=one.marker,
                markersize=6,
                linestyle=one.dashes,
                linewidth=1.4,
                elinewidth=1.0,
                capsize=2,
                label=spelled(name),
            )
            below = len(methods) > 1 and name == lowest  # labels of the lower curve stay out of the upper one's way
            for x, y, error, point in zip(xs, ys, errors, own, strict=True):
                axes.annotate(
                    f"{point.reviews} x {point.correction_tokens}",
                    (x, y - error if below else y + error),
                    xytext=(0, -6 if below else 5),
                    textcoords="offset points",
                    fontsize=7.5,
                    color=one.colour,
                    ha="center",
                    va="top" if below else "bottom",
                )
        axes.margins(y=0.16)
        axes.set_xlim(0.0, 1.12 * max(point.share for point in points))
        axes.set_title(f"gain in Pass@1 over {spelled(points[0].baseline)} (percentage points)")
        axes.set_xlabel("share of tokens written by the judge\nlabels: reviews x tokens per correction")
        axes.xaxis.set_major_formatter(PercentFormatter(xmax=1.0))


def draw_support(table: SupportTable, path: Path) -> None:
    """Figure 2: the right solution's probability of every problem, before and after training.

    Left, a row of dots for each model, one dot a problem; right, before against after. Dashed: what a budget of samples
    shows. Probabilities below 1e-18 are drawn there.
    """
    places = [index for index, problem in enumerate(table.problems) if problem.subset == table.shown]
    rows = _support_rows(table, places)
    look = looks((name, method) for name, method, _ in rows)
    floor = max(_FLOOR, min(math.floor(min(own) / math.log(10)) for _, _, own in rows))
    threshold = -math.log10(table.budget)
    with panels(2, path, size=(4.4, max(2.6, 0.9 + 0.42 * len(rows)))) as (strips, scatter):
        for number, (name, _, own) in enumerate(rows):
            _strip(strips, number, [max(one / math.log(10), floor) for one in own], look[name].colour)
        strips.set_yticks(range(len(rows)), [spelled(name) for name, _, _ in rows])
        strips.set_ylim(len(rows) - 0.4, -0.6)
        strips.grid(axis="y", visible=False)
        strips.set_title(f"{len(places)} {table.shown} problems")
        strips.set_xlabel("probability of all right results; bar: median")
        before = rows[0][2]
        for one in dict.fromkeys(one.group for one in table.after):
            own = next(values for name, _, values in rows if name == one)
            xs = [max(before[index % len(places)] / math.log(10), floor) for index in range(len(own))]
            ys = [max(value / math.log(10), floor) for value in own]
            hollow = look[one].dashes != "-"  # what often lies on another method's dots lets them through
            colours = {"facecolors": "none" if hollow else look[one].colour, "edgecolors": look[one].colour}
            style = {"marker": look[one].marker, "s": 34 if hollow else 16, "linewidths": 0.9 if hollow else 0.0}
            scatter.scatter(xs, ys, label=spelled(one), zorder=4 if hollow else 3, alpha=0.8, **style, **colours)
        scatter.plot([floor, 0], [floor, 0], color=GREY, linewidth=1.0, zorder=1)
        scatter.axhline(threshold, color=GREY, linewidth=1.0, linestyle="--", zorder=1)
        scatter.set_title("after training, against before")
        scatter.set_xlabel("probability before training")
        scatter.set_ylim(floor - 0.4, 0.5)
        scatter.yaxis.set_major_locator(MaxNLocator(7, integer=True))
        scatter.yaxis.set_major_formatter(_POWER)
        for axes in (strips, scatter):
            axes.set_xlim(floor - 0.4, 0.5)
            axes.xaxis.set_major_locator(MaxNLocator(7, integer=True))
            axes.xaxis.set_major_formatter(_POWER)
            axes.axvline(threshold, color=GREY, linewidth=1.0, linestyle="--", zorder=1)
        strips.annotate(
            f"1/{table.budget}",
            (threshold, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 2),
            textcoords="offset points",
            ha="center",
            fontsize=7.5,
            color=GREY,
        )


def _support_rows(table: SupportTable, places: Sequence[int]) -> list[tuple[str, str, list[float]]]:
    """Name, method and log-probabilities of each row of dots; after training those of all runs of a group."""
    rows = [(BASE, BASE, [table.base.logps[i] for i in places])]
    if table.corrections:
        plural = "s" if table.corrections > 1 else ""
        helped = table.with_corrections()
        rows.append((f"{BASE} with {table.corrections} correction{plural}", BASE, [helped[i] for i in places]))
    for name, method in dict.fromkeys((one.group, one.method) for one in table.after):
        rows.append((name, method, [one.logps[i] for one in table.after if one.group == name for i in places]))
    return rows


_POWER = FuncFormatter(lambda x, _: "1" if x == 0 else f"$10^{{{x:.0f}}}$")


def _strip(axes: Axes, row: int, values: Sequence[float], colour: str) -> None:
    """Dots in a row, spread upwards by their rank so that they do not hide each other, with their median."""
    golden = (5**0.5 - 1) / 2  # an even spread without chance: the same values give the same picture
    heights = [row + 0.5 * ((index * golden) % 1.0 - 0.5) for index in range(len(values))]
    axes.scatter(values, heights, s=9, color=colour, linewidths=0, alpha=0.6, zorder=3)
    middle = sorted(values)[len(values) // 2]
    axes.plot([middle, middle], [row - 0.34, row + 0.34], color=INK, linewidth=1.6, zorder=4)


def _draw_curves(axes: Axes, curves: Sequence[Curve], look: dict, scale: float = 1.0, markers: bool = False) -> None:
    for curve in curves:
        one = look[curve.group]
        xs = [point.x / scale for point in curve.points]
        ys = [point.smoothed for point in curve.points]
        band = [point.band for point in curve.points]
        if None not in band:
            axes.fill_between(xs, *zip(*band, strict=True), color=one.colour, alpha=0.15, linewidth=0)
        elif not markers:
            axes.plot(xs, [point.value for point in curve.points], color=one.colour, alpha=0.22, linewidth=0.8)
        alone = len(curve.points) == 1  # no line goes through one point
        marker = {"marker": one.marker, "markersize": 4.5} if markers or alone else {}
        over = 3.0 if one.dashes == "-" else 3.5  # what is dashed shows what it runs along
        axes.plot(xs, ys, color=one.colour, linestyle=one.dashes, label=spelled(curve.group), zorder=over, **marker)
