r"""Whether two short answers are the same mathematical value. Imported in the checker's child processes only.

Owns: the rules by which an answer is read before math-verify compares it. Never looks for an answer in a longer text
(that is `rewards.math`), never limits time or memory (that is `rewards.worker`), never turns a parsed value into text:
for some values that does not end. Invariant: a value is compared as LaTeX inside a box, gold and answer read alike.

| written | read as |
|---|---|
| `$x$`, `\(x\)`, `x.`, `x \\` | `x`: maths delimiters, spaces and a final stop go |
| `= 118`, `\approx 118` | `118`: a leading relation goes; the value must still agree to 6 decimals |
| `\text{The answer is } 118` | `118`: leading words in a text group go |
| `118 \text{ km/h}`, `118 dollars`, `\$118`, `118^\circ` | `118`: units are not compared, but `12 dozen` is not 12 |
| `28\%` | equal to `28`, `28\%` and `0.28` |
| `6,300`, `6{,}300`, `6\,300`, `6 300` | `6300`: groups of exactly three digits; `32, 349` is a list of two numbers |
| `1\,05` | `105`: a thin space between digits goes |
| `3 or 5`, `3 \text{ and } 5` | the list `3, 5`, which equals no single number |
| `(1,2)`, `[1,2]`, `\{1,2\}` | three different things; without brackets, `1,2` may stand for each |
| `1,2` | a list in any order; `(1,2)` is ordered |
| `204_5` and `204_7` | different; `204` may stand for each |
| `no solution`, `\text{Monday}` | words (three letters or more) are compared as text, capitals ignored |
| `0.33` for `\frac13` | different; decimals must agree when rounded to 6 places |
"""

import logging
import re
from functools import lru_cache

from math_verify import LatexExtractionConfig, parse, verify

for _name in ("math_verify.parser", "math_verify.grader"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)  # its warnings are about limits, which the pool owns

CORRECT, WRONG, GOLD_UNPARSED, ANSWER_UNPARSED = "correct", "wrong", "gold_unparsed", "answer_unparsed"

_CONFIG = (LatexExtractionConfig(boxed_match_priority=0),)
_PLAIN_TEXT = r"\\(?:text|textbf|textit|textrm|textnormal|mbox)"
_GROUP = re.compile(r"\\(?:text|textbf|textit|textrm|textnormal|mbox|mathrm|mathbf)\s*\{([^{}]*)\}")
# Several words, or one that announces (`Answer: `), or the letter of a choice; not a name such as \text{area} - 5.
_LEADING_WORDS = re.compile(_PLAIN_TEXT + r"\s*\{(?=[^{}]*[A-Za-z]{3})[^{}]*[\s:=][^{}]*\}(?=.*\S)", re.DOTALL)
_LEADING_CHOICE = re.compile(_PLAIN_TEXT + r"\s*\{\s*\(?[A-H]\)?[.:]?\s*\}(?:\s|\\[ ,;:])*(?=[\d\\(-])")
_LEADING_RELATION = re.compile(r"(?:=|\\(?:approx|simeq)(?![a-zA-Z]))\s*")
_DELIMITERS = re.compile(r"(?<!\\)(?:\$|\\[()\[\]])")
_START = re.compile(r"(?:\s|\\[,;:! ])+")
_END = re.compile(r"(?:\s|\\[,;:! ]|\\\\|(?<![.\\])[.,;])+$")
_THIN_SPACE = re.compile(r"(?<=\d)\\[,!:;](?=\d)|(?<=\d)\{,\}(?=\d)")
_THREES = re.compile(r"[-+]?(?:\\\$\s*)?\d{1,3}(?:[ ,]\d{3})+(?:\.\d+)?")
_CONNECTIVE = re.compile(r"\s*,?\s+(?:and|or)\s+")
_WORDS_AFTER_NUMBER = re.compile(r"([-+]?(?:\\\$)?\s*[\d.,]*\d(?:/\d+)?)\s*((?:[A-Za-z]{3,}[\s.]*)+)")
_MEANINGFUL = re.compile(  # words that change a number's value, and functions
    r"\b(?:hundred|thousand|[mb]illion|trillion|dozen|half|percent(?:age)?|pct|mod|a?sin|a?cos|a?tan|cot|sec|csc|log|exp|"
    r"sqrt|max|min|inf)\b",
    re.IGNORECASE,
)
_WORDS = re.compile(r"[A-Za-z]{3,}(?:[\s'-]+[A-Za-z]+)*")
_BASE = re.compile(r"-?\w+_\{?(\d+)\}?")
_OPENING, _CLOSING = {"(": "(", "[": "[", r"\{": "{"}, {")": ")", "]": "]", r"\}": "}"}
_SIZES = re.compile(r"\\(?:left|right|[bB]igg?[lr]?)(?![a-zA-Z])\s*")
_SYNONYMS = {r"\lbrace": r"\{", r"\rbrace": r"\}", r"\langle": "(", r"\rangle": ")"}
_SYNONYM = re.compile(r"\\(?:lbrace|rbrace|langle|rangle)(?![a-zA-Z])")
_UPRIGHT = re.compile(r"\\(?:mathrm|text)\s*\{([ei])\}")
_ROW_SPACE = re.compile(r"\\\\\[[\d.]+\s*[a-z]{2}\]")


def grade(request: dict[str, str]) -> str:
    """Compare `request["answer"]` with `request["gold"]`.

    Returns:
        `str`: `"correct"`, `"wrong"`, `"gold_unparsed"` or `"answer_unparsed"`.
    """
    gold, answer = read(request["gold"]), read(request["answer"])
    parsed_gold = _parse(gold)
    words = _words(gold), _words(answer)
    if words[0] is None and not _has_value(parsed_gold):
        return GOLD_UNPARSED
    if gold == answer:
        return CORRECT
    if None not in words:
        return CORRECT if words[0] == words[1] else WRONG
    if _brackets(gold) and _brackets(answer) and _brackets(gold) != _brackets(answer):
        return WRONG
    bases = _BASE.fullmatch(gold), _BASE.fullmatch(answer)
    if None not in bases and bases[0][1] != bases[1][1]:
        return WRONG
    parsed = _parse(answer)
    if verify(list(parsed_gold), list(parsed), allow_set_relation_comp=True, timeout_seconds=None):
        return CORRECT
    return WRONG if words[1] or _has_value(parsed) else ANSWER_UNPARSED


def read(text: str) -> str:
    r"""Bring an answer into the form that is compared, by the rules of the module's table.

    Examples:
        >>> read(r"\text{The answer is } 118.")
        '118'
        >>> read(r"$6{,}300$ dollars")
        '6300'
        >>> read(r"3 \text{ or } 5")
        '3, 5'
    """
    text = _DELIMITERS.sub("", text).replace("~", " ")
    text = _SYNONYM.sub(lambda match: _SYNONYMS[match[0]], text)
    text = _ROW_SPACE.sub(r"\\\\", _UPRIGHT.sub(r"\1", text))
    text = re.sub(_PLAIN_TEXT + r"\s*\{\s*(and|or)\s*\}", r" \1 ", text)
    text = _trim(text)
    whole = _GROUP.fullmatch(text)
    if whole and re.match(r"\s*[-+]?(?:\\\$)?\s*\.?\d", whole[1]):
        text = _trim(whole[1])
    for leading in (_LEADING_WORDS, _LEADING_CHOICE, _LEADING_RELATION):
        if match := leading.match(text):
            text = _trim(text[match.end() :])
    text = _CONNECTIVE.sub(", ", _THIN_SPACE.sub("", text))
    plain = _GROUP.sub(r" \1", text)
    if number := _WORDS_AFTER_NUMBER.fullmatch(plain):
        text = plain if _MEANINGFUL.search(number[2]) else number[1]
    return re.sub("[ ,]", "", text) if _THREES.fullmatch(text) else text


def _trim(text: str) -> str:
    text = _START.sub("", text, count=1) if _START.match(text) else text
    return _END.sub("", text)


def _has_value(parsed: tuple) -> bool:
    """Whether math-verify read a value and not just text."""
    return any(not isinstance(value, str) for value in parsed)


@lru_cache(maxsize=4096)
def _parse(text: str) -> tuple:
    if not _balanced(text):
        return ()  # it would close the box early, or never
    return tuple(parse(rf"\boxed{{{text}}}", _CONFIG, parsing_timeout=None))


def _balanced(text: str) -> bool:
    depth = 0
    for token in re.findall(r"\\.|[{}]", text, re.DOTALL):
        depth += {"{": 1, "}": -1}.get(token, 0)
        if depth < 0:
            return False
    return depth == 0


def _words(text: str) -> str | None:
    """The words that `text` consists of, or `None` if it is anything else."""
    whole = _GROUP.fullmatch(text)
    text = (whole[1] if whole else text).strip()
    return " ".join(text.lower().split()) if _WORDS.fullmatch(text) else None


def _brackets(text: str) -> tuple[str, str] | None:
    """The pair of brackets around a list, or `None` for a text that is no list or has no brackets around it."""
    text = _SIZES.sub("", text)
    tokens = re.findall(r"\\[{}]|\\[a-zA-Z]+|.", text)
    if len(tokens) < 2 or tokens[0] not in _OPENING or tokens[-1] not in _CLOSING:
        return None
    depth, is_list = 0, False
    for position, token in enumerate(tokens):
        depth += (token in _OPENING or token == "{") - (token in _CLOSING or token == "}")
        if depth == 0 and position < len(tokens) - 1:
            return None  # the first bracket closes before the end, as in (1,2),(3,4)
        is_list |= depth == 1 and token == ","
    return (_OPENING[tokens[0]], _CLOSING[tokens[-1]]) if is_list else None
