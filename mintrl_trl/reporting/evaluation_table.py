"""Evaluations as a person reads them: scores by domain with intervals, every Pass@k, rates, differences, choices.

It draws what `evaluation.table` worked out and decides nothing. Invariant: a score is never shown without its interval,
a choice that looked at the test sets says so, and no name is read as markup or terminal control.
"""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from ..evaluation.intervals import Interval
from ..evaluation.table import Cell, Table
from .data_report import plain

_RULES = {
    "best average": "best average (chosen on the test sets, as the paper's main tables are)",
    "final": "final checkpoint",
    "held-out": "best on held-out problems",
}
_SIGNIFICANT = 0.05


def print_table(table: Table, console: Console) -> None:
    """Print all of a table."""
    models = list(dict.fromkeys(cell.model for cell in table.cells))
    for domain, names in table.domains.items():
        _print_scores(table, domain, names, models, console)
    _print_details(table.cells, len(models), console)
    if table.differences:
        _print_differences(table, console)
    for choice in table.choices:
        line = Text(plain(f"{choice.run}, {choice.domain}: {_RULES[choice.rule]}: "))
        line.append(plain(choice.model), "bold")
        console.print(line.append(": ").append(_shown(choice.average)), soft_wrap=True)
    for note in table.notes:
        console.print(Text(plain(f"Note: {note}")), soft_wrap=True)


def _print_scores(table: Table, domain: str, names: Sequence[str], models: Sequence[str], console: Console) -> None:
    cells = {(cell.model, cell.benchmark): cell for cell in table.cells}
    averages = {average.model: average for average in table.averages if average.domain == domain}
    grid = _grid("model")
    for name in names:
        grid.add_column(Text(plain(name)), justify="right")
    if len(names) > 1:
        grid.add_column("average", justify="right")
    for model in models:
        scores = [_shown(cells[model, name].pass_at[1]) for name in names]
        scores += [_shown(averages[model].pass_at[1])] if len(names) > 1 else []
        grid.add_row(Text(plain(model)), *scores)
    console.print(Text(f"{domain}: Pass@1 in %, with 95 % intervals over problems", "bold"), grid, sep="\n")


def _print_details(cells: Sequence[Cell], models: int, console: Console) -> None:
    """Every Pass@k, and the rates, by benchmark and model."""
    names = ("benchmark", "model") if models > 1 else ("benchmark",)
    ks = sorted({k for cell in cells for k in cell.pass_at})
    scores, rates = _grid(*names), _grid(*names)
    for k in ks:
        scores.add_column(f"Pass@{k}", justify="right")
    for name in ("problems", "samples", "tokens", "truncated", "no answer", "unscored"):
        rates.add_column(name, justify="right")
    for cell in sorted(cells, key=lambda cell: cell.benchmark):
        own = [Text(plain(cell.benchmark)), Text(plain(cell.model))][: len(names)]
        scores.add_row(*own, *(_shown(cell.pass_at[k], lines=2) if k in cell.pass_at else "" for k in ks))
        shares = [f"{share:.1%}" for share in (cell.truncated, cell.no_answer, cell.unscored)]
        rates.add_row(*own, f"{cell.problems:,}", f"{cell.samples:,}", f"{cell.length:,.0f}", *shares)
    console.print(Text("Pass@k in %, with 95 % intervals over problems", "bold"), scores, sep="\n")
    console.print(Text("Responses: mean tokens, and shares of all", "bold"), rates, sep="\n")


def _print_differences(table: Table, console: Console) -> None:
    against = table.differences[0].against
    title = f"Pass@1 minus that of {against}, in points, on the same problems (p: paired, after Holm's correction)"
    grid = _grid("model", "on")
    for name in ("difference", "p"):
        grid.add_column(name, justify="right")
    for one in table.differences:
        difference = one.comparison.difference
        shown = f"{100 * difference.value:+.1f} [{100 * difference.low:+.1f}, {100 * difference.high:+.1f}]"
        style = "bold" if one.corrected < _SIGNIFICANT else ""
        grid.add_row(
            Text(plain(one.model)), Text(plain(one.column)), Text(shown, style), Text(f"{one.corrected:.2g}", style)
        )
    console.print(Text(plain(title), "bold"), grid, sep="\n")


def _grid(*names: str) -> Grid:
    grid = Grid()
    for name in names:
        grid.add_column(name, overflow="fold")
    return grid


def _shown(interval: Interval, lines: int = 1) -> Text:
    value, low, high = (100 * one for one in (interval.value, interval.low, interval.high))
    return Text(f"{value:.1f} [{low:.1f}, {high:.1f}]" if lines == 1 else f"{value:.1f}\n[{low:.0f}, {high:.0f}]")
