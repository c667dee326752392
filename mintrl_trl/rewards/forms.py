r"""The form of a short answer where it decides: ratios, names, bases, residues, unions, lists, brackets.

Owns: telling which of these an answer is, and taking it apart as text; the rules are in the table of
`rewards.equivalence`. Never parses maths, never decides whether two answers are equal. Invariant: an answer is cut only
outside all its brackets.
"""

import re

from .words import plain

_BASE = re.compile(r"(-?)0*(\w+)_\{?(\d+)\}?")
_BASE_WORDS = re.compile(r"(-?)0*(\w+)\s+(?:in\s+)?base\s+(\d+)", re.IGNORECASE)
_BRACKETS = {"(": "(", "[": "[", r"\{": "{", ")": "(", "]": "[", r"\}": "{"}
_SIZES = re.compile(r"\\(?:left|right|[bB]igg?[lr]?)(?![a-zA-Z])\s*")
_OPENING, _CLOSING = ("(", "[", "{", r"\{"), (")", "]", "}", r"\}")
_RESIDUE = re.compile(r"(?:[a-zA-Z]\s*\\equiv(?![a-zA-Z])\s*)?((?:(?!\\equiv|\\pmod).)+?)\s*\\pmod\{(\w+)\}", re.DOTALL)
_RATIO_WORDS = re.compile(r"\d+(?:\s+to\s+\d+)+")
_NAMED = r"[A-Z](?:\s*[A-Z])+"
_SEGMENT = re.compile(rf"\\(overline|overleftrightarrow|angle)(?![a-zA-Z])\s*\{{?\s*({_NAMED})\s*\}}?")
_NAME = re.compile(rf"(?<![A-Za-z\\]){_NAMED}(?![a-z])")
_TOKEN = re.compile(r"\\(?:text\w*|mathbb|mathrm|mathcal|operatorname|mbox)\s*\{[^{}]*\}|\\[a-zA-Z]+|[a-zA-Z]")
_GREEK = (r"\xi ", r"\zeta ", r"\psi ", r"\chi ", r"\kappa ", r"\eta ", r"\tau ", r"\nu ", r"\rho ")
_RELATIONS = {"<": "<", r"\lt": "<", ">": ">", r"\gt": ">"} | {
    rf"\{name}": sign
    for sign, names in (("<=", ("le", "leq", "leqslant")), (">=", ("ge", "geq", "geqslant")))
    for name in names
}
_RELATION = re.compile(r"(\\(?:leqslant|geqslant|leq|geq|le|ge|lt|gt)(?![a-zA-Z])|[<>]=?)")
_VARIABLE = re.compile(r"[a-zA-Z](?:_\{?\w\}?)?|\\(?!pi|infty)[a-z]+")
_IN = re.compile(r"([a-zA-Z])\s*\\in(?![a-zA-Z])\s*(?=[(\[])")
_COORDINATE = re.compile(r"([xyz])\s*=\s*([^=]+)")
_NAMED_VALUE = re.compile(r"\s*([a-zA-Z])\s*=")
_OR = re.compile(
    r"\s*(?:,\s*)?(?:\\text\s*\{\s*or\s*\}|(?<![A-Za-z\\])or(?![A-Za-z])|\\lor(?![a-zA-Z])|\\vee(?![a-zA-Z])|\\cup(?![a-zA-Z]))\s*"
)
_INTERVAL = re.compile(r"[(\[].*,.*[)\]]", re.DOTALL)


def tokens(text: str) -> list[tuple[str, int]]:
    r"""Characters and commands, each with the number of brackets open after it; `\{` and `{` are two brackets."""
    depth, found = 0, []
    for token in re.findall(r"\\[a-zA-Z]+|\\.|.", text, re.DOTALL):
        depth += (token in _OPENING) - (token in _CLOSING)
        found.append((token, depth))
    return found


def items(text: str, separator: str = ",") -> list[str]:
    """The text cut at the commas, or another separator, outside all brackets."""
    parts = [""]
    for token, depth in tokens(text):
        if token == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += token
    return parts


def brackets(text: str) -> tuple[str, str] | None:
    """The pair of brackets around a list, or `None` for a text that is no list or has no brackets around it."""
    found = tokens(_SIZES.sub("", text))
    if len(found) < 2 or found[0][0] not in ("(", "[", r"\{") or found[-1][0] not in (")", "]", r"\}"):
        return None
    if any(depth == 0 for _, depth in found[:-1]) or (",", 1) not in found:
        return None  # the first bracket closes before the end, as in (1,2),(3,4); or one value in brackets
    return _BRACKETS[found[0][0]], _BRACKETS[found[-1][0]]


def is_bare_list(text: str) -> bool:
    """Whether `text` is several values without names, brackets around them or brackets of their own."""
    parts = items(text)
    return len(parts) > 1 and "=" not in text and not any(map(brackets, parts))


def is_bounded(text: str) -> bool:
    r"""Whether it says between which bounds a value lies: an inequality, or `x \in (2,4)`."""
    return _RELATION.search(text) is not None or _IN.search(text) is not None


def by_name(text: str) -> str | None:
    """The values of a list such as `y = 1, x = 6` in the order of the names `x`, `y`, `z`; `None` for any other."""
    parts = items(text)
    found = [match for part in parts if (match := _COORDINATE.fullmatch(part.strip()))]
    named = {match[1]: match[2] for match in found}
    return ", ".join(named[name] for name in sorted(named)) if 1 < len(named) == len(parts) else None


def repeats_name(text: str) -> bool:
    """Whether it is a list that gives one letter several values, as `x = 1, x = 6` does."""
    found = [_NAMED_VALUE.match(part) for part in items(text)]
    return len(found) > 1 and all(found) and len({match[1] for match in found}) == 1


def has_dots(text: str) -> bool:
    """Whether a list goes on with dots."""
    return "," in text and re.search(r"\\[lc]?dots|\.\.\.|…", text) is not None


def negates_list(text: str) -> bool:
    """Whether a minus sign stands before a list in brackets."""
    found = tokens(_SIZES.sub("", text).replace(" ", ""))
    if [token for token, _ in found[:2]] not in (["-", "("], ["-", "["], ["-", r"\{"]):
        return False
    return all(depth for _, depth in found[1:-1]) and any(token in (",", "&") for token, _ in found)


def based(text: str) -> tuple[str, str] | None:
    """The digits of a number and the base written beside it."""
    match = _BASE.fullmatch(text) or _BASE_WORDS.fullmatch(plain(text))
    return (match[1] + match[2].upper(), match[3]) if match else None


def residue(text: str) -> tuple[str, str] | None:
    r"""The value and the modulus of `x \equiv 7 \pmod{11}`."""
    match = _RESIDUE.fullmatch(text)
    return (match[1], match[2]) if match else None


def ratio(text: str) -> list[str]:
    """The terms of a ratio such as 2:3:4; empty for anything else."""
    last = items(text, "=")[-1].strip()
    if _RATIO_WORDS.fullmatch(plain(last)):
        return re.split(r"\s+to\s+", plain(last))
    terms = [term.strip() for term in items(last, ":")]
    return terms if len(terms) > 1 and all(terms) and len(items(last)) == 1 else []


def names(text: str) -> frozenset[str]:
    """The names in an answer: capital letters side by side, as of points; those of lines and angles one way round."""
    text = plain(_SEGMENT.sub(lambda match: f" {_one_way(match[2])} ", text))
    return frozenset("".join(match[0].split()) for match in _NAME.finditer(text))


def name(text: str) -> tuple[str, str] | None:
    r"""What is named, such as `angle` or nothing, and the name, of an answer that is a name and nothing else."""
    if segment := _SEGMENT.fullmatch(text):
        return segment[1], _one_way(segment[2])
    return ("", "".join(plain(text).split())) if _NAME.fullmatch(plain(text)) else None


def same_name(first: tuple[str, str], second: tuple[str, str]) -> bool:
    """Whether two results of `name` may name the same; `AB` may be the line from either end."""
    kinds = {first[0], second[0]}
    if len(kinds) == 2 and "" not in kinds:
        return False
    return first[1] == second[1] if kinds == {""} else _one_way(first[1]) == _one_way(second[1])


def apart(first: str, second: str) -> tuple[str, str]:
    """Two texts with Greek letters for capitals of which one text has the small letter too; math-verify takes both for
    the same."""
    letters = [{token[0] for token in _TOKEN.finditer(text) if len(token[0]) == 1} for text in (first, second)]
    capitals = sorted({letter for found in letters for letter in found if letter.isupper() and letter.lower() in found})
    free = (letter for letter in _GREEK if letter.strip() not in first + second)
    greek = dict(zip(capitals, free, strict=False))

    def put_apart(text: str) -> str:
        return _TOKEN.sub(lambda token: greek.get(token[0], token[0]), text)

    return (put_apart(first), put_apart(second)) if greek else (first, second)


def union(text: str) -> str | None:
    r"""Inequalities for one letter that `or` joins, as a union of intervals; also intervals that it joins.

    Examples:
        >>> union(r"x<2 \text{ or } x \ge 3")
        'x \\in (-\\infty,2)\\cup[3,\\infty)'
        >>> union("x = 2 or x = 3") is None
        True
    """
    parts = _OR.split(text)
    if len(parts) < 2:
        return None
    letters = set(_IN.findall(text))
    intervals = [_IN.sub("", part) for part in parts]
    if all(map(_INTERVAL.fullmatch, intervals)) and len(letters) < 2:
        is_union = r"\infty" in text or any("[" in part or "]" in part for part in parts)
        named = "".join(rf"{letter} \in " for letter in letters)
        return named + r"\cup".join(intervals) if is_union else None  # otherwise it may be a choice of points
    found = [_as_interval(part) for part in parts]
    letters = {letter for letter, _ in filter(None, found)}
    if None in found or len(letters) != 1:
        return None
    return rf"{letters.pop()} \in " + r"\cup".join(interval for _, interval in found)


def _as_interval(text: str) -> tuple[str, str] | None:
    """The letter of an inequality and the interval it is in."""
    sides = [side.strip() for side in _RELATION.split(text)]
    if any(not side for side in sides) or len(sides) not in (3, 5):
        return None
    signs = [_RELATIONS.get(sign, sign) for sign in sides[1::2]]
    values = sides[::2]
    letter = next((place for place, value in enumerate(values) if _VARIABLE.fullmatch(value)), None)
    if letter is None or (len(values) == 3 and (letter != 1 or signs[0][0] != signs[1][0])):
        return None
    low, high = ["(", r"-\infty"], [r"\infty", ")"]
    for place, sign in enumerate(signs):
        before = place < letter  # the value stands before the letter
        value, closed = values[place if before else place + 1], "=" in sign
        if (sign[0] == "<") == before:
            low = ["[" if closed else "(", value]
        else:
            high = [value, "]" if closed else ")"]
    return values[letter], f"{''.join(low)},{''.join(high)}"


def _one_way(name: str) -> str:
    letters = "".join(name.split())
    return min(letters, letters[::-1])
