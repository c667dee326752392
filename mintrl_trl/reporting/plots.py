"""The learning curves of a run folder as one PNG. Reads files, needs no display and no tracker, and changes nothing.

A curve is drawn where its numbers were logged: a run without evaluation has no Pass@k panel, a run without
interventions no share panel. Unknown values are left out.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ..errors import DataError
from .run_folder import RunFolder

Series = list[tuple[int, float]]  # (update, value), in order

BLUE, GREEN, ORANGE, GREY = "#3366aa", "#228833", "#cc6633", "#888888"  # told apart without colour vision as well
_SUBSET_COLOURS = {"easy": BLUE, "hard": ORANGE}
_PASS_AT = re.compile(r"eval/(?:(?P<subset>[^/]+)/)?pass@(?P<k>\d+)")
_SMOOTHING_SHARE = 20  # a smoothed curve is the mean of the last twentieth of the run


def learning_curves(run_folder: RunFolder | str | Path, output: str | Path | None = None) -> Path:
    """Draw reward, Pass@k and off-policy share over the updates of a run.

    Args:
        run_folder ([`RunFolder`] or `str` or `Path`): The run.
        output (`str` or `Path`, *optional*): The PNG. Defaults to `learning_curves.png` in the run folder.

    Returns:
        `Path`: The PNG.

    Raises:
        DataError: The run folder holds none of the numbers that are drawn.
    """
    folder = run_folder if isinstance(run_folder, RunFolder) else RunFolder(run_folder)
    lines = list(folder.metrics())
    control, intervened = _series(lines, "rewards/control"), _series(lines, "rewards/intervened")
    share, passes = _series(lines, "off_policy_share"), _pass_series(lines)
    panels = []
    if control or intervened:
        panels.append(lambda axes: _draw_rewards(axes, control, intervened))
    if passes:
        panels.append(lambda axes: _draw_passes(axes, passes))
    if share:
        panels.append(lambda axes: _draw_share(axes, share))
    if not panels:
        allowed = "lines with rewards/control, off_policy_share or eval/.../pass@k"
        raise DataError(str(folder.path / "metrics.jsonl"), "metrics", f"{len(lines)} lines", allowed, "train first")

    figure = Figure(figsize=(4.6 * len(panels), 3.4), dpi=150, layout="constrained")
    for axes, draw in zip(figure.subplots(1, len(panels), sharex=True, squeeze=False)[0], panels, strict=True):
        draw(axes)
        _finish(axes, switch=intervened[-1][0] if intervened and intervened[-1][0] < lines[-1]["update"] else None)
    path = Path(output) if output is not None else folder.path / "learning_curves.png"
    figure.savefig(path)
    return path


def _draw_rewards(axes: Axes, control: Series, intervened: Series) -> None:
    axes.set_title("Reward in training")
    for series, name, colour in ((control, "control", BLUE), (intervened, "intervened", GREEN)):
        if series:
            axes.plot(*zip(*series, strict=True), color=colour, alpha=0.25, linewidth=0.8)
            axes.plot(*zip(*_smooth(series), strict=True), color=colour, linewidth=1.8, label=name)
    axes.set_ylim(-0.03, max(1.03, *(value for _, value in control + intervened)))
    axes.legend(frameon=False, loc="best")


def _draw_passes(axes: Axes, passes: Mapping[str, tuple[int, Series]]) -> None:
    ks = {k for k, _ in passes.values()}
    axes.set_title(f"Pass@{ks.pop()}, policy alone" if len(ks) == 1 else "Pass@k, policy alone")
    others = iter((GREEN, GREY, BLUE, ORANGE) * len(passes))
    for subset, (_, series) in passes.items():
        colour = _SUBSET_COLOURS.get(subset) or next(others)
        axes.plot(*zip(*series, strict=True), color=colour, marker="o", markersize=4, linewidth=1.8, label=subset)
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1.0, decimals=0))
    axes.set_ylim(-0.03, 1.03)
    axes.legend(frameon=False, loc="best")


def _draw_share(axes: Axes, share: Series) -> None:
    axes.set_title("Off-policy share, intervened rollouts")
    axes.plot(*zip(*share, strict=True), color=GREEN, alpha=0.25, linewidth=0.8)
    axes.plot(*zip(*_smooth(share), strict=True), color=GREEN, linewidth=1.8)
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1.0))
    axes.set_ylim(bottom=0.0)


def _finish(axes: Axes, switch: int | None) -> None:
    """What all panels share; `switch` is the last update with interventions, where there is a phase after it."""
    axes.set_xlabel("update")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    for line in axes.lines:
        if len(line.get_xdata()) == 1:  # no line goes through one point
            line.set_marker("o")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if switch is not None:
        axes.axvline(switch, color=GREY, linewidth=1.0, linestyle=":")
        axes.annotate(
            "GRPO",
            (switch, 0.5),
            xycoords=("data", "axes fraction"),
            xytext=(3, 0),
            textcoords="offset points",
            rotation=90,
            color=GREY,
            fontsize=8,
            va="center",
        )


def _series(lines: Iterable[Mapping[str, Any]], name: str) -> Series:
    """Known values of one metric by update. A repeated update, as after a resume, keeps its last value."""
    values = {line["update"]: line[name] for line in lines if isinstance(line.get(name), int | float)}
    return sorted((update, float(value)) for update, value in values.items() if math.isfinite(value))


def _pass_series(lines: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, Series]]:
    """Subset (the whole only where there is no subset) -> its largest k and the curve."""
    largest: dict[str | None, int] = {}
    for match in (_PASS_AT.fullmatch(name) for line in lines for name in line):
        if match:
            largest[match["subset"]] = max(int(match["k"]), largest.get(match["subset"], 0))
    if len(largest) > 1:
        largest.pop(None, None)
    found = {
        subset or "all": (k, _series(lines, f"eval/{subset}/pass@{k}" if subset else f"eval/pass@{k}"))
        for subset, k in largest.items()
    }
    return {subset: (k, series) for subset, (k, series) in found.items() if series}


def _smooth(series: Series) -> Series:
    """Trailing mean, so that no value is drawn before it was measured."""
    width = max(1, len(series) // _SMOOTHING_SHARE)
    return [
        (update, fmean(value for _, value in series[max(0, end - width) : end]))
        for end, (update, _) in enumerate(series, start=1)
    ]
