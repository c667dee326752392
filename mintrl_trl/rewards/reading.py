r"""The form in which a short answer is compared. Imported in the checker's child processes only.

Owns: the rewriting of an answer as people write it into LaTeX that math-verify reads. The rules are in the table of
`rewards.equivalence`; which words and units there are, in `rewards.words` and `rewards.units`. Never compares, never
parses maths. Invariant: words are dropped only where they announce a value or name what is counted; all others stay, so
that an answer with them cannot pass for the bare number.
"""

import re
from functools import lru_cache

from .forms import items, tokens, union
from .units import split, without_currency
from .words import GROUP, PLAIN_TEXT, SCALE, changing_words, number_word, plain, scale, small_number

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
        "ℝ": r"\mathbb{R}",
        "∨": r"\lor ",
        "∠": r"\angle ",
        "°": r"^\circ ",
        "²": "^2 ",
        "³": "^3 ",
        "½": r"\frac12 ",
        "¼": r"\frac14 ",
        "¾": r"\frac34 ",
        "…": r"\ldots ",
        "\u00a0": " ",
        "\u2009": " ",
        "\u202f": " ",
        "。": ".",
    }
    | {chr(0xFF01 + code): chr(0x21 + code) for code in range(0x5E)}  # full-width forms
)
_ROOT = re.compile(r"√\s*[({]?(\d+|[a-zA-Z](?![a-zA-Z]))[)}]?")
_DRESSING = re.compile(
    r"\\(?:displaystyle|textstyle|small|large|Large|LARGE|huge|Huge|mathbf|boldsymbol|bm|bf|underline|checkmark|"
    r"blacksquare|square|qed|hfill|nonumber|notag|rm)(?![a-zA-Z])|"
    r"\\(?:textcolor|color|hspace|vspace|tag|label)\*?\s*\{[^{}]*\}|\\[bB]igg?[lmr]?(?![a-zA-Z])|\*\*"
)
_ENVIRONMENT = re.compile(
    r"\\begin\s*\{(aligned|align\*?|alignat|gathered|gather\*?|split|equation\*?|array|cases)\}(?:\s*\{[lcr|]*\})?"
    r"(.*)\\end\s*\{\1\}",
    re.DOTALL,
)
_CONTINUES = re.compile(r"\s*(?:[=<>]|\\(?:le|ge|leq|geq|approx|implies|Rightarrow|therefore)(?![a-zA-Z]))")
_EMPTY = re.compile(r"(?:^|(?<=[\d\s]))\{\}|\\(?:text|mbox|mathrm)\s*\{\s*\}")
_REVERSED = re.compile(r"^([^=<>]*[^=<>!:\\])=\s*([a-z])$")
_START = re.compile(r"(?:\s|\\[,;:! ])+")
_END = re.compile(r"(?:\s|\\[,;:! ]|\\q?quad(?![a-zA-Z])|\\\\|(?<![.\\])[.,;])+$")
_SYNONYMS = {
    r"\lbrace": r"\{",
    r"\rbrace": r"\}",
    r"\langle": "(",
    r"\rangle": ")",
    r"\varnothing": r"\emptyset",
    r"\R": r"\mathbb{R}",
    r"\colon": ":",
    r"\bigcup": r"\cup",
    r"\bigcap": r"\cap",
}
_SYNONYM = re.compile(r"\\(?:lbrace|rbrace|langle|rangle|varnothing|R|colon|bigcup|bigcap)(?![a-zA-Z])")
_UNIT_FRACTION = re.compile(  # 5 \frac{\text{km}}{\text{h}}
    r"(?<=[\d}\s,;~])\\[dt]?frac\s*\{\s*\\(?:text|mathrm)\s*\{([^{}]*)\}\s*\}\s*\{\s*\\(?:text|mathrm)\s*\{([^{}]*)\}\s*\}"
)
_ROMAN = re.compile(r"\{\s*\\rm(?![a-zA-Z])\s*((?:\\ )?[^{}\\]*)\}")
_WRAPPED = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|mbox|hbox|emph|pmb|math(?:rm|bf|it|sf|tt))\s*(\{.*\})", re.DOTALL
)
_OTHER_FONTS = re.compile(r"\\(?:text(?:sf|tt)|emph|pmb|math(?:it|tt))\s*\{")
_UPRIGHT = re.compile(r"\\(?:mathrm|text)\s*\{([ei])\}")
_ROW_SPACE = re.compile(r"\\\\\[[\d.]+\s*[a-z]{2}\]")
_BARE = r"(\\(?!sqrt|[dtc]?frac|left|text|math)[a-zA-Z]+|[^\s{}\\])"  # a token that LaTeX lets stand without braces
_BARE_ARGUMENTS = re.compile(rf"(\\(?:[dtc]?frac|[dt]?binom))(?![a-zA-Z])\s*{_BARE}\s*(?:{_BARE}|(?=\{{))")
_OVER = re.compile(r"(?:\{|^)([^{}]*)\\(choose|over)(?![a-zA-Z])([^{}]*)(?:\}|$)")
_COMMANDS = {"choose": "binom", "over": "frac"}
_CHOSEN = re.compile(
    r"(?<![\w})\]])(?:\{\})?_\{?(\d+)\}?\s*(?:\\mathrm\{C\}|C)_\{?(\d+)\}?|(?<![\w})\]])(?:\{\})?\^\{?(\d+)\}?C_\{?(\d+)\}?"
)
_GROUP_OR_NAME = re.compile(rf"{GROUP.pattern}|(?<![\\A-Za-z])(pi|infinity|inf)(?![A-Za-z])")
_NAMED = {"pi": r"\pi ", "infinity": r"\infty ", "inf": r"\infty "}
_PERCENT = re.compile(
    r"\\(?:text|mathrm|mbox)\s*\{\s*(?:\\?%|percent|percentage|pct)\s*\}|(?<!\\)%|"
    r"(?<=[\d}\s])(?:percent|percentage|pct)(?![A-Za-z])"
)
_MODULUS = re.compile(
    r"\\(?:text|mathrm)\s*\{\s*\(\s*mod\s*(\w+)\s*\)\s*\}|\\pmod\s*\{?\s*(\w+)\s*\}?|"
    r"\(\s*(?:\\(?:bmod|mod)|\\(?:text|mathrm)\{\s*mod\s*\}|(?<=[\s(])mod)\s*\{?\s*(\w+)\s*\}?\s*\)"
)
_MOD = re.compile(r"\\(?:text|mathrm)\s*\{\s*mod\s*(\w*)\s*\}")
_BARE_MODULUS = re.compile(r"\\b?mod(?![a-zA-Z])\s*\{?\s*(\w+)\s*\}?")
_REMAINDER = re.compile(r"(-?\d+)(?:\^\{?(\d+)\}?)?\s*\\b?mod(?![a-zA-Z])\s*\{?\s*(\d+)\s*\}?")
_BASE = re.compile(
    r"(-?)(?:\\(?:mathrm|text)\s*\{\s*(\w+)\s*\}|\(?(\d[0-9A-Za-z]*|[A-F][0-9A-F]*)\)?)\s*_\s*\{?\s*"
    r"(?:\\(?:text|mathrm)\s*\{)?\s*(?:base\s*)?\(?([a-z]+|\d+)\)?\s*\}{0,2}",
    re.IGNORECASE,
)
_SET_BUILDER = re.compile(
    r"(?:\\left)?\\\{\s*([a-zA-Z])(?:\s*\\in\s*(?:\\mathbb\{R\}))?\s*(?:\\mid|\\vert|\||:)\s*(.*?[<>\\].*?)\s*(?:\\right)?\\\}"
)

_ANNOUNCING = (
    r"\b(?:is|are|was|be|equals?|equal to|get|gives?|have|answer|solution|result|value|total|sum|so|thus|hence|"
    r"therefore)\b(?:\s+(?:about|approximately|roughly)\b)?|\b(?:about|approximately|roughly)\b"
)
_LEADING = (
    re.compile(  # \text{The answer is } 5, \text{Answer: } 5, \text{Area} = 5; not a name such as \text{area} - 5
        rf"{PLAIN_TEXT}\s*\{{[^{{}}]*(?:(?:{_ANNOUNCING})\s*[:=,]?|[A-Za-z]{{3,}}\s*[:=])\s*\}}(?=.*\S)|"
        rf"{PLAIN_TEXT}\s*\{{[A-Za-z ]*[A-Za-z]{{3,}}\s*\}}\s*=(?=.*\S)",
        re.IGNORECASE | re.DOTALL,
    ),
    re.compile(  # the same without a text group; not a product such as be + 3
        rf"(?=[A-Za-z' ,]*[A-Za-z]{{3}})[A-Za-z' ,]*(?:(?:{_ANNOUNCING})\s*:?|[A-Za-z]{{3,}}\s*:)(?=.*\S)",
        re.IGNORECASE | re.DOTALL,
    ),
    re.compile(PLAIN_TEXT + r"\s*\{\s*\(?[A-H]\)?[.:]?\s*\}(?:\s|\\[ ,;:])*(?=[\d\\(-])"),  # the letter of a choice
    re.compile(r"(?:=|\\(?:approx|simeq)(?![a-zA-Z]))\s*"),
    re.compile(r"(?:option|choice)\s+(?=\(?[A-H]\)?$)", re.IGNORECASE),
    re.compile(  # P(A|B) = 5, \max f(x) = 5, f_{\max} = 5, f^{-1}(2) = 5
        r"(?:P\s*(?:\\left)?[(\[][^=]*?(?:\\mid|\|)[^=]*?[)\]]|\\Pr(?![a-zA-Z])[^=]*|\\(?:max|min)(?![a-zA-Z])[^=]*|"
        r"[a-zA-Z]_\{?\\(?:max|min)\s*\}?|[a-zA-Z]\^\{\s*-1\s*\}\s*\([^=()]*\))\s*=(?=[^,=]*\S[^,=]*$)"
    ),
)
_NO_WORDS = re.compile(  # in a text group; also a number, or the letter of a choice, that words announce
    rf"\s*(?:(?:(?i:[A-Za-z' ,]*(?:(?:{_ANNOUNCING})\s*[:=]?|[A-Za-z]{{3,}}\s*[:=]))|[A-Za-z]\s*=)?\s*"
    r"(?:[(\[]?[-+]?(?:\\\$)?\s*\.?\d|(?<=[\s:])(?:[A-H]|\([A-H]\))\.?\s*$)|"
    r"[A-Z](?:(?:\s|,|and|or)+[A-Z])+\s*$|(?i:option|choice)\s+\(?[A-H]\)?\s*$)"
)
_TRAILING = re.compile(r"\s+is (?:the|my|our) (?:final )?(?:answer|result|solution)$", re.IGNORECASE)
_ASIDE = re.compile(r"(?<=[^\s(])(?:\s|\\[,;:! ]|\\q?quad(?![a-zA-Z]))*\(\s*\\(?:approx|simeq)(?![a-zA-Z])[^()]*\)$")
_REPEATING = re.compile(r"(\d*)\.(\d*)\\(?:overline|bar)\s*\{?(\d+)\}?")
_GOES_ON = re.compile(r"(\d*)\.(\d*?)(\d+?)\3{2,}(?:\\[lc]?dots(?![a-zA-Z])|\.\.\.)")
_DOTS = re.compile(r"(?<=\d)\.\.\.$")
_MIXED_NUMBER = re.compile(r"([-+]?\d+)\s+(\d+)/(\d+)\s*(\\%)?")
_FACTOR = re.compile(r"(?<![\w.}/^])(\d+)/(\d+)\s*(?=[a-zA-Z(])")
_EXPONENTIAL = re.compile(r"([-+]?\d+(?:\.\d+)?)[eE]([-+]?\d+)")
_LEADING_SIGN = re.compile(r"(?:negative|minus)\s+(?=[\d.\\])", re.IGNORECASE)

_THIN_SPACE = re.compile(r"(?<=\d),\\!\s*(?=\d{3})|(?<=\d)\\[,!:;](?=\d)|(?<=\d)\{,\}(?=\d)")
_SPACE = re.compile(r"(?<!\\)\\[,;:! ]")
_THREES = re.compile(r"(?:[a-zA-Z]\s*=\s*)?[-+]?\d{1,3}(?:[ ,]\d{3})+(?:\.\d+)?(?:\\%)?")
_GAP = r"(?:\s|\\q?quad(?![a-zA-Z]))*"
_CONNECTIVE_IN_TEXT = re.compile(rf"{_GAP}{PLAIN_TEXT}\s*\{{\s*(and|or)\s*\}}{_GAP}")
_CONNECTIVE = re.compile(r"\s*,?\s+(?:and|or)\s+")
_SCALED = re.compile(rf"([-+]?\s*[\d.,]*\d(?:/\d+)?)\s*({SCALE.pattern})(?:\s+[A-Za-z\s]+)?", re.IGNORECASE)


@lru_cache(maxsize=4096)
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
    text = _ASIDE.sub("", without_currency(undressed(text)))
    if number := number_word(text):
        return number
    text = _REVERSED.sub(r"\2 = \1", unannounced(text))
    if sign := _LEADING_SIGN.match(plain(text)):
        text = "-" + plain(text)[sign.end() :]
    text = _both_signs(re.sub(r"\s+", " ", _SPACE.sub(" ", text)))
    text = _REPEATING.sub(_as_fraction, _GOES_ON.sub(_as_fraction, _DOTS.sub(r"\\ldots", text)))
    if changing_words(text):
        return text
    if mixed := _MIXED_NUMBER.fullmatch(text):
        return rf"{mixed[1]}\frac{{{mixed[2]}}}{{{mixed[3]}}}{mixed[4] or ''}"
    if remainder := _REMAINDER.fullmatch(text):
        return str(pow(int(remainder[1]), int(remainder[2] or 1), int(remainder[3]))) if int(remainder[3]) else text
    text = _CONNECTIVE_IN_TEXT.sub(r" \1 ", text)
    text = union(text) or _CONNECTIVE.sub(", ", text)
    text = _EXPONENTIAL.sub(_as_power, text, count=1) if _EXPONENTIAL.fullmatch(text) else text
    if scaled := _SCALED.fullmatch(plain(text)):
        return rf"{re.sub('[ ,]', '', scaled[1])} \cdot {scale(scaled[2])}"
    text = _FACTOR.sub(r"\\frac{\1}{\2}", _without_units(_TRAILING.sub("", text)))
    return re.sub("[ ,]", "", text) if _THREES.fullmatch(text) else text


def unannounced(text: str) -> str:
    """The text without a text group around the whole of it, and without the words that announce its value."""
    whole = GROUP.fullmatch(text)
    if whole and _NO_WORDS.match(whole[1]):
        text = _trim(whole[1])
    for leading in _LEADING:
        if (match := leading.match(text)) and not changing_words(match[0]):
            text = _trim(text[match.end() :])
    return text


@lru_cache(maxsize=4096)
def undressed(text: str) -> str:
    """An answer without delimiters, dressing and other ways to write the same, its words and units as they were."""
    text = _ROMAN.sub(r"\\text{\1}", _unwrapped(re.sub(r"[\s~]+", " ", text.translate(_CHARACTERS))))
    text = _UNIT_FRACTION.sub(r"\\text{\1/\2}", _ROOT.sub(r"\\sqrt{\1}", text))
    text = _DRESSING.sub("", _opened(_CONCLUSION.split(_DELIMITERS.sub("", text))[-1]))
    text = _SYNONYM.sub(lambda match: _SYNONYMS[match[0]], text).replace("{:}", ":")
    text = _BARE_ARGUMENTS.sub(_with_braces, _ROW_SPACE.sub(r"\\\\", _UPRIGHT.sub(r"\1", text)))
    text = _OVER.sub(lambda match: rf"\{_COMMANDS[match[2]]}{{{match[1].strip()}}}{{{match[3].strip()}}}", text)
    text = _CHOSEN.sub(lambda match: r"\binom{{{}}}{{{}}}".format(*filter(None, match.groups())), text)
    text = _PERCENT.sub(r"\\%", _GROUP_OR_NAME.sub(_as_command, text))
    text = _MODULUS.sub(lambda match: rf"\pmod{{{match[1] or match[2] or match[3]}}}", text)
    text = _MOD.sub(r"\\bmod \1", text)
    if r"\equiv" in text:
        text = _BARE_MODULUS.sub(r"\\pmod{\1}", text)
    text = _EMPTY.sub("", _trim(_THIN_SPACE.sub("", text)))
    if builder := _SET_BUILDER.fullmatch(text):
        text = builder[2]
    if base := _BASE.fullmatch(text):
        text = f"{base[1]}{base[2] or base[3]}_{{{small_number(base[4]) or base[4]}}}"
    braced = re.fullmatch(r"\{([^{}]*)\}", text)
    return _trim(braced[1]) if braced else text


def _unwrapped(text: str) -> str:
    """The text without a font around the whole of it that holds more than words."""
    text = text.strip()
    while wrapped := _WRAPPED.fullmatch(text):
        found = tokens(wrapped[1])
        if any(depth == 0 for _, depth in found[:-1]) or not (
            _OTHER_FONTS.match(text) or re.search(r"[\\{]", wrapped[1][1:])
        ):
            break
        text = wrapped[1][1:-1].strip()
    return text


def _opened(text: str) -> str:
    """The rows of an environment around the whole answer as a list, or as one row where they go on; tables stay."""
    found = _ENVIRONMENT.fullmatch(text.strip())
    if found is None:
        return text
    rows = [row.strip().rstrip(",.") for row in re.split(r"\\\\(?:\[[^\]]*\])?", found[2]) if row.strip()]
    if found[1] in ("array", "cases") and any("&" in row for row in rows):
        return text
    rows = [row.replace("&", "") for row in rows]
    return "".join(row if place == 0 or _CONTINUES.match(row) else f", {row}" for place, row in enumerate(rows))


def _without_units(text: str) -> str:
    """Each number of a list, an equation or a sum without what it counts."""
    for separator in ",=+":
        if len(parts := items(text, separator)) > 1:
            return separator.join(map(_without_units, parts))
    return split(text)[0]


def _as_command(match: re.Match) -> str:
    if match[2]:
        return _NAMED[match[2]]
    return _NAMED.get(match[1].strip(), match[0])


def _as_power(match: re.Match) -> str:
    return rf"{match[1]} \cdot 10^{{{match[2]}}}"


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
