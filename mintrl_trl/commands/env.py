"""`mintrl env`: what a bug report should say of this machine. Owns its flags and what is printed."""

import argparse
import json
import sys

from . import CLEAN, FINDINGS, SubParsers

_ABOUT = """\
Print what a bug report needs: versions of packages and whether they are supported, GPUs and driver, and which settings
of the environment are set. Tokens, keys, addresses and paths are never printed; of most variables only the name is.
"""
_MORE = """\
examples:
  mintrl env
  mintrl env --json

exit code: 0 nothing found, 1 a package is missing or of a version that is not supported
"""


def add(commands: SubParsers) -> None:
    parser = commands.add_parser(
        "env",
        help="print versions and devices, for a bug report",
        description=_ABOUT,
        epilog=_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from ..environment import describe_environment, environment_text

    found = describe_environment()
    sys.stdout.write(json.dumps(found, indent=2) + "\n" if arguments.json else environment_text(found))
    return FINDINGS if found["supported"] or "error" in found["torch"] else CLEAN
