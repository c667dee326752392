"""Tables on a terminal of any width: the first form of several that fits, so that no name or number is torn apart.

It knows width and nothing of what is in a table. Invariant: where no form fits, the last is shown, its long words
folded; nothing is cut off.
"""

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from .data_report import plain

_ANY_WIDTH = 10_000  # characters, to measure what a table would take


def new_grid(names: Sequence[str], numbers: Sequence[str], *, narrow: bool) -> Table:
    """An empty table.

    Args:
        names (`Sequence[str]`): Heads of columns of words, on the left.
        numbers (`Sequence[str]`): Heads of columns of numbers.
        narrow (`bool`): Without lines between columns.
    """
    made = Table(box=box.SIMPLE_HEAD, padding=(0, 0), show_edge=False) if narrow else Table()
    for name in names:
        made.add_column(Text(plain(name)), overflow="fold")
    for name in numbers:
        made.add_column(Text(plain(name)), justify="right", overflow="fold")
    return made


def print_fitting(forms: Iterable[Table], console: Console) -> None:
    """Print the first form of a table that fits the terminal, or the last; forms after it are not made."""
    for form in forms:
        if Measurement.get(console, console.options.update_width(_ANY_WIDTH), form).maximum <= console.width:
            break
    console.print(form)


def in_parts(name: str, indent: str = "") -> Text:
    """A name with a line for each of its folders."""
    return Text(indent + plain(name).replace("/", f"/\n{indent}"))
