"""Rollout records: what they hold, that they come back equal from JSON, and where their spans are cut."""

import json
import math
from dataclasses import replace

import pytest

from mintrl_trl.errors import DataError
from mintrl_trl.reporting.records import RolloutRecord, rollout_record
from mintrl_trl.rollouts.rollout import Author, Decision, ReviewRecord, Role, StopReason

from .samples import ByteVocabulary, corrected_record, corrected_rollout, ids, judge, policy


def test_record_holds_what_happened():
    record = corrected_record(reward_why="equal", row_id="gsm8k-1")
    assert (record.update, record.row, record.group, record.role) == (3, 9, 1, Role.INTERVENED)
    assert (record.prompt, record.stop, record.seconds) == ("7+5?", StopReason.END, 1.5)
    assert (record.reward, record.reward_why, record.advantage, record.row_id) == (1.0, "equal", 0.75, "gsm8k-1")
    assert record.ids == corrected_rollout().ids
    assert [(s.start, s.end, s.author, s.weight_version, s.text) for s in record.spans] == [
        (0, 4, Author.POLICY, "7", "7+5="),
        (4, 7, Author.INTERVENTION, "", "12;"),
        (7, 10, Author.POLICY, "7", "ok"),
    ]
    assert record.off_policy_share == 0.3
    revised, kept = record.reviews
    assert (revised.cut, revised.discarded_text, revised.review.reason) == (4, "13;", "7+5 is 12")
    assert (kept.review.decision, kept.discarded_text) == (Decision.KEEP, "")


@pytest.mark.parametrize(
    "changes",
    [{}, {"reward": None, "advantage": None}, {"reward_why": "\x1b[31mred", "row_id": 4}, {"reviews": ()}],
    ids=["plain", "unscored", "hostile", "control"],
)
def test_json_gives_back_an_equal_record(changes):
    record = corrected_record(**changes)
    plain = record.to_json()
    assert json.loads(json.dumps(plain)) == plain
    assert RolloutRecord.from_json(plain) == record


def test_names_in_json_are_the_ones_people_read():
    plain = corrected_record().to_json()
    assert plain["role"] == "intervened"
    assert plain["stop"] == "end"
    assert plain["spans"][1] == {
        "start": 4,
        "end": 7,
        "author": "intervention",
        "weight_version": "",
        "text": "12;",
    }
    assert plain["reviews"][0]["decision"] == "revise"
    assert plain["reviews"][0]["discarded_text"] == "13;"


def test_times_survive_although_equality_ignores_them():
    back = RolloutRecord.from_json(corrected_record().to_json())
    assert (back.reviews[0].review.review_seconds, back.reviews[0].review.correction_seconds) == (0.5, 0.25)


def test_two_corrections_in_a_row_stay_two_spans():
    first = ReviewRecord(
        0, 3, 1, 0, Decision.REVISE, 0, "", kept_tokens=1, correction_tokens=2, discarded_ids=ids("xy")
    )
    second = ReviewRecord(
        3, 1, 2, 1, Decision.REVISE, 1, "", kept_tokens=0, correction_tokens=1, discarded_ids=ids("z")
    )
    rollout = replace(
        corrected_rollout(), spans=(policy("a"), judge("bcd"), policy("e", end=True)), reviews=(first, second)
    )
    record = rollout_record(rollout, vocabulary=ByteVocabulary(), update=1, group=0)
    assert [(span.start, span.end, span.text) for span in record.spans] == [
        (0, 1, "a"),
        (1, 3, "bc"),
        (3, 4, "d"),
        (4, 6, "e"),
    ]


def test_a_correction_that_came_back_empty_cuts_nothing():
    empty = ReviewRecord(0, 6, 2, 0, Decision.REVISE, 1, "hm", kept_tokens=6)
    rollout = replace(corrected_rollout(), spans=(policy("abcdef", end=True),), reviews=(empty,))
    record = rollout_record(rollout, vocabulary=ByteVocabulary(), update=1, group=0)
    assert [span.text for span in record.spans] == ["abcdef"]


def test_nan_is_unknown_not_zero():
    record = rollout_record(
        corrected_rollout(), vocabulary=ByteVocabulary(), update=1, group=0, reward=math.nan, advantage=math.nan
    )
    assert record.reward is None
    assert record.advantage is None


def test_half_a_character_becomes_a_replacement_sign():
    rollout = replace(corrected_rollout(), spans=(policy("é"), judge("x")), reviews=())
    halves = replace(rollout, spans=(replace(rollout.spans[0], ids=ids("é")[:1]), judge("x")))
    record = rollout_record(halves, vocabulary=ByteVocabulary(), update=1, group=0)
    assert record.spans[0].text == "\ufffd"


def test_a_record_gives_back_the_rollout_it_was_made_of():
    spans = (
        replace(policy("7+5="), logps=(-0.5, -0.25, -0.125, -1.5)),
        replace(judge("12;"), logps=(-0.1, -math.inf, -0.3)),
        replace(policy("ok", end=True), logps=(-1.0, -2.0, -3.0)),
    )
    rollout = replace(corrected_rollout(), spans=spans)
    record = rollout_record(rollout, vocabulary=ByteVocabulary(), update=3, group=1)
    assert [span.logps for span in record.spans] == [None, (-0.1, None, -0.3), None]
    whole = rollout_record(rollout, vocabulary=ByteVocabulary(), update=3, group=1, policy_logps=True)
    back = RolloutRecord.from_json(json.loads(json.dumps(whole.to_json(), allow_nan=False)))
    assert back == whole
    back = back.to_rollout()
    assert [span.logps for span in (back.spans[0], back.spans[2])] == [span.logps for span in (spans[0], spans[2])]
    assert math.isnan(back.spans[1].logps[1])  # of no use to a loss, as infinity is
    assert (back.ids, back.policy_authored, back.reviews) == (rollout.ids, rollout.policy_authored, rollout.reviews)
    assert replace(back.request, problem=rollout.request.problem) == rollout.request


def test_spans_of_a_rollout_are_one_again_where_a_cut_had_parted_them():
    record = rollout_record(
        replace(corrected_rollout(), spans=(policy("7+5="), judge("12;1")), stop=StopReason.LENGTH),
        vocabulary=ByteVocabulary(),
        update=3,
        group=1,
    )
    assert [len(span) for span in record.to_rollout().spans] == [4, 4]


def test_records_of_older_versions_are_read_but_give_no_rollout():
    plain = corrected_record().to_json()
    del plain["prompt_ids"]
    record = RolloutRecord.from_json(plain)
    assert record.prompt_ids is None
    with pytest.raises(ValueError, match="older version"):
        record.to_rollout()


def test_spans_must_cover_the_ids():
    record = corrected_record()
    with pytest.raises(ValueError, match="without a gap"):
        replace(record, spans=record.spans[1:])
    with pytest.raises(ValueError, match="without a gap"):
        replace(record, ids=record.ids[:-1])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda r: r.pop("role"),
        lambda r: r.update(role="boss"),
        lambda r: r.update(ids=None),
        lambda r: r.update(colour="red"),
        lambda r: r["spans"][0].pop("text"),
        lambda r: r["reviews"][0].update(decision="maybe"),
        lambda r: r.update(spans=r["spans"][:1]),
    ],
    ids=["missing", "unknown-role", "no-ids", "extra", "span", "decision", "gap"],
)
def test_a_record_of_another_form_is_an_error_that_says_where(spoil):
    plain = corrected_record().to_json()
    spoil(plain)
    with pytest.raises(DataError, match=r"rollouts\.jsonl, line 3"):
        RolloutRecord.from_json(plain, where="rollouts.jsonl, line 3")
