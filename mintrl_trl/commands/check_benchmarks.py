"""`mintrl check-benchmarks`: are benchmarks there, and scored right? Owns its flags, progress and exit code."""

import argparse
import sys
from pathlib import Path

from . import CLEAN, FINDINGS, SubParsers

_ABOUT = """\
Find out, before a model is evaluated, whether its benchmarks are there and are scored right on this machine. The
answers and reference solutions that benchmarks bring take the way of sampled responses and have to score 100 %; empty
responses have to score 0 %. Programs run confined, as in evaluations.
"""
_MORE = """\
examples:
  mintrl check-benchmarks math code --data data/eval
  mintrl check-benchmarks humaneval_plus hub:gsm8k chains my_rows.jsonl --data data/eval

benchmarks: aime_2025 aime_2026 hmmt_feb_2025 gsm8k humaneval_plus mbpp_plus livecodebench, from the data folder, or
with hub: before the name from the hub; math and code (also hub:math) for the three of the paper; chains; a path to a
.jsonl

exit code: 0 all scores as they must be, 1 some are not, 2 the check could not be made
"""


def add(commands: SubParsers) -> None:
    parser = commands.add_parser(
        "check-benchmarks",
        help="find out whether benchmarks are there, and scored right",
        description=_ABOUT,
        epilog=_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("benchmarks", nargs="+", metavar="BENCHMARK", help="what to check")
    parser.add_argument(
        "--data", type=Path, metavar="FOLDER", help="with the benchmarks' files (default: $MINTRL_DATA)"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="the first N problems of each only")
    parser.add_argument("--examples", type=int, default=5, metavar="N", help="wrong scores to list (default: 5)")
    parser.set_defaults(run=run, flags={"benchmark": "BENCHMARK", "MINTRL_DATA": "$MINTRL_DATA"})


def run(arguments: argparse.Namespace) -> int:
    # Imported here, so that help and mistakes in the command line are answered at once
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from ..evaluation.benchmarks import load_benchmarks
    from ..evaluation.known_responses import check_scoring
    from ..reporting.scoring_report import print_scoring

    console = Console(stderr=True)
    with console.status("reading benchmarks"):
        benchmarks = load_benchmarks(arguments.benchmarks, data=arguments.data, limit=arguments.limit)
    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    checks = []
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        for benchmark in benchmarks:
            bar = progress.add_task(benchmark.name)
            checks.append(
                check_scoring(
                    benchmark,
                    lambda done, total, bar=bar: progress.update(bar, completed=done, total=total),
                )
            )
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, 120)
    print_scoring(benchmarks, checks, console, arguments.examples)
    sys.stdout.flush()
    return CLEAN if all(check.passed for check in checks) else FINDINGS
