"""`mintrl doctor`: find what is wrong with a set-up before a run. Owns its flags and exit code."""

import argparse
import sys
from pathlib import Path

from ..errors import ConfigError
from . import CLEAN, FINDINGS, SubParsers

_ABOUT = """\
Look at everything a run needs before it starts: the recipe, the batch arithmetic, the model's tokenizer and chat
template (the first prompt is shown as the policy will see it), the rows, the disk, the policy's servers and the judge,
which is asked an easy review. What is wrong is named, with what to change. Nothing is changed, no weights are loaded.
"""
_MORE = """\
examples:
  mintrl doctor --config recipes/math_qwen3_1.7b.yaml --num-processes 4
  mintrl doctor --config recipes/math_qwen3_1.7b.yaml --judge_base_url http://node2:8001/v1

Other flags are the recipe's settings.
exit code: 0 nothing found, 1 something has to change
"""


def add(commands: SubParsers) -> None:
    parser = commands.add_parser(
        "doctor",
        help="find what is wrong with a set-up before a run",
        description=_ABOUT,
        epilog=_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--config", required=True, type=Path, metavar="RECIPE", help="the run's YAML file")
    parser.add_argument("--num-processes", type=int, default=1, metavar="N", help="processes that train (default: 1)")
    parser.set_defaults(run=run, settings=(), own={"num_processes"})


def run(arguments: argparse.Namespace) -> int:
    from ..doctor import Level, examine

    if arguments.num_processes < 1:
        raise ConfigError("num_processes", arguments.num_processes, "at least 1", "write --num-processes 1")
    problems = 0
    for finding in examine(arguments.config, arguments.settings, num_processes=arguments.num_processes):
        sys.stdout.write(f"{finding}\n")
        sys.stdout.flush()
        problems += finding.level is Level.PROBLEM
    sys.stdout.write(f"{problems} to change.\n" if problems else "Nothing to change.\n")
    return FINDINGS if problems else CLEAN
