r"""The words in a short answer: which make another value of a number, which are a number, which say the same.

Owns: lists of words and what they mean; the rules are in the table of `rewards.equivalence`. Never parses maths, never
decides whether two answers are equal. Invariant: a word that could change a value is in `changing_words`, whether it
stands in a text group or not; a command such as `\times` is never taken for the word.
"""

import re

PLAIN_TEXT = r"\\(?:text|textbf|textit|textrm|textnormal|mbox|hbox)"
GROUP = re.compile(r"\\(?:text|textbf|textit|textrm|textnormal|mbox|hbox|mathrm|mathbf|mathsf)\s*\{([^{}]*)\}")

_CHANGING = re.compile(
    r"(?<!\\)\b(?:not|no|never|cannot|neither|nor|wrong|false|incorrect|than|at least|at most|up to|almost|nearly|"
    r"between|if|unless|except|(?:or|and) (?:more|less|fewer|greater|higher|lower|above|below|over|under)|below|"
    r"minus|negative|plus|point (?:oh|zero|one|two|three|four|five|six|seven|eight|nine)|twice|thrice|double|half|"
    r"halves|thirds?|fourths?|fifths?|sixths?|sevenths?|eighths?|ninths?|tenths?|hundredths?|thousandths?|millionths?|"
    r"squared|cubed|factorial|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|forty|fifty|"
    r"sixty|seventy|eighty|ninety|quarters?|quadrillion|lakh|crore|bn|root|over|out of|times|divided|choose|remainder|"
    r"mod|base|dot|so|pi)\b|n't\b|(?<=\d)\s*(?-i:[kKM])\b",
    re.IGNORECASE,
)
_FUNCTIONS = re.compile(r"\b(?:percent(?:age)?|pct|mod|a?sin|a?cos|a?tan|cot|sec|csc|log|exp|sqrt|max|inf)\b", re.I)

_BELOW_TWENTY = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_NUMBERS = {word: number for number, word in enumerate(_BELOW_TWENTY)} | {
    word: 10 * number for number, word in enumerate(_TENS, 2)
}
_NUMBER = re.compile(rf"(minus |negative )?(?:({'|'.join(_TENS)})[- ])?({'|'.join(_NUMBERS)})", re.IGNORECASE)

SCALE = re.compile(r"(dozen|hundred|thousand|million|billion|trillion)s?\b", re.IGNORECASE)
_SCALES = {
    "dozen": "12",
    "hundred": "10^{2}",
    "thousand": "10^{3}",
    "million": "10^{6}",
    "billion": "10^{9}",
    "trillion": "10^{12}",
}

_PHRASE = re.compile(r"(?:[A-Za-z]{3,}|[Nn]o|[Aa]n?(?= )|[Ii]t(?= )|[Ii]n(?= ))(?:[\s'-]+[A-Za-z]+)*")
_LEADING_WORDS = re.compile(r"(?:(?:the|an?|there (?:is|are)|it is) )+")
_SAME = {  # phrases that say the same, by the one that stands for them
    "no solution": re.compile(
        r"no (?:real |such )?(?:solutions?|roots?|numbers?|values?)(?: exists?)?|none|(?:the )?empty set|null set"
    ),
    "undefined": re.compile(r"undefined|dne|does not exist|not defined"),
    "all reals": re.compile(r"(?:all|any|every|the|set of(?: all)?)? ?(?:reals|real numbers?)"),
}
_SYMBOLS = {
    r"\emptyset": "no solution",
    r"\{\}": "no solution",
    r"\mathbb{R}": "all reals",
    r"(-\infty,\infty)": "all reals",
}
_IN = re.compile(r"^[a-zA-Z]\\in")
_SPACES = re.compile(r"\s+|\\(?:left|right)(?![a-zA-Z])")


def plain(text: str) -> str:
    """The text with its text groups opened."""
    return GROUP.sub(r" \1", text).strip()


def changing_words(text: str) -> frozenset[str]:
    """The words in an answer that make another value of a number, such as `not`, `at least` and `tenths`."""
    return frozenset(" ".join(match[0].lower().split()) for match in _CHANGING.finditer(plain(text)))


def small_number(word: str) -> int | None:
    """The number that a word below twenty, or for a multiple of ten below a hundred, stands for."""
    return _NUMBERS.get(word.lower())


def scale(text: str) -> str | None:
    """The factor that the first word of scale in a text stands for, such as `10^{6}` for `millions`."""
    match = SCALE.search(text)
    return _SCALES[match[1].lower()] if match else None


def names_function(text: str) -> bool:
    """Whether a word in the text is a function of the number beside it, such as `mod` and `log`."""
    return _FUNCTIONS.search(text) is not None


def number_word(text: str) -> str | None:
    """The digits of an answer that is a number in words below a hundred, such as `minus twenty-one`."""
    match = _NUMBER.fullmatch(plain(text).rstrip("."))
    if match is None:
        return None
    tens, last = (_NUMBERS[match[2].lower()] if match[2] else 0), _NUMBERS[match[3].lower()]
    if tens and not 0 < last < 10:
        return None
    return f"{'-' if match[1] else ''}{tens + last}"


def phrase(text: str) -> str | None:
    """The words that an answer consists of, in the form that is compared; `None` if it is anything else.

    Examples:
        >>> phrase(r"\\text{The Ellipse.}"), phrase(r"\\emptyset"), phrase("x + 1")
        ('ellipse', 'no solution', None)
    """
    if symbol := _SYMBOLS.get(_IN.sub("", _SPACES.sub("", text))):
        return symbol
    whole = GROUP.fullmatch(text)
    text = " ".join((whole[1] if whole else text).rstrip(".!").split())
    if not _PHRASE.fullmatch(text) and text != "DNE":
        return None
    text = text.lower()
    text = _LEADING_WORDS.sub("", text, count=1)
    return next((name for name, pattern in _SAME.items() if pattern.fullmatch(text)), text)
