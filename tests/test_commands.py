"""Every command line and every setting that files show to people, read by the parsers that would read them."""

import re
from functools import cache
from pathlib import Path

import pytest
from accelerate.commands.launch import _validate_launch_command, launch_command_parser

from mintrl_trl.cli import _parse
from mintrl_trl.errors import ConfigError
from mintrl_trl.recipe import Recipe, parse_recipe
from mintrl_trl.serving import ROLES, Machine, server_commands

from .commands import PROGRAMS, ROOT, fenced_commands, heading_commands, variants

RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
LAUNCH_FILES = sorted((ROOT / "recipes" / "accelerate").glob("*.yaml"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TRAINERS = {"recipes/train_math.py": "math", "recipes/train_code.py": "code"}


def shown() -> dict[str, list[str]]:
    """All commands, by where they stand."""
    found = {path.name: heading_commands(path) for path in (*RECIPES, *LAUNCH_FILES)}
    found |= {path.name: fenced_commands(path) for path in PAGES}
    return {f"{name}-{number}": words for name, commands in found.items() for number, words in enumerate(commands)}


SHOWN = shown()


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    """Paths in commands are relative to it."""
    monkeypatch.chdir(ROOT)


@cache
def recipe_of(task: str, *words: str) -> Recipe:
    return parse_recipe([*words], default=ROOT / "recipes" / "quickstart.yaml", task=task)


def read_training(words: list[str]) -> None:
    """A training program and its flags."""
    program, *flags = words
    recipe_of(TRAINERS[program], *flags)


def read_accelerate(words: list[str]) -> None:
    command, *rest = words
    assert command == "launch"
    arguments, *_ = _validate_launch_command(launch_command_parser().parse_args(rest))
    assert arguments.training_script in TRAINERS
    script = rest.index(arguments.training_script)
    read_training(rest[script:])


def read_mintrl(words: list[str]) -> None:
    arguments = _parse(words)
    if "settings" in arguments:
        recipe_of("math", "--config", str(arguments.config), *arguments.settings)


def read_python(words: list[str]) -> None:
    program = words[0]
    if program == "-m":
        assert words[1:] == ["venv", ".venv-vllm"]
        return
    assert (ROOT / program).is_file()
    if program in TRAINERS:
        read_training(words)


def read_make(words: list[str]) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {word for word in words if "=" not in word} <= targets


READERS = {"accelerate": read_accelerate, "mintrl": read_mintrl, "python": read_python, "make": read_make}


@pytest.mark.parametrize("words", SHOWN.values(), ids=SHOWN)
def test_a_command_is_read_by_its_own_parser(words):
    assert words[0] in PROGRAMS, "a line that is no command, or one of a new program"
    if words[0] in READERS:
        READERS[words[0]](words[1:])


def test_every_kind_of_command_is_found():
    assert set(READERS) <= {words[0] for words in SHOWN.values()}
    assert sum(words[:2] == ["accelerate", "launch"] for words in SHOWN.values()) >= len(RECIPES)


VARIANTS = {f"{path.stem}-{number}": (path, flags) for path in RECIPES for number, flags in enumerate(variants(path))}


@pytest.mark.parametrize(("path", "flags"), VARIANTS.values(), ids=VARIANTS)
def test_a_variant_changes_what_it_says(path: Path, flags: list[str]):
    task = "code" if path.stem.startswith(("code", "mbpp")) else "math"
    plain, varied = recipe_of(task, "--config", str(path)), recipe_of(task, "--config", str(path), *flags)
    assert plain != varied
    for flag, value in zip(flags[::2], flags[1::2], strict=True):
        assert str(next(getattr(part, flag[2:]) for part in varied if hasattr(part, flag[2:]))) == value
    assert varied.config.output_dir != plain.config.output_dir or set(flags[::2]) == {"--dataset"}
    for role in ROLES:  # its servers are those of the recipe
        assert served(varied, role) == served(plain, role)


def served(recipe: Recipe, role: str) -> list[str] | str:
    """Addresses of a role's servers, or why there are none to start."""
    try:
        commands = server_commands(recipe, role, Machine())
    except ConfigError as error:
        return error.field
    return [words[words.index("--port") + 1] for words in (command.words for command in commands)]


def test_the_papers_recipes_offer_proxy_and_self_judge():
    for path in RECIPES:
        if re.fullmatch(r"(math|code)_qwen3_(1\.7b|4b)", path.stem):
            offered = [" ".join(flags) for flags in variants(path)]
            assert any("--anchor proxy" in flags for flags in offered)
            assert any("--judge self" in flags for flags in offered)


def test_a_mistake_in_a_command_is_found():
    with pytest.raises(ConfigError, match="did you mean"):
        read_accelerate(["launch", "recipes/train_math.py", "--max_stpes", "3"])
    with pytest.raises(SystemExit):
        read_mintrl(["serve", "polcy", "--config", "recipes/quickstart.yaml"])
    with pytest.raises(AssertionError):
        read_make(["no-such-target"])
