"""Finds the command lines that files show to people: in the headings of recipes, in fenced blocks."""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAMS = (
    "accelerate",
    "python",
    "mintrl",
    "make",
    "pip",
    ".venv-vllm/bin/pip",
    "vllm",
    ".venv-vllm/bin/vllm",
    "export",
    ".",
    "cd",
    "sbatch",
    "srun",
)
HEADING = re.compile(r"^# ?(?P<text>.*)$")
FILE = "rows.jsonl"  # takes the place of FILE in what is shown
LABEL = re.compile(r"^(?P<label>[A-Z][a-z]+): +(?P<text>.*)$")
VENV = ".venv/bin/"  # that of `make setup`
VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*=")


def joined(text: str) -> list[str]:
    """Lines, with those that end in a backslash continued."""
    return [line.strip() for line in re.sub(r"\\\n\s*", " ", text).splitlines()]


def words_of(line: str) -> list[str]:
    """A command as a shell splits it, without variables and a folder before it and comments behind it."""
    words = shlex.split(line, comments=True)
    while words and VARIABLE.match(words[0]):
        words.pop(0)
    return [word.removeprefix(VENV) if number == 0 else word for number, word in enumerate(words)]


def section(path: Path, label: str) -> str:
    """What a file's heading says under a label."""
    found, lines = None, []
    heading = path.read_text(encoding="utf-8").removeprefix("#!/bin/bash\n").partition("\n\n")[0]
    for line in heading.splitlines():
        text = HEADING.match(line)["text"]
        match = LABEL.match(text)
        if match:
            found, text = match["label"], match["text"]
        if found == label:
            lines.append(text.strip())
    return "\n".join(lines)


def heading_commands(path: Path) -> list[list[str]]:
    """The commands under `Command:` in the heading of a recipe or launch file. Words around them are left out."""
    lines = [part for line in joined(section(path, "Command")) for part in line.split("  or  ")]
    # A note in brackets behind a command stands two blanks apart from it.
    commands = [words_of(re.split(r"\s{2,}\(", line.strip())[0]) for line in lines if _is_command(line.strip())]
    assert commands, f"{path.name} shows no command"
    return commands


def _is_command(line: str) -> bool:
    bare = re.sub(rf"^(?:{VARIABLE.pattern}\S+ )+", "", line)
    return bare.split(" ")[0] in PROGRAMS


def fenced_commands(path: Path) -> list[list[str]]:
    """The commands in the shell blocks of a page."""
    blocks = re.findall(r"```(?:bash|sh)\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
    return [words for block in blocks for line in joined(block) if (words := words_of(line))]


def variants(path: Path) -> list[list[str]]:
    """Flags of each variant that a recipe's heading offers."""
    text = " ".join(section(path, "Variants").splitlines())
    found = []
    for part in re.split(r"(?<=[.;:]) ", text):
        flags = shlex.split(" ".join(re.findall(r"--[a-z]\w* [^\s,;]+", part)).replace("FILE", FILE))
        flags = [flag.rstrip(".") for flag in flags]
        if flags:
            found.append(flags)
    return found
