"""Which texts are the same, and which share long passages: duplicates, and training rows seen in an evaluation set.

Owns: what counts as the same text (`text_key`) and how much two texts share (`GRAM_WORDS` words in a row, the length
by which GPT-3's authors looked for evaluation problems in their training data). Pure functions of texts; never reads a
file. Invariant: the order of texts decides nothing but which of several equally good matches is named.

One shared passage proves little: "can be written as m/n, where m and n are relatively prime positive integers" stands
in every tenth AIME problem. So a match is judged by the share of the shorter text's passages that the other holds. Of
AIME, MATH, MBPP and LeetCode rows, those that only have a phrase in common share up to 0.25, reworded copies 0.38 and
more; hence `LEAST_SHARE`. A text of fewer than `GRAM_WORDS` words is found only where it is the same.
"""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

GRAM_WORDS = 13
LEAST_SHARE = 0.3
MAX_HOLDERS = 50  # a passage that more texts hold is a phrase; it would only cost time

_WORD = re.compile(r"\w+")
_BLANKS_AROUND_SIGNS = re.compile(r"\s*([^\w\s])\s*")


@dataclass(frozen=True)
class Match:
    """Where a text is found again.

    Args:
        other (`int`): Number of the other text that it shares most with.
        share (`float`): In (0, 1]: passages in common, of all passages of the shorter of the two.
        same (`bool`): Whether the two are the same text.
        passage (`str`): The first words that they share, as they are compared; empty where they are the same.
    """

    other: int
    share: float
    same: bool = False
    passage: str = ""


def text_key(text: str) -> str:
    """What texts have in common that count as the same: neither case nor blanks, `$` or the sign at the end matter.

    Examples:
        >>> text_key("What is  $x + 1$ ?") == text_key("what is $x+1$?")
        True
        >>> text_key("What is x+1?") == text_key("What is x-1?")
        False
    """
    text = _plain(text).replace("$", " ")
    return " ".join(_BLANKS_AROUND_SIGNS.sub(r"\1", text).split()).rstrip(".?!:")


def same_texts(texts: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs of a text and the first one before it that is the same."""
    first: dict[str, int] = {}
    pairs = []
    for index, text in enumerate(texts):
        earlier = first.setdefault(text_key(text), index)
        if earlier != index:
            pairs.append((index, earlier))
    return pairs


class Overlap:
    """Finds texts again in other texts; made once for the others, then asked for one text after the other.

    Args:
        others (`Sequence[str]`): The texts to look in, such as the problems of evaluation sets.
        least_share (`float`, defaults to 0.3): In (0, 1]: share from which on two texts match.
    """

    def __init__(self, others: Sequence[str], least_share: float = LEAST_SHARE):
        self._least_share = least_share
        self._word_ids: dict[str, int] = {}
        self._keys: dict[str, int] = {}
        self._sizes: list[int] = []  # passages of each of the others
        holders: defaultdict[int, list[int]] = defaultdict(list)
        for number, text in enumerate(others):
            self._keys.setdefault(text_key(text), number)
            grams = set(self._grams(_words(text)))
            self._sizes.append(len(grams))
            for gram in grams:
                holders[gram].append(number)
        self._holders = {gram: numbers for gram, numbers in holders.items() if len(numbers) <= MAX_HOLDERS}

    def find(self, text: str) -> Match | None:
        """The other text that this one shares most with, if that is enough."""
        same = self._keys.get(text_key(text))
        if same is not None:
            return Match(same, 1.0, same=True)
        words = _words(text)
        grams = self._grams(words)
        known = set(grams)
        shared = Counter(number for gram in known & self._holders.keys() for number in self._holders[gram])
        if not shared:
            return None
        shares = {number: count / min(len(known), self._sizes[number]) for number, count in shared.items()}
        other = max(shares, key=lambda number: (shares[number], -number))
        if shares[other] < self._least_share:
            return None
        start = next(start for start, gram in enumerate(grams) if other in self._holders.get(gram, ()))
        return Match(other, shares[other], passage=" ".join(words[start : start + GRAM_WORDS]))

    def _grams(self, words: Sequence[str]) -> list[int]:
        """Hashes of all runs of `GRAM_WORDS` words; those of a tuple of numbers do not change from run to run."""
        ids = [self._word_ids.setdefault(word, len(self._word_ids)) for word in words]
        return list(map(hash, zip(*(ids[start:] for start in range(GRAM_WORDS)), strict=False)))


def _words(text: str) -> list[str]:
    return _WORD.findall(_plain(text))


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()
