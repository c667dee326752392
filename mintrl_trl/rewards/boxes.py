r"""Where the answer of a completion is: the last closed box of what follows the thinking.

Owns: the rules below and the closed set of reasons (`Why`). Never parses maths and never compares, so it is safe in the
trainer's process. Invariant: a row is never scored by guess; no box, no reward.

| completion | result |
|---|---|
| `<think>` opened, in it or at the end of a text prompt, and not closed | 0 `unfinished_thinking` |
| `</think>` present | only what follows the last one is looked at |
| `<thinking>`, `[THINK]`, other capitals | the same |
| `\fbox{5}`, `\framebox{5}`, `\Aboxed{5}`, `\boxed 5`, `\boxed5` | boxes as `\boxed{5}` is |
| `$-\boxed{5}$`, `x = -\boxed{5}` | the sign counts, where a formula or its side begins with it: -5 |
| no box | 0 `no_box`: a bare final number earns nothing |
| the last box is not closed (cut off) | 0 `unclosed`, whatever earlier boxes say |
| the last box is empty, or holds only spaces | 0 `empty_box`, whatever earlier boxes say |
| the last box is longer than 2,000 characters | 0 `too_long` |
| several boxes | the last one counts |
| several boxes with only `,` `;` `/` `name =` or joining words between | one list: `\boxed{3} or \boxed{5}` is not 5 |
| `$$\boxed{4}$$ $$\boxed{5}$$`: displays of their own, nothing else between | no list: the last one counts |
| text after the last box, cut off or not | ignored |
"""

import re
from enum import StrEnum

MAX_ANSWER_CHARS = 2000

_BOX = re.compile(
    r"\\(?:(?:boxed|fboxed|fbox|framebox|Aboxed)(?![a-zA-Z])\s*(?:\[[^\[\]{}]*\]\s*){0,2}"
    r"(?:\{|(?P<number>[-+]?\d+(?:[.,]\d+)*)|$))"  # the end of the text may cut a box off before its brace
)
_OPEN_THINKING, _END_THINKING = (re.compile(rf"[<\[]{tag}think(?:ing)?\s*[>\]]", re.IGNORECASE) for tag in ("", "/"))
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_NOTHING = re.compile(r"(?:[\s~{}$]|\\[,;:! ]|\\q?quad(?![a-zA-Z]))*")
_JOINING_WORD = r"(?:for (?:part|case) \(?\w\)?|(?:and|or|perhaps|maybe|possibly|alternatively)\b)"
_JOIN = re.compile(  # what may stand between two boxes of one list; nothing matched is given back: the time is linear
    rf"(?:[\s,;&$~*/]|\\[,;:! ()\[\]\\]|\\q?quad(?![a-zA-Z])|\b{_JOINING_WORD}|"
    rf"\\text\s*\{{(?:\s|{_JOINING_WORD})*+\}}|[A-Za-z](?:_\{{?\w+\}}?)?\s*=)*+"
)
_SIGN_CHARS = 8  # as many before a box are looked at
_SIGN = re.compile(r"(?:(?<=\$)|(?<==)\s*|(?<=\\[(\[])\s*)[-\u2212]\s*$")
_NEXT_DISPLAY = re.compile(r"[\s.*]*(?:\$\$[\s*]*\$\$|\\\][\s*]*\\\[)[\s*]*")


class Why(StrEnum):
    """Why a row got its reward; this module's table and that of `rewards.math` say when. A closed set."""

    CORRECT = "correct"
    WRONG = "wrong"
    NO_BOX = "no_box"
    UNCLOSED = "unclosed"
    EMPTY_BOX = "empty_box"
    TOO_LONG = "too_long"
    UNFINISHED_THINKING = "unfinished_thinking"
    ANSWER_UNPARSED = "answer_unparsed"
    GOLD_UNPARSED = "gold_unparsed"
    TIMEOUT = "timeout"
    CRASHED = "crashed"


def find_answer(completion: str) -> tuple[Why | None, str]:
    r"""Find the answer of a completion by the rules of the module's table.

    Returns:
        `tuple[Why | None, str]`: `None` and the answer to compare, or why there is nothing to compare.

    Examples:
        >>> find_answer(r"So \boxed{3}. Checking again: \boxed{5}.")
        (None, '5')
        >>> find_answer(r"\boxed{3} or \boxed{5}")
        (None, '3, 5')
        >>> find_answer(r"We get \boxed{12} then \boxed{1")[0]
        <Why.UNCLOSED: 'unclosed'>
    """
    text = _END_THINKING.split(completion)[-1]
    if _OPEN_THINKING.search(text):
        return Why.UNFINISHED_THINKING, ""
    boxes = list(_BOX.finditer(text))
    if not boxes:
        return Why.NO_BOX, ""
    end, content = _content(text, boxes[-1], len(text))
    if end is None:
        return Why.UNCLOSED, ""
    if _NOTHING.fullmatch(content):
        return Why.EMPTY_BOX, ""
    contents = [_signed(text, boxes[-1], content)]
    for earlier, later in zip(reversed(boxes[:-1]), reversed(boxes), strict=False):
        end, content = _content(text, earlier, later.start())
        if end is None or not _is_list(text[end : later.start() - len(_sign(text, later))]):
            break
        contents.append(_signed(text, earlier, content))
    boxed = ", ".join(dict.fromkeys(content for content in reversed(contents) if content))
    return (None, boxed) if len(boxed) <= MAX_ANSWER_CHARS else (Why.TOO_LONG, boxed[:MAX_ANSWER_CHARS])


def opens_thinking(prompt: str) -> bool:
    """Whether a text prompt ends with the mark that opens the thinking."""
    return _OPEN_THINKING.search(prompt.rstrip()[-12:]) is not None


def _content(text: str, box: re.Match, end: int) -> tuple[int | None, str]:
    """Where a box ends, `None` if that is not before `end`, and what it holds."""
    if box["number"]:
        return box.end(), box["number"]
    depth = 1
    for brace in _BRACE.finditer(text, box.end(), end):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return brace.end(), text[box.end() : brace.start()].strip()
    return None, ""


def _sign(text: str, box: re.Match) -> str:
    """The minus sign before a box, with the spaces about it, if formula and box begin there together."""
    sign = _SIGN.search(text[max(0, box.start() - _SIGN_CHARS) : box.start()])
    return sign[0] if sign else ""


def _signed(text: str, box: re.Match, content: str) -> str:
    if not content or not _sign(text, box):
        return content
    return f"-({content})" if re.search(r"[-+,=\u2212]", content) else f"-{content}"


def _is_list(between: str) -> bool:
    """Whether two boxes with this text between them are items of one list."""
    return _JOIN.fullmatch(between) is not None and _NEXT_DISPLAY.fullmatch(between) is None
