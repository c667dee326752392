"""The paper's figures of given runs: each as a picture and as the table it was drawn from.

Owns which runs a figure needs, file names, and the reason where one cannot be drawn. Invariant: all numbers in a
picture are in the CSV file beside it.
"""

import csv
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from . import drawing
from .curves import ACQUISITION, EVALUATION, TRAINING, TRAINING_REWARD, Curve, training_curves, wall_clock_curves
from .intensity import intensities
from .keyword_shifts import keyword_shifts, responses_of
from .passes import check_same_problems, domain_curves, domain_panels, pass_curves, subsets
from .runs import Group, UnlikeProblemsError, read_groups, split_name
from .solutions import BUDGET, SupportSummary, SupportTable, measure_support, summarize
from .stored import ModelEvaluation, is_evaluation, read_evaluations


@dataclass(frozen=True)
class Sources:
    """What figures are drawn from.

    Args:
        groups (`tuple[Group, ...]`): Runs.
        models (`tuple[ModelEvaluation, ...]`): Evaluations; where there are some, Figures 4a and 5 are theirs.
    """

    groups: tuple[Group, ...] = ()
    models: tuple[ModelEvaluation, ...] = ()


@dataclass(frozen=True)
class Options:
    """What the figures may be told.

    Args:
        baseline (`str`, *optional*): Group that keyword shifts and gains are measured from.
        subset (`str`, *optional*): Problems that gains are averaged over; `None` for all.
        budget (`int`, *optional*, defaults to 1024): Samples that the threshold of inference stands for.
    """

    baseline: str | None = None
    subset: str | None = None
    budget: int = BUDGET


@dataclass(frozen=True)
class Drawn:
    """What became of one figure.

    Args:
        figure (`str`): The paper's number, such as `4a`.
        files (`tuple[Path, ...]`): The picture, then the table; empty where nothing was drawn.
        note (`str`): What the numbers say in a line, or why nothing was drawn.
    """

    figure: str
    files: tuple[Path, ...]
    note: str


def read_sources(words: Sequence[str]) -> Sources:
    """Read run folders and evaluations as a command line names them: `FOLDER` or `NAME=FOLDER`.

    Raises:
        DataError: A folder that is neither, no folder at all, or one given twice.
    """
    stored = [word for word in words if is_evaluation(split_name(word)[1])]
    runs = [word for word in words if word not in stored]
    return Sources(tuple(read_groups(runs)) if runs or not stored else (), tuple(read_evaluations(stored)))


def draw_figures(
    sources: Sources,
    output: str | Path,
    figures: Iterable[str] | None = None,
    options: Options | None = None,
    on_figure: Callable[[str], None] = lambda name: None,
) -> list[Drawn]:
    """Draw the paper's figures of given runs and evaluations.

    Args:
        sources ([`Sources`]): What to draw, as `read_sources` gives it.
        output (`str` or `Path`): Folder of the pictures and tables; made where it is missing.
        figures (`Iterable[str]`, *optional*): The paper's numbers, out of `FIGURES`; by default all that there are the
            numbers for.
        options ([`Options`], *optional*): Baseline, subset, budget.
        on_figure (`Callable`, *optional*): Told the number of each figure before it is made.

    Returns:
        `list[Drawn]`: One for each figure, in the paper's order.

    Raises:
        ConfigError: An unknown figure, a budget below 2, or an output folder that cannot be made.
        DataError: A file that cannot be read.
    """
    options = options or Options()
    chosen = list(FIGURES if figures is None else figures)
    for name in chosen:
        if name not in FIGURES:
            raise ConfigError("figures", name, f"out of {', '.join(FIGURES)}", "leave it out")
    if options.budget < 2:
        raise ConfigError("budget", options.budget, "at least 2 samples", "set 1024")
    there = next(place for place in (Path(output), *Path(output).absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise ConfigError("output", str(output), "a folder that can be made and written", "name another folder")
    drawn = []
    for name in (name for name in FIGURES if name in chosen):
        on_figure(name)
        try:
            drawn.append(FIGURES[name](sources, Path(output), options))
        except UnlikeProblemsError as error:
            drawn.append(Drawn(name, (), str(error)))
    return drawn


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write rows, all with the keys of the first, as CSV. `None` becomes an empty cell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path


def _support(sources: Sources, output: Path, options: Options) -> Drawn:
    table = measure_support(sources.groups, options.budget)
    if table is None:
        return Drawn("2", (), "no run of the small world with its model: elsewhere no single string is right")
    files = (output / "figure_2_support.png", output / "figure_2_support.csv")
    drawing.draw_support(table, files[0])
    write_table(files[1], _support_rows(table))
    summary = output / "figure_2_summary.csv"
    summaries = summarize(table)
    write_table(summary, [asdict(one) for one in summaries])
    note = "; ".join(_support_words(one, options.budget) for one in summaries if one.subset == table.shown)
    return Drawn("2", (*files, summary), note)


def _support_words(summary: SupportSummary, budget: int) -> str:
    words = f"{summary.group}: {summary.solved:.4g} of {summary.problems} {summary.subset} problems solved"
    if summary.solved_beyond:
        words += f", {summary.solved_beyond:.4g} of them below 1/{budget} before (furthest {summary.furthest:.1e})"
    return f"{words}, smallest nu {summary.smallest_nu:.1e}"


def _support_rows(table: SupportTable) -> list[dict[str, Any]]:
    helped, needed = table.with_corrections(), table.needed()
    return [
        {
            "group": one.group,
            "run": one.run,
            "subset": problem.subset,
            "problem": problem.question,
            "log_before": table.base.logps[index],
            "log_after": one.logps[index],
            "log_string_before": table.base.string_logps[index],
            "log_string_after": one.string_logps[index],
            "log_before_with_corrections": helped[index],
            "corrections": table.corrections,
            "corrections_needed": needed[index],
            "nu_before": table.base.smallest[index],
            "nu_after": one.smallest[index],
        }
        for one in table.after
        for index, problem in enumerate(table.problems)
    ]


def _training(sources: Sources, output: Path, options: Options) -> Drawn:
    columns = [curves for curves in (training_curves(sources.groups, quantity) for quantity in TRAINING) if curves]
    if not columns:
        return Drawn("3", (), "no rewards, lengths or entropies in metrics.jsonl")
    files = _curve_files(output, "figure_3_training", columns)
    drawing.draw_training(columns, _switch(sources.groups), files[0])
    return Drawn("3", files, _ends(columns[0]))


def _acquisition(sources: Sources, output: Path, options: Options) -> Drawn:
    kl, nll, gap = (training_curves(sources.groups, quantity) for quantity in ACQUISITION)
    columns = [curves for curves in (kl or nll, gap) if curves]
    if not columns:
        return Drawn("4b", (), "no run with interventions")
    files = _curve_files(output, "figure_4b_acquisition", columns)
    drawing.draw_training(columns, None, files[0])
    return Drawn("4b", files, "; ".join(_ends(curves) for curves in columns))


def _passes(sources: Sources, output: Path, options: Options) -> Drawn:
    if sources.models:
        found = [domain_curves(sources.models, *panel) for panel in domain_panels(sources.models)]
    else:
        found = [pass_curves(sources.groups, one) for one in subsets(sources.groups) or (None,)]
    columns = [curves for curves in found if curves]
    if not columns:
        without = "no evaluations (`eval_problems` above 0, or `mintrl eval`)"
        return Drawn("4a", (), "no benchmark that all models were evaluated on" if sources.models else without)
    files = _curve_files(output, "figure_4a_pass_at_k", columns)
    drawing.draw_passes(columns, files[0])
    return Drawn("4a", files, "; ".join(_ends(curves, ".1%") for curves in columns))


def _keywords(sources: Sources, output: Path, options: Options) -> Drawn:
    baseline, shifts = keyword_shifts(responses_of(sources.groups, sources.models), options.baseline)
    if not shifts:
        why = "no keyword in any response" if baseline else "nothing to compare with: add GRPO, or --baseline NAME"
        return Drawn("5", (), why)
    files = (output / "figure_5_keywords.png", output / "figure_5_keywords.csv")
    drawing.draw_keywords(shifts, baseline, files[0])
    write_table(files[1], [asdict(one) | {"shift": one.shift, "baseline": baseline} for one in shifts])
    largest = max(shifts, key=lambda one: abs(one.shift))
    note = f"largest shift: {largest.keyword!r} {100 * largest.shift:+.1f} points ({largest.group})"
    return Drawn("5", files, note)


def _intensity(sources: Sources, output: Path, options: Options) -> Drawn:
    points = intensities(sources.groups, options.baseline, options.subset)
    if not points:
        return Drawn("6", (), "it needs evaluated runs with interventions and evaluated runs without")
    files = (output / "figure_6_intensity.png", output / "figure_6_intensity.csv")
    drawing.draw_intensity(points, files[0])
    write_table(files[1], [asdict(one) for one in points])
    best = max(points, key=lambda one: one.gain)
    return Drawn(
        "6", files, f"largest gain {100 * best.gain:+.1f} points at a share of {best.share:.1%} ({best.group})"
    )


def _wall_clock(sources: Sources, output: Path, options: Options) -> Drawn:
    columns, note = [wall_clock_curves(sources.groups, TRAINING_REWARD)], ""
    try:
        check_same_problems(sources.groups)
        columns.append(wall_clock_curves(sources.groups, EVALUATION, smooth=False))
    except UnlikeProblemsError as error:
        note = f"; without evaluations: {error}"
    columns = [curves for curves in columns if curves]
    if not columns:
        return Drawn("10", (), "no rewards with the time of their updates in metrics.jsonl")
    files = _curve_files(output, "figure_10_wall_clock", columns)
    drawing.draw_wall_clock(columns, files[0])
    minutes = ", ".join(f"{curve.group} {curve.points[-1].x / 60:.1f} min" for curve in columns[0])
    return Drawn("10", files, minutes + note)


def _curve_files(output: Path, stem: str, columns: Sequence[Sequence[Curve]]) -> tuple[Path, Path]:
    rows = [
        {"quantity": curve.quantity, "group": curve.group, "runs": curve.runs} | asdict(point)
        for curves in columns
        for curve in curves
        for point in curve.points
    ]
    return output / f"{stem}.png", write_table(output / f"{stem}.csv", rows)


def _ends(curves: Sequence[Curve], form: str = ".3g") -> str:
    """Where the curves of a panel begin and end, in words."""
    parts = (f"{one.group} {one.points[0].smoothed:{form}} to {one.points[-1].smoothed:{form}}" for one in curves)
    return f"{curves[0].quantity}: {', '.join(parts)}"


def _switch(groups: Sequence[Group]) -> int | None:
    """The last update with interventions, where all groups that have interventions agree."""
    switches = {group.switch for group in groups} - {None}
    return switches.pop() if len(switches) == 1 else None


# The paper's number -> what makes the figure, in the paper's order.
FIGURES: Mapping[str, Callable[[Sources, Path, Options], Drawn]] = {
    "2": _support,
    "3": _training,
    "4a": _passes,
    "4b": _acquisition,
    "5": _keywords,
    "6": _intensity,
    "10": _wall_clock,
}
