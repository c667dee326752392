r"""The blocks of code in a text: fences as models write them, and tags.

Owns: where a block begins and ends. Never chooses among blocks, never runs anything. Invariant: time linear in the
length.

| text | block |
|---|---|
| a fence (three or more backticks or tildes) at the start of a line, indented or behind a list mark too | to its end |
| a fence at the end of a line of prose, with a Python word behind it | to its end |
| a word behind the opening fence, alone or with attributes | a language; anything else is already code |
| a fence behind `>` marks | to its end, without these marks |
| no closing fence | to the end of the text, or to a fence with a Python word |
| only a closing fence, or a first fence without a word behind code | from the start: the prompt had the opening one |
| a closing fence glued to the last line of code | without it |
| fences inside a string of several lines, such as a docstring | part of the string |
| `[PYTHON]`, `<code>`, `<python>`, `<solution>`, `<answer>` with code and no fence behind it | to the closing tag |
"""

import html
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from .python_text import DEFINITION, STATEMENT, open_string

PYTHON = frozenset({"py", "py3", "python", "python2", "python3", "pypy", "pypy3", "ipython", "ipython3"})
_QUOTE = r"[ \t]{0,3}>[ \t]?"
_FENCE = re.compile(
    rf"(?P<quote>(?:{_QUOTE})*)(?P<indent>[ \t]*(?:(?:[-*+]|\d+[.)])[ \t]+)?)(?P<fence>`{{3,}}|~{{3,}})(?P<info>.*)"
)
_FENCE_AFTER_PROSE = re.compile(
    rf"(?<![`~])(?P<fence>`{{3,}}|~{{3,}})[ \t]*(?P<info>{'|'.join(sorted(PYTHON))})[ \t]*$", re.IGNORECASE
)
_TAG = re.compile(
    r"[ \t]*(?:<pre\b[^<>]*>[ \t]*)?(?P<tag>\[(?P<square>PYTHON|CODE)\]|"
    r"<(?P<angle>code|python|solution|answer)\b(?P<attributes>[^<>]*)>)(?P<rest>.*)",
    re.IGNORECASE,
)
_TAG_LANGUAGE = re.compile(r"lang(?:uage)?[-=]\"?([\w+#]+)")
_ATTRIBUTE = re.compile(r"[\w-]+=\S")  # as in title="solution.py"
_WORD = re.compile(r"[\w+#.-]+")


@dataclass(frozen=True)
class Block:
    """A block of a text.

    Args:
        language (`str`): The word behind its fence, in lower case; empty without one.
        code (`str`): Its text.
    """

    language: str
    code: str

    @property
    def is_python(self) -> bool:
        """Whether it is marked as Python."""
        return self.language in PYTHON

    @property
    def may_be_python(self) -> bool:
        """Whether it is no other language and no console."""
        return (self.is_python or not self.language) and not self.code.lstrip().startswith(">>>")


def code_blocks(text: str) -> list[Block]:
    """The blocks of a text, in order, by the rules of the module's table; blank ones are left out."""
    return [block for block in _Reader(text.split("\n")).blocks() if block.code.strip()]


def from_first_statement(lines: Sequence[str]) -> str:
    """All lines, if the first one with text that is no comment is code."""
    first = next((line for line in lines if line.strip() and not line.startswith("#")), "")
    return "\n".join(lines) if STATEMENT.match(first) else ""


def from_definition(lines: Sequence[str]) -> str:
    """From the first line that is plainly code."""
    start = next((number for number, line in enumerate(lines) if DEFINITION.match(line)), len(lines))
    return "\n".join(lines[start:])


class _Reader:
    """Reads blocks off the lines of a text."""

    def __init__(self, lines: list[str]):
        self._lines = lines
        self._fences = [number for number, line in enumerate(lines) if "```" in line or "~~~" in line]
        self._tags = [number for number, line in enumerate(lines) if _TAG.match(line)]
        self._places: dict[str, list[int]] = {}  # of a text, the lines that hold it

    def blocks(self) -> list[Block]:
        blocks: list[Block] = []
        number = self._read_prefilled(blocks)
        while number < len(self._lines):
            line = self._lines[number]
            number += 1
            if opening := _opening(line):
                number = self._read_fenced(opening, number, blocks)
            elif tag := _TAG.match(line):
                number = self._read_tagged(tag, number, blocks)
        return blocks

    def _read_prefilled(self, blocks: list[Block]) -> int:
        """A block whose opening fence was in the prompt; returns the line where others may begin."""
        first = next((number for number in self._fences if _opening(self._lines[number])), None)
        if first is None or _opening(self._lines[first])["info"].strip():
            return 0
        before = self._lines[:first]
        code = from_first_statement(before)
        if not code and not any(line.strip(" \t`~") for line in self._lines[first + 1 :]):
            code = "" if any(map(_TAG.match, before)) else from_definition(before)
        if not code:
            return 0
        blocks.append(Block("python", code))
        return first + 1

    def _read_fenced(self, opening: re.Match, number: int, blocks: list[Block]) -> int:
        """Read a block whose first line is `number`; returns the line behind it."""
        fence = opening["fence"]
        language, rest = _split_info(opening["info"].strip())
        if fence in rest:  # all on one line
            blocks.append(Block(language, rest.partition(fence)[0]))
            return number
        indent = len(opening.groupdict().get("indent", ""))
        quote = self._quote(opening, number)
        code, string = ([rest], open_string(rest)) if rest else ([], "")
        while number < len(self._lines):
            line = self._lines[number]
            if quote and line.strip():
                marks = quote.match(line)
                if marks is None:  # the quotation is over
                    break
                line = line[marks.end() :]
            stripped = line.strip()
            glued = fence[0] == "`" and stripped.endswith(fence) and stripped.count(fence) == 1
            if stripped.startswith(fence) or glued:
                end = self._end_of_string(number, string, len(line) - len(line.lstrip()) > indent) if string else None
                if end is None:
                    if not stripped.startswith(fence):
                        code.append(line.rstrip().rstrip("`"))
                    # A block that was not closed ends where the next one begins.
                    number += stripped.lstrip("`~").strip().lower() not in PYTHON
                    break
                code += self._unquoted(self._lines[number:end], quote)
                number, line = end, self._unquoted(self._lines[end : end + 1], quote)[0]
            code.append(line)
            string = open_string(line, string)
            number += 1
        blocks.append(Block(language, "\n".join(code)))
        return number

    def _end_of_string(self, number: int, string: str, is_deeper: bool) -> int | None:
        """The line that closes an open string, if the fence on line `number` stands in it.

        It does if the string is closed at all, and the fence has a word behind it, or stands deeper than the block's
        own, or has a partner before the string ends.
        """
        end = self._next(string, number)
        if end is None:
            return None
        if is_deeper or self._lines[number].strip().lstrip("`~"):
            return end
        partners = bisect_left(self._fences, end) - bisect_left(self._fences, number)
        return end if partners % 2 == 0 else None

    def _read_tagged(self, tag: re.Match, number: int, blocks: list[Block]) -> int:
        """Read what stands between tags, if it is code without fences; returns the line behind it."""
        closing = f"[/{tag['square']}]" if tag["square"] else f"</{tag['angle']}>"
        if closing in tag["rest"]:
            end, inside = number, [tag["rest"].partition(closing)[0]]
        else:
            end = self._next(closing, number)
            for inner in (self._fences, self._tags):
                index = bisect_left(inner, number)
                if index < len(inner) and (end is None or inner[index] < end):
                    return number  # the block is inside
            last = [] if end is None else [self._lines[end].partition(closing)[0]]
            inside = [tag["rest"], *self._lines[number:end], *last]
            end = len(self._lines) if end is None else end + 1
        while inside and not inside[0].strip():
            inside.pop(0)
        code = from_first_statement([inside[0].lstrip(), *inside[1:]] if inside else []) and "\n".join(inside)
        code = code or from_definition(inside)
        if not code:
            return number
        language = _TAG_LANGUAGE.search(tag["attributes"] or "")
        blocks.append(Block(language[1].lower() if language else "python", _unescaped(code) if tag["angle"] else code))
        return end

    def _next(self, text: str, number: int) -> int | None:
        """The first line from `number` on that holds a text."""
        if text not in self._places:
            self._places[text] = [place for place, line in enumerate(self._lines) if text in line]
        places = self._places[text]
        index = bisect_left(places, number)
        return places[index] if index < len(places) else None

    def _quote(self, opening: re.Match, number: int) -> re.Pattern | None:
        """What each line of a quoted block begins with."""
        marks = opening.groupdict().get("quote", "")
        if not marks or number == len(self._lines):
            return None
        blank = "[ \t]?" if marks[-1] in " \t" else ""
        quote = re.compile(rf"(?:{_QUOTE}){{{marks.count('>') - 1}}}[ \t]{{0,3}}>{blank}")
        return quote if quote.match(self._lines[number]) else None

    @staticmethod
    def _unquoted(lines: list[str], quote: re.Pattern | None) -> list[str]:
        return lines if quote is None else [quote.sub("", line, count=1) for line in lines]


def _opening(line: str) -> re.Match | None:
    return _FENCE.match(line) or _FENCE_AFTER_PROSE.search(line)


def _split_info(info: str) -> tuple[str, str]:
    """Language, and code that follows the fence on its own line."""
    word = _WORD.match(info.lstrip("{.")) if info else None
    language = word[0].lower() if word else ""
    rest = info.lstrip("{.")[word.end() :].strip() if word else info
    if not rest:
        return language, ""
    if language in PYTHON:
        return (language, rest if STATEMENT.match(rest) and not _ATTRIBUTE.match(rest) else "")
    attributes = info.startswith("{") or ((":" in rest or "=" in rest) and not STATEMENT.match(info))
    return (language, "") if attributes else ("", info)


def _unescaped(code: str) -> str:
    """Code from between HTML tags, where `<` is written `&lt;`."""
    return re.sub(r"&(?:lt|gt|amp|quot|#39);", lambda match: html.unescape(match[0]), code)
