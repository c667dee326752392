r"""The form in which a short answer is compared. Imported in the checker's child processes only.

Owns: the rewriting of an answer as people write it into LaTeX that math-verify reads, and what stands beside a number:
its unit, and words that make it another number. The rules are in the table of `rewards.equivalence`. Never compares,
never parses maths. Invariant: words are dropped only where they announce a value or name a unit; all others stay, so
that an answer with them cannot pass for the bare number.
"""

import re

_PLAIN_TEXT = r"\\(?:text|textbf|textit|textrm|textnormal|mbox)"
GROUP = re.compile(r"\\(?:text|textbf|textit|textrm|textnormal|mbox|mathrm|mathbf)\s*\{([^{}]*)\}")
_DELIMITERS = re.compile(r"(?<!\\)(?:\$|\\[()\[\]])")
_CONCLUSION = re.compile(r"\\(?:implies|Rightarrow|Longrightarrow|therefore)(?![a-zA-Z])")
_CHARACTERS = str.maketrans(
    {
        "−": "-",
        "–": "-",
        "×": r"\times ",
        "·": r"\cdot ",
        "÷": r"\div ",
        "π": r"\pi ",
        "θ": r"\theta ",
        "∞": r"\infty ",
        "≤": r"\le ",
        "≥": r"\ge ",
        "≠": r"\ne ",
        "≈": r"\approx ",
        "±": r"\pm ",
        "∪": r"\cup ",
        "∩": r"\cap ",
        "∈": r"\in ",
        "∅": r"\emptyset ",
        "°": r"^\circ ",
        "²": "^2 ",
        "³": "^3 ",
        "½": r"\frac12 ",
        "¼": r"\frac14 ",
        "¾": r"\frac34 ",
        "\u00a0": " ",
        "\u202f": " ",
    }
)
_ROOT = re.compile(r"√\s*[({]?(\d+|[a-zA-Z](?![a-zA-Z]))[)}]?")
_DRESSING = re.compile(
    r"\\(?:displaystyle|textstyle|small|large|Large|LARGE|huge|Huge|mathbf|boldsymbol|bm|bf|underline|checkmark)"
    r"(?![a-zA-Z])|\\(?:textcolor|color)\s*\{\w+\}|\*\*"
)
_REVERSED = re.compile(r"^([^=<>]*[^=<>!:\\])=\s*([a-z])$")
_START = re.compile(r"(?:\s|\\[,;:! ])+")
_END = re.compile(r"(?:\s|\\[,;:! ]|\\\\|(?<![.\\])[.,;])+$")
_SYNONYMS = {r"\lbrace": r"\{", r"\rbrace": r"\}", r"\langle": "(", r"\rangle": ")", r"\varnothing": r"\emptyset"}
_SYNONYM = re.compile(r"\\(?:lbrace|rbrace|langle|rangle|varnothing)(?![a-zA-Z])")
_UPRIGHT = re.compile(r"\\(?:mathrm|text)\s*\{([ei])\}")
_ROW_SPACE = re.compile(r"\\\\\[[\d.]+\s*[a-z]{2}\]")
_BARE = r"(\\(?!sqrt|[dtc]?frac|left|text|math)[a-zA-Z]+|[^\s{}\\])"  # a token that LaTeX lets stand without braces
_BARE_ARGUMENTS = re.compile(rf"(\\(?:[dtc]?frac|[dt]?binom))(?![a-zA-Z])\s*{_BARE}\s*(?:{_BARE}|(?=\{{))")

_ANNOUNCING = (
    r"\b(?:is|are|was|be|equals?|equal to|get|gives?|have|answer|solution|result|value|total|sum|so|thus|hence|"
    r"therefore)\b(?:\s+(?:about|approximately|roughly)\b)?|\b(?:about|approximately|roughly)\b"
)
_LEADING = (
    re.compile(  # \text{The answer is } 5, \text{Answer: } 5, \text{Area} = 5; not a name such as \text{area} - 5
        rf"{_PLAIN_TEXT}\s*\{{[^{{}}]*(?:(?:{_ANNOUNCING})\s*[:=,]?|[A-Za-z]{{3,}}\s*[:=])\s*\}}(?=.*\S)|"
        rf"{_PLAIN_TEXT}\s*\{{[A-Za-z ]*[A-Za-z]{{3,}}\s*\}}\s*=(?=.*\S)",
        re.IGNORECASE | re.DOTALL,
    ),
    re.compile(  # the same without a text group; not a product such as be + 3
        rf"(?=[A-Za-z' ,]*[A-Za-z]{{3}})[A-Za-z' ,]*(?:(?:{_ANNOUNCING})\s*:?|[A-Za-z]{{3,}}\s*:)(?=.*\S)",
        re.IGNORECASE | re.DOTALL,
    ),
    re.compile(_PLAIN_TEXT + r"\s*\{\s*\(?[A-H]\)?[.:]?\s*\}(?:\s|\\[ ,;:])*(?=[\d\\(-])"),  # the letter of a choice
    re.compile(r"(?:=|\\(?:approx|simeq)(?![a-zA-Z]))\s*"),
)
_NO_WORDS = re.compile(r"\s*(?:[-+]?(?:\\\$)?\s*\.?\d|[A-Z](?:(?:\s|,|and|or)+[A-Z])+\s*$)")  # in a text group
_TRAILING = re.compile(r"\s+is (?:the|my|our) (?:final )?(?:answer|result|solution)$", re.IGNORECASE)
_REPEATING = re.compile(r"(\d*)\.(\d*)\\(?:overline|bar)\s*\{?(\d+)\}?")
_MIXED_NUMBER = re.compile(r"([-+]?\d+)\s+(\d+)/(\d+)")
_LEADING_SIGN = re.compile(r"(?:negative|minus)\s+(?=[\d.\\])", re.IGNORECASE)

_THIN_SPACE = re.compile(r"(?<=\d),\\!\s*(?=\d{3})|(?<=\d)\\[,!:;](?=\d)|(?<=\d)\{,\}(?=\d)")
_THREES = re.compile(r"(?:[a-zA-Z]\s*=\s*)?[-+]?(?:\\\$\s*)?\d{1,3}(?:[ ,]\d{3})+(?:\.\d+)?")
_CONNECTIVE = re.compile(r"\s*,?\s+(?:and|or)\s+")
_NUMBER = r"[-+]?(?:\\\$)?\s*[\d.,]*\d(?:/\d+)?"
_WORDS_AFTER_NUMBER = re.compile(rf"({_NUMBER})\s+((?:[A-Za-z]{{3,}}[\s.]*)+)")
_FUNCTIONS = re.compile(r"\b(?:percent(?:age)?|pct|mod|a?sin|a?cos|a?tan|cot|sec|csc|log|exp|sqrt|max|inf)\b", re.I)
_SCALES = {
    "dozen": "12",
    "hundred": "10^{2}",
    "thousand": "10^{3}",
    "million": "10^{6}",
    "billion": "10^{9}",
    "trillion": "10^{12}",
}
_SCALED = re.compile(rf"({_NUMBER})\s*({'|'.join(_SCALES)})s?(?:\s+[A-Za-z\s]+)?", re.IGNORECASE)
_CHANGING = re.compile(
    r"\b(?:not|no|never|cannot|neither|nor|wrong|false|incorrect|than|at least|at most|up to|almost|nearly|between|"
    r"(?:or|and) (?:more|less|fewer|greater|higher|lower|above|below|over|under)|below zero|minus|negative|plus|"
    r"point (?:oh|zero|one|two|three|four|five|six|seven|eight|nine)|twice|thrice|double|half|halves|thirds?|"
    r"fourths?|fifths?|sixths?|sevenths?|eighths?|ninths?|tenths?|hundredths?|thousandths?|millionths?|squared|cubed|"
    r"factorial|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|forty|fifty|sixty|seventy|"
    r"eighty|ninety|quarters?|quadrillion|lakh|crore|bn|pi|root|over|out of|times|divided|choose|remainder|mod|base|"
    r"dot|so)\b|n't\b|(?<=\d)\s*(?:k|M)\b",
    re.IGNORECASE,
)

_UNITS = {
    "millimeter": "mm",
    "centimeter": "cm",
    "meter": "m",
    "kilometer": "km",
    "inch": "inche",
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
    "dollar": "",
    "degree": "",
    "radian": "rad",
}
_UNIT_NAMES = {name: unit for unit, names in _UNITS.items() for name in (unit, *names.split())}
_UNIT = re.compile(
    r"(?:[-+\d.,/{}()\s^]|\\(?:[dt]?frac|sqrt|pi|cdot|times|[$,;! ])(?![a-zA-Z]))+"
    r"(?:(?:square|sq\.?|cubic|cu\.?)\s+)?([A-Za-z]+)\.?\s*(?:\^\{?\d\}?|/.*|per\b.*)?"
)
_QUANTITY = re.compile(r"([-+]?\d+(?:\.\d+)?)\s*([A-Za-z]{2,})\.?(?![A-Za-z])")
_CLOCK = re.compile(r"(\d{1,2}):(\d\d)\s*(?:([ap])\.?\s*m\.?)?", re.IGNORECASE)
_OPENING, _CLOSING = ("(", "[", "{", r"\{"), (")", "]", "}", r"\}")


def read(text: str) -> str:
    r"""Bring an answer into the form that is compared.

    Examples:
        >>> read(r"\text{The answer is } 118.")
        '118'
        >>> read(r"$6{,}300$ dollars")
        '6300'
        >>> read(r"3 \text{ or } 5")
        '3, 5'
    """
    text = _ROOT.sub(r"\\sqrt{\1}", text.translate(_CHARACTERS))
    text = _DRESSING.sub("", _CONCLUSION.split(_DELIMITERS.sub("", text).replace("~", " "))[-1])
    text = _SYNONYM.sub(lambda match: _SYNONYMS[match[0]], text)
    text = _BARE_ARGUMENTS.sub(_with_braces, _ROW_SPACE.sub(r"\\\\", _UPRIGHT.sub(r"\1", text)))
    text = re.sub(_PLAIN_TEXT + r"\s*\{\s*(and|or)\s*\}", r" \1 ", text)
    text = _trim(text)
    if braced := re.fullmatch(r"\{([^{}]*)\}", text):
        text = _trim(braced[1])
    whole = GROUP.fullmatch(text)
    if whole and _NO_WORDS.match(whole[1]):
        text = _trim(whole[1])
    for leading in _LEADING:
        if (match := leading.match(text)) and not changing_words(match[0]):
            text = _trim(text[match.end() :])
    text = _REVERSED.sub(r"\2 = \1", text)
    if sign := _LEADING_SIGN.match(plain(text)):
        text = "-" + plain(text)[sign.end() :]
    text = _both_signs(_THIN_SPACE.sub("", text))
    text = _REPEATING.sub(_as_fraction, text)
    if changing_words(text):
        return text
    if mixed := _MIXED_NUMBER.fullmatch(text):
        return rf"{mixed[1]}\frac{{{mixed[2]}}}{{{mixed[3]}}}"
    text = _CONNECTIVE.sub(", ", _TRAILING.sub("", text))
    if scaled := _SCALED.fullmatch(plain(text)):
        text = rf"{re.sub('[ ,]', '', scaled[1])} \cdot {_SCALES[scaled[2].lower()]}"
    elif number := _WORDS_AFTER_NUMBER.fullmatch(plain(text)):
        text = plain(text) if _FUNCTIONS.search(number[2]) else number[1]
    return re.sub("[ ,]", "", text) if _THREES.fullmatch(text) else text


def plain(text: str) -> str:
    """The text with its text groups opened."""
    return GROUP.sub(r" \1", text).strip()


def changing_words(text: str) -> frozenset[str]:
    """The words in an answer that make another value of a number, such as `not`, `at least` and `tenths`."""
    return frozenset(" ".join(match[0].lower().split()) for match in _CHANGING.finditer(plain(text)))


def unit(text: str) -> str | None:
    """The unit of a number as it stands in an answer; `None` if there is none, or none of those told apart."""
    text = re.sub(r"\^\{?\\circ\}?", " degree", plain(_DELIMITERS.sub("", text)).replace("~", " "))
    if re.match(r"[-+]?\\\$", text):
        return "dollar"
    match = _UNIT.fullmatch(text)
    return _unit_name(match[1]) if match else None


def quantities(text: str) -> tuple[tuple[str, str], ...]:
    """The numbers and units of an answer in several units, such as 5 hours 30 minutes; empty for any other."""
    text = re.sub(r",|\band\b", " ", plain(_DELIMITERS.sub("", text)))
    found = [(number, _unit_name(name) or name.lower()) for number, name in _QUANTITY.findall(text)]
    return tuple(found) if len(found) > 1 and not _QUANTITY.sub("", text).strip() else ()


def clock(text: str) -> tuple[int, int, str] | None:
    """A time of day as hours, minutes and `a`, `p` or nothing."""
    match = _CLOCK.fullmatch(plain(text))
    return (int(match[1]), int(match[2]), (match[3] or "").lower()) if match else None


def tokens(text: str) -> list[tuple[str, int]]:
    r"""Characters and commands, each with the number of brackets open after it; `\{` and `{` are two brackets."""
    depth, found = 0, []
    for token in re.findall(r"\\[{}]|\\[a-zA-Z]+|.", text, re.DOTALL):
        depth += (token in _OPENING) - (token in _CLOSING)
        found.append((token, depth))
    return found


def items(text: str) -> list[str]:
    """The text cut at the commas outside all brackets."""
    parts = [""]
    for token, depth in tokens(text):
        if token == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += token
    return parts


def _unit_name(name: str) -> str | None:
    name = name.lower().replace("metre", "meter").replace("litre", "liter")
    return _UNIT_NAMES.get(name) or (_UNIT_NAMES.get(name.removesuffix("s")) if len(name) > 2 else None)


def _both_signs(text: str) -> str:
    r"""Write `a \pm b` in a list or set as two values; other uses stay."""
    if r"\pm" not in text:
        return text
    inner = re.fullmatch(r"(\\left)?\\\{(.*?)(\\right)?\\\}", text, re.DOTALL)
    values = []
    for item in items(inner[2] if inner else text):
        halves = re.split(r"\\pm(?![a-zA-Z])", item.strip())
        if len(halves) == 2 and r"\mp" not in item and not re.search(r"(?<!\\)[(\[]", halves[0]):
            plus = "" if halves[0].rstrip().endswith(("=", "{")) or not halves[0].strip() else "+"
            values += [halves[0] + plus + halves[1], halves[0] + "-" + halves[1]]
        else:
            values.append(item.strip())
    return rf"\{{{', '.join(values)}\}}" if inner else ", ".join(values)


def _as_fraction(match: re.Match) -> str:
    """A repeating decimal as a fraction."""
    whole, start, cycle = match.groups()
    numerator = int(whole + start + cycle) - int((whole + start) or 0)
    return rf"\frac{{{numerator}}}{{{10 ** len(start) * (10 ** len(cycle) - 1)}}}"


def _with_braces(match: re.Match) -> str:
    return "".join((match[1], *(f"{{{argument}}}" for argument in match.groups()[1:] if argument)))


def _trim(text: str) -> str:
    text = _START.sub("", text, count=1) if _START.match(text) else text
    return _END.sub("", text)
