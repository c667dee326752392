"""Starting, collecting, failing and cancelling: nothing is lost, nothing is left running, nothing hangs."""

import asyncio
import math
import signal
import threading
import time
from concurrent.futures import CancelledError
from contextlib import contextmanager

import pytest

from mintrl_trl.errors import FailureLimitError, GenerationError, JudgeError, NoVerdict
from mintrl_trl.rollouts.doors import KEEP, Correction, Revise
from mintrl_trl.rollouts.loop import BackgroundLoop
from mintrl_trl.rollouts.rollout import Role
from mintrl_trl.rollouts.sampler import InterventionSampler

from .doors import (
    END,
    ByteVocabulary,
    ScriptedGenerator,
    ScriptedJudge,
    StepVocabulary,
    counting,
    request,
    sample,
    settings,
)


@pytest.fixture
def loop():
    """A loop of the test's own; at the end nothing may be left on it."""
    loop = BackgroundLoop()
    yield loop
    assert loop.run(tasks_left()) == 0
    loop.close()


async def tasks_left():
    return len(asyncio.all_tasks()) - 1


@contextmanager
def sampler_of(loop, generator, judge=None, on_finished=None, **options):
    with InterventionSampler(
        generator, judge, StepVocabulary(END), settings(**options), on_finished, loop=loop
    ) as sampler:
        yield sampler


def slow(**options):
    """A policy that yields two tokens and then hangs."""
    return counting(pause=lambda seed, position: math.inf if position >= 5 else 1, **options)


def controls(*rows):
    return [request(row, Role.CONTROL) for row in rows]


def wait_until(condition):
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline, "nothing happened for five seconds"
        time.sleep(0.001)


# Start and collect


def test_rows_are_collected_once_and_in_the_order_asked_for(loop):
    with sampler_of(loop, counting()) as sampler:
        sampler.start(controls(5, 3, 8))
        assert list(sampler.collect([8, 5])) == [8, 5]
        with pytest.raises(ValueError, match=r"rows \[8\] were not started, or are collected already"):
            sampler.collect([8, 3])
        assert list(sampler.collect()) == [3]
        assert sampler.collect() == {}


def test_rows_are_unique_until_collected(loop):
    with sampler_of(loop, counting()) as sampler:
        with pytest.raises(ValueError, match=r"rows \[4\] are started twice"):
            sampler.start(controls(4, 4))
        sampler.start(controls(1, 2))
        with pytest.raises(ValueError, match=r"rows \[2\]"):
            sampler.start(controls(2, 3))
        sampler.collect([2])
        sampler.start(controls(2))
        assert sorted(sampler.collect()) == [1, 2]


def test_more_may_be_started_while_others_are_in_flight(loop):
    generator = counting(pause=lambda seed, position: 3)
    with sampler_of(loop, generator, ScriptedJudge()) as sampler:
        sampler.start(controls(0))
        sampler.start([request(1)])
        assert {row: len(rollout.reviews) for row, rollout in sampler.collect().items()} == {0: 0, 1: 2}


def test_finished_rollouts_are_handed_on_as_they_finish(loop):
    handed_on, threads = [], set()

    def on_finished(rollout):
        handed_on.append(rollout)
        threads.add(threading.current_thread().name)

    generator = ScriptedGenerator(lambda seed, position: END if position == 5 else 1, frozenset({END}))
    with sampler_of(loop, generator, on_finished=on_finished) as sampler:
        sampler.start(controls(0, 1, 2))
        rollouts = sampler.collect()
    assert sorted(rollout.request.row for rollout in handed_on) == [0, 1, 2]
    assert all(rollouts[rollout.request.row] is rollout for rollout in handed_on)
    assert threads == {"mintrl-loop"}


def test_streams_are_closed_before_rollouts_are_handed_out(loop):
    generator = counting(closing_ticks=20)
    for overlap in (True, False):
        judge = ScriptedJudge([Revise(2)], [Correction(ids=(7,))])
        with sampler_of(loop, generator, judge, overlap=overlap) as sampler:
            sampler.start([request(0), request(1)])
            sampler.collect()
            assert generator.open_streams == 0


def test_samplers_share_a_loop_unless_told_otherwise():
    names = set()
    for _ in range(2):
        sampler = InterventionSampler(
            counting(),
            None,
            StepVocabulary(END),
            settings(),
            lambda rollout: names.add(threading.current_thread().ident),
        )
        sampler.start(controls(0))
        sampler.collect()
        sampler.close()
    assert len(names) == 1


# Bounds


def test_rollouts_in_flight_are_bounded(loop):
    most = 0
    generator = counting(pause=lambda seed, position: 1)
    script = generator.script

    def watch(seed, position):
        nonlocal most
        most = max(most, generator.open_streams)
        return script(seed, position)

    generator.script = watch
    with sampler_of(loop, generator, max_concurrent_rollouts=3) as sampler:
        sampler.start(controls(*range(10)))
        assert len(sampler.collect()) == 10
    assert most == 3


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "in turn"])
def test_reviews_in_flight_are_bounded_and_never_lock_up(loop, overlap):
    """One rollout slot and one review slot are enough for reviews and corrections of many rollouts."""
    judge = ScriptedJudge(
        lambda call: Revise(call.first_new), lambda call: Correction(ids=(7,)), ticks=lambda seed: seed % 4
    )
    bounds = {"max_concurrent_rollouts": 20, "max_concurrent_reviews": 2}
    for _ in range(2):
        with sampler_of(loop, counting(), judge, overlap=overlap, reviews=3, **bounds) as sampler:
            sampler.start(request(row) for row in range(20))
            assert len(sampler.collect()) == 20
        assert judge.most_running == bounds["max_concurrent_reviews"]
        bounds, judge.most_running = {"max_concurrent_rollouts": 1, "max_concurrent_reviews": 1}, 0


# Cancelling


def test_cancel_leaves_nothing_running(loop):
    generator, judge = slow(closing_ticks=5), ScriptedJudge(lambda call: None)
    quick = counting(closing_ticks=5)
    with sampler_of(loop, generator) as waiting, sampler_of(loop, quick, judge) as reviewing:
        waiting.start(controls(0, 1, 2))
        reviewing.start([request(0), request(1)])
        wait_until(lambda: len(generator.streams) == 3 and judge.running == 2)
        waiting.cancel()
        reviewing.cancel()
        assert generator.open_streams == quick.open_streams == judge.running == 0
        assert waiting.collect() == reviewing.collect() == {}
        waiting.cancel()


def test_cancel_during_a_correction_and_while_a_stream_closes(loop):
    judge = ScriptedJudge(lambda call: Revise(0), lambda call: None)
    generator = counting(pause=lambda seed, position: 1)
    with sampler_of(loop, generator, judge) as sampler:
        sampler.start([request(0)])
        wait_until(lambda: len(judge.corrections) == 1)
        sampler.cancel()
        assert judge.running == generator.open_streams == 0
    generator = counting(pause=lambda seed, position: 1, closing_ticks=2000)
    judge = ScriptedJudge(lambda call: Revise(0), lambda call: Correction(ids=(7,)))
    with sampler_of(loop, generator, judge) as sampler:
        sampler.start([request(0)])
        wait_until(lambda: generator.tokens_made >= 4)
        sampler.cancel()
        assert [stream.closes for stream in generator.streams] == [1] * len(generator.streams)


def test_rollouts_can_be_started_after_cancel(loop):
    generator = slow()
    with sampler_of(loop, generator) as sampler:
        sampler.start(controls(0))
        sampler.cancel()
        generator.pause = None
        sampler.start(controls(0))
        assert list(sampler.collect()) == [0]


def test_cancel_wakes_a_waiting_collect(loop):
    caught = []
    with sampler_of(loop, slow()) as sampler:
        sampler.start(controls(0))

        def collect():
            with pytest.raises(CancelledError):
                sampler.collect()
            caught.append(True)

        waiting = threading.Thread(target=collect)
        waiting.start()
        time.sleep(0.02)
        sampler.cancel()
        waiting.join(5)
    assert caught == [True]


def test_a_keyboard_interrupt_cancels_everything(loop):
    generator = slow()
    with sampler_of(loop, generator) as sampler:
        sampler.start(controls(0, 1))
        main = threading.main_thread().ident
        threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            sampler.collect()
        assert generator.open_streams == 0 and loop.run(tasks_left()) == 0
        assert sampler.collect() == {}


def test_a_judge_that_swallows_cancellation_does_not_keep_its_rollout_alive(loop):
    class Stubborn(ScriptedJudge):
        async def review(self, *args, **kwargs):
            try:
                return await super().review(*args, **kwargs)
            except asyncio.CancelledError:
                return KEEP

    judge, generator = Stubborn(lambda call: None), counting()
    with sampler_of(loop, generator, judge, overlap=False) as sampler:
        sampler.start([request(0)])
        wait_until(lambda: judge.running == 1)
        sampler.cancel()
        assert len(generator.requests) == 1, "no further chunk was asked for"


# Fatal errors


def test_the_first_error_cancels_all_others(loop):
    """Those of the same call of `start` and those of another."""
    generator = slow(closing_ticks=5)
    with sampler_of(loop, generator) as sampler:
        sampler.start(controls(1, 2))
        wait_until(lambda: len(generator.streams) == 2)
        generator.pause = None
        generator.script = lambda seed, position: GenerationError("server gone")
        sampler.start(controls(0))
        with pytest.raises(GenerationError, match="server gone"):
            sampler.collect()
        assert generator.open_streams == 0 and loop.run(tasks_left()) == 0
        assert sampler.collect() == {}, "the error dropped all rollouts, and is raised once"


@pytest.mark.parametrize(
    ("judge", "error"),
    [
        (ScriptedJudge([JudgeError("no such model")], ticks=lambda seed: 3), JudgeError),
        (ScriptedJudge(lambda call: NoVerdict("unparsable")), FailureLimitError),
        (ScriptedJudge(lambda call: Revise(0), lambda call: Correction(ids=(1000,))), JudgeError),
        (ScriptedJudge(lambda call: Revise(0), lambda call: JudgeError("refused")), JudgeError),
    ],
    ids=["judge error", "failure limit", "wrong tokenizer", "refused correction"],
)
def test_fatal_judge_errors_leave_nothing_running(loop, judge, error):
    generator = counting(pause=lambda seed, position: seed % 3, closing_ticks=3)
    with sampler_of(loop, generator, judge, reviews=4, k=1, limit=100) as sampler:
        sampler.start(request(row) for row in range(10))
        with pytest.raises(error):
            sampler.collect()
        assert generator.open_streams == judge.running == loop.run(tasks_left()) == 0


def test_an_error_that_nobody_collected_is_raised_by_the_next_start(loop):
    failed = threading.Event()
    generator = ScriptedGenerator(lambda seed, position: failed.set() or ValueError("broken"))
    with sampler_of(loop, generator) as sampler:
        sampler.start(controls(0))
        assert failed.wait(5)
        wait_until(lambda: loop.run(tasks_left()) == 0)
        with pytest.raises(ValueError, match="broken"):
            sampler.start(controls(1))
        generator.script = lambda seed, position: 1
        sampler.start(controls(0))
        assert list(sampler.collect()) == [0]


def test_errors_of_on_finished_are_fatal(loop):
    def on_finished(rollout):
        raise RuntimeError("reward worker is gone")

    with sampler_of(loop, counting(), on_finished=on_finished) as sampler:
        sampler.start(controls(0, 1))
        with pytest.raises(RuntimeError, match="reward worker"):
            sampler.collect()


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "in turn"])
def test_cancellations_from_inside_the_doors_do_not_hang(loop, overlap):
    """A door that is cancelled by its own machinery is a failed door: no verdict, or an error."""
    judge = ScriptedJudge([asyncio.CancelledError()])
    with sampler_of(loop, counting(), judge, overlap=overlap) as sampler:
        sampler.start([request(0)])
        assert sampler.collect()[0].reviews[0].reason == "cancelled"
    generator = ScriptedGenerator(lambda seed, position: asyncio.CancelledError() if position == 5 else 1)
    with sampler_of(loop, generator, overlap=overlap) as sampler:
        sampler.start(controls(0))
        with pytest.raises(GenerationError, match="was cancelled by the generator"):
            sampler.collect()


def test_exit_in_a_door_reaches_the_caller(loop):
    with sampler_of(loop, counting(), ScriptedJudge([SystemExit(2)])) as sampler:
        sampler.start([request(0), request(1)])
        with pytest.raises(SystemExit):
            sampler.collect()


def test_a_stream_that_fails_ahead_of_a_review_stops_the_run(loop):
    generator = ScriptedGenerator(lambda seed, position: GenerationError("gone") if position == 12 else 1)
    with sampler_of(loop, generator, ScriptedJudge(ticks=lambda seed: 30)) as sampler:
        sampler.start([request(0)])
        with pytest.raises(GenerationError, match="gone"):
            sampler.collect()


# Progress and cost


def test_progress_counts(loop):
    judge = ScriptedJudge([Revise(2), NoVerdict("x")], [Correction(ids=(7, 8))])
    with sampler_of(loop, counting(), judge) as sampler:
        assert (sampler.progress().total, sampler.progress().finished) == (0, 0)
        sampler.start([request(0)])
        sampler.collect()
        progress = sampler.progress()
        assert (progress.total, progress.finished, progress.chunks) == (1, 1, 3)
        assert (progress.reviews, progress.reviews_in_flight) == (2, 0)
        assert (progress.revisions, progress.no_verdicts) == (1, 1)
        assert progress.tokens >= 12 and progress.seconds > 0
        sampler.start(controls(0))
        assert sampler.progress().total == 1, "counted anew once all is collected"


def test_progress_while_a_judge_reads(loop):
    judge = ScriptedJudge(lambda call: None)
    with sampler_of(loop, counting(), judge) as sampler:
        sampler.start([request(0), request(1), *controls(2)])
        wait_until(lambda: sampler.progress().reviews_in_flight == 2)
        assert sampler.progress().reviews == 0
        wait_until(lambda: sampler.progress().finished == 1)


def test_the_sampler_costs_little(loop):
    """128 rollouts of 52 tokens, half of them reviewed: about 0.02 s of CPU time with doors that answer at once."""
    generator = ScriptedGenerator(lambda seed, position: 10 if position % 4 < 2 else 65)
    judge = ScriptedJudge(
        lambda call: Revise(call.first_new) if call.seed % 3 == 0 else KEEP, lambda call: Correction(ids=(53,))
    )
    requests = [request(row, Role.INTERVENED if row % 2 else Role.CONTROL) for row in range(128)]
    seconds = []
    for _ in range(5):
        started = time.process_time()
        sample(loop, generator, judge, ByteVocabulary(), requests, k=16, reviews=4, h=1, limit=52)
        seconds.append(time.process_time() - started)
    assert min(seconds) < 0.1
