"""Warnings that name what a run waits for: by stage outside of rollouts, by call within them."""

import logging
import threading
from types import SimpleNamespace

from mintrl_trl.generation.recovery import Outage
from mintrl_trl.reporting.watchdog import Watchdog
from mintrl_trl.rollouts.progress import Tally
from mintrl_trl.signs_of_life import live_progress
from mintrl_trl.step_metrics import StepClock
from tests.trainers import ROWS, HashGenerator, make_trainer

NAMES = {"reward": "the rewards (mine)", "sync": "weights to reach http://a"}
WATCHDOG, LIVE = "mintrl_trl.reporting.watchdog", "mintrl_trl.reporting.live"


def warnings(caplog, name: str) -> list[str]:
    return [record.message for record in caplog.records if record.name == name and record.levelno == logging.WARNING]


def test_a_stage_that_lasts_is_named_once(caplog):
    looks = iter([("reward", 9.9), ("reward", 10.0), ("reward", 99.0), ("rollout", 500.0), ("sync", 11.4), None])
    dog = Watchdog(lambda: next(looks), 10.0, NAMES, lambda: "update 4", enabled=False)
    for _ in range(6):
        dog.look()
    assert warnings(caplog, WATCHDOG) == [
        "update 4: nothing has moved for 10 s; waiting for the rewards (mine).",
        "update 4: nothing has moved for 11 s; waiting for weights to reach http://a.",
    ]


def test_the_same_stage_of_a_later_update_is_named_again(caplog):
    looks = iter([("reward", 12.0), ("reward", 0.1), ("reward", 12.0)])
    dog = Watchdog(lambda: next(looks), 10.0, NAMES, lambda: "update 4", enabled=False)
    for _ in range(3):
        dog.look()
    assert len(warnings(caplog, WATCHDOG)) == 2


def test_the_clock_tells_its_innermost_stage():
    now = iter(range(100))
    clock = StepClock(lambda: float(next(now)))
    assert clock.current() is None
    clock.start("update")  # at 0
    assert clock.current() == ("update", 1.0)
    with clock.stage("reward"):  # since 2
        assert clock.current() == ("reward", 1.0)
        assert clock.current() == ("reward", 2.0)
    assert clock.current() == ("update", 1.0)
    clock.stop()
    assert clock.current() is None


def test_calls_are_told_by_kind_with_the_longest_wait():
    tally = Tally()
    with tally.call("review", 7), tally.call("policy", 1), tally.call("review", 2):
        first, second = tally.snapshot().waiting
        assert (first.call, first.number, first.row) == ("review", 2, 7)
        assert (second.call, second.number, second.row) == ("policy", 1, 1)
        assert first.seconds >= second.seconds >= 0.0
    assert tally.snapshot().waiting == ()


def test_the_live_line_names_servers_that_are_away():
    outages = [Outage("http://a:8000", 89.6, 200.0), Outage("http://b:8000", 3.0, 200.0)]
    args = SimpleNamespace(server_urls=["http://a:8000"], judge_base_url=None, show_progress=True, stall_seconds=120)
    policy = SimpleNamespace(served=SimpleNamespace(outages=lambda: outages))
    accelerator = SimpleNamespace(is_main_process=True)
    trainer = SimpleNamespace(args=args, policy=policy, accelerator=accelerator)
    tally = Tally()
    line = live_progress(trainer, tally.snapshot, "update 3").line(tally.snapshot())
    assert " · waiting for http://a:8000, 90 of 200 s and http://b:8000, 3 of 200 s · " in line
    policy.served = None
    assert "waiting" not in live_progress(trainer, tally.snapshot, "update 3").line(tally.snapshot())


def held_up(event: threading.Event):
    """A reward that waits for an event, once."""

    def slow_reward(completions, **kwargs):
        assert event.wait(20)
        return [1.0] * len(completions)

    return slow_reward


def test_a_reward_that_hangs_is_named(tmp_path, caplog):
    event = threading.Event()
    caplog.set_level(logging.WARNING)
    logging.getLogger(WATCHDOG).addFilter(lambda record: event.set() or True)
    settings = {"show_progress": None, "stall_seconds": 0.05, "max_steps": 1}
    trainer = make_trainer(tmp_path, reward=held_up(event), **settings)
    try:
        trainer.train()
    finally:
        trainer.close()
        logging.getLogger(WATCHDOG).filters.clear()
    assert warnings(caplog, WATCHDOG)[0].startswith(
        "update 1: nothing has moved for 0 s; waiting for the rewards (slow_r"
    )
    assert not any(thread.name == "watchdog" for thread in threading.enumerate())


class JudgeThatHangs:
    """Answers when the warning has been given."""

    def __init__(self, event: threading.Event):
        self.event = event

    async def review(self, problem, steps, first_new, *, seed):
        import asyncio

        from mintrl_trl import KEEP

        if problem.question in {row["prompt"] for row in ROWS}:  # not the trivial one before training
            assert await asyncio.to_thread(self.event.wait, 20)
        return KEEP

    async def intervene(self, *args, **kwargs):
        raise AssertionError("nothing was rejected")


def test_a_judge_that_hangs_is_named(tmp_path, caplog):
    event = threading.Event()
    caplog.set_level(logging.WARNING)
    logging.getLogger(LIVE).addFilter(lambda record: event.set() or True)
    settings = {"show_progress": True, "stall_seconds": 0.05, "max_steps": 1, "overlap_reviews": False}
    trainer = make_trainer(tmp_path, judge=JudgeThatHangs(event), generator=HashGenerator(end_every=99), **settings)
    try:
        trainer.train()
    finally:
        trainer.close()
        logging.getLogger(LIVE).filters.clear()
    (warning,) = warnings(caplog, LIVE)
    assert "waiting for 4 reviews by the judge (row " in warning


def test_switched_off_nothing_watches(tmp_path):
    names: list[str] = []

    def reward(completions, **kwargs):
        names.extend(thread.name for thread in threading.enumerate())
        return [0.0] * len(completions)

    trainer = make_trainer(tmp_path, reward=reward, show_progress=False, max_steps=1)
    trainer.train()
    trainer.close()
    assert names
    assert "watchdog" not in names
