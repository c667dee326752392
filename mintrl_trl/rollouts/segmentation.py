"""From token ids to the steps that a judge points at, and back to the token where a step starts.

Works on the bytes that tokens spell, since a token may hold half a UTF-8 character or the end of one step and the
beginning of the next. It never re-encodes text. The invariant: whatever step is rejected, what stays is a prefix of the
chunk's own ids, no byte of the rejected step survives, and cutting at step 0 keeps nothing.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise

from .doors import TokenText, Vocabulary

_BLANK_LINES = re.compile(rb"\n([^\S\n]*\n)+")
_FENCE_LINE = re.compile(rb"^[^\S\n]*`{3,}([^`\n]*)$", re.MULTILINE)  # group 1: the info string


@dataclass(frozen=True)
class Segmentation:
    """A chunk cut into steps.

    Args:
        steps (`tuple[TokenText, ...]`): Text of each step with its ids. Ids of all steps, joined, are the chunk's; a
            token that straddles a border belongs to the later step.
        starts (`tuple[int, ...]`): Per step, how many of the chunk's tokens stay when that step is rejected.
        inside_fence (`bool`): Whether the finished lines leave a code fence open. With `open_line` it is what the
            next chunk's segmentation needs to know.
        open_line (`bytes`): The last line, as far as it is written.
    """

    steps: tuple[TokenText, ...]
    starts: tuple[int, ...]
    inside_fence: bool
    open_line: bytes


def segment(
    ids: Sequence[int], vocabulary: Vocabulary, inside_fence: bool = False, open_line: bytes = b""
) -> Segmentation:
    r"""Cut a chunk into steps.

    A step ends after a run of blank lines, before the line that opens a code fence and after the line that closes it;
    a step of white space alone joins the one before it, or the one after it at the chunk's beginning. A fence is a line
    of three or more backticks; only the opening one may carry an info string.

    Args:
        ids (`Sequence[int]`): The chunk.
        vocabulary (`Vocabulary`): Spells the ids.
        inside_fence (`bool`, *optional*, defaults to `False`): Whether the finished lines before the chunk leave a
            code fence open.
        open_line (`bytes`, *optional*, defaults to `b""`): The unfinished line before the chunk, which the chunk
            goes on writing.

    Returns:
        `Segmentation`: At least one step unless `ids` is empty.
    """
    if not ids:
        return Segmentation((), (), inside_fence, open_line)
    pieces = [vocabulary.token_bytes(token) for token in ids]
    written = b"".join(pieces)
    cuts, inside_fence, open_line = _cuts(open_line + written, len(open_line), inside_fence)
    borders = _join_blank(written, cuts)
    ends = list(accumulate(map(len, pieces)))
    # The longest token prefix that ends no later than the step begins. Step 0 begins with the chunk.
    starts = (0, *(bisect_right(ends, border) for border in borders[1:]))
    steps = tuple(
        TokenText(written[begin:end].decode("utf-8", errors="replace"), ids[first:last])
        for (begin, end), (first, last) in zip(
            pairwise((*borders, len(written))), pairwise((*starts, len(ids))), strict=True
        )
    )
    return Segmentation(steps, starts, inside_fence, open_line)


def decode(ids: Sequence[int], vocabulary: Vocabulary) -> TokenText:
    """The text that `ids` spell, together with them. Bytes that are no UTF-8 become U+FFFD; special tokens vanish."""
    return TokenText(b"".join(map(vocabulary.token_bytes, ids)).decode("utf-8", errors="replace"), ids)


def _cuts(text: bytes, chunk_start: int, inside_fence: bool) -> tuple[list[int], bool, bytes]:
    """Where `text[chunk_start:]` is cut, counted from `chunk_start`, and the fence state to carry on from its end."""
    cuts = {match.end() for match in _BLANK_LINES.finditer(text)}
    open_line_start = text.rfind(b"\n") + 1
    inside_before_open_line = inside_fence
    for match in _FENCE_LINE.finditer(text):
        if not inside_fence:
            inside_fence = True
            cuts.add(match.start())
        elif not match[1].strip():
            inside_fence = False
            cuts.add(match.end() + 1)  # with its line break
        if match.start() < open_line_start:
            inside_before_open_line = inside_fence
    inner = sorted(cut - chunk_start for cut in cuts if chunk_start < cut < len(text))
    return inner, inside_before_open_line, text[open_line_start:]


def _join_blank(text: bytes, cuts: Sequence[int]) -> list[int]:
    """Beginnings of the steps: 0 and the cuts that have more than white space on both sides."""
    borders, begun = [0], False
    for begin, end in pairwise(chain((0,), cuts, (len(text),))):
        if text[begin:end].strip():
            if begun:
                borders.append(begin)
            begun = True
    return borders
