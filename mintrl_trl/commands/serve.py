"""`mintrl serve`: start the vLLM server of a recipe's policy or judge. Owns its flags; the server takes its place."""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from ..errors import ConfigError
from . import CLEAN, SubParsers

_ABOUT = """\
Start the vLLM server that a recipe needs, for the policy or for the judge: the command is printed, then it takes the
place of this one. Where a recipe has both servers on one machine they share its GPUs; start one after the other.
"""
_MORE = """\
examples:
  mintrl serve policy --config recipes/math_qwen3_1.7b.yaml --gpus 4
  mintrl serve judge --config recipes/math_qwen3_1.7b.yaml --print
  mintrl serve policy --config recipes/math_qwen3_1.7b.yaml --chunk_tokens 256 -- --gpu-memory-utilization 0.5

Other flags are the recipe's settings; what follows -- goes to vLLM and wins.
exit code: 2 it could not be done, else the server's own
"""


def add(commands: SubParsers) -> None:
    parser = commands.add_parser(
        "serve",
        help="start the vLLM server of a recipe's policy or judge",
        description=_ABOUT,
        epilog=_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("role", choices=("policy", "judge"), help="whose server")
    parser.add_argument("--config", required=True, type=Path, metavar="RECIPE", help="the run's YAML file")
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="GPUs of the server, as replicas (default: 1)")
    parser.add_argument("--alone", action="store_true", help="no other server is on these GPUs: use all their memory")
    parser.add_argument("--server", type=int, metavar="N", help="with several addresses in the recipe: which, from 1")
    parser.add_argument("--device", choices=("gpu", "cpu"), help="default: cpu if the recipe says `use_cpu: true`")
    parser.add_argument(
        "--python", metavar="PATH", help="Python of the environment that has vLLM (default: .venv-vllm's)"
    )
    parser.add_argument("--print", action="store_true", dest="print_only", help="print the command and start nothing")
    parser.set_defaults(run=run, settings=(), own={"server", "device", "gpus", "python"})


def run(arguments: argparse.Namespace) -> int:
    from ..recipe import parse_recipe
    from ..serving import Machine, device_of, require_program, server_commands

    try:
        recipe = parse_recipe(["--config", str(arguments.config), *arguments.settings], default=arguments.config)
    except ConfigError as error:
        raise _of_vllm(error, arguments.settings) or error from None
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
    require_program(chosen[0], machine)
    program, environment = chosen[0].words[0], os.environ | chosen[0].environment
    return os.execvpe(program, chosen[0].words, environment)


def _of_vllm(error: ConfigError, flags: Sequence[str]) -> ConfigError | None:
    """What to say of an unknown flag that is written as vLLM writes its flags."""
    from ..config_ablations import AblationConfig
    from ..recipe import PolicyArguments, RecipeArguments

    flag = "--" + error.field.replace("_", "-")
    known = {field.name for kind in (RecipeArguments, AblationConfig, PolicyArguments) for field in fields(kind)}
    if "_" not in error.field or error.field in known or flag not in {word.partition("=")[0] for word in flags}:
        return None
    return ConfigError(flag, error.value, "a setting of the recipe", f"vLLM's flags go behind `--`: ... -- {flag} ...")
