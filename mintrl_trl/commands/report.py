"""`mintrl report`: runs as one page to look at. Owns its flags and what is printed."""

import argparse
import sys
from pathlib import Path

from . import CLEAN, SubParsers

_ABOUT = """\
Write runs as one HTML page that needs no network: how they went, curves to zoom into, what is worth acting on, telling
rollouts with the judge's text in colour, cost by role, settings and how they differ. Runs that differ by their seed
alone become one curve with its spread. A run that is still being trained may be looked at, too.
"""
_MORE = """\
examples:
  mintrl report runs/quickstart
  mintrl report runs/chains_grpo runs/quickstart --output compare.html
  mintrl report "two reviews=runs/two" "four reviews=runs/four"

exit code: 0 done, 2 it could not be done
"""


def add(commands: SubParsers) -> None:
    parser = commands.add_parser(
        "report",
        help="write runs as one page: curves, warnings, rollouts, cost, settings",
        description=_ABOUT,
        epilog=_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a folder, or NAME=FOLDER to say what it is called")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="where to write (default: report.html in the first folder)"
    )
    parser.add_argument(
        "--rollouts",
        type=int,
        default=300,
        metavar="N",
        help="rollouts in the page, of all runs together (default: 300)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from ..report.page import write_report
    from ..reporting.colours import visible

    with Console(stderr=True).status("reading runs") as status:
        path = write_report(
            arguments.runs,
            arguments.output,
            rollouts=arguments.rollouts,
            on_progress=lambda name, done, total: status.update(
                f"reading rollouts, {done / max(1, total):.0%} of {visible(name)}".replace("[", r"\[")
            ),
        )
    sys.stdout.write(f"{visible(str(path))}\n")
    return CLEAN
