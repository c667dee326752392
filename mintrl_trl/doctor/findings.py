"""What an examination found: one line for each thing looked at, with the remedy where one is needed.

Pure values; nothing is looked at here.
"""

from dataclasses import dataclass
from enum import Enum

from ..errors import ConfigError, MInTRLError


class Level(Enum):
    """How a thing was found."""

    OK = "ok"
    NOTE = "note"  # works, and is worth knowing
    PROBLEM = "PROBLEM"  # the run will stop, or will not be what it is meant to be


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Args:
        level ([`Level`]): How it was found.
        topic (`str`): What was looked at, in a word or two.
        text (`str`): What was found. Lines after the first are shown as they are.
        fix (`str`, defaults to `""`): What to change.
    """

    level: Level
    topic: str
    text: str
    fix: str = ""

    def __str__(self) -> str:
        first, *rest = self.text.splitlines() or [""]
        lines = [f"{self.level.value:<8}{self.topic:<14} {first}", *(f"{'':<23}| {line}" for line in rest)]
        return "\n".join([*lines, *([f"{'':<23}change: {self.fix}"] if self.fix else [])])


def ok(topic: str, text: str) -> Finding:
    """A thing that is as it should be."""
    return Finding(Level.OK, topic, text)


def note(topic: str, text: str, fix: str = "") -> Finding:
    """A thing worth knowing."""
    return Finding(Level.NOTE, topic, text, fix)


def problem(topic: str, text: str, fix: str = "") -> Finding:
    """A thing that has to change."""
    return Finding(Level.PROBLEM, topic, text, fix)


def refused(topic: str, error: MInTRLError) -> Finding:
    """An error as a problem: a setting with its remedy, anything else in its own words."""
    if isinstance(error, ConfigError):
        text, _, _ = str(error).partition(" Fix: ")
        return problem(topic, text, error.fix)
    return problem(topic, str(error))
