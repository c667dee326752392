r"""The program in a solution that is still being written, and the step to blame for what it does.

Owns: the rules below. Never runs or compiles anything. Fences are those of `rollouts.segmentation`, so that places in
the text and borders of steps agree. Invariant: every line of a program is a line of the text, at a known place.

| the text so far | program |
|---|---|
| thinking that is not closed, or no code block | none; what stands before `</think>` counts for nothing |
| several blocks | the last one that defines the entry point; without one, the last that reads input |
| blocks in other languages, or consoles (`>>>`) | none |
| a closed block | the block |
| an open block | its top-level statements but the last, which may be unfinished, if they define the entry point |
| an open block of a whole program | none: what it prints is not all yet |

| what is known of the failure | step to blame |
|---|---|
| a line of the program | the step that holds it |
| that a function's result is wrong, missing or late | the step with the function's last `return`, or its last line |
| the same of a whole program | the step with the last line that prints, or the last line |

A step before the new ones is never blamed; the first new step is then.
"""

import re
import textwrap
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

_FENCE_LINE = re.compile(r"^[^\S\n]*`{3,}([^`\n]*)$", re.MULTILINE)  # group 1: the info string
_PYTHON = frozenset({"", "py", "py3", "python", "python3", "pypy", "pypy3"})
_READS = re.compile(r"\binput\s*\(|\bstdin\b|\bopen\s*\(\s*0\b|\bos\.read\s*\(|\bfileinput\b")
_PRINTS = re.compile(r"\bprint\s*\(|\bstdout\b|\bos\.write\s*\(")
_RETURNS = re.compile(r"\s+(?:return|yield)\b|.*:\s*(?:return|yield)\b")
_STATEMENT = re.compile(r"(?!(?:else|elif|except|finally)\b)[A-Za-z_@]")  # at the beginning of a line
_THINK_START, _THINK_END = "<think>", "</think>"


@dataclass(frozen=True)
class CodeBlock:
    """A fenced block of a text, without its fences.

    Args:
        language (`str`): First word of the info string, in lower case.
        code (`str`): Its text as it stands.
        start (`int`): Place of its first character.
        end (`int`): Place behind its closing fence, or the end of the text.
        closed (`bool`): Whether there is a closing fence.
    """

    language: str
    code: str
    start: int
    end: int
    closed: bool


@dataclass(frozen=True)
class WrittenProgram:
    """A program that can be run, and where it stands.

    Args:
        source (`str`): Python source; its lines are the block's.
        block (`CodeBlock`): Where it was found.
        known_at (`int`): Place of the text up to which one has to read to know that it is whole.
    """

    source: str
    block: CodeBlock
    known_at: int

    @property
    def finished(self) -> bool:
        """Whether the block is closed: nothing will be added to the program."""
        return self.block.closed

    def place(self, line: int) -> int:
        """Place in the text where a line of the program (from 1) begins."""
        lines = self.block.code.splitlines(keepends=True)
        return self.block.start + sum(map(len, lines[: line - 1]))

    def result_line(self, name: str | None) -> int:
        """The line (from 1) where the result is made; see the module's second table."""
        lines = self.source.splitlines()
        span, makes = (range(len(lines)), _PRINTS.search) if name is None else (_body(lines, name), _RETURNS.match)
        written = [number for number in span if lines[number].strip()]
        made = [number for number in written if makes(lines[number])]
        return 1 + (made or written or [0])[-1]


def written_program(text: str, name: str | None) -> WrittenProgram | None:
    """Find the program so far by the rules of the module's first table.

    Args:
        text (`str`): The solution so far.
        name (`str`, *optional*): Name that the program has to define, or `None` for a program that reads input.
    """
    wanted = _READS if name is None else _definition(name)
    for block in reversed(list(code_blocks(text))):
        if block.language not in _PYTHON or block.code.lstrip().startswith(">>>"):
            continue
        source, known_at = textwrap.dedent(block.code), block.end
        if not block.closed:
            if name is None:
                continue
            lines = source.splitlines(keepends=True)
            begun = max((number for number, line in enumerate(lines) if _STATEMENT.match(line)), default=0)
            source = "".join(lines[:begun])
            known_at = block.start + sum(map(len, block.code.splitlines(keepends=True)[:begun])) + 1
        if wanted.search(source):
            return WrittenProgram(source, block, known_at)
    return None


def code_blocks(text: str) -> Iterator[CodeBlock]:
    """The fenced blocks of a text behind its thinking, in order; the last one may be open."""
    begin = text.rfind(_THINK_END)
    begin = 0 if begin < 0 else begin + len(_THINK_END)
    if _THINK_START in text[begin:]:
        return
    opening: re.Match | None = None
    for fence in _FENCE_LINE.finditer(text, begin):
        if opening is None:
            opening = fence
        elif not fence[1].strip():
            yield _block(text, opening, fence.start(), fence.end(), True)
            opening = None
    if opening is not None:
        yield _block(text, opening, len(text), len(text), False)


def step_at(steps: Sequence[str], place: int, first_new: int) -> int:
    """Index of the step that holds a character of the joined steps, or of the first new one if it comes later."""
    ends = list(accumulate(map(len, steps)))
    return max(min(bisect_right(ends, place), len(steps) - 1), first_new)


def _block(text: str, opening: re.Match, code_end: int, end: int, closed: bool) -> CodeBlock:
    start = min(opening.end() + 1, code_end)  # behind the line break
    language = (opening[1].split() or [""])[0].lower()
    return CodeBlock(language, text[start:code_end], start, end, closed)


def _definition(name: str) -> re.Pattern[str]:
    name = re.escape(name.partition(".")[0])
    return re.compile(rf"^[ \t]*(?:(?:async[ \t]+)?def|class)[ \t]+{name}\b|^{name}[ \t]*=", re.MULTILINE)


def _body(lines: Sequence[str], name: str) -> range:
    """Lines of the function, its head included; all lines where it is not defined by `def`."""
    head = re.compile(rf"(\s*)(?:async\s+)?def\s+{re.escape(name.rpartition('.')[2])}\b")
    heads = [number for number, line in enumerate(lines) if head.match(line)]
    if not heads:
        return range(len(lines))
    first = heads[-1]
    indent = len(head.match(lines[first])[1])
    last = first + 1
    while last < len(lines) and _belongs(lines[last], indent):
        last += 1
    return range(first, last)


def _belongs(line: str, indent: int) -> bool:
    """Whether a line goes on with the function whose head has this indentation."""
    text = line.lstrip()
    return not text or len(line) - len(text) > indent or text[0] == ")"  # the end of a head in several lines
