"""The command `mintrl`: one sub-command for each thing to do without writing Python.

It owns flags, exit codes and what is printed; what a command does lies in the rooms below. Each `_add_*` function makes
one sub-command and names the function that runs it. Invariant: standard output holds the result alone; progress and
errors go to standard error.

| exit code | meaning |
|---|---|
| 0 | done, and nothing was found |
| 1 | done, and something was found |
| 2 | it could not be done: a mistake in the command line, an unreadable file |
| 130 | interrupted |
"""

import argparse
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import mintrl_trl

from .errors import ConfigError, MInTRLError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CLEAN, FINDINGS, UNUSABLE, INTERRUPTED = 0, 1, 2, 130
_OPTIONS = frozenset({"device", "gpus", "server", "python", "num_processes"})  # not a recipe's, of serve and doctor
_FLAGS = {"source": "DATA", "out": "OUT"}  # arguments of functions whose name on the command line is not --name


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
        if hasattr(arguments, "settings") and error.field not in _OPTIONS:  # a recipe's setting has the recipe's words
            sys.stderr.write(f"mintrl {arguments.command}: {error}\n")
            return UNUSABLE
        flag = _FLAGS.get(error.field, f"--{error.field.replace('_', '-')}")
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
    parser.add_argument("--version", action="version", version=f"mintrl_trl {mintrl_trl.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands")
    _add_check_data(commands)
    _add_export(commands)
    _add_serve(commands)
    _add_doctor(commands)
    return parser


# check-data

_CHECK_DATA = """\
Find what is wrong with a data set before training on it: rows that cannot be used, ids given twice, gold answers
that do not equal themselves, texts that are there twice, rows that stand in an evaluation set, prompts that are too
long, tests that ask nothing, and reference solutions that fail their own tests (they run confined, as in training).
"""
_CHECK_DATA_MORE = """\
examples:
  mintrl check-data rows.jsonl
  mintrl check-data rows.jsonl --against test.jsonl aime.jsonl --tokenizer Qwen/Qwen3-1.7B --max-prompt-tokens 2048
  mintrl check-data rows.jsonl --json report.json

exit code: 0 nothing found, 1 something found, 2 the check could not be made
"""


def _add_check_data(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "check-data",
        help="find bad, repeated and leaked rows of a data set",
        description=_CHECK_DATA,
        epilog=_CHECK_DATA_MORE,
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
    parser.set_defaults(run=_check_data)


def _check_data(arguments: argparse.Namespace) -> int:
    # Imported here, so that help and mistakes in the command line are answered at once
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from .evaluation.check_data import Check, check_data
    from .reporting.data_report import print_report

    if arguments.examples < 0:
        raise ConfigError("examples", arguments.examples, "0 or more", "write --examples 5")
    if arguments.json is not None and not arguments.json.parent.is_dir():
        raise ConfigError("json", str(arguments.json), "a file in a folder that exists", "make the folder first")
    tokenizer = None if arguments.tokenizer is None else _tokenizer(arguments.tokenizer)
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


# export

_EXPORT = """\
Write a checkpoint of a run as a plain Hugging Face folder, model and tokenizer: whatever the run trained (all weights
or an adapter), however they were saved (whole, sharded by FSDP, thinned out later).
"""
_EXPORT_MORE = """\
examples:
  mintrl export runs/math_qwen3_1.7b/checkpoint-500 models/mine
  mintrl export runs/gsm8k_smollm2/checkpoint-200 models/merged --merge --dtype float32

exit code: 0 done, 2 it could not be done
"""


def _add_export(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "export",
        help="make a plain model folder from a checkpoint",
        description=_EXPORT,
        epilog=_EXPORT_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a folder checkpoint-N of a run")
    parser.add_argument("out", metavar="OUT", help="the folder to make; it must not exist, or be empty")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="default: bfloat16")
    parser.add_argument("--merge", action="store_true", help="add an adapter to its base model's weights")
    parser.add_argument("--base", metavar="NAME_OR_FOLDER", help="with --merge: the base model, if it has moved")
    parser.set_defaults(run=_export)


def _export(arguments: argparse.Namespace) -> int:
    from .export import export_checkpoint

    folder = export_checkpoint(
        arguments.checkpoint, arguments.out, dtype=arguments.dtype, merge=arguments.merge, base=arguments.base
    )
    sys.stdout.write(f"{folder}\n")
    return CLEAN


# serve

_SERVE = """\
Start the vLLM server that a recipe needs, for the policy or for the judge: the command is printed, then it takes the
place of this one. Where a recipe has both servers on one machine they share its GPUs; start one after the other.
"""
_SERVE_MORE = """\
examples:
  mintrl serve policy --config recipes/math_qwen3_1.7b.yaml --gpus 4
  mintrl serve judge --config recipes/math_qwen3_1.7b.yaml --print
  mintrl serve policy --config recipes/math_qwen3_1.7b.yaml --chunk_tokens 256 -- --gpu-memory-utilization 0.5

Other flags are the recipe's settings; what follows -- goes to vLLM and wins.
exit code: 2 it could not be done, else the server's own
"""


def _add_serve(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "serve",
        help="start the vLLM server of a recipe's policy or judge",
        description=_SERVE,
        epilog=_SERVE_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("role", choices=("policy", "judge"), help="whose server")
    parser.add_argument("--config", required=True, type=Path, metavar="RECIPE", help="the run's YAML file")
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="GPUs of the server, as replicas (default: 1)")
    parser.add_argument("--alone", action="store_true", help="no other server is on these GPUs: use all their memory")
    parser.add_argument("--server", type=int, metavar="N", help="with several addresses in the recipe: which, from 1")
    parser.add_argument("--device", choices=("gpu", "cpu"), help="default: cpu if the recipe says `use_cpu: true`")
    parser.add_argument("--python", metavar="PATH", help="Python of the environment that has vLLM")
    parser.add_argument("--print", action="store_true", dest="print_only", help="print the command and start nothing")
    parser.set_defaults(run=_serve, settings=())


def _serve(arguments: argparse.Namespace) -> int:
    from .recipe import parse_recipe
    from .serving import Machine, device_of, require_program, server_commands

    recipe = parse_recipe(["--config", str(arguments.config), *arguments.settings], default=arguments.config)
    device = arguments.device or device_of(recipe.config)
    machine = Machine(device, arguments.gpus, alone=arguments.alone, python=arguments.python)
    found = server_commands(recipe, arguments.role, machine, arguments.more)
    number = arguments.server
    if number is not None and not 1 <= number <= len(found):
        raise ConfigError("server", number, f"from 1 to {len(found)}, the recipe's addresses", "write --server 1")
    chosen = found if number is None else [found[number - 1]]
    for command in chosen:
        sys.stdout.write(f"{command}\n")
    sys.stdout.flush()
    if arguments.print_only:
        return CLEAN
    if len(chosen) > 1:
        raise ConfigError("server", None, f"from 1 to {len(found)}, the recipe's addresses", "write --server 1")
    require_program(chosen[0])
    program, environment = chosen[0].words[0], os.environ | chosen[0].environment
    return os.execvpe(program, chosen[0].words, environment)


# doctor

_DOCTOR = """\
Look at everything a run needs before it starts: the recipe, the batch arithmetic, the model's tokenizer and chat
template (the first prompt is shown as the policy will see it), the rows, the disk, the policy's servers and the judge,
which is asked an easy review. What is wrong is named, with what to change. Nothing is changed, no weights are loaded.
"""
_DOCTOR_MORE = """\
examples:
  mintrl doctor --config recipes/math_qwen3_1.7b.yaml --num-processes 4
  mintrl doctor --config recipes/math_qwen3_1.7b.yaml --judge_base_url http://node2:8001/v1

Other flags are the recipe's settings.
exit code: 0 nothing found, 1 something has to change
"""


def _add_doctor(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "doctor",
        help="find what is wrong with a set-up before a run",
        description=_DOCTOR,
        epilog=_DOCTOR_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--config", required=True, type=Path, metavar="RECIPE", help="the run's YAML file")
    parser.add_argument("--num-processes", type=int, default=1, metavar="N", help="processes that train (default: 1)")
    parser.set_defaults(run=_doctor, settings=())


def _doctor(arguments: argparse.Namespace) -> int:
    from .doctor import Level, examine

    if arguments.num_processes < 1:
        raise ConfigError("num_processes", arguments.num_processes, "at least 1", "write --num-processes 1")
    problems = 0
    for finding in examine(arguments.config, arguments.settings, num_processes=arguments.num_processes):
        sys.stdout.write(f"{finding}\n")
        sys.stdout.flush()
        problems += finding.level is Level.PROBLEM
    sys.stdout.write(f"{problems} to change.\n" if problems else "Nothing to change.\n")
    return FINDINGS if problems else CLEAN


def _tokenizer(name: str) -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        why = str(error).strip().partition("\n")[0]
        allowed = f"a folder or hub id that holds a tokenizer ({why})"
        raise ConfigError("tokenizer", name, allowed, "correct the path or id") from error


if __name__ == "__main__":
    sys.exit(main())
