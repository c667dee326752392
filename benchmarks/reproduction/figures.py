"""The figures of the results page: curves with the spread of seeds, gain against intensity, and points by arm.

It reads scores and draws; it decides nothing. A figure is drawn where its numbers are there. One colour is one arm in
all panels of a figure; colours are told apart without colour vision.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from .claims import SHARE
from .scores import Results, evaluation, short

# By the beginning of an arm's name; the first that fits, so that a method has one colour in all figures.
METHOD_COLOURS = {
    "MInTRL-Const": "#228833",
    "MInTRL-Proxy": "#4477aa",
    "GRPO": "#555555",
    "SFT+GRPO": "#ccbb44",
    "OPD": "#66ccee",
    "OPSD": "#66ccee",
    "MENTOR": "#ee6677",
}
# Judge, colour, and how far over a point its label stands, in points
JUDGES = (("perfect", "#4477aa", 6), ("imperfect", "#ee6677", -13), ("terse", "#228833", 6))
STYLES = (("-", "o"), ("--", "s"), (":", "^"))
DPI = 110
CURVES = ("table1", "harder", "table2", "table4")  # drawn as curves
POINTS = ("ablations", "losses", "bonus", "questions")  # drawn as points by arm


@dataclass(frozen=True)
class Drawn:
    """A figure that was written."""

    experiment: str
    file: str
    caption: str


def draw_figures(results: Results, folder: Path) -> list[Drawn]:
    """Draw all whose numbers are there.

    Args:
        results ([`Results`]): Where numbers come from.
        folder (`Path`): Where PNGs are written.

    Returns:
        `list[Drawn]`: What was written.
    """
    drawn = []
    for name in CURVES:
        if arms := _with_runs(results, name):
            caption = (
                "Hard problems: Pass@1 over updates, Pass@k after the last one, and Pass@1 over all tokens spent, the "
                "judge's, expert's and teacher's counted. Bands: sample standard deviation over seeds."
            )
            drawn.append(_save(_learning(results, arms), folder, name, "learning", caption))
    if arms := _with_runs(results, "table1"):
        caption = (
            "Reward of control rollouts, entropy per token, -log pi of intervention tokens, interventions per rollout."
        )
        drawn.append(_save(_dynamics(results, arms), folder, "table1", "dynamics", caption))
    if figure := _intensity(results):
        caption = (
            "Gain in Pass@1 of all problems over no intervention, against the share of foreign tokens; labels: reviews "
            "x tokens of a correction."
        )
        drawn.append(_save(figure, folder, "figure6", "intensity", caption))
    for name in POINTS:
        if arms := _with_runs(results, name):
            caption = "Pass@1 of hard and of all problems: each seed, and the mean."
            drawn.append(_save(_points(results, arms), folder, name, "points", caption))
    return drawn


def _with_runs(results: Results, experiment: str) -> list[str]:
    return [name for name in results.names(experiment) if any(s["evaluations"] for s in results.summaries(name))]


def _save(figure: Figure, folder: Path, experiment: str, kind: str, caption: str) -> Drawn:
    folder.mkdir(parents=True, exist_ok=True)
    file = f"{experiment}_{kind}.png"
    figure.savefig(folder / file, metadata={"Software": None})
    return Drawn(experiment, file, caption)


def _learning(results: Results, arms: Sequence[str]) -> Figure:
    figure = Figure(figsize=(12.6, 3.5), dpi=DPI, layout="constrained")
    over_updates, over_k, over_tokens = figure.subplots(1, 3)
    seen: Counter[str] = Counter()  # a method's second arm is dashed
    for name in arms:
        colour = _colour(name)
        style, marker = STYLES[seen[colour] % len(STYLES)]
        seen[colour] += 1
        runs, at = results.summaries(name), results.arm(name).at
        label = short(name)
        lines = [[line for line in run["evaluations"] if at is None or line["update"] <= at] for run in runs]
        _band(over_updates, _by(lines, lambda line: line["update"]), colour, label, marker, style)
        _band(over_tokens, _by([run["evaluations"] for run in runs], _tokens), colour, label, marker, style)
        last = [evaluation(run, at)["pass"] for run in runs if evaluation(run, at)]
        curves = [[(int(k), value) for k, value in passes.get("hard", passes["all"]).items()] for passes in last]
        _band(over_k, curves, colour, label, marker, style)
    for axes, title, label in (
        (over_updates, "Pass@1 of hard problems", "update"),
        (over_k, "Pass@k of hard problems, at the end", "k"),
        (over_tokens, "Pass@1 of hard problems", "million tokens, helpers' counted"),
    ):
        _finish(axes, title, label)
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1.0, decimals=0))
        axes.set_ylim(-0.03, 1.03)
    over_k.set_xscale("log", base=2)
    over_k.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    over_updates.legend(frameon=False, fontsize=7)
    return figure


def _dynamics(results: Results, arms: Sequence[str]) -> Figure:
    panels = (
        ("rewards/control", "Reward, control rollouts"),
        ("entropy/sample", "Entropy per token, nats"),
        ("intervention/nll", "-log π of intervention tokens, nats"),
        ("judge/interventions", "Interventions per rollout"),
    )
    figure = Figure(figsize=(12.6, 3.2), dpi=DPI, layout="constrained")
    for axes, (curve, title) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        for name in arms:
            at = results.arm(name).at
            found = [run["curves"].get(curve) for run in results.summaries(name)]
            curves = [[point for point in points if at is None or point[0] <= at] for points in found if points]
            if any(value for points in curves for _, value in points):
                _band(axes, curves, _colour(name), short(name), marker="")
        _finish(axes, title, "update")
        axes.set_ylim(bottom=0)
        if axes.get_legend_handles_labels()[0] and curve == panels[0][0]:
            axes.legend(frameon=False, fontsize=8)
    return figure


def _intensity(results: Results) -> Figure | None:
    base = results.score("figure6/no intervention", "all@1")
    if not base:
        return None
    figure = Figure(figsize=(6.2, 3.8), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    for judge, colour, side in JUDGES:
        points = []
        for name in results.names("figure6"):
            score, share = results.score(name, "all@1"), results.score(name, SHARE)
            if name.startswith(f"figure6/{judge},") and score and share:
                points.append((share.mean, score.mean - base.mean, score.spread, name.partition(", ")[2]))
        if points:
            points.sort()
            shares, gains, spreads, labels = zip(*points, strict=True)
            axes.errorbar(shares, gains, yerr=spreads, color=colour, marker="o", markersize=5, capsize=3, label=judge)
            for share, gain, label in zip(shares, gains, labels, strict=True):
                axes.annotate(
                    label, (share, gain), xytext=(4, side), textcoords="offset points", fontsize=8, color=colour
                )
    axes.axhline(0.0, color="#888888", linewidth=1.0, linestyle=":")
    _finish(axes, "Gain in Pass@1 over no intervention", "off-policy share of reviewed rollouts")
    axes.set_xscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(xmax=1.0, decimals=0))
    axes.legend(frameon=False, title="judge")
    return figure


def _points(results: Results, arms: Sequence[str]) -> Figure:
    figure = Figure(figsize=(10.5, 0.9 + 0.33 * len(arms)), dpi=DPI, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    places = list(range(len(arms), 0, -1))
    for axes, metric, colour, title in (
        (left, "hard@1", METHOD_COLOURS["MInTRL-Proxy"], "Pass@1 of hard problems"),
        (right, "all@1", METHOD_COLOURS["MInTRL-Const"], "Pass@1 of all problems"),
    ):
        for place, name in zip(places, arms, strict=True):
            score = results.score(name, metric)
            if score:
                axes.plot(score.values, [place] * len(score.values), "o", color=colour, alpha=0.45, markersize=5)
                axes.plot([score.mean], [place], "|", color=colour, markersize=16, markeredgewidth=2.5)
        _finish(axes, title, "")
        axes.xaxis.set_major_formatter(PercentFormatter(xmax=1.0, decimals=0))
        axes.set_xlim(-0.03, 1.03)
    left.set_yticks(places, [short(name) for name in arms])
    left.set_ylim(0.4, len(arms) + 0.6)
    return figure


def _colour(name: str) -> str:
    method = short(name)
    return next((colour for start, colour in METHOD_COLOURS.items() if method.startswith(start)), "#aa3377")


def _by(runs: Sequence[Sequence[Mapping[str, Any]]], place: Any) -> list[list[tuple[float, float]]]:
    """Curves of Pass@1 of hard problems, one per seed."""
    return [
        [(place(line), line["pass"].get("hard", line["pass"]["all"])["1"]) for line in lines] for lines in runs if lines
    ]


def _tokens(line: Mapping[str, Any]) -> float:
    return (line["tokens/sampled"] + line["tokens/teacher"]) / 1e6


def _band(
    axes: Axes,
    curves: Sequence[Sequence[Sequence[float]]],
    colour: str,
    label: str,
    marker: str = "o",
    style: str = "-",
) -> None:
    """The mean of curves, point by point, with their sample standard deviation around it."""
    length = min(len(curve) for curve in curves)
    places = [fmean(curve[index][0] for curve in curves) for index in range(length)]
    means = [fmean(curve[index][1] for curve in curves) for index in range(length)]
    axes.plot(places, means, style, color=colour, marker=marker, markersize=3.5, linewidth=1.8, label=label)
    if len(curves) > 1:
        spreads = [stdev(curve[index][1] for curve in curves) for index in range(length)]
        low, high = zip(*((m - s, m + s) for m, s in zip(means, spreads, strict=True)), strict=True)
        axes.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)


def _finish(axes: Axes, title: str, label: str) -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel(label)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
