"""The sub-commands of `mintrl`, one module each; `cli.py` finds them here by themselves.

A module of this folder is a command. It has `add(commands)`, which makes the parser, and `run(arguments)`, which
returns an exit code; what a command does lies in the rooms below. The parser's defaults say how it is called:

- `run`: the function;
- `settings=()`: the command also takes a recipe's flags, and gets them here as they were written;
- `own`: with `settings`, names of those options whose mistakes are not a recipe's (errors then name the flag);
- `flags`: names of arguments that stand otherwise on the command line than as `--name`.

Invariant: a module here loads the standard library and this package's errors alone until its command runs, so that
help, and mistakes in the command line, are answered at once.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

from ..errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CLEAN, FINDINGS, UNUSABLE, INTERRUPTED = 0, 1, 2, 130
SubParsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def command_modules() -> Iterator[ModuleType]:
    """Every command's module, in the order of their names."""
    for name in sorted(module.name for module in iter_modules(__path__)):
        yield import_module(f"{__name__}.{name}")


@contextmanager
def pipe_may_close() -> Iterator[None]:
    """While a command prints: a reader that has seen enough, such as `less` or `head`, is no error."""
    try:
        yield
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):  # the second is rich's word for it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the interpreter's own last flush


def without_bars() -> None:
    """No bars of libraries while models are read and written; what lasts has a line of our own."""
    import transformers

    transformers.logging.disable_progress_bar()


def tokenizer_of(name: str) -> "PreTrainedTokenizerBase":
    """A tokenizer that the command line names.

    Raises:
        ConfigError: There is none; field `tokenizer`.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        why = str(error).strip().partition("\n")[0]
        allowed = f"a folder or hub id that holds a tokenizer ({why})"
        raise ConfigError("tokenizer", name, allowed, "correct the path or id") from error
