"""`mintrl analyze`: the paper's figures of given runs. Owns its flags and what is printed."""

import argparse
import sys
from pathlib import Path

from . import CLEAN, SubParsers, without_bars

_ABOUT = """\
Draw the paper's figures of your runs, each as a picture and as the table it was drawn from: support of the right
solution before and after (2), reward, length and entropy in training (3), Pass@k (4a), what is learned from the judge
(4b), keywords (5), gain against off-policy share (6), reward against wall-clock time (10).
Runs that differ by their seed alone become one curve with their spread. A RUN may also be a folder that `mintrl eval`
made; Pass@k and keywords then are those of its samples.
"""
_MORE = """\
examples:
  mintrl analyze runs/quickstart runs/chains_grpo runs/chains_proxy
  mintrl analyze runs/compare/* --output figures --figures 3 4a
  mintrl analyze "no judge=runs/plain" "two reviews=runs/two" --baseline "no judge"
  mintrl analyze GRPO=evaluations/grpo MInTRL-Const=evaluations/const --figures 4a 5

exit code: 0 done, 2 it could not be done
"""


def add(commands: SubParsers) -> None:
    parser = commands.add_parser(
        "analyze",
        help="draw the paper's figures of given runs",
        description=_ABOUT,
        epilog=_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a folder, or NAME=FOLDER to say what it is called")
    parser.add_argument(
        "--output", type=Path, default=Path("figures"), metavar="FOLDER", help="where to write (default: figures)"
    )
    parser.add_argument(
        "--figures", nargs="+", metavar="N", help="which: 2, 3, 4a, 4b, 5, 6, 10 (default: all that the runs allow)"
    )
    parser.add_argument("--baseline", metavar="NAME", help="runs that figures 5 and 6 compare with (default: GRPO)")
    parser.add_argument("--subset", metavar="NAME", help="problems that figure 6 averages over, such as hard")
    parser.add_argument(
        "--budget", type=int, default=1024, metavar="N", help="figure 2: samples that find a solution (default: 1024)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from ..analysis.figures import FIGURES, Options, draw_figures, read_sources

    without_bars()
    options = Options(arguments.baseline, arguments.subset, arguments.budget)
    console = Console(stderr=True)
    with console.status("reading runs") as status:
        sources = read_sources(arguments.runs)
        drawn = draw_figures(
            sources,
            arguments.output,
            arguments.figures,
            options,
            on_figure=lambda name: status.update(f"figure {name} ({list(FIGURES).index(name) + 1} of {len(FIGURES)})"),
        )
    for group in sources.groups:
        sys.stdout.write(f"{group.name}: {', '.join(str(run.folder) for run in group.runs)}\n")
    for model in sources.models:
        sys.stdout.write(f"{model.name}: {', '.join(str(folder.path) for folder in model.folders)}\n")
    for one in drawn:
        sys.stdout.write(
            f"figure {one.figure}: {one.note}\n" if one.files else f"figure {one.figure}: left out, {one.note}\n"
        )
        for path in one.files:
            sys.stdout.write(f"  {path}\n")
    number = sum(bool(one.files) for one in drawn)
    figures = "1 figure" if number == 1 else f"{number} figures"
    sys.stdout.write(f"{figures} in {arguments.output}; docs/analysis.md says what each number means\n")
    return CLEAN
