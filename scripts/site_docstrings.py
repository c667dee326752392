"""Docstrings for the API reference: an extension of Griffe, which reads the package without importing it.

Owns how the project's docstrings, which have the form of Hugging Face's, become those that Griffe parses: the types of
arguments come from the signature, and a name in brackets becomes a link. It changes what is shown and no source.
"""

import re
from pathlib import Path

import griffe

ROOT = Path(__file__).parents[1]
PUBLIC = re.findall(r'^    "(\w+)",$', (ROOT / "mintrl_trl" / "__init__.py").read_text(encoding="utf-8"), re.MULTILINE)
NAME = re.compile(r"\[`(?P<name>[\w.]+)`\](?!\(|\[)")
TYPED = re.compile(r"^(?P<indent> +)(?P<names>\*{0,2}\w+) \((?P<type>[^()]*(?:\([^()]*\)[^()]*)*)\)", re.MULTILINE)


class PlainDocstrings(griffe.Extension):
    """Rewrites each docstring of the package before it is parsed."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: object) -> None:
        """Called for every object once it is loaded."""
        if obj.docstring is not None:
            obj.docstring.value = plain(obj.docstring.value)


def plain(docstring: str) -> str:
    r"""A docstring with links for public names, and without what the signature says better.

    >>> plain("Judge of [`Rollout`].\n\nArgs:\n    limit (`int`, *optional*): See [`_Private`].")
    'Judge of [`Rollout`][mintrl_trl.Rollout].\n\nArgs:\n    limit: See `_Private`.'
    """
    return TYPED.sub(_untyped, NAME.sub(_linked, docstring))


def _linked(match: re.Match[str]) -> str:
    name = match["name"]
    return f"[`{name}`][mintrl_trl.{name}]" if name.split(".")[0] in PUBLIC else f"`{name}`"


def _untyped(match: re.Match[str]) -> str:
    return match["indent"] + match["names"]
