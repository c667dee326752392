"""Coloured rollouts: every author shows, and no model can speak to the terminal."""

import io
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from mintrl_trl.reporting.colours import print_rollout, rollout_text, visible
from mintrl_trl.rollouts.rollout import Author, Decision, ReviewRecord, Role

from .samples import corrected_record


def styled(text, content: str) -> set[str]:
    """Styles of the spans that cover exactly `content`."""
    return {str(span.style) for span in text.spans if text.plain[span.start : span.end] == content}


def printed(record, **console) -> str:
    stream = io.StringIO()
    print_rollout(record, Console(file=stream, width=100, **console))
    return stream.getvalue()


def test_each_part_has_its_style():
    text = rollout_text(corrected_record())
    assert styled(text, "12;") == {"bold green"}
    assert styled(text, "13;") == {"dim red strike"}
    assert styled(text, " [step 2: 7+5 is 12] ") == {"yellow"}
    assert styled(text, "7+5=") == set(), "the policy's text is plain"
    assert text.plain.endswith("7+5=13; [step 2: 7+5 is 12] 12;ok\n")


def test_first_line_says_what_it_earned():
    first, prompt = rollout_text(corrected_record()).plain.splitlines()[:2]
    assert first == (
        "update 3 · row 9 · group 1 · intervened · reward 1 · advantage +0.75 · 1 of 2 reviews intervened · "
        "30.0% of the tokens by the judge · 10 tokens, stopped by end"
    )
    assert prompt == "7+5?"


def test_control_rollout_without_reward():
    record = corrected_record()
    spans = tuple(replace(span, author=Author.POLICY) for span in record.spans)
    record = replace(
        record, role=Role.CONTROL, spans=spans, reviews=(), reward=None, advantage=None, reward_why="timeout"
    )
    first, why = rollout_text(record).plain.splitlines()[:2]
    assert first == "update 3 · row 9 · group 1 · control · no reward · 10 tokens, stopped by end"
    assert why == "why: timeout"


def test_reviews_without_verdict_are_counted_and_discard_nothing():
    record = corrected_record()
    failed = replace(record.reviews[1], review=replace(record.reviews[1].review, decision=Decision.NO_VERDICT))
    text = rollout_text(replace(record, reviews=(failed,))).plain
    assert "0 of 1 reviews intervened · 1 without verdict" in text
    assert "13;" not in text


def test_empty_correction_shows_no_cut():
    record = corrected_record()
    kept = replace(record.reviews[0].review, correction_tokens=0, discarded_ids=())
    empty = replace(record.reviews[0], review=kept)
    assert "[step" not in rollout_text(replace(record, reviews=(empty,))).plain


def test_reason_and_step_may_be_missing():
    record = corrected_record()
    bare = replace(record.reviews[0].review, reason="", step=None)
    text = rollout_text(replace(record, reviews=(replace(record.reviews[0], review=bare),)))
    assert text.plain.endswith("7+5=13; 12;ok\n")


def test_steps_that_stand_apart_take_a_line_each():
    record = corrected_record()
    apart = replace(record.reviews[0], discarded_text="13;\n\n")
    spans = tuple(replace(span, text=f"{span.text}\n\n") for span in record.spans)
    record = replace(record, spans=spans, reviews=(apart, *record.reviews[1:]))
    assert rollout_text(record, marks=True).plain.split("response: ")[1] == (
        "7+5=\n[-13;-] [step 2: 7+5 is 12]\n{+12;+}\nok\n\n"
    )
    assert styled(rollout_text(record), "12;\n") == {"bold green"}
    assert styled(rollout_text(record), "13;") == {"dim red strike"}


def test_marks_stand_in_for_colours():
    assert printed(corrected_record()).endswith("7+5=[-13;-] [step 2: 7+5 is 12] {+12;+}ok\n\n")
    coloured = printed(corrected_record(), force_terminal=True, color_system="standard")
    assert "{+" not in coloured
    assert "\x1b[1;32m12;\x1b[0m" in coloured


@pytest.mark.parametrize(
    "hostile",
    [
        "[bold red]x[/]",
        "[/]",
        "[link=http://a]x[/link]",
        ":smile:",
        "\x1b[2J\x1b]0;owned\x07",
        "a\rb\x08\x9b31m",
        "\u202egpj",
    ],
)
@pytest.mark.parametrize("place", ["prompt", "policy", "judge", "discarded", "reason", "why"])
def test_hostile_text_is_shown_and_not_obeyed(hostile, place):
    record = corrected_record(reward_why="fine")
    revised = record.reviews[0]
    if place == "prompt":
        record = replace(record, prompt=hostile)
    elif place == "why":
        record = replace(record, reward_why=hostile)
    elif place == "reason":
        record = replace(record, reviews=(replace(revised, review=replace(revised.review, reason=hostile)),))
    elif place == "discarded":
        record = replace(record, reviews=(replace(revised, discarded_text=hostile),))
    else:
        index = 1 if place == "judge" else 0
        spans = [replace(s, text=hostile) if i == index else s for i, s in enumerate(record.spans)]
        record = replace(record, spans=tuple(spans))
    output = printed(record, force_terminal=True, color_system="standard")
    without_styles = re.sub(r"\x1b\[[0-9;]*m", "", output)
    assert visible(hostile) in without_styles
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", without_styles)


@given(st.text())
def test_visible_text_has_no_character_that_a_terminal_obeys(text):
    shown = visible(text)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", shown)
    shown.encode("utf-8")


@pytest.mark.parametrize("text", ["a\n\tb", "数学", "👩\u200d🔬", "x² ≤ 3"])
def test_ordinary_text_stays_as_it_is(text):
    assert visible(text) == text


def test_corrections_one_after_another_each_show_their_cut():
    record = corrected_record()
    review = ReviewRecord(7, 3, 3, 2, Decision.REVISE, 2, "again", kept_tokens=0, correction_tokens=2)
    second = replace(record.reviews[0], review=review, discarded_text="no")
    spans = (
        *record.spans[:2],
        replace(record.spans[2], end=9, author=Author.INTERVENTION),
        replace(record.spans[2], start=9, text="."),
    )
    text = rollout_text(replace(record, spans=spans, reviews=(record.reviews[0], second))).plain
    assert text.endswith("7+5=13; [step 2: 7+5 is 12] 12;no [step 3: again] ok.\n")
