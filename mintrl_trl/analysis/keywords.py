r"""How often words of reconsideration and of execution occur early in responses (Figure 5).

Pure functions of texts. The paper fixes a window, the first 512 narrative words, and reports shifts in percentage
points; it leaves open what a narrative word is. Here: what is left of a response without code blocks, inline code and
mathematics in dollar signs, `\(...\)`, `\[...\]`, split into words of letters. The *share* of a keyword is that of
responses in whose window it occurs at least once, which is what percentage points can be of; occurrences are counted
as well. A keyword of two words occurs where they follow each other.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

RECONSIDERATION = ("wait", "actually", "maybe", "alternatively")
EXECUTION = ("compute", "use", "we can", "we will")
KEYWORDS = RECONSIDERATION + EXECUTION
WINDOW_WORDS = 512

_NOT_NARRATIVE = re.compile(
    r"```.*?(?:```|\Z)|`[^`\n]*`|\$\$.*?\$\$|(?<!\\)\$[^$\n]*\$|\\\((?:(?!\\\().)*?\\\)|\\\[(?:(?!\\\[).)*?\\\]",
    re.DOTALL,  # mathematics ends before the next that opens, so that hostile text is read in linear time
)
_WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*")


@dataclass(frozen=True)
class KeywordUse:
    """How responses of one method use one keyword.

    Args:
        keyword (`str`): One or two words, in small letters.
        responses (`int`): Responses that were read.
        using (`int`): Those in whose window it occurs.
        occurrences (`int`): How often it occurs in all windows.
    """

    keyword: str
    responses: int
    using: int
    occurrences: int

    @property
    def share(self) -> float:
        """Share of responses that use it, in [0, 1]."""
        return self.using / self.responses


def narrative_words(text: str, limit: int = WINDOW_WORDS) -> list[str]:
    r"""The first words of a response that are neither code nor mathematics, in small letters.

    Examples:

    ```python
    >>> narrative_words("Wait, `use` $x + we$ is wrong.\n```python\nuse()\n```\nWe'll use 3 rows")
    ['wait', 'is', 'wrong', "we'll", 'use', 'rows']

    ```
    """
    narrative = _NOT_NARRATIVE.sub(" ", text)
    words = []
    for match in _WORD.finditer(narrative):
        words.append(match[0].lower().replace("\u2019", "'"))
        if len(words) == limit:
            break
    return words


def keyword_use(
    texts: Iterable[str], keywords: Sequence[str] = KEYWORDS, limit: int = WINDOW_WORDS
) -> tuple[KeywordUse, ...]:
    """Count keywords in the windows of responses.

    Args:
        texts (`Iterable[str]`): Responses.
        keywords (`Sequence[str]`, *optional*): What to count; by default the paper's eight.
        limit (`int`, *optional*, defaults to 512): Words of the window.

    Returns:
        `tuple[KeywordUse, ...]`: One for each keyword, in order; none where no response has a narrative word.
    """
    phrases = {keyword: tuple(keyword.lower().split()) for keyword in keywords}
    using: Counter[str] = Counter()
    occurrences: Counter[str] = Counter()
    responses, words_read = 0, 0
    for text in texts:
        words = narrative_words(text, limit)
        responses += 1
        words_read += len(words)
        grams = Counter((word,) for word in words)
        for size in {len(phrase) for phrase in phrases.values()} - {1}:
            grams.update(zip(*(words[start:] for start in range(size)), strict=False))
        for keyword, phrase in phrases.items():
            using[keyword] += phrase in grams
            occurrences[keyword] += grams[phrase]
    if not words_read:
        return ()
    return tuple(KeywordUse(keyword, responses, using[keyword], occurrences[keyword]) for keyword in keywords)
