"""The command lines of `mintrl serve`, and those that pages show, read by vLLM's own parser."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from mintrl_trl.errors import ConfigError
from mintrl_trl.recipe import parse_recipe
from mintrl_trl.serving import ROLES, Machine, server_commands
from tests.commands import fenced_commands, heading_commands

from .server import PYTHON, ROOT

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]

# Reads command lines from standard input, one JSON list a line; prints what vLLM made of each, or how it refused.
READER = """
import contextlib, io, json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser

for line in sys.stdin:
    parser, errors = make_arg_parser(FlexibleArgumentParser()), io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            arguments = parser.parse_args(json.loads(line))
            validate_parsed_serve_args(arguments)
        found = {name: value for name, value in vars(arguments).items() if isinstance(value, str | int | float | None)}
    except (SystemExit, TypeError, ValueError) as error:
        found = {"refused": errors.getvalue()[-500:] or str(error)}
    print("READ", json.dumps(found), flush=True)
"""


def read_by_vllm(lines: list[list[str]]) -> list[dict]:
    environment = os.environ | {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    done = subprocess.run([PYTHON, "-c", READER], input=text, env=environment, capture_output=True, text=True)
    found = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("READ ")]
    assert len(found) == len(lines), done.stderr[-3000:]
    return found


def flags(words: tuple[str, ...]) -> list[str]:
    """What vLLM's parser sees of a command line: `vllm serve MODEL ...`, or `python -m MODULE ...`."""
    return list(words[2:] if Path(words[0]).name == "vllm" else words[3:])


def test_every_server_of_every_recipe():
    lines, expected = [], []
    for path in sorted((ROOT / "recipes").glob("*.yaml")):
        recipe = parse_recipe(["--config", str(path)], default=path)
        for role in ROLES:
            for machine in (Machine(gpus=4), Machine(alone=True), Machine("cpu", python="python")):
                try:
                    commands = server_commands(recipe, role, machine)
                except ConfigError:  # no such server in this recipe; tests/test_serving.py says which
                    continue
                for command in commands:
                    lines.append(flags(command.words))
                    model = flags(command.words)[0 if Path(command.words[0]).name == "vllm" else 1]
                    expected.append((model, machine))
    assert len(lines) >= 3 * 12
    for line, found, (model, machine) in zip(lines, read_by_vllm(lines), expected, strict=True):
        assert "refused" not in found, (line, found)
        assert model in (found["model"], found.get("model_tag"))
        assert found["data_parallel_size"] == machine.gpus
        assert str(found["port"]) == line[line.index("--port") + 1]
        assert str(found["max_model_len"]) == line[line.index("--max-model-len") + 1]
        assert found["dtype"] == ("float32" if machine.device == "cpu" else "bfloat16")


def test_servers_that_files_show_and_a_flag_that_is_none():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    shown = [words for page in pages for words in fenced_commands(page)]
    shown += [words for path in sorted((ROOT / "recipes").glob("*.yaml")) for words in heading_commands(path)]
    more = [words[words.index("--") + 1 :] for words in shown if words[:2] == ["mintrl", "serve"] and "--" in words]
    plain = [words[2:] for words in shown if words[:2] == ["vllm", "serve"]]
    assert more
    lines = [["--model", "m", *words] for words in more] + plain
    *found, wrong = read_by_vllm([*lines, ["--model", "m", "--no-such-flag", "1"]])
    assert [line for line, read in zip(lines, found, strict=True) if "refused" in read] == []
    assert "no-such-flag" in wrong["refused"]
