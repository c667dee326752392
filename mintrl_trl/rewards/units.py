r"""What stands beside a number in a short answer: unit, currency or what is counted; also several units, times of day.

Owns: finding these, taking them off the number, and whether two of them can be the same; the rules are in the table of
`rewards.equivalence`. Never converts a unit, never compares numbers. Invariant: everything after a number is understood
as naming what is counted, or all of it stays, so that an answer with other words cannot pass for the bare number.
"""

import re
from dataclasses import dataclass

from .words import GROUP, changing_words, names_function, plain, scale

_UNITS = {
    "millimeter": "mm",
    "centimeter": "cm",
    "meter": "m",
    "kilometer": "km",
    "inch": "inche in",
    "foot": "ft feet",
    "yard": "yd",
    "mile": "mi",
    "second": "s sec",
    "minute": "min",
    "hour": "h hr",
    "day": "",
    "week": "",
    "month": "",
    "year": "yr",
    "milligram": "mg",
    "gram": "g",
    "kilogram": "kg",
    "ounce": "oz",
    "pound": "lb",
    "milliliter": "ml",
    "liter": "l",
    "cent": "",
    "dollar": "usd buck",
    "euro": "eur",
    "rupee": "inr rs",
    "yen": "jpy",
    "degree": "",
    "radian": "rad",
}
_UNIT_NAMES = {name: unit for unit, names in _UNITS.items() for name in (unit, *names.split())}
_SPEEDS = {"mph": ("mile", "hour"), "kph": ("kilometer", "hour"), "kmh": ("kilometer", "hour")}
_PEOPLE = {"people": "person", "children": "child", "kid": "child", "men": "man", "women": "woman"}
_UNSPECIFIC = {  # says no more than the number
    *("unit", "way", "item", "thing", "object", "possibilitie", "combination", "arrangement", "permutation", "outcome"),
    *("choice", "method", "ordering", "number", "time", "solution", "value", "answer", "element", "total"),
}
_NO_NOUNS = {
    *("more", "fewer", "less", "additional", "extra", "different", "distinct", "possible", "whole", "other", "total"),
    *("exactly", "approximately", "about", "altogether", "left", "remaining"),
}
_END_OF_NOUN = re.compile(
    r"\b(?:of|in|for|on|at|with|to|from|who|that|which|were|are|is|was|a|an|each|every|altogether|left|remaining|"
    r"total|overall|ago|away|apart|old|long|tall|wide|deep|high)\b"
)
_SQUARE, _CUBIC = re.compile(r"\b(?:square|sq)\b\.?"), re.compile(r"\b(?:cubic|cu)\b\.?")
_EXPONENT = r"\^\s*\{?\s*-?\d\s*\}?"
_LONG_NAMES = "|".join(sorted((name for name in (*_UNIT_NAMES, *_SPEEDS) if len(name) > 1), key=len, reverse=True))
_BARE_UNIT = re.compile(  # without a text group: cm^2, km/h, m/s^2, but not m, which may be a variable
    rf"\s*(?:degree\s*(?:[CF](?![A-Za-z]))?|(?:(?:{_LONG_NAMES})s?|m(?=\s*/\s*s(?![A-Za-z])))(?:{_EXPONENT})?"
    rf"(?:\s*/\s*(?:(?:{_LONG_NAMES})|[mshgl](?![A-Za-z]))(?:{_EXPONENT})?)*)\.?\s*"
)
_BARE_WORDS = re.compile(
    rf"\s*/?\s*(?:in\s+)?[A-Za-z]{{3,}}(?:[\s./-]+(?:[A-Za-z]{{3,}}|of|in|an?|to|per)|{_EXPONENT})*[\s.]*"
)
_TAIL = re.compile(rf"(?:[A-Za-z\s./'()\[\]-]|{_EXPONENT})+")
_ORDINAL = re.compile(r"\^?\s*\{?\s*(?:st|nd|rd|th)\s*\}?")
_DEGREE = re.compile(r"\^\s*\{?\s*\\circ(?![a-zA-Z])\s*\}?|\\degree(?![a-zA-Z])")
_VALUE = re.compile(
    r"(?:[-+\d.,/{}()\s^!*]|\\(?:[dt]?frac|sqrt|pi|cdot|times|binom|left|right)(?![a-zA-Z])|\\%)*"
    r"(?:[\d})!]|\\pi(?![a-zA-Z])|\\%)"
)
_CURRENCIES = {
    "dollar": r"(?:US\s?)?\\\$|USD",
    "euro": r"€|EUR|\\euro(?![a-zA-Z])",
    "pound": r"£|GBP|\\pounds(?![a-zA-Z])",
    "rupee": r"₹|INR|Rs\.?",
    "yen": "¥|JPY|CNY",
    "cent": "¢",
}
_ANY_CURRENCY = "|".join(_CURRENCIES.values())
_GROUPED = rf"(?:(?:\\(?:text|mathrm|mbox|textrm)\s*)?\{{\s*(?:{_ANY_CURRENCY})\s*\}}|{_ANY_CURRENCY})"
_CURRENCY_BEFORE = re.compile(rf"(?<![A-Za-z\\\d])({_GROUPED})\s*(?=[-+]?\s*(?:[\d.\\]))")
_CURRENCY_AFTER = re.compile(rf"(?<=[\d}}\s])({_GROUPED})(?![A-Za-z\d])")
_ONE_LETTER = re.compile(rf"(.*[\d}}])\s*([mshg](?:{_EXPONENT})?)", re.DOTALL)
_WORDED = re.compile(  # words in a text group after what is no number: \pi r^2 \text{ cm}^2
    r"(.*[^\s\\=+*/^_(,-])\s*((?:(?<=\s)|(?=\\[a-z]+\s*\{\s)|(?=\\[a-z]+\s*\{"
    rf"(?:{_LONG_NAMES})s?\}}))\\(?:text|textbf|textrm|mbox|mathrm)\s*\{{[^{{}}]*\}}(?:{_EXPONENT})?)",
    re.DOTALL,
)
_QUANTITY = re.compile(r"([-+]?\d+(?:\.\d+)?)\s*([A-Za-z]{2,})\.?(?![A-Za-z])")
_CLOCK = re.compile(r"(\d{1,2}):(\d\d)\s*(?:([ap])\.?\s*m\.?)?", re.IGNORECASE)


@dataclass(frozen=True)
class Unit:
    """What a number counts.

    Args:
        name (`str`): A unit or a noun, in the singular.
        power (`int`, defaults to 1): 2 for a square, 3 for a cubic unit.
        per (`str`, *optional*): What it is counted by, such as `hour`; empty for none.
    """

    name: str
    power: int = 1
    per: str = ""

    def may_be(self, other: "Unit") -> bool:
        """Whether both can be meant alike; what one leaves open may be what the other says."""
        names = {self.name, other.name}
        if len(names) > 1 and not ("degree" in names and all(name.startswith("degree") for name in names)):
            return False
        return self.power == other.power and (not self.per or not other.per or self.per == other.per)


def without_currency(text: str) -> str:
    """The text without currencies beside its numbers."""
    return _CURRENCY_AFTER.sub("", _CURRENCY_BEFORE.sub("", text))


def split(text: str) -> tuple[str, Unit | None]:
    r"""Take off a number what stands after it.

    Returns:
        `tuple[str, Unit | None]`: The number and what it counts, `None` where that says nothing; or the text as it is.

    Examples:
        >>> split(r"18\,\mathrm{cm^2}")
        ('18', Unit(name='centimeter', power=2, per=''))
        >>> split("60 km/h")
        ('60', Unit(name='kilometer', power=1, per='hour'))
        >>> split("5 or more")
        ('5 or more', None)
    """
    value = _VALUE.match(text)
    if value and re.search(r"\d|\\pi", value[0]) and value[0].count("{") == value[0].count("}"):
        value, tail = value[0], text[value.end() :]
        outside = GROUP.sub(" ", _one_line(tail))
        bare = _BARE_UNIT.fullmatch(outside) or (not tail[:1].isalpha() and _BARE_WORDS.fullmatch(outside))
        if _ORDINAL.fullmatch(plain(tail)):
            return value, None
        if tail.strip() and (bare or not re.search("[A-Za-z]", outside)) and _names_what_is_counted(tail):
            return value, _unit(tail)
    if (worded := _WORDED.fullmatch(text)) and not GROUP.search(worded[1]) and _names_what_is_counted(worded[2]):
        return worded[1], _unit(worded[2])
    return text, None


def unit(text: str) -> Unit | None:
    """What the number in an answer counts; `None` if it says nothing or is no single number."""
    for pattern in (_CURRENCY_BEFORE, _CURRENCY_AFTER):
        if found := pattern.search(text):
            symbol = plain(found[1]).strip("{} ")
            name = next(name for name, symbols in _CURRENCIES.items() if re.fullmatch(symbols, symbol))
            return Unit(name)
    if letter := _ONE_LETTER.fullmatch(text):
        return _unit(letter[2])
    value, counted = split(text)
    return Unit("percent") if value.endswith(r"\%") else counted


def without_letter(text: str) -> str:
    """The number of an answer such as `7 m`, which is a length only if nothing else it could be equals the gold."""
    letter = _ONE_LETTER.fullmatch(text)
    return letter[1] if letter else text


def quantities(text: str) -> tuple[tuple[str, str], ...]:
    """The numbers and units of an answer in several units, such as 5 hours 30 minutes; empty for any other."""
    text = re.sub(r",|\band\b", " ", plain(text))
    found = [(number, _name(name)) for number, name in _QUANTITY.findall(text)]
    several = len({name for _, name in found}) > 1  # otherwise it is a list
    return tuple(found) if several and not _QUANTITY.sub("", text).strip() else ()


def clock(text: str) -> tuple[int, int, str] | None:
    """A time of day as hours, minutes and `a`, `p` or nothing."""
    match = _CLOCK.fullmatch(plain(text))
    return (int(match[1]), int(match[2]), (match[3] or "").lower()) if match else None


def _one_line(tail: str) -> str:
    """What stands after a number, with degrees as a word and exponents without braces."""
    tail = re.sub(r"\^\{\s*(-?\d)\s*\}", r"^\1", _DEGREE.sub(" degree ", tail))
    return re.sub(r"\\[,;: ]|\\cdot(?![a-zA-Z])|~", " ", tail)


def _names_what_is_counted(tail: str) -> bool:
    """Whether all that stands after a number is understood as words and units that leave its value as it is."""
    words = GROUP.sub(r"\1", _one_line(tail))
    if not _TAIL.fullmatch(words) or changing_words(words) or names_function(words) or scale(words):
        return False
    return re.search(r"[A-Za-z]{2}|\b[mshgl]\b|\s[ACFHJLNTVW]\b", words) is not None  # others may be variables


def _unit(tail: str) -> Unit | None:
    """Read what stands after a number."""
    words = re.sub(r"['()\[\]]", " ", GROUP.sub(r" \1", _one_line(tail)))
    counted, _, per = (part.strip() for part in re.sub(r"\bper\b", "/", words, flags=re.IGNORECASE).partition("/"))
    exponent = re.search(r"\^\s*\{?\s*(\d)", counted)
    lower = re.sub(_EXPONENT, "", counted).lower()
    power = 2 if _SQUARE.search(lower) else 3 if _CUBIC.search(lower) else int(exponent[1]) if exponent else 1
    nouns = re.findall("[a-z]+", _CUBIC.sub("", _SQUARE.sub("", lower)))
    while nouns and nouns[0] in _NO_NOUNS:
        nouns.pop(0)
    if nouns == ["in"]:  # which in "5 in total" is no unit
        nouns = ["inch"]
    nouns = re.findall("[a-z]+", _END_OF_NOUN.split(" ".join(nouns))[0])
    if not nouns:
        return None
    if nouns[-1] in _SPEEDS:
        return Unit(_SPEEDS[nouns[-1]][0], power, _SPEEDS[nouns[-1]][1])
    name = next((_UNIT_NAMES[known] for noun in nouns if (known := _known(noun))), None) or _name(nouns[-1])
    if name in _UNSPECIFIC:
        return None
    if name == "degree" and (scale := re.search(r"\b[cf](?:elsius|ahrenheit)?\b", " ".join(nouns))):
        name = f"degree {scale[0][0]}"
    by = re.findall("[a-z]+", per.lower())
    return Unit(name, power, _name(by[0]) if by else "")


def _known(name: str) -> str | None:
    name = name.replace("metre", "meter").replace("litre", "liter")
    return next(
        (form for form in (name, name.removesuffix("s") if len(name) > 2 else name) if form in _UNIT_NAMES), None
    )


def _name(noun: str) -> str:
    """The singular of a noun, the same for all its spellings."""
    noun = noun.lower()
    if known := _known(noun):
        return _UNIT_NAMES[known]
    if not noun.endswith(("ss", "us")):
        noun = noun.removesuffix("s")
    noun = _PEOPLE.get(noun, noun)
    if noun in _UNSPECIFIC:
        return noun
    noun = re.sub("ie$|y$", "i", noun)
    return re.sub("ve$", "f", noun).removesuffix("e")
