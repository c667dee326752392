"""`mintrl check-data`: find bad, repeated and leaked rows of a data set. Owns its flags, progress and exit code."""

import argparse
import sys
from pathlib import Path

from ..errors import ConfigError
from . import CLEAN, FINDINGS, SubParsers, tokenizer_of

_ABOUT = """\
Find what is wrong with a data set before training on it: rows that cannot be used, ids given twice, gold answers
that do not equal themselves, texts that are there twice, rows that stand in an evaluation set, prompts that are too
long, tests that ask nothing, and reference solutions that fail their own tests (they run confined, as in training).
"""
_MORE = """\
examples:
  mintrl check-data rows.jsonl
  mintrl check-data rows.jsonl --against test.jsonl aime.jsonl --tokenizer Qwen/Qwen3-1.7B --max-prompt-tokens 2048
  mintrl check-data rows.jsonl --json report.json

exit code: 0 nothing found, 1 something found, 2 the check could not be made
"""


def add(commands: SubParsers) -> None:
    parser = commands.add_parser(
        "check-data",
        help="find bad, repeated and leaked rows of a data set",
        description=_ABOUT,
        epilog=_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="DATA", help="a JSON Lines file (.jsonl, .jsonl.gz), or a hub id")
    parser.add_argument("--task", choices=("math", "code"), help="kind of rows (default: found out from the rows)")
    parser.add_argument("--split", default="train", help="split of a hub id (default: train)")
    parser.add_argument("--limit", type=int, metavar="N", help="look at the first N usable rows only")
    parser.add_argument("--against", nargs="+", default=[], metavar="FILE", help="evaluation files to keep apart from")
    parser.add_argument(
        "--least-share",
        type=float,
        default=0.3,
        metavar="SHARE",
        help="overlap: share of 13-word passages in common from which on it counts, in (0, 1] (default: 0.3)",
    )
    parser.add_argument("--tokenizer", metavar="NAME_OR_FOLDER", help="measure prompts in the tokens of this model")
    parser.add_argument("--max-prompt-tokens", type=int, metavar="N", help="longer prompts are findings")
    parser.add_argument(
        "--skip",
        nargs="+",
        default=[],
        choices=("golds", "duplicates", "empty_tests", "references"),
        metavar="CHECK",
        help="checks to leave out: golds, duplicates, empty_tests, references",
    )
    parser.add_argument("--examples", type=int, default=5, metavar="N", help="rows to list for each check (default: 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the report with all findings to FILE")
    parser.set_defaults(run=run, flags={"source": "DATA"})


def run(arguments: argparse.Namespace) -> int:
    # Imported here, so that help and mistakes in the command line are answered at once
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from ..evaluation.check_data import Check, check_data
    from ..reporting.data_report import print_report

    if arguments.examples < 0:
        raise ConfigError("examples", arguments.examples, "0 or more", "write --examples 5")
    if arguments.json is not None and not arguments.json.parent.is_dir():
        raise ConfigError("json", str(arguments.json), "a file in a folder that exists", "make the folder first")
    tokenizer = None if arguments.tokenizer is None else tokenizer_of(arguments.tokenizer)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bars = {}

        def show(check: Check, done: int, rows: int) -> None:
            if check not in bars:
                bars[check] = progress.add_task(check, total=rows)
            progress.update(bars[check], completed=done)

        report = check_data(
            arguments.source,
            task=arguments.task,
            split=arguments.split,
            limit=arguments.limit,
            against=arguments.against,
            least_share=arguments.least_share,
            tokenizer=tokenizer,
            max_prompt_tokens=arguments.max_prompt_tokens,
            skip=[Check(name) for name in arguments.skip],
            on_progress=show,
        )
    if arguments.json is not None:
        try:
            arguments.json.write_text(report.as_json(), encoding="utf-8")
        except OSError as error:
            allowed = f"a file that can be written ({error.strerror})"
            raise ConfigError("json", str(arguments.json), allowed, "name another") from error
    print_report(report, Console(highlight=False), arguments.examples)
    sys.stdout.flush()
    return CLEAN if report.clean else FINDINGS
