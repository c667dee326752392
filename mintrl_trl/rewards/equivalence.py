r"""Whether two short answers are the same mathematical value. Imported in the checker's child processes only.

Owns: the rules by which two answers are compared, all in this table, and the comparison itself. How an answer is
rewritten for it is in `rewards.reading`. Never looks for an answer in a longer text (that is `rewards.math`), never
limits time or memory (that is `rewards.worker`), never turns a parsed value into text: for some values that does not
end. Invariant: a value is compared as LaTeX inside a box, gold and answer read alike.

| written | read as |
|---|---|
| `$x$`, `\(x\)`, `x.`, `x \\` | `x`: maths delimiters, spaces and a final stop go |
| `\mathbf{x}`, `\large x`, `\textcolor{red}{x}`, `x \checkmark` | `x`: dressing goes |
| `√3`, `2π`, `x²`, `≤`, `−5` | typographic characters are read as their commands |
| `\frac12`, `\frac\pi2`, `\binom52` | arguments without braces are legal LaTeX |
| `= 118`, `\approx 118`, `about 118` | `118`: a leading relation goes; the value must still agree to 6 decimals |
| `\text{The answer is } 118`, `Total: 118` | `118`: words that end by announcing a value go, others stay |
| `118 \text{ km/h}`, `118 dollars`, `\$118`, `118^\circ` | `118`: words and units after a number go |
| `5 \text{ cm}` and `5 \text{ m}` | different: common units are told apart if both sides have one; none is converted |
| `5 hours 30 minutes` | equal only to the same numbers of the same units |
| `12 dozen`, `1.5 million` | `144`, `1500000` |
| `not 118`, `at least 118`, `118 or more`, `5 tenths` | words that change a value must stand on both sides |
| `28\%` | equal to `28`, `28\%` and `0.28` |
| `6,300`, `6{,}300`, `6,\!300`, `6\,300`, `6 300` | `6300`: groups of three digits; `32, 349` is a list |
| `1\,05` | `105`: a thin space between digits goes |
| `3 or 5`, `3 \text{ and } 5` | the list `3, 5`, which equals no single number |
| `2 \pm \sqrt3` | the list `2+\sqrt3, 2-\sqrt3`, unless several signs or brackets leave it open |
| `(1,2)`, `[1,2]`, `\{1,2\}` | three different things; without brackets, `1,2` may stand for a set or a pair |
| `1,2` | a list in any order, repeats ignored; `(1,2)` is ordered |
| `(0,1]`, `0 < x \le 1` | the same interval |
| `x = 5`, `f(x) = 5`, `x + y = 5` | equal to `5`; `2x = 5`, `x^2 = 5` are equations for `x` and are not |
| `y = 2x` and `2x - y = 0` | the same curve |
| `2x = 10 \implies x = 5` | `x = 5`: the conclusion counts |
| `\frac{2}{6} = \frac13` | the last side counts; numbers equated that differ (`3 = 5`) are wrong |
| `204_5` and `204_7` | different; `204` may stand for each |
| `4:30 p.m.` and `4:30 a.m.` | different; `4:30` may stand for each |
| `no solution`, `\text{Monday}` | words (three letters or more) are compared as text, capitals ignored |
| `0.33` for `\frac13` | different; decimals agree when rounded to 6 places, and within 1/1000 of their value |
| a gold of more than 20 words | cannot be read: a gold is a short answer, or has its answer in a box |
"""

import logging
import re
from functools import lru_cache

from math_verify import LatexExtractionConfig, parse, verify

from .reading import GROUP, changing_words, clock, items, quantities, read, tokens, unit

for _name in ("math_verify.parser", "math_verify.grader"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)  # its warnings are about limits, which the pool owns

CORRECT, WRONG, GOLD_UNPARSED, ANSWER_UNPARSED = "correct", "wrong", "gold_unparsed", "answer_unparsed"

MAX_WORDS = 20
_CONFIG = (LatexExtractionConfig(boxed_match_priority=0),)
_WORDS = re.compile(r"[A-Za-z]{3,}(?:[\s'-]+[A-Za-z]+)*")
_PROSE_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
_DECIMAL = re.compile(r"[-+]?\d*\.\d+")
_EQUALS = re.compile(r"(?<![<>!:])=")
_APPROXIMATES = re.compile(r"\\(?:approx|simeq|equiv)(?![a-zA-Z])")
_BASE = re.compile(r"-?\w+_\{?(\d+)\}?")
_BRACKETS = {"(": "(", "[": "[", r"\{": "{", ")": "(", "]": "[", r"\}": "{"}
_SIZES = re.compile(r"\\(?:left|right|[bB]igg?[lr]?)(?![a-zA-Z])\s*")


def grade(request: dict[str, str]) -> str:
    """Compare `request["answer"]` with `request["gold"]`.

    Returns:
        `str`: `"correct"`, `"wrong"`, `"gold_unparsed"` or `"answer_unparsed"`.
    """
    gold, answer = read(request["gold"]), read(request["answer"])
    if len(_PROSE_WORD.findall(gold)) > MAX_WORDS:
        return GOLD_UNPARSED
    parsed_gold = _parse(gold)
    if _words(gold) is None and clock(gold) is None and not _has_value(parsed_gold):
        return GOLD_UNPARSED
    same = _same_text(gold, answer)
    if same is None:
        several = quantities(request["gold"]), quantities(request["answer"])
        same = several[0] == several[1] if any(several) else None
    if same is not None:
        return CORRECT if same and _same_unit(request) else WRONG
    if changing_words(gold) != changing_words(answer) or not _same_unit(request) or not _same_form(gold, answer):
        return WRONG
    if _is_false_chain(answer) or (_is_number(parsed_gold) and (_is_unsolved(answer) or _is_bare_list(answer))):
        return WRONG
    parsed = _parse(f"({answer})" if _brackets(gold) == ("(", "(") and _is_bare_list(answer) else answer)
    if verify(list(parsed_gold), list(parsed), allow_set_relation_comp=True, timeout_seconds=None):
        return CORRECT if _decimals_agree(gold, answer, parsed_gold, parsed) else WRONG
    return WRONG if _words(answer) or _has_value(parsed) else ANSWER_UNPARSED


def _same_text(gold: str, answer: str) -> bool | None:
    """Whether the two are the same text, words or time of day; `None` where their text does not decide."""
    if gold == answer:
        return True
    words = _words(gold), _words(answer)
    if None not in words:
        return words[0] == words[1]
    times = clock(gold), clock(answer)
    if None not in times:
        return times[0][:2] == times[1][:2] and {times[0][2], times[1][2]} != {"a", "p"}
    return None


def _same_form(gold: str, answer: str) -> bool:
    """Whether brackets around a list, and the bases of numbers, are the same where both sides have them, and what
    math-verify overlooks in a list, a minus sign before it and dots in it, stands on both sides or none."""
    for form in (_brackets, _base):
        forms = form(gold), form(answer)
        if None not in forms and forms[0] != forms[1]:
            return False
    return _negates_list(gold) == _negates_list(answer) and _has_dots(gold) == _has_dots(answer)


def _same_unit(request: dict[str, str]) -> bool:
    """Whether gold and answer state the same unit, or one of them none."""
    units = unit(request["gold"]), unit(request["answer"])
    return None in units or units[0] == units[1]


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
    whole = GROUP.fullmatch(text)
    text = (whole[1] if whole else text).strip()
    return " ".join(text.lower().split()) if _WORDS.fullmatch(text) else None


def _decimals_agree(gold: str, answer: str, parsed_gold: tuple, parsed: tuple) -> bool:
    """Whether two numbers, one of them a decimal, differ by less than a thousandth of themselves."""
    if "%" in gold + answer or not (_DECIMAL.fullmatch(gold) or _DECIMAL.fullmatch(answer)):
        return True
    if not (_is_number(parsed_gold) and _is_number(parsed)):
        return True
    first, second = (complex(parsed[0].evalf(15)) for parsed in (parsed_gold, parsed))
    return abs(first - second) <= 1e-3 * max(abs(first), abs(second))


def _is_number(parsed: tuple) -> bool:
    return bool(parsed) and getattr(parsed[0], "is_number", False)


def _is_false_chain(text: str) -> bool:
    """Whether `text` equates numbers that differ, as `3 = 5` does, up to the first approximation."""
    sides = _EQUALS.split(_APPROXIMATES.split(text)[0])
    if len(sides) < 2 or "," in text:
        return False
    numbers = [list(parsed) for parsed in map(_parse, sides) if _is_number(parsed)]
    return any(not verify(numbers[0], other, timeout_seconds=None) for other in numbers[1:])


def _is_unsolved(text: str) -> bool:
    """Whether `text` is an equation such as `2x = 5`, with one letter on its left that does not stand there alone."""
    left, *rest = _EQUALS.split(text)
    left = re.sub(r"\\(?:alpha|beta|gamma|theta|phi|lambda|mu|omega)(?![a-zA-Z])", "t", left)
    left = re.sub(r"\\(?:sqrt|[dt]?frac|cdot|times)(?![a-zA-Z])", "*", left)
    left = re.sub(r"_\w+", "", re.sub(r"\\[a-zA-Z]+|[{}\s']", "", left))
    if not rest or re.fullmatch(r"[A-Za-z]\(.*\)|\|[A-Z]\|", left):  # the value of a function, the size of a set
        return False
    return len(left) > 1 and len(re.findall("[A-Za-z]", left)) == 1


def _is_bare_list(text: str) -> bool:
    """Whether `text` is several values without names, brackets around them or brackets of their own."""
    parts = items(text)
    return len(parts) > 1 and "=" not in text and not any(map(_brackets, parts))


def _base(text: str) -> str | None:
    match = _BASE.fullmatch(text)
    return match[1] if match else None


def _has_dots(text: str) -> bool:
    return "," in text and re.search(r"\\[lc]?dots|\.\.\.|…", text) is not None


def _negates_list(text: str) -> bool:
    found = tokens(_SIZES.sub("", text).replace(" ", ""))
    if [token for token, _ in found[:2]] not in (["-", "("], ["-", "["], ["-", r"\{"]):
        return False
    return all(depth for _, depth in found[1:-1]) and any(token in (",", "&") for token, _ in found)


def _brackets(text: str) -> tuple[str, str] | None:
    """The pair of brackets around a list, or `None` for a text that is no list or has no brackets around it."""
    found = tokens(_SIZES.sub("", text))
    if len(found) < 2 or found[0][0] not in ("(", "[", r"\{") or found[-1][0] not in (")", "]", r"\}"):
        return None
    if any(depth == 0 for _, depth in found[:-1]) or (",", 1) not in found:
        return None  # the first bracket closes before the end, as in (1,2),(3,4); or one value in brackets
    return _BRACKETS[found[0][0]], _BRACKETS[found[-1][0]]
