"""The server commands that recipes ask for, read by vLLM's own argument parser."""

import json
import subprocess

import pytest

from mintrl_trl.errors import ConfigError
from mintrl_trl.recipe import parse_recipe
from mintrl_trl.serving import ROLES, Machine, server_commands

from .server import PYTHON, ROOT

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]

RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
MACHINES = [Machine(python="python"), Machine(gpus=2, python="python"), Machine("cpu", python="python")]
PARSE = """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = make_arg_parser(FlexibleArgumentParser())
parser.error = lambda message: (_ for _ in ()).throw(ValueError(message))
for name, words in json.load(sys.stdin).items():
    try:
        args = parser.parse_args(words)
        validate_parsed_serve_args(args)
        print(json.dumps([name, args.model or args.model_tag, args.port]))
    except Exception as error:
        print(json.dumps([name, f"{type(error).__name__}: {error}", None]))
"""


def asked(monkeypatch) -> dict[str, list[str]]:
    """What vLLM is given, by recipe, role, device and place."""
    monkeypatch.chdir(ROOT)
    found = {}
    for path in RECIPES:
        task = "code" if path.stem.startswith(("code", "mbpp")) else "math"
        recipe = parse_recipe(["--config", str(path)], default=path, task=task)
        for role in ROLES:
            for machine in (
                Machine(python="python"),
                Machine(gpus=2, python="python"),
                Machine("cpu", python="python"),
            ):
                try:
                    commands = server_commands(recipe, role, machine)
                except ConfigError:  # it needs no such server
                    continue
                for number, command in enumerate(commands):
                    *_, module = command.words[:3]
                    assert module == "vllm.entrypoints.openai.api_server"
                    found[f"{path.stem} {role} {machine.device} x {machine.gpus}, {number}"] = list(command.words[3:])
    return found


def read_by_vllm(commands: dict[str, list[str]]) -> dict[str, tuple[str, int | None]]:
    command = [str(PYTHON), "-W", "ignore", "-c", PARSE]
    out = subprocess.run(command, input=json.dumps(commands), capture_output=True, text=True, check=True, timeout=240)
    lines = [json.loads(line) for line in out.stdout.splitlines() if line.startswith('["')]
    return {name: (model, port) for name, model, port in lines}


def test_vllm_reads_what_mintrl_serve_gives_it(monkeypatch):
    commands = asked(monkeypatch)
    assert len(commands) >= 18
    read = read_by_vllm(commands | {"a mistake": ["--model", "m", "--max-modle-len", "1"]})
    assert read.pop("a mistake")[1] is None
    for name, words in commands.items():
        assert read[name] == (words[words.index("--model") + 1], int(words[words.index("--port") + 1])), name
