"""Rollouts of a run one after another, for a terminal, a pager or a file. Reads through the index; decides nothing.

Invariant: one rollout is in memory at a time, however many are shown.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from .colours import QUIET, breaks_lines, legend, needs_marks, print_rollout
from .rollout_index import RolloutEntry, RolloutFilter, RolloutIndex

_RULE_WIDTH = 80


@contextmanager
def opened_index(folder: str, console: Console) -> Iterator[RolloutIndex]:
    """The index of a run folder, and how far making it has come.

    Args:
        folder (`str`): The run folder.
        console (`Console`): For the progress; nothing is printed where it is no terminal.
    """
    with console.status("reading rollouts") as status:

        def tell(done: int, total: int) -> None:
            status.update(f"reading rollouts: {done / total:.0%} of {total / 1e6:,.0f} MB, once")

        index = RolloutIndex(folder, tell)
    with index:
        yield index


def show_rollouts(
    index: RolloutIndex,
    wanted: RolloutFilter,
    console: Console,
    *,
    limit: int | None = None,
    newest_first: bool = False,
) -> int:
    """Print rollouts that meet a filter.

    Args:
        index ([`RolloutIndex`]): Of the run.
        wanted ([`RolloutFilter`]): Which.
        console (`Console`): Where to.
        limit (`int`, *optional*): At most so many.
        newest_first (`bool`, *optional*, defaults to `False`): Whether later updates come first.

    Returns:
        `int`: How many meet it.
    """
    found, total = index.count(wanted), len(index)
    shown = found if limit is None else min(limit, found)
    head = f"{found:,} of {total:,} rollouts" + (f", {shown:,} of them below" if shown < found else "")
    console.print(head, style="bold", highlight=False)
    if shown:
        console.print(legend(needs_marks(console)), soft_wrap=not breaks_lines(console))
    before = None
    for entry in index.find(wanted, limit, newest_first=newest_first):
        record = index.read(entry)
        console.print("─" * min(_RULE_WIDTH, console.width), style=QUIET)
        same = before == (record.update, record.group, record.prompt)
        print_rollout(record, console, outcome=outcome_of(entry), same_prompt=same)
        before = (record.update, record.group, record.prompt)
    return found


def rollout_lines(
    index: RolloutIndex, wanted: RolloutFilter, limit: int | None = None, *, newest_first: bool = False
) -> Iterator[str]:
    """Records that meet a filter as lines of JSON, with what became of each: for other programs.

    Args:
        index, wanted, limit, newest_first: As for [`show_rollouts`].
    """
    for entry in index.find(wanted, limit, newest_first=newest_first):
        yield json.dumps(index.read(entry).to_json() | {"rescued": entry.rescued, "derailed": entry.derailed})


def outcome_of(entry: RolloutEntry) -> str:
    """`rescued`, `derailed` or nothing."""
    return "rescued" if entry.rescued else "derailed" if entry.derailed else ""
