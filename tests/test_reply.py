"""Replies: tolerance around a verdict, none within it, linear time on hostile text; corrections and leaks."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mintrl_trl.errors import NoVerdict
from mintrl_trl.judges.reply import MAX_REASON_CHARS, clean_correction, leaks_answer, parse_verdict
from mintrl_trl.rollouts.doors import KEEP, Keep, Revise

KEEP_JSON = '{"reason": "fine", "decision": "keep"}'
REVISE_JSON = '{"reason": "2 + 2 is 4", "decision": "revise", "step": 2}'
REVISED = Revise(step=1, reason="2 + 2 is 4")


def reason_of(text, num_steps=3, first_new=0):
    with pytest.raises(NoVerdict) as caught:
        parse_verdict(text, num_steps, first_new)
    assert len(str(caught.value)) < 400
    return caught.value.reason


@pytest.mark.parametrize(
    "wrap",
    [
        "{}",
        "\n  {}  \n",
        "```json\n{}\n```",
        "```\n{}\n```\n",
        "Let me see. The set {{1, 2}} and \\frac{{1}}{{2}} look fine.\n\n{}",
        "{} That is all.",
        'He wrote "x {{" once. {}',
        '<think>maybe {{"decision": "keep"}}, or {{"decision": "revise", "step": 1}}</think>\n{}',
        "maybe keep </think> {}",
        '{{"decision": "maybe"}} no: {}',
        '{{"reason": "x", "decision": "keep"}} On second thought: {}',
        "{} {{}}",
        '{} {{"note": 1}}',
        '{{"decision": }} {{" {}',
    ],
)
def test_finds_the_verdict_in(wrap):
    assert parse_verdict(wrap.format(REVISE_JSON), 3, 1) == REVISED
    assert parse_verdict(wrap.format(KEEP_JSON), 3, 1) == KEEP


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ('{"decision":"keep"}', KEEP),
        ('{"decision":"keep","step":null}', KEEP),
        ('{"decision":" Keep ","reason":null}', KEEP),
        ('{"decision":"REVISE","step":"2"}', Revise(1)),
        ('{"decision":"revise","step":" 3 "}', Revise(2)),
        ('{"step":1,"decision":"revise","reason":["x"],"more":{"decision":"keep"}}', Revise(0)),
        ('{"decision":"revise","step":1,"reason":"\\sqrt{2} is \\alpha"}', Revise(0, r"\sqrt{2} is \alpha")),
        ('{"decision":"revise","step":1,"reason":"\\frac12 \\neq \\beta"}', Revise(0, r"\frac12 \neq \beta")),
        ('{"decision":"revise","step":1,"reason":"\\\\frac12\\nso \\u00e9\\/\\tb"}', Revise(0, "\\frac12 so é/ b")),
        ('{"decision":"revise","step":1,"reason":"two\nlines\t and\\nthree"}', Revise(0, "two lines and three")),
        ('{"decision":"revise","step":1,"reason":"braces } { in \\"it\\""}', Revise(0, 'braces } { in "it"')),
        ('so {"a": {"decision": "keep"}, "decision": "revise", "step": 2} it is', Revise(1)),
    ],
    ids=range(12),
)  # fmt: skip
def test_reads(text, verdict):
    assert parse_verdict(text, 3, 0) == verdict


def test_long_reasons_are_cut():
    verdict = parse_verdict('{"reason": "' + "word " * 500 + '", "decision": "revise", "step": 1}', 1, 0)
    assert len(verdict.reason) == MAX_REASON_CHARS


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ("0", "out_of_range"),
        ("4", "out_of_range"),
        ("1", "out_of_range"),  # accepted before
        ("-1", "out_of_range"),
        ('"7"', "out_of_range"),
        ("99999999999999999999", "out_of_range"),
        ("9" * 100_000, "out_of_range"),
        ("2.5", "unparsable"),
        ("2.0", "unparsable"),
        ("2e0", "unparsable"),
        ("1e999999", "unparsable"),
        ("NaN", "unparsable"),
        ("Infinity", "unparsable"),
        ("true", "unparsable"),
        ("[2]", "unparsable"),
        ('{"n": 2}', "unparsable"),
        ('"two"', "unparsable"),
        ('"step 2"', "unparsable"),
        ('"２"', "unparsable"),
        ('""', "unparsable"),
        ("null", "inconsistent"),
    ],
)
def test_steps_that_are_no_verdict(step, reason):
    assert reason_of(f'{{"decision":"revise","step":{step}}}', num_steps=3, first_new=1) == reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        (" \n\t ", "empty"),
        ("keep", "unparsable"),
        ("The work is fine, keep it.", "unparsable"),
        ('{"decision":' + "\n" * 900, "unparsable"),
        ('{"reason": "cut in the mid', "unparsable"),
        ('{"decision": "keep",}', "unparsable"),
        ("{'decision': 'keep'}", "unparsable"),
        ('["keep"]', "unparsable"),
        ('"keep"', "unparsable"),
        ('{"verdict": "keep"}', "unparsable"),
        ('{"decision": "retry"}', "unparsable"),
        ('{"decision": null}', "unparsable"),
        ('{"decision": true}', "unparsable"),
        ('{"decision": ["keep"]}', "unparsable"),
        ('{"decision": "keep or revise"}', "unparsable"),
        ('<think>so {"decision": "keep"}', "unparsable"),
        ('<think>a</think> b <think>{"decision": "keep"}', "unparsable"),
        ('<think>{"decision": "keep"}</think> I keep it.', "unparsable"),
        ('{"decision": "keep", "step": 2}', "inconsistent"),
        ('{"decision": "keep", "step": 0}', "inconsistent"),
        ('{"decision": "revise"}', "inconsistent"),
        ('{"decision": "keep", "decision": "revise", "step": 1}', "inconsistent"),
        ('{"decision": "revise", "step": 1, "step": 2}', "inconsistent"),
        ('{"decision": "keep"} {"decision": "revise"}', "inconsistent"),
    ],
    ids=range(25),
)
def test_no_verdict(text, reason):
    assert reason_of(text) == reason


NESTED = '{"a":' * 100_000
HOSTILE = {
    "braces": "{" * 1_000_000,
    "nested": NESTED,
    "nested-closed": NESTED + "1" + "}" * 100_000,
    "nested-lists": '{"decision":' + "[" * 500_000,
    "nested-padded": ('{"a":"' + "x" * 2_000 + '","b":') * 400,
    "quotes": '{"' * 400_000,
    "escaped-quotes": '{"\\"' * 200_000,
    "backslashes": "\\" * 1_000_000,
    "spaces": "{ " * 500_000,
    "one-long-space": "{" + " " * 1_000_000,
    "digits": '{"decision":"revise","step":' + "9" * 1_000_000 + "}",
    "decimals": '{"decision":"revise","step":1.' + "9" * 1_000_000 + "}",
    "thinking": "<think>" * 100_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_replies_end_soon(text):
    started = time.perf_counter()
    assert reason_of(text) in ("unparsable", "out_of_range")
    assert time.perf_counter() - started < 2.0  # quadratic work would take minutes


def test_a_verdict_after_a_megabyte_is_found():
    assert parse_verdict("x {1} \\frac{a}{b} " * 60_000 + REVISE_JSON, 3, 0) == REVISED
    assert parse_verdict((KEEP_JSON + "\n") * 20_000, 3, 0) == KEEP


@given(st.text(alphabet='{}[]":,\\ndecision keprvst012.<>/think\n', max_size=80))
def test_any_text_is_a_verdict_in_range_or_none(text):
    try:
        verdict = parse_verdict(text, 3, 1)
    except NoVerdict:
        return
    assert isinstance(verdict, Keep) or 1 <= verdict.step < 3


@given(st.text(), st.integers(1, 3), st.text(max_size=20), st.text(alphabet="ab c.\n", max_size=20))
def test_a_well_formed_verdict_is_always_read(reason, step, before, after):
    reply = json.dumps({"reason": reason, "decision": "revise", "step": step})
    assert parse_verdict(reply, 3, 0).step == step - 1
    if not {"{", "<"} & set(before):
        assert parse_verdict(before + reply + after, 3, 0).step == step - 1


# Corrections


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (" Wait, check", " Wait, check"),
        ("lo there", "lo there"),
        ("\n\n  indented", "\n\n  indented"),
        ("<think>hm</think>Wait.", "Wait."),
        ("<think>hm</think>\n\nWait.", "Wait."),
        ("<think>never done", ""),
        ("So it is 5.<|im_end|>\n<|im_start|>user", "So it is 5."),
        ("a<｜end▁of▁sentence｜>b", "a"),
        ("a</s>b", "a"),
        ("a [/INST] b", "a "),
        ("<|im_end|>", ""),
        ("   ", ""),
        ("", ""),
    ],
    ids=range(13),
)
def test_clean_correction_of_a_continued_text(text, kept):
    assert clean_correction(text) == kept


@pytest.mark.parametrize(
    ("text", "accepted", "kept"),
    [
        ("Wait, no.", "so x", " Wait, no."),
        (" Wait, no.", "so x", " Wait, no."),
        ("lo there", "we get hel", "lo there"),
        ("\n\nWait, no.", "done.\n\n", "Wait, no."),
        ("    return 1", "def f():\n", "    return 1"),
        ("the sum of both is 4. Wait, no.", "First.\n\nHence the sum of both is 4.", " Wait, no."),
        ("so x. Wait", "so x.", "so x. Wait"),  # too short to be taken for a repetition
        ("<solution>Wait, no.</solution>", "x.\n", "Wait, no."),
        ("the sum of both is 4.", "Hence the sum of both is 4.", ""),
    ],
    ids=range(9),
)
def test_clean_correction_of_a_new_message(text, accepted, kept):
    assert clean_correction(text, accepted) == kept


@pytest.mark.parametrize(
    ("correction", "answer"),
    [
        ("so the answer is 118.", "118"),
        ("so n=118", "118"),
        ("$n = 118$", "118"),
        (r"we get \boxed{118}", "118"),
        (r"\(118\)", "118"),
        (r"\[ x \approx 118 \]", "118"),
        ("**118**", "118"),
        ("118.0 it is", "118"),
        ("1,180 in all", "1180"),
        (r"1{,}180", "1180"),
        ("x-118", "118"),
        ("so −118", "-118"),
        (r"it is $\dfrac{12}{35}$", r"\frac{12}{35}"),
        ("it is 12/35", r"\frac{12}{35}"),
        (r"\frac12+3", r"$\frac{1}{2}+3$"),
        (r"hence \frac{9 \sqrt{23}}{23}", r"\frac{9 \sqrt{23}}{23}"),
        ("the pair (1, 2)", "(1,2)"),
        ("the pair $(1,2)$", "(1, 2)"),
        (r"120^\circ", "120"),
        ("It is a Tuesday", "tuesday"),
        ("x = 10^{100}", "10^{100}"),
    ],
)
def test_leaks(correction, answer):
    assert leaks_answer(correction, answer)


@pytest.mark.parametrize(
    ("correction", "answer"),
    [
        ("we get 1180", "118"),
        ("we get 3118", "118"),
        ("it is 0.118", "118"),
        ("it is 118.5", "118"),
        ("so -118", "118"),
        ("use x118 and 118a", "118"),
        ("the answer is 12", "12"),
        ("the answer is 5", "$5$"),
        ("the answer is 5.", "5.00"),
        ("It is on Tuesdays", "tuesday"),
        ("check it", None),
        ("check it", ""),
        ("", "118"),
        ("(1, 3)", "(1,2)"),
        (r"\frac{12}{36}", r"\frac{12}{35}"),
    ],
)
def test_no_leak(correction, answer):
    assert not leaks_answer(correction, answer)


@pytest.mark.parametrize(
    "text",
    ["9" * 500_000, "0" * 500_000 + "x", "1," * 200_000, "$" * 500_000, "\\(" * 200_000, "\\[" * 200_000, "(" * 500_000,
     "\\frac{" * 80_000, " " * 500_000, "=" * 500_000, "a " * 100_000],
    ids=range(11),
)  # fmt: skip
def test_hostile_corrections_end_soon(text):
    started = time.perf_counter()
    assert not leaks_answer(text, "no such answer")
    assert not leaks_answer("118", text)
    clean_correction(text, text)
    assert time.perf_counter() - started < 3.0
