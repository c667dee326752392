"""The share of reviews without verdict: when a run stops, when reviews pause instead, and when they go on."""

import time
from types import SimpleNamespace

import pytest

from mintrl_trl import KEEP, NoVerdict
from mintrl_trl.errors import LOST, FailureLimitError, JudgeLostError
from mintrl_trl.rollouts import failure_window as module
from mintrl_trl.rollouts.failure_window import FailureWindow
from mintrl_trl.rollouts.loop import BackgroundLoop
from mintrl_trl.rollouts.rollout import Author
from mintrl_trl.rollouts.sampler import InterventionSampler

from .doors import END, ScriptedJudge, StepVocabulary, counting, request, settings

DOWN, BABBLE = NoVerdict("connection", "refused"), NoVerdict("unparsable")


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    loop = SimpleNamespace(time=lambda: clock.now)
    monkeypatch.setattr(module, "asyncio", SimpleNamespace(get_running_loop=lambda: loop))
    return clock


def count(window, *failures):
    for failure in failures:
        window.count(failure)


@pytest.mark.parametrize(
    ("failures", "error"),
    [([DOWN] * 3 + [BABBLE] * 2, JudgeLostError), ([DOWN] * 2 + [BABBLE] * 3, FailureLimitError)],
    ids=["silent", "babbling"],
)
def test_a_judge_that_is_gone_is_told_from_one_that_talks_nonsense(failures, error):
    window = FailureWindow(0.2, 20, pauses=False)
    count(window, *[None] * 15)
    with pytest.raises(FailureLimitError, match="continue_on_policy") as caught:
        count(window, *failures)
    assert type(caught.value) is error
    assert caught.value.exit_code == (LOST if error is JudgeLostError else 1)
    assert window.reasons == []


def test_reviews_pause_and_are_tried_again_after_pauses_that_double_up_to_a_cap(clock):
    window = FailureWindow(0.2, 20, pauses=True)
    count(window, *[DOWN] * 20)
    assert (window.pausing, window.paused) == (True, 1)
    pauses = []
    for _ in range(6):
        count(window, DOWN, DOWN, None)  # asked before the pause
        started = clock.now
        while window.pausing:
            clock.now += 10
        pauses.append(clock.now - started)
        count(window, DOWN, DOWN, DOWN)  # tried again, three at once
        assert window.pausing
    assert pauses == [60, 120, 240, 480, 960, 960]
    assert window.paused == 7


def test_one_verdict_after_a_pause_ends_it_and_the_window_begins_anew(clock):
    window = FailureWindow(0.2, 20, pauses=True)
    count(window, *[DOWN] * 20)
    clock.now += 60
    assert not window.pausing
    count(window, None, *[BABBLE] * 19)
    assert not window.pausing
    assert window.reasons == ["unparsable"] * 19
    count(window, BABBLE)
    assert (window.pausing, window.paused) == (True, 2)
    clock.now += 59
    assert window.pausing
    clock.now += 1
    assert not window.pausing


@pytest.fixture(scope="module")
def loop():
    loop = BackgroundLoop()
    yield loop
    loop.close()


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "one-by-one"])
def test_rollouts_are_the_policys_own_while_reviews_pause(loop, overlap, monkeypatch):
    """Ten rollouts with four reviews each; the judge is away for the first 22. Its first verdict is long after."""
    monkeypatch.setattr(module, "FIRST_PAUSE_SECONDS", 0.3)
    judge, generator = ScriptedJudge([DOWN] * 22 + [KEEP] * 40), counting()
    options = settings(k=2, reviews=4, overlap=overlap, pauses_reviews=True, max_concurrent_rollouts=1)
    with InterventionSampler(generator, judge, StepVocabulary(END), options, loop=loop) as sampler:
        sampler.start([request(row) for row in range(10)])
        first = sampler.collect()
        assert len(judge.reviews) == 20
        assert [len(first[row].reviews) for row in range(10)] == [4] * 5 + [0] * 5
        assert sampler.counters() == {"judge/paused": 1, "judge/passed_over": 5}
        for rollout in first.values():
            assert rollout.ids == tuple(range(100, 112))
            assert {span.author for span in rollout.spans} == {Author.POLICY}
        time.sleep(0.35)
        sampler.start([request(row) for row in range(2)])
        assert [len(rollout.reviews) for rollout in sampler.collect().values()] == [1, 0]  # paused again at once
        assert sampler.counters() == {"judge/paused": 2, "judge/passed_over": 7}
        time.sleep(0.65)
        sampler.start([request(0)])
        sampler.collect()
        assert sampler.counters()["judge/paused"] == 3
        time.sleep(1.25)
        sampler.start([request(row) for row in range(2)])
        assert [len(rollout.reviews) for rollout in sampler.collect().values()] == [4, 4]
        assert sampler.counters() == {"judge/paused": 3, "judge/passed_over": 8}
