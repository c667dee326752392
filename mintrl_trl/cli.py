"""The command `mintrl`: one sub-command for each thing to do without writing Python.

It reads the command line, hands it to the command's module in `commands/`, and turns errors into one line and an exit
code. Invariant: standard output holds the result alone; progress and errors go to standard error.

| exit code | meaning |
|---|---|
| 0 | done, and nothing was found |
| 1 | done, and something was found |
| 2 | it could not be done: a mistake in the command line, an unreadable file |
| 130 | interrupted |
"""

import argparse
import io
import sys
from collections.abc import Sequence

import mintrl_trl

from .commands import INTERRUPTED, UNUSABLE, command_modules
from .errors import ConfigError, MInTRLError


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line.

    Args:
        argv (`Sequence[str]`, *optional*): Arguments without the program's name. By default those of the process.

    Returns:
        `int`: The exit code; see the module's table.

    Raises:
        SystemExit: After `--help` and `--version`, and with code 2 for a command line that cannot be read.
    """
    arguments = _parse(argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # the data may hold signs that a terminal of another encoding lacks
            stream.reconfigure(errors="backslashreplace")
    try:
        return arguments.run(arguments)
    except ConfigError as error:  # in the words of the command line
        if "settings" in arguments and error.field not in arguments.own:  # a recipe's setting has the recipe's words
            message = str(error)
        else:
            flag = arguments.flags.get(error.field, f"--{error.field.replace('_', '-')}")
            message = str(ConfigError(flag, error.value, error.allowed, error.fix))
    except MInTRLError as error:
        message = str(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    sys.stderr.write(f"mintrl {arguments.command}: {message}\n")
    return UNUSABLE


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read a command line. Commands about a recipe also take the recipe's own flags, as `settings`, and `serve` takes
    vLLM's after `--`, as `more`."""
    words = list(sys.argv[1:] if argv is None else argv)
    more: list[str] = []
    if words[:1] == ["serve"] and "--" in words:
        end = words.index("--")
        words, more = words[:end], words[end + 1 :]
    parser = _parser()
    arguments, rest = parser.parse_known_args(words)
    if "settings" in arguments:
        arguments.settings, arguments.more = rest, more
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mintrl", description="MInTRL on TRL: tools around a training run.")
    parser.set_defaults(own=frozenset(), flags={})
    parser.add_argument("--version", action="version", version=f"mintrl_trl {mintrl_trl.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands")
    for module in command_modules():
        module.add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
