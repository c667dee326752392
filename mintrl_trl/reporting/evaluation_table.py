"""Evaluations as a person reads them: scores by domain with intervals, every Pass@k, rates, differences, choices.

It draws what `evaluation.table` worked out and decides nothing; where the terminal is too narrow for a table, closer
together, with intervals below scores and long names on a line for each folder. Invariant: a score is never shown
without its interval, a choice that looked at the test sets says so, and no name is read as markup or terminal control.
"""

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from ..evaluation.intervals import Interval
from ..evaluation.table import Cell, Table
from .data_report import plain
from .grids import in_parts, new_grid, print_fitting

_RULES = {
    "best average": "best average (chosen on the test sets, as the paper's main tables are)",
    "final": "final checkpoint",
    "held-out": "best on held-out problems",
}
_SIGNIFICANT = 0.05
_FORMS = ((False, False), (True, False), (True, True))  # narrow, and with long names in parts


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

    def draw(narrow: bool, split: bool) -> Grid:
        grid = new_grid(["model"], [*names, *(["average"] if len(names) > 1 else [])], narrow=narrow)
        for model in models:
            scores = [cells[model, name].pass_at[1] for name in names]
            scores += [averages[model].pass_at[1]] if len(names) > 1 else []
            grid.add_row(_name(model, split), *(_shown(one, lines=2 if narrow else 1) for one in scores))
        return grid

    _print(f"{domain}: Pass@1 in %, with 95 % intervals over problems", draw, console)


def _print_details(cells: Sequence[Cell], models: int, console: Console) -> None:
    """Every Pass@k, and the rates, by benchmark and model."""
    ks = sorted({k for cell in cells for k in cell.pass_at})
    rates = ("problems", "samples", "tokens", "truncated", "no answer", "unscored")

    def draw(narrow: bool, split: bool, numbers: Sequence[str], shown: Callable[[Cell], Sequence[Text]]) -> Grid:
        grid, last = new_grid(["benchmark"], numbers, narrow=narrow), None
        for cell in sorted(cells, key=lambda cell: cell.benchmark):
            if models > 1 and cell.benchmark != last:  # a line of its own, and its models below
                last = cell.benchmark
                grid.add_section()
                grid.add_row(Text(plain(last), "bold"))
            name = _name(cell.benchmark, split) if models == 1 else _name(cell.model, split, indent="  ")
            grid.add_row(name, *shown(cell))
        return grid

    def scores_of(cell: Cell) -> list[Text]:
        return [_shown(cell.pass_at[k], lines=2, digits=0) if k in cell.pass_at else Text() for k in ks]

    def rates_of(cell: Cell) -> list[Text]:
        shares = [f"{share:.1%}" for share in (cell.truncated, cell.no_answer, cell.unscored)]
        return [Text(one) for one in (f"{cell.problems:,}", f"{cell.samples:,}", f"{cell.length:,.0f}", *shares)]

    title = "Pass@k in %, with 95 % intervals over problems"
    _print(title, lambda *form: draw(*form, [f"Pass@{k}" for k in ks], scores_of), console)
    title = "Responses: mean tokens, and shares of all"
    _print(title, lambda *form: draw(*form, rates, rates_of), console)


def _print_differences(table: Table, console: Console) -> None:
    against = table.differences[0].against
    title = f"Pass@1 minus that of {against}, in points, on the same problems (p: paired, after Holm's correction)"

    def draw(narrow: bool, split: bool) -> Grid:
        grid = new_grid(["model", "on"], ["difference", "p"], narrow=narrow)
        for one in table.differences:
            style = "bold" if one.corrected < _SIGNIFICANT else ""
            numbers = (Text(one.comparison.difference.in_points(), style), Text(f"{one.corrected:.2g}", style))
            grid.add_row(_name(one.model, split), Text(plain(one.column)), *numbers)
        return grid

    _print(title, draw, console)


def _print(title: str, draw: Callable[[bool, bool], Grid], console: Console) -> None:
    console.print(Text(plain(title), "bold"))
    print_fitting((draw(*form) for form in _FORMS), console)


def _name(name: str, split: bool, indent: str = "") -> Text:
    return in_parts(name, indent) if split else Text(indent + plain(name))


def _shown(interval: Interval, *, lines: int = 1, digits: int = 1) -> Text:
    """A score with its interval behind it, or below it in fewer characters."""
    value, low, high = (100 * one for one in (interval.value, interval.low, interval.high))
    if lines == 1:
        return Text(f"{value:.1f} [{low:.{digits}f}, {high:.{digits}f}]")
    return Text(f"{value:.1f}\n{low:.{digits}f}-{high:.{digits}f}")
