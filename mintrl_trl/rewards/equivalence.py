r"""Whether two short answers are the same mathematical value. Imported in the checker's child processes only.

Owns: the rules by which two answers are compared, all in this table, and the comparison itself. How an answer is
rewritten for it is in `rewards.reading`, what form it has in `rewards.forms`, which words and units there are in
`rewards.words` and `rewards.units`. Never looks for an answer in a longer text (that is `rewards.boxes`), never limits
time or memory (that is `rewards.worker`), never turns a parsed value into text: for some values that does not end.
Invariant: a value is compared as LaTeX inside a box, gold and answer read alike.

| written | read as |
|---|---|
| `$x$`, `\(x\)`, `x.`, `x \\`, `5{}` | `x`: maths delimiters, spaces, empty braces and a final stop go |
| `\mathbf{x}`, `\large x`, `\textcolor{red}{x}`, `x \checkmark`, `x \tag{1}` | `x`: dressing goes |
| `\text{$x$}`, `\textbf{\frac12}`, `{\rm cm}` | `x`, `\frac12`, `\text{cm}`: a font around the whole goes |
| `\begin{aligned} x &= 3+4 \\ &= 7 \end{aligned}` | its rows, as a list where they do not go on; tables stay |
| `√3`, `2π`, `3pi/4`, `x²`, `≤`, `−5`, `infinity` | typographic characters and names are read as their commands |
| `\frac12`, `\frac\pi2`, `\binom52`, `{5 \choose 2}` | arguments without braces and TeX's forms are legal LaTeX |
| `3e8`, `0.333...` | `3 \cdot 10^8`; `\frac13`, if the digits repeat three times before the dots |
| `1/2x`, `2/3(x+1)` | `\frac12 x`: a fraction before a letter or bracket; `1/2\pi` is unclear and no answer |
| `7 \bmod 3` | `1` |
| `four`, `minus twenty-one` | `4`, `-21`, if the answer is nothing else |
| `= 118`, `\approx 118`, `about 118` | `118`: a leading relation goes; the value must still agree to 6 decimals |
| `\text{The answer is } 118`, `Total: 118`, `\text{Total: 118}` | `118`: words that announce a value go, others stay |
| `118 \text{ km/h}`, `118 km/h`, `118 dollars`, `\$118`, `€118`, `118°C` | `118`: what a number counts goes |
| `5 \frac{\text{km}}{\text{h}}`, `5 \text{ in}` | `5` km/h, `5` inches; `5 \text{ in all}` is `5` |
| `118 m` | `118` only if the gold is a number: one letter outside a text group may be a variable |
| `5 \text{ cm}` and `5 \text{ m}`, `5 \text{ cm}^2` | different: what both sides count must agree; none is converted |
| `20 \text{ apples}` and `20 \text{ oranges}` | different; plurals and spellings agree, `ways` and `units` with all |
| `5 hours 30 minutes` | equal only to the same numbers of the same units |
| `12 dozen`, `1.5 million` | `144`, `1500000` |
| `not 118`, `at least 118`, `118 or more`, `5 tenths` | words that change a value must stand on both sides |
| gold `28\%` | equal to `28\%`, to `0.28`, and to `28` since questions often name the percent; `0.5\%` not to `0.5` |
| gold `28`, 1 or more | equal to `28\%` since golds leave out the sign, and so not to `2800\%` |
| gold `0.28`, below 1 | equal to `28\%` and so not to `0.28\%` |
| `6,300`, `6{,}300`, `6,\!300`, `6\,300`, `6 300` | `6300`: groups of three digits; `32, 349` is a list |
| `1\,05` | `105`: a thin space between digits goes |
| gold `81, 256` | equal to `81,256` too, which alone would be one number |
| `3 or 5`, `3 \text{ and } 5` | the list `3, 5`, which equals no single number |
| `2 \pm \sqrt3` | the list `2+\sqrt3, 2-\sqrt3`, unless several signs or brackets leave it open |
| `(1,2)`, `[1,2]`, `\{1,2\}` | three different things; without brackets, `1,2` may stand for a set or a pair |
| `1,2` | a list in any order, repeats ignored; `(1,2)` is ordered |
| `y = 1, x = 6` | the pair `(6,1)`: coordinates `x`, `y`, `z` go by their names |
| `x = 1, x = 6` | the list `1,6`, no pair |
| `\{2,4\}` and `2 < x < 4` | different, also without the brackets: values are not bounds |
| `(0,1]`, `0 < x \le 1`, `\{x : 0 < x \le 1\}` | the same interval |
| `x<2 \text{ or } x>3` | `(-\infty,2) \cup (3,\infty)`; intervals joined by `or` too, if they cannot be points |
| `2:3`, `2 \text{ to } 3` | a ratio: equal to `4:6` and `\frac23`; `1:30` may be a time and is compared as written |
| `2:3:4` | equal to `4:6:8` only: as many terms, proportional one by one |
| `AC` | a name, compared as written, as in `HHT`; `\overline{AC}` and `\angle ABC` read the same from both ends |
| `x = 5`, `f(x) = 5`, `x + y = 5` | equal to `5`; `2x = 5`, `x^2 = 5` are equations for `x` and are not |
| `P(A \mid B) = 5`, `\max f = 5`, `f^{-1}(2) = 5`, `5 \; (\approx 4.99)` | `5` |
| `f'(x)` and `f(x)`; `R - r` and `r - R` | different: capitals are told apart where one answer has both |
| `y = 2x` and `2x - y = 0` | the same curve |
| `2x = 10 \implies x = 5` | `x = 5`: the conclusion counts |
| `\frac{2}{6} = \frac13` | the last side counts; numbers equated that differ (`3 = 5`) are wrong |
| `204_5`, `204_{\text{five}}` and `204_7` | the base counts; but `204` may be each: a question names the base, too |
| `x \equiv 7 \pmod{11}` | equal to `7`, and to `18 \pmod{11}` |
| `4:30 p.m.` and `4:30 a.m.` | different; `4:30` may stand for each |
| `\frac12 (3,4)`, `\frac12 \foo` | no value: what cannot be read as a whole is not read in part |
| `e^{i\pi}` | `-1`: numbers are also compared with `i` as the imaginary unit |
| `\text{The Ellipse.}`, `Option B` | `ellipse`, `B`: words (three letters or more), without capitals and articles |
| `no solution`, `none`, `\emptyset`, `\{\}` | the same; so are `all reals` and `\mathbb{R}`, `DNE` and `undefined` |
| `0.33` for `\frac13` | different; decimals agree when rounded to 6 places, and within 1/1000 of their value |
| a gold of more than 20 words | cannot be read: a gold is a short answer, or has its answer in a box |
"""

import logging
import re
from dataclasses import replace
from functools import lru_cache

from math_verify import LatexExtractionConfig, parse, verify
from sympy import Expr, Float, I

from .forms import (
    apart,
    based,
    brackets,
    by_name,
    has_dots,
    is_bare_list,
    is_bounded,
    items,
    name,
    names,
    negates_list,
    ratio,
    repeats_name,
    residue,
    same_name,
)
from .reading import read, unannounced, undressed
from .units import Unit, clock, quantities, unit, without_letter
from .words import changing_words, phrase

for _name in ("math_verify.parser", "math_verify.grader"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)  # its warnings are about limits, which the pool owns

CORRECT, WRONG, GOLD_UNPARSED, ANSWER_UNPARSED = "correct", "wrong", "gold_unparsed", "answer_unparsed"

MAX_WORDS = 20
_NO_UNITS = replace(LatexExtractionConfig().normalization_config, units=False)  # its units are h, t, ab and the like
_CONFIG = (LatexExtractionConfig(boxed_match_priority=0, normalization_config=_NO_UNITS),)
_PROSE_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
_WHOLE_NUMBER = re.compile(r"[-+]?[0-9]{1,400}")
_DECIMAL = re.compile(r"[-+]?\d*\.\d+")
_EQUALS = re.compile(r"(?<![<>!:])=")
_APPROXIMATES = re.compile(r"\\(?:approx|simeq|equiv)(?![a-zA-Z])")
_UNCLEAR_FACTOR = re.compile(r"(?<![\w.}])\d+/\d+\s*\\(?:pi|sqrt|ln|log|sin|cos|tan|theta|alpha)(?![a-zA-Z])")
_COMPLEX = re.compile(r"(?<![\\A-Za-z])i(?![A-Za-z])|\\sqrt\s*\{\s*-")
_PRIME = re.compile(r"(?<=[A-Za-z)}])(?:'+|\^\s*\{?\s*\\prime)")  # which math-verify drops
_SPACE_IN_LIST = re.compile(r"(?<=,)\s+")
_SAME_DIGITS = 1e-20  # of two exact complex numbers, computed to 30 digits


def grade(request: dict[str, str]) -> str:
    """Compare `request["answer"]` with `request["gold"]`.

    Returns:
        `str`: `"correct"`, `"wrong"`, `"gold_unparsed"` or `"answer_unparsed"`.
    """
    gold, answer = read(request["gold"]), read(request["answer"])
    if len(items(gold)) > 1 and undressed(request["answer"]) == _SPACE_IN_LIST.sub("", undressed(request["gold"])):
        return CORRECT
    if _WHOLE_NUMBER.fullmatch(gold) and _WHOLE_NUMBER.fullmatch(answer):  # most are; these need no parser
        return CORRECT if int(gold) == int(answer) and _may_be_same_unit(request) else WRONG
    if len(_PROSE_WORD.findall(gold)) > MAX_WORDS:
        return GOLD_UNPARSED
    if not any((phrase(gold), clock(gold), residue(gold), _has_value(_parse(gold.removesuffix(r"\%"))))):
        return GOLD_UNPARSED
    same = _same_form(gold, answer)
    if same is None:
        several = [quantities(undressed(request[side])) for side in ("gold", "answer")]
        same = several[0] == several[1] if any(several) else None
    if same is not None:
        return CORRECT if same and _may_be_same_unit(request) else WRONG
    if changing_words(gold) != changing_words(answer) or not _may_be_same_unit(request):
        return WRONG
    if _differs_in_form(gold, answer) or _UNCLEAR_FACTOR.search(answer):
        return WRONG
    gold, answer = ((residue(text) or (text,))[0] for text in (gold, answer))
    if _is_number(_parse(gold)):
        answer = without_letter(answer)
    if _is_false_chain(answer) or (_is_number(_parse(gold)) and (_is_unsolved(answer) or is_bare_list(answer))):
        return WRONG
    same = _same_percentage(gold, answer)
    if same is not None:
        return CORRECT if same else WRONG
    if brackets(gold) == ("(", "(") and (is_bare_list(answer) or by_name(answer)):
        answer = f"({by_name(answer) or answer})"
    if _same_value(gold, answer):
        return CORRECT
    return WRONG if phrase(answer) or _has_value(_parse(answer.removesuffix(r"\%"))) else ANSWER_UNPARSED


def _same_form(gold: str, answer: str) -> bool | None:
    """Whether the two are the same text, words, time of day, name, ratio, or number of a base; `None` where that does
    not decide."""
    if gold == answer:
        return True
    for form in (phrase, clock, name, based, residue):
        forms = form(gold), form(answer)
        if None in forms:
            continue
        if form is clock:
            return forms[0][:2] == forms[1][:2] and {forms[0][2], forms[1][2]} != {"a", "p"}
        if form is name:
            return same_name(*forms)
        if form is residue:
            return _same_residue(*forms)
        return forms[0] == forms[1]
    ratios = ratio(gold), ratio(answer)
    if all(ratios):
        return _same_ratio(*ratios)
    return False if max(map(len, ratios)) > 2 else None


def _differs_in_form(gold: str, answer: str) -> bool:
    """Whether brackets around a list differ where both have them, or the names in them, or what math-verify overlooks
    in a list, a minus sign before it and dots in it, stands in one only."""
    found = brackets(gold), brackets(answer)
    if None not in found and found[0] != found[1]:
        return True
    named = names(gold), names(answer)
    if named[0] != named[1] and (all(named) or name(gold)):
        return True
    sides = [items(text, "=") for text in (gold, answer)]
    whole = all(len(side) > 1 for side in sides)
    primes = [_PRIME.findall("".join(side if whole else side[-1:])) for side in sides]
    if primes[0] != primes[1]:
        return True
    if any(pair and pair[0] != "{" and repeats_name(other) for pair, other in zip(found, (answer, gold), strict=True)):
        return True
    bounded = is_bounded(gold), is_bounded(answer)
    for text, pair, other in ((gold, found[0], bounded[1]), (answer, found[1], bounded[0])):
        if other and not is_bounded(text) and (pair == ("{", "{") or is_bare_list(text)):
            return True
    if found[0] == ("{", "{") and None not in found and gold.count(r"\{") != answer.count(r"\{"):
        return True
    return negates_list(gold) != negates_list(answer) or has_dots(gold) != has_dots(answer)


def _may_be_same_unit(request: dict[str, str]) -> bool:
    """Whether gold and answer count the same, or one of them does not say what."""
    gold, answer = (_unit(request[side]) for side in ("gold", "answer"))
    return gold is None or answer is None or gold.may_be(answer)


def _unit(text: str) -> Unit | None:
    return unit(items(unannounced(undressed(text)), "=")[-1].strip())


def _same_ratio(gold: list[str], answer: list[str]) -> bool:
    """Whether two ratios are proportional term by term."""
    if len(gold) != len(answer) or any(_is_zero(g) != _is_zero(a) for g, a in zip(gold, answer, strict=True)):
        return False
    place = next((place for place, term in enumerate(gold) if not _is_zero(term)), 0)
    terms = zip(gold, answer, strict=True)
    return all(_same_value(rf"({g}) \cdot ({answer[place]})", rf"({a}) \cdot ({gold[place]})") for g, a in terms)


def _same_residue(gold: tuple[str, str], answer: tuple[str, str]) -> bool:
    """Whether two residues have one modulus and are equal, or congruent if they are numbers."""
    if gold[1] != answer[1]:
        return False
    if all(re.fullmatch(r"-?\d+", text) for text in (gold[0], *answer)):
        return (int(gold[0]) - int(answer[0])) % (int(gold[1]) or 1) == 0
    return _same_value(gold[0], answer[0])


def _same_percentage(gold: str, answer: str) -> bool | None:
    r"""Compare two numbers of which at least one has a percent sign; `None` for any others."""
    last = [items(text, "=")[-1].strip() for text in (gold, answer)]
    in_percent = [text.endswith(r"\%") for text in last]
    numbers = [text.removesuffix(r"\%") for text in last]
    if not any(in_percent) or not all("%" not in number and _is_number(_parse(number)) for number in numbers):
        return None
    values = [rf"\frac{{{text}}}{{100}}" if sign else text for text, sign in zip(numbers, in_percent, strict=True)]
    if all(in_percent):
        return _same_value(*numbers)
    if abs(complex(_parse(numbers[0])[0].evalf(15))) < 1:
        return _same_value(*values)
    return _same_value(*numbers) or (in_percent[0] and _same_value(*values))


def _same_value(gold: str, answer: str) -> bool:
    """Whether two texts are the same mathematical value."""
    gold, answer = apart(gold, answer)
    parsed_gold, parsed = _parse(gold), _parse(answer)
    if verify(list(parsed_gold), list(parsed), allow_set_relation_comp=True, timeout_seconds=None):
        return _decimals_agree(gold, answer, parsed_gold, parsed)
    return _COMPLEX.search(gold + answer) is not None and _same_complex(parsed_gold, parsed)


def _same_complex(gold: tuple, answer: tuple) -> bool:
    """Whether two exact numbers are equal when `i` is the imaginary unit."""
    values = []
    for parsed in (gold, answer):
        if not parsed or not isinstance(parsed[0], Expr) or parsed[0].has(Float):
            return False
        values.append(parsed[0].subs({symbol: I for symbol in parsed[0].free_symbols if symbol.name == "i"}))
    if any(value.free_symbols or not value.is_number for value in values):
        return False
    first, second = (value.doit().evalf(30) for value in values)
    difference = abs(first - second)
    return difference.is_finite is True and bool(difference <= _SAME_DIGITS * max(1, abs(first)))


def _has_value(parsed: tuple) -> bool:
    """Whether math-verify read a value and not just text."""
    return any(not isinstance(value, str) for value in parsed)


@lru_cache(maxsize=4096)
def _parse(text: str) -> tuple:
    if not _balanced(text):
        return ()  # it would close the box early, or never
    return tuple(
        # Its other modes go on to read a fraction out of a text that they cannot read as a whole.
        parse(rf"\boxed{{{text}}}", _CONFIG, extraction_mode="first_match", parsing_timeout=None)
    )


def _balanced(text: str) -> bool:
    depth = 0
    for token in re.findall(r"\\.|[{}]", text, re.DOTALL):
        depth += {"{": 1, "}": -1}.get(token, 0)
        if depth < 0:
            return False
    return depth == 0


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


def _is_zero(text: str) -> bool:
    parsed = _parse(text)
    return _is_number(parsed) and parsed[0].is_zero is True


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
