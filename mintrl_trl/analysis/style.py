"""One look for all figures: light ground, colours that are told apart without colour vision, no display needed.

Owns colours, fonts and the frame of a figure; knows no numbers. A method has the same colour in every figure; further
groups of a method get other dashes and markers.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .runs import BASE

# The palette of Okabe and Ito; its grey stands for what was there before training.
GREY, INK = "#8a8a8a", "#333333"
_COLOURS = {
    BASE: GREY,
    "GRPO": "#d55e00",
    "SFT+GRPO": "#e69f00",
    "OPD": "#cc79a7",
    "OPSD": "#7b4b94",
    "MENTOR": "#56b4e9",
    "MInTRL-Proxy": "#009e73",
    "MInTRL-Const": "#0072b2",
    "MInTRL-Judge": "#333333",
}
_OTHERS = ("#333333", "#56b4e9", "#7b4b94", "#a6761d")  # of what is named as no method
_MARKERS = {BASE: "s", "GRPO": "^", "SFT+GRPO": "v", "OPD": "P", "OPSD": "X", "MENTOR": "D", "MInTRL-Proxy": "s"}
_DASHES: tuple[Any, ...] = ("-", (0, (4, 1.6)), (0, (1.2, 1.4)), (0, (6, 1.4, 1.4, 1.4)))
_FIRST_DASHES = {BASE: 2, "MInTRL-Proxy": 1}  # Proxy often runs along Const, and shows through it so
_PANEL_INCHES = (3.5, 2.75)  # width and height
_LEGEND_INCHES = 0.32
_HANDLE_INCHES, _LETTER_INCHES = (
    0.6,
    0.075,
)  # width of an entry of the legend: what stands before its name, and a letter
_DPI = 150
_STYLE = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#b0b0b0",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.9,
    "lines.solid_capstyle": "round",
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}


@dataclass(frozen=True)
class Look:
    """How a group is drawn: colour, dashes of its lines, marker."""

    colour: str
    dashes: Any
    marker: str


def looks(groups: Iterable[tuple[str, str]]) -> dict[str, Look]:
    """The look of each group, from (name, method) in order of the legend; equal names share one."""
    found: dict[str, Look] = {}
    seen: dict[str, int] = {}
    for name, method in groups:
        if name in found:
            continue
        number = seen.get(method, 0)
        seen[method] = number + 1
        colour = _COLOURS.get(method, _OTHERS[number % len(_OTHERS)])
        marker = (_MARKERS.get(method, "o"), "d", "*", "p")[number % 4]
        dashes = _DASHES[(_FIRST_DASHES.get(method, 0) + number) % len(_DASHES)]
        found[name] = Look(colour, dashes, marker)
    return found


def spelled(name: str) -> str:
    """A name as a picture shows it: no part of it is mathematics, and a legend leaves it in."""
    return (f" {name}" if name.startswith("_") else name).replace("$", r"\$")


@contextmanager
def panels(
    number: int, path: Path, *, legend: bool = True, size: tuple[float, float] = _PANEL_INCHES, **layout: Any
) -> Iterator[list[Axes]]:
    """Axes side by side in the common look; the figure is written to `path` when the block ends.

    Args:
        number (`int`): Panels.
        path (`Path`): The PNG.
        legend (`bool`, *optional*, defaults to `True`): Whether one legend of all panels stands above them.
        size (`tuple[float, float]`, *optional*): Width and height of a panel, in inches.
        **layout: For `Figure.subplots`.
    """
    with matplotlib.rc_context(_STYLE):
        height = size[1] + (_LEGEND_INCHES if legend else 0.0)
        figure = Figure(figsize=(size[0] * number, height), dpi=_DPI, layout="constrained")
        axes = list(figure.subplots(1, number, squeeze=False, **layout)[0])
        yield axes
        if legend:
            _legend(figure, axes)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Software": None})  # the same picture is the same file


def mark(axes: Axes, x: float, text: str) -> None:
    """A dotted upright line with its meaning beside it."""
    axes.axvline(x, color=GREY, linewidth=1.0, linestyle=":", zorder=1)
    axes.annotate(
        text,
        (x, 0.02),
        xycoords=("data", "axes fraction"),
        xytext=(3, 0),
        textcoords="offset points",
        rotation=90,
        color=GREY,
        fontsize=7.5,
        va="bottom",
    )


def _legend(figure: Figure, axes: Sequence[Axes]) -> None:
    entries = {}
    for one in axes:
        for handle, label in zip(*one.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if not entries:
        return
    widest = _HANDLE_INCHES + _LETTER_INCHES * max(map(len, entries))
    columns = min(len(entries), max(1, int(figure.get_figwidth() / widest)))
    more_rows = -(-len(entries) // columns) - 1
    figure.set_figheight(figure.get_figheight() + 0.6 * _LEGEND_INCHES * more_rows)
    figure.legend(
        entries.values(),
        entries.keys(),
        loc="outside upper left",
        ncols=columns,
        columnspacing=1.6,
        handlelength=2.2,
        borderaxespad=0.2,
    )
