"""What the judge says is checked: corrections are cut, useless answers are tolerated and counted, some stop the run."""

import asyncio
import logging

import pytest

from mintrl_trl.errors import FailureLimitError, JudgeError, NoVerdict, ServerLostError
from mintrl_trl.rollouts.doors import KEEP, Correction, Revise
from mintrl_trl.rollouts.loop import BackgroundLoop
from mintrl_trl.rollouts.rollout import Author, Decision, Span

from .doors import ByteVocabulary, ScriptedGenerator, ScriptedJudge, counting, sample

BOTH_WAYS = pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "in turn"])


@pytest.fixture(scope="module")
def loop():
    loop = BackgroundLoop()
    yield loop
    loop.close()


# Corrections


def letters(**options):
    return ScriptedGenerator(lambda seed, position: ord("a") + position % 26, ByteVocabulary.end_ids, **options)


@pytest.mark.parametrize(
    ("correction", "text"),
    [
        (Correction(text="So 5.<|end|>\n<|user|>hi"), b"So 5."),
        (Correction(text="So 5.<|user|>hi<|end|>"), b"So 5."),
        (Correction(text="A very long correction"), b"A very l"),
        (Correction(ids=(53, 258, 54)), b"5"),
        (Correction(ids=(53, 257, 54)), b"5"),
        (Correction(ids=tuple(b"0123456789")), b"01234567"),
    ],
    ids=["text with end mark", "text with role mark", "long text", "role id", "end id", "many ids"],
)
def test_corrections_are_cut(loop, correction, text):
    judge = ScriptedJudge([Revise(0)], [correction])
    rollout = sample(loop, letters(), judge, ByteVocabulary(), h=8, limit=20)[0]
    span = rollout.spans[0]
    assert span == Span(tuple(text), Author.INTERVENTION, "j1", None)
    assert not set(span.ids) & ByteVocabulary.special_ids


def test_logps_of_a_correction_are_kept_and_cut_with_it(loop):
    correction = Correction(ids=(53, 54, 257), logps=(-0.1, -0.2, -0.3))
    rollout = sample(loop, letters(logp=None), ScriptedJudge([Revise(0)], [correction]), ByteVocabulary(), h=8)[0]
    assert rollout.spans[0] == Span((53, 54), Author.INTERVENTION, "j1", (-0.1, -0.2))
    assert rollout.spans[1].logps is None


@pytest.mark.parametrize("wrong", [259, 151_700, -1, "53"])
def test_ids_of_another_tokenizer_stop_the_run(loop, wrong):
    judge = ScriptedJudge([Revise(0)], [Correction(ids=(53, wrong))])
    with pytest.raises(JudgeError, match="another tokenizer"):
        sample(loop, letters(), judge, ByteVocabulary())


# No verdict

RAISES = {
    "said so": (NoVerdict("unparsable", "???"), "unparsable"),
    "time limit": (TimeoutError(), "timeout_error"),
    "any error": (ValueError("bad"), "value_error"),
    "acronym": (type("HTTPStatusError", (Exception,), {})(), "http_status_error"),
    "step 0 of the wire": (Revise(-1), "out_of_range"),
    "step beyond the last": (Revise(4), "out_of_range"),
    "huge step": (Revise(99999999999999999999), "out_of_range"),
    "half step": (Revise(2.5), "out_of_range"),
    "text step": (Revise("2"), "out_of_range"),
    "true is no step": (Revise(True), "out_of_range"),
    "no step": (Revise(None), "out_of_range"),
    "not a verdict": ("keep", "invalid_verdict"),
}


@BOTH_WAYS
@pytest.mark.parametrize(("answer", "reason"), RAISES.values(), ids=RAISES)
def test_a_useless_review_keeps_the_chunk_and_says_why(loop, answer, reason, overlap):
    rollout = sample(loop, counting(), ScriptedJudge([answer]), overlap=overlap)[0]
    assert rollout.ids == tuple(range(100, 112))
    first, second = rollout.reviews
    assert (first.decision, first.reason, first.step, first.kept_tokens) == (Decision.NO_VERDICT, reason, None, 4)
    assert second.decision is Decision.KEEP


@pytest.mark.parametrize("hangs_in", ["review", "intervene"])
def test_a_judge_that_hangs_is_no_verdict_after_the_time_limit(loop, hangs_in):
    class Hanging(ScriptedJudge):
        async def review(self, *args, **kwargs):
            if hangs_in == "review":
                await asyncio.sleep(60)
            return await super().review(*args, **kwargs)

        async def intervene(self, *args, **kwargs):
            await asyncio.sleep(60)

    judge = Hanging([Revise(0), Revise(4)])  # the first step of each chunk
    rollout = sample(loop, counting(), judge, review_timeout_seconds=0.02)[0]
    assert rollout.ids == tuple(range(100, 112))
    assert [review.reason for review in rollout.reviews] == ["timeout", "timeout"]


def test_an_accepted_step_cannot_be_rejected(loop):
    rollout = sample(loop, counting(), ScriptedJudge([KEEP, Revise(3)]))[0]
    assert rollout.reviews[1].decision is Decision.NO_VERDICT
    assert rollout.reviews[1].reason == "out_of_range"


@BOTH_WAYS
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (NoVerdict("leak"), "leak"),
        (ConnectionError("cut"), "connection_error"),
        ("Wait,", "invalid_correction"),
        (Correction(ids=(7,), logps=(float("nan"),)), "broken_logps"),
        (Correction(text="\ud800"), "value_error"),
    ],
    ids=["said so", "any error", "not a correction", "NaN", "cannot be encoded"],
)
def test_a_useless_correction_keeps_the_chunk_and_says_why(loop, answer, reason, overlap):
    judge = ScriptedJudge([Revise(1, "wrong")], [answer])
    rollout = sample(loop, counting(), judge, overlap=overlap)[0]
    assert rollout.ids == tuple(range(100, 112))
    first = rollout.reviews[0]
    assert (first.decision, first.reason, first.step) == (Decision.NO_VERDICT, reason, None)
    assert (first.kept_tokens, first.correction_tokens, first.discarded_ids) == (4, 0, ())


def test_each_kind_of_failure_is_logged_once_with_a_traceback_where_nobody_foresaw_it(loop, caplog):
    errors = [ValueError("first"), ValueError("second"), NoVerdict("empty"), NoVerdict("empty")]
    with caplog.at_level(logging.WARNING):
        sample(loop, counting(), ScriptedJudge(errors), k=1, reviews=4)
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    text = caplog.text
    assert "value_error: first" in text and "second" not in text and "(empty)" in text
    assert text.count("Traceback") == 1 and "tests/doors.py" in text
    assert [bool(record.exc_info) for record in caplog.records] == [True, False]


def test_the_run_stops_when_too_many_reviews_fail(loop):
    """20 reviews, 5 without verdict: 25 % are over the limit of 20 %."""
    kinds = [NoVerdict("unparsable")] * 4 + [TimeoutError()] + [KEEP] * 15
    generator = counting()
    with pytest.raises(
        FailureLimitError, match=r"25% of the last 20 reviews .*unparsable 4, timeout_error 1"
    ) as caught:
        sample(loop, generator, ScriptedJudge(kinds), k=1, reviews=30, limit=50)
    assert "no_verdict_limit" in str(caught.value) and "is 20%" in str(caught.value)
    assert generator.open_streams == 0


@pytest.mark.parametrize(
    ("answers", "options"),
    [
        ([NoVerdict("x")] * 19, {"reviews": 19}),
        ([NoVerdict("x")] * 4 + [KEEP] * 16, {"reviews": 20}),
        ([NoVerdict("x")] * 40, {"reviews": 40, "no_verdict_limit": 1.0}),
        ([KEEP] * 9 + [NoVerdict("x")] * 2, {"reviews": 11, "no_verdict_window": 10}),
    ],
    ids=["too few to say", "at the limit", "no limit", "window moved on"],
)
def test_the_run_goes_on_within_the_limit(loop, answers, options):
    rollout = sample(loop, counting(), ScriptedJudge(answers), k=1, limit=50, **options)[0]
    assert len(rollout.reviews) == options["reviews"]


def test_the_window_forgets(loop):
    """Three failures in the last ten reviews are too many, three in the last thirty are not."""
    answers = ([NoVerdict("x")] + [KEEP] * 9) * 3
    assert sample(loop, counting(), ScriptedJudge(answers), k=1, limit=50, reviews=30, no_verdict_window=10)
    with pytest.raises(FailureLimitError, match="30% of the last 10 reviews"):
        answers = [KEEP] * 10 + [NoVerdict("x")] * 3
        sample(loop, counting(), ScriptedJudge(answers), k=1, limit=50, reviews=30, no_verdict_window=10)


# Fatal answers


@pytest.mark.parametrize("error", [JudgeError("no such model"), ServerLostError("the policy's own server is gone")])
def test_judge_error_stops_the_run(loop, error):
    with pytest.raises(type(error), match=str(error)):
        sample(loop, counting(), ScriptedJudge([error]))


def test_a_judge_that_is_not_async_stops_the_run(loop):
    class Blocking:
        def review(self, problem, steps, first_new, *, seed):
            return KEEP

        intervene = review

    with pytest.raises(JudgeError, match="async def"):
        sample(loop, counting(), Blocking())
