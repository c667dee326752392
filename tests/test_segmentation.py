"""Steps and the tokens where they start: the hand-worked vectors, and what holds for any text and any tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mintrl_trl.rollouts.segmentation import decode, segment

from .doors import ByteVocabulary, TableVocabulary

F = "```"
CAFE = b"\xc3", b"\xa9"  # the two bytes of an accented e

VECTORS = {
    "blank lines": (["A", "=2", ".\n\n", "B", "=5", "\n\n", "C"], False, (0, 3, 6)),
    "straddling token": (["x", "\n\n   ", "y", "\n\n", "z"], False, (0, 1, 4)),
    "blank line with a space": (["one", "\n", " \n", "\n", "two"], False, (0, 4)),
    "half characters": (["caf", *CAFE, ".\n\n", "next"], False, (0, 4)),
    "code block": (
        ["Plan", ":\n", F, "python", "\n", "a=1", "\n\n", "b=2", "\n", F, "\n", "Done"],
        False,
        (0, 2, 7, 11),
    ),
    "chunk begins inside a fence": (["b=2", "\n", F, "\n", "Done"], True, (0, 4)),
    "the same outside": (["b=2", "\n", F, "\n", "Done"], False, (0, 2)),
    # Ids 13 and 382 of a Qwen vocabulary: the full stop alone, and with two line ends.
    "mark inside a token": (["so", " x is", " 3", ".\n\n", "Then", " y"], False, (0, 4)),
    "three line ends": (["x =", " 3", "\n\n", "\n", "So"], False, (0, 4)),
    "stop and line ends apart": (["one", ".", "\n", "\n", "Step"], False, (0, 4)),
    "carriage returns": (["a", "\r\n\r\n", "b"], False, (0, 2)),
    "blank beginning joins what follows": (["\n\n", "a", "\n\n", "b"], False, (0, 3)),
    "blank end joins what precedes": (["a", "\n\n", "   "], False, (0,)),
    "blank line after a fence": ([F, "\n", "a", "\n", F, "\n", "\n", "b"], False, (0, 7)),
    "white space alone": (["\n\n", " ", "\n\n"], False, (0,)),
    "end token alone": ([None], False, (0,)),
    "end token last": (["a", "\n\n", "b", None], False, (0, 2)),
    "no line end": (["a", "b"], False, (0,)),
    "one line end": (["a", "\n", "b"], False, (0,)),
    "two steps end in one token": (["x", "\n\ny\n\n", "z"], False, (0, 1, 2)),
    "info string does not close": ([F, "py", "\n", "a", "\n", F, "js", "\n", "b", "\n", F, "\n", "c"], False, (0, 12)),
    "indented fence": (["a", "\n", "  ", F, "\n", "b", "\n", "  ", F, "\n", "c"], False, (0, 2, 10)),
    "inline code is no fence": (["use ", F, "x", F, "\n", "so"], False, (0,)),
    "four backticks": (["a", "\n", F, "`", "\n", "b"], False, (0, 2)),
}


@pytest.mark.parametrize(("pieces", "inside_fence", "starts"), VECTORS.values(), ids=VECTORS)
def test_vectors(pieces, inside_fence, starts):
    assert segment(range(len(pieces)), TableVocabulary(pieces), inside_fence).starts == starts


def test_step_texts_and_ids():
    shown = segment(range(7), TableVocabulary(["A", "=2", ".\n\n", "B", "=5", "\n\n", "C"]))
    assert shown.steps == ("A=2.\n\n", "B=5\n\n", "C")
    assert [step.ids for step in shown.steps] == [(0, 1, 2), (3, 4, 5), (6,)]


def test_a_straddling_token_goes_to_the_later_step_and_its_text_to_both():
    shown = segment(range(5), TableVocabulary(["x", "\n\n   ", "y", "\n\n", "z"]))
    assert shown.steps == ("x\n\n", "   y\n\n", "z")
    assert [step.ids for step in shown.steps] == [(0,), (1, 2, 3), (4,)]


def test_code_block_steps():
    pieces = ["Plan", ":\n", F, "python", "\n", "a=1", "\n\n", "b=2", "\n", F, "\n", "Done"]
    shown = segment(range(12), TableVocabulary(pieces))
    assert shown.steps == ("Plan:\n", "```python\na=1\n\n", "b=2\n```\n", "Done")
    assert (shown.inside_fence, shown.open_line) == (False, b"Done")


def test_no_ids_no_steps():
    assert segment((), ByteVocabulary(), True, b"``") == type(segment((), ByteVocabulary()))((), (), True, b"``")


@pytest.mark.parametrize(
    ("first", "second", "steps"),
    [
        (["a\n", F], ["py\n", "b\n", F, "\n", "c"], ("py\nb\n```\n", "c")),
        (["a\n", "``"], ["`\n", "b\n", F, "\n", "c"], ("`\nb\n```\n", "c")),
        (["a "], [F, "\n", "b\n", F, "\n", "c"], ("```\nb\n", "```\nc")),
        ([F, "\n", "b\n", F], ["\n", "c\n", F, "\n", "d"], ("\nc\n", "```\nd")),
    ],
    ids=["fence line goes on", "fence mark goes on", "mark in mid-line", "closing line ends later"],
)
def test_fences_survive_the_chunk_border(first, second, steps):
    """The second chunk is cut as if both were one text, whatever the border splits."""
    vocabulary = TableVocabulary(first + second)
    before = segment(range(len(first)), vocabulary)
    ids = range(len(first), len(first) + len(second))
    assert segment(ids, vocabulary, before.inside_fence, before.open_line).steps == steps


PIECES = st.lists(
    st.sampled_from(
        ["a", ".", "\n", "\n\n", " ", "  \n", ".\n\n", "\n\n  ", F, "`", "py", "x\n\ny", "```\n", *CAFE, None]
    ),
    max_size=24,
)


@given(PIECES, st.booleans())
def test_what_holds_for_any_tokens(pieces, inside_fence):
    vocabulary = TableVocabulary(pieces)
    shown = segment(range(len(pieces)), vocabulary, inside_fence)
    text = b"".join(map(vocabulary.token_bytes, range(len(pieces))))
    assert len(shown.steps) == len(shown.starts) and bool(shown.steps) == bool(pieces)
    assert "".join(shown.steps).replace("\ufffd", "") == text.decode(errors="ignore")
    assert tuple(token for step in shown.steps for token in step.ids) == tuple(range(len(pieces)))
    assert list(shown.starts) == sorted(shown.starts)
    border = 0
    for step, start in zip(shown.steps, shown.starts, strict=True):
        kept = sum(len(vocabulary.token_bytes(token)) for token in range(start))
        assert kept <= border, "no byte of a rejected step stays"
        assert start < len(pieces), "something of a rejected step goes"
        if border:
            assert kept + len(vocabulary.token_bytes(start)) > border, "nothing goes without need"
        border += len(step.encode()) if "\ufffd" not in step else len(_bytes_of(step, text, border))
    if len(shown.steps) > 1:
        assert all(step.strip() for step in shown.steps)


def _bytes_of(step: str, text: bytes, begin: int) -> bytes:
    return next(
        text[begin:end] for end in range(begin, len(text) + 1) if text[begin:end].decode(errors="replace") == step
    )


@given(PIECES, st.integers(0, 24))
def test_fence_state_does_not_depend_on_chunk_borders(pieces, border):
    vocabulary = TableVocabulary(pieces)
    ids = range(len(pieces))
    before = segment(ids[:border], vocabulary)
    after = segment(ids[border:], vocabulary, before.inside_fence, before.open_line)
    whole = segment(ids, vocabulary)
    assert (after.inside_fence, after.open_line) == (whole.inside_fence, whole.open_line)


def test_decode_joins_half_characters_and_skips_special_tokens():
    vocabulary = TableVocabulary(["caf", *CAFE, None])
    text = decode((0, 1, 2, 3), vocabulary)
    assert text == "caf\u00e9" and text.ids == (0, 1, 2, 3)
    assert decode((0, 1), vocabulary) == "caf\ufffd"


def test_long_texts_are_cut_in_linear_time():
    """Neither endless blanks nor endless backticks make the patterns backtrack."""
    vocabulary = ByteVocabulary()
    for text in ("\n" + " " * 100_000 + "x", "`" * 100_000 + "x`", "\n" * 100_000):
        assert segment(text.encode(), vocabulary).starts == (0,)
