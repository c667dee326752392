r"""Where the program is in a completion.

Owns: the rules below. Never executes or compiles anything, never guesses a program out of prose. Invariant: text in,
text out, in time linear in the length.

| completion | program |
|---|---|
| `<think>` opened and not closed | none: `unfinished_thinking` |
| `</think>` present | looked for behind the last one only |
| a fence (three or more backticks or tildes) at the start of a line, indented or behind a list mark too | the block |
| a fence at the end of a line of prose, with a Python word behind it | the block |
| a word behind the opening fence, alone or with attributes | a language; anything else is already code |
| no closing fence | to the end |
| only a closing fence, or a first fence without a word behind code | from the start: the prompt had the opening one |
| a closing fence glued to the last line of code | the block, without it |
| several blocks, a name wanted (entry point) | the last block that defines it |
| several blocks, no name wanted | of the last ones that read input, print, or neither, the first kind that exists |
| blocks marked with other languages, or consoles (`>>>`) | only if there is nothing else |
| no fence | the text from the first line that is plainly code; none: `no_code` |
"""

import re
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

_PYTHON = frozenset({"py", "py3", "python", "python2", "python3", "pypy", "pypy3", "ipython", "ipython3"})
_FENCE = re.compile(r"(?P<indent>[ \t]*(?:(?:[-*+]|\d+[.)])[ \t]+)?)(?P<fence>`{3,}|~{3,})(?P<info>.*)")
_FENCE_AFTER_PROSE = re.compile(
    rf"(?<![`~])(?P<fence>`{{3,}}|~{{3,}})[ \t]*(?P<info>{'|'.join(sorted(_PYTHON))})[ \t]*$", re.IGNORECASE
)
_ATTRIBUTE = re.compile(r"[\w-]+=\S")  # as in title="solution.py"
_WORD = re.compile(r"[\w+#.-]+")
_DEFINITION = re.compile(  # plainly code, wherever it stands
    r"(?:async\s+)?def\s+\w+\s*\(|class\s+\w+\s*[(:]|@\w|from\s+[\w.]+\s+import\s"
    r"|import\s+\w+(?:\.\w+)*(?:\s+as\s+\w+)?\s*(?:[,;#]|$)"
)
_STATEMENT = re.compile(  # code, if it is the first line with text
    _DEFINITION.pattern + r"|\w+(?:\.\w+|\[[^\[\]]*\])*(?:\s*,\s*\w+)*\s*[-+*/%|&]?=(?!=)|\w+(?:\.\w+)*\("
    r"|for\s+\w+(?:\s*,\s*\w+)*\s+in\b.*:|while\s.*:\s*$|with\s.*\sas\s.*:\s*$|if\s+__name__|try\s*:\s*$"
)
_READS = re.compile(r"\binput\s*\(|\bstdin\b|\bopen\s*\(\s*0\b|\bos\.read\s*\(|\bfileinput\b")
_PRINTS = re.compile(r"\bprint\s*\(|\bstdout\b|\bos\.write\s*\(")


class NoProgram(StrEnum):
    """Why a completion has no program."""

    UNFINISHED_THINKING = "unfinished_thinking"
    NO_CODE = "no_code"


@dataclass(frozen=True)
class _Block:
    language: str
    code: str

    @property
    def is_python(self) -> bool:
        return self.language in _PYTHON

    @property
    def may_be_python(self) -> bool:
        return (self.is_python or not self.language) and not self.code.lstrip().startswith(">>>")


def find_program(completion: str, names: Collection[str] = ()) -> tuple[NoProgram | None, str]:
    r"""Find the program of a completion by the rules of the module's table.

    Args:
        completion (`str`): What the model wrote.
        names (`Collection[str]`, *optional*): Names of which the program has to define one.

    Returns:
        `tuple[NoProgram | None, str]`: `None` and the program, or why there is none.

    Examples:
        >>> find_program("Like this:\n```python\nprint(1)\n```\nDone.")
        (None, 'print(1)\n')
        >>> find_program("I would sort the list.")[0]
        <NoProgram.NO_CODE: 'no_code'>
    """
    text = completion.rpartition("</think>")[2]
    if "<think>" in text:
        return NoProgram.UNFINISHED_THINKING, ""
    text = text.lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    blocks = [block for block in _blocks(text) if block.code.strip()]
    if blocks:
        code = _choose(blocks, names)
    else:
        lines = text.split("\n")
        code = _from_first_statement(lines) or _from_definition(lines)
    code = textwrap.dedent(code).strip("\n")
    return (None, code + "\n") if code.strip() else (NoProgram.NO_CODE, "")


def _choose(blocks: Sequence[_Block], names: Collection[str]) -> str:
    candidates = [block for block in blocks if block.may_be_python] or list(blocks)
    if names:
        some = "|".join(map(re.escape, names))
        defines = re.compile(
            rf"^[ \t]*(?:(?:async[ \t]+)?def|class)[ \t]+(?:{some})\b|^(?:{some})[ \t]*=", re.MULTILINE
        )
        defining = [block for block in candidates if defines.search(block.code)]
        if defining:
            return defining[-1].code
    candidates = [block for block in candidates if block.is_python] or candidates
    for pattern in (_READS, _PRINTS):
        if matching := [block for block in candidates if pattern.search(block.code)]:
            return matching[-1].code
    return candidates[-1].code


def _blocks(text: str) -> list[_Block]:
    lines = text.split("\n")
    first = next((number for number, line in enumerate(lines) if _opening(line)), None)
    if first is None:
        return []
    blocks: list[_Block] = []
    if not _opening(lines[first])["info"].strip():
        prefilled = _from_first_statement(lines[:first])
        if not prefilled and not any(line.strip(" \t`~") for line in lines[first + 1 :]):
            prefilled = _from_definition(lines[:first])
        if prefilled:
            blocks.append(_Block("python", prefilled))
            first += 1
    fence, language, code = "", "", []
    for line in lines[first:]:
        stripped = line.strip()
        if fence:
            glued = fence[0] == "`" and stripped.endswith(fence) and stripped.count(fence) == 1
            if not stripped.startswith(fence) and not glued:
                code.append(line)
                continue
            if not stripped.startswith(fence):
                code.append(line.rstrip().rstrip("`"))
            blocks.append(_Block(language, "\n".join(code)))
            fence = ""
            if stripped.lstrip("`~").strip().lower() not in _PYTHON:
                continue
            # A block that was not closed ends where the next one begins.
        if opening := _opening(line):
            fence = opening["fence"]
            language, rest = _split_info(opening["info"].strip())
            code = [rest] if rest else []
            if fence in rest:  # all on one line
                blocks.append(_Block(language, rest.partition(fence)[0]))
                fence = ""
    if fence:
        blocks.append(_Block(language, "\n".join(code)))
    return blocks


def _opening(line: str) -> re.Match | None:
    return _FENCE.match(line) or _FENCE_AFTER_PROSE.search(line)


def _split_info(info: str) -> tuple[str, str]:
    """Language, and code that follows the fence on its own line."""
    word = _WORD.match(info.lstrip("{.")) if info else None
    language = word[0].lower() if word else ""
    rest = info.lstrip("{.")[word.end() :].strip() if word else info
    if not rest:
        return language, ""
    if language in _PYTHON:
        return (language, rest if _STATEMENT.match(rest) and not _ATTRIBUTE.match(rest) else "")
    attributes = info.startswith("{") or ((":" in rest or "=" in rest) and not _STATEMENT.match(info))
    return (language, "") if attributes else ("", info)


def _from_first_statement(lines: Sequence[str]) -> str:
    """All lines, if the first one with text that is no comment is code."""
    first = next((line for line in lines if line.strip() and not line.startswith("#")), "")
    return "\n".join(lines) if _STATEMENT.match(first) else ""


def _from_definition(lines: Sequence[str]) -> str:
    """From the first line that is plainly code."""
    start = next((number for number, line in enumerate(lines) if _DEFINITION.match(line)), len(lines))
    return "\n".join(lines[start:])
