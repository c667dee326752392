r"""Where the program is in a completion.

Owns: the rules below; where blocks begin and end is a matter of `rewards.blocks`. Never executes or compiles anything,
never guesses a program out of prose. Invariant: text in, text out, in time linear in the length.

| completion | program |
|---|---|
| `<think>` opened and not closed | none: `unfinished_thinking` |
| `</think>` present | looked for behind the last one only |
| either of them within quotes, as in `text.split("</think>")` | part of the text |
| several blocks, a name wanted (entry point) | the last block that defines it at its top level |
| several blocks, no name wanted | the last one of the first kind in the next table that exists |
| a function that is still to be written (`...`, `pass`, a docstring) | defines nothing, unless there is nothing else |
| blocks without a language | only if none that is marked as Python will do |
| blocks marked with other languages, or consoles (`>>>`) | only if there is nothing else |
| the block uses names that it does not bind, and another block defines them | with that block's definitions in front |
| no block | the text from the first line that is plainly code; none: `no_code` |

| a whole program's block |
|---|
| reads input, prints, and does both by itself when it is run |
| the same, together with definitions of other blocks |
| reads and prints, in functions that nothing calls |
| prints when it is run |
| reads input |
| prints |
| anything else |

Input that a block makes up itself (`sys.stdin = StringIO(...)`) is not read.
"""

import re
import textwrap
from collections.abc import Collection, Sequence
from enum import StrEnum
from operator import attrgetter

from .blocks import code_blocks, from_definition, from_first_statement
from .python_text import Source

MAX_BLOCKS = 64  # of more, the last ones are looked at
_THINKING = re.compile(  # a tag, or what stands within quotes: no apostrophe, as it follows a letter
    r"(?P<tag></?think>)|(?<!\w)(?:[rbufRBUF]{1,2})?(?:\"\"\"[^\n]*?\"\"\"|'''[^\n]*?'''|\"[^\"\n]*\"|'[^'\n]*'|(?<!`)`[^`\n]+`(?!`))"
)
_INVISIBLE = re.compile(r"^[\ufeff\u200b\u2060]+", re.MULTILINE)
_FUTURE = re.compile(r"^from[ \t]+__future__[ \t]+import[ \t].*\n?", re.MULTILINE)


class NoProgram(StrEnum):
    """Why a completion has no program."""

    UNFINISHED_THINKING = "unfinished_thinking"
    NO_CODE = "no_code"


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
    text = _behind_thinking(completion)
    if text is None:
        return NoProgram.UNFINISHED_THINKING, ""
    text = _INVISIBLE.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    blocks = code_blocks(text)
    if blocks:
        candidates = ([block for block in blocks if block.may_be_python] or blocks)[-MAX_BLOCKS:]
        sources = [Source(textwrap.dedent(block.code)) for block in candidates]
        marked = [source for source, block in zip(sources, candidates, strict=True) if block.is_python]
        code = sources[0].text if len(sources) == 1 else _choose(sources, marked, frozenset(names))
    else:
        lines = text.split("\n")
        code = textwrap.dedent(from_first_statement(lines) or from_definition(lines))
    code = code.strip("\n")
    return (None, code + "\n") if code.strip() else (NoProgram.NO_CODE, "")


def _behind_thinking(completion: str) -> str | None:
    """What stands behind the thinking, `None` if that does not end."""
    tags = [match for match in _THINKING.finditer(completion) if match["tag"]] if "think>" in completion else []
    if tags and tags[-1]["tag"] == "<think>":
        return None
    return completion[tags[-1].end() :] if tags else completion


def _choose(sources: Sequence[Source], marked: Sequence[Source], names: frozenset[str]) -> str:
    """The program of several blocks, of which some are marked as Python."""
    like_code = [source for source in sources if from_first_statement(source.text.split("\n"))]
    pools = [pool for pool in (marked, like_code, sources) if pool]
    some = "|".join(map(re.escape, names))
    mentions = re.compile(rf"^[ \t]*(?:(?:async[ \t]+)?def|class)[ \t]+(?:{some})\b|^(?:{some})[ \t]*=", re.MULTILINE)
    for defines in (lambda source: source.defines & names, lambda source: names and mentions.search(source.plain)):
        for pool in pools:
            if defining := [source for source in pool if defines(source)]:
                return _joined(defining[-1], sources, names)
    programs = [_joined(source, sources, names) for source in pools[0]]
    ranks = [_rank(source, Source(program)) for source, program in zip(pools[0], programs, strict=True)]
    return programs[max(range(len(ranks)), key=lambda index: (-ranks[index], index))]


def _rank(source: Source, program: Source) -> int:
    """The row of the module's second table that a block, and what it becomes with others, belongs to."""
    complete = program.reads and program.prints
    kinds = (
        source.acts and source.reads and source.prints and program.text == source.text,
        source.acts and complete,
        complete,
        source.acts and source.prints,
        source.reads,
        source.prints,
    )
    return kinds.index(True) if True in kinds else len(kinds)


def _joined(source: Source, others: Sequence[Source], names: frozenset[str]) -> str:
    """The block, behind the definitions of other blocks that it needs."""
    position = next(index for index, other in enumerate(others) if other is source)
    wanted, front = source.needs | (names - source.defines), set()
    for provides in (attrgetter("provides"), attrgetter("binds")):
        # The nearest one before counts first, and what it needs itself may stand before it.
        for index in (*range(position - 1, -1, -1), *range(position + 1, len(others))):
            if wanted & provides(others[index]):
                front.add(index)
                wanted = (wanted | others[index].needs) - provides(others[index])
    if not front:
        return source.text
    program = "\n".join([*(others[index].definitions() for index in sorted(front)), source.text])
    return "".join(_FUTURE.findall(program)) + _FUTURE.sub("", program)
