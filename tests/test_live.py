"""The live line: what it says, where it goes, when it warns, and that it leaves nothing behind."""

import io
import logging
import threading
import time
from dataclasses import replace

import pytest
from rich.console import Console

from mintrl_trl.reporting.live import LiveProgress
from mintrl_trl.rollouts.progress import Progress, Waiting

START = Progress(
    total=128,
    finished=37,
    chunks=1212,
    reviews=98,
    reviews_in_flight=5,
    revisions=14,
    no_verdicts=1,
    tokens=12_400,
    seconds=10.0,
)
LOGGER = "mintrl_trl.reporting.live"


def terminal(width: int = 200) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)


def plain() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=200)


def wait_for(condition) -> None:
    limit = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.002)


class Clock:
    """Snapshots whose time runs on with every look."""

    def __init__(self, snapshot: Progress = START, seconds_per_look: float = 1.0):
        self.snapshot, self.seconds_per_look, self.looks = snapshot, seconds_per_look, 0

    def __call__(self) -> Progress:
        self.looks += 1
        return replace(self.snapshot, seconds=self.looks * self.seconds_per_look)


@pytest.mark.parametrize(
    ("finished", "seconds", "left"),
    [(64, 10.0, "10 s"), (32, 100.0, "5 min"), (1, 60.0, "2.1 h"), (128, 10.0, "0 s"), (0, 10.0, None)],
)
def test_line_says_how_long_the_rest_takes(finished, seconds, left):
    line = LiveProgress(Clock(), console=plain(), time_left=True).line(
        replace(START, finished=finished, seconds=seconds)
    )
    assert f"/128 rollouts · about {left} left · " in line if left else "left" not in line


def test_line_says_everything_that_moves():
    assert LiveProgress(Clock(), "update 3", console=plain()).line(START) == (
        "update 3: 37/128 rollouts · 1,212 chunks · 98 reviews (5 in flight) · 14 revisions · 1 without verdict · "
        "1,240 tokens/s · 10 s"
    )


def test_line_names_servers_that_are_waited_for():
    away = ["http://a:8000, 90 of 200 s"]
    display = LiveProgress(Clock(), "update 3", console=plain(), away=lambda: away)
    assert display.line(START).startswith("update 3: 37/128 rollouts · waiting for http://a:8000, 90 of 200 s · 1,212")
    away.clear()
    assert "waiting" not in display.line(START)


def test_line_of_controls_names_no_review():
    snapshot = replace(START, chunks=1, reviews=0, reviews_in_flight=0, revisions=0, no_verdicts=0, finished=0)
    line = LiveProgress(Clock(), "evaluation", console=plain()).line(snapshot)
    assert line == "evaluation: 0/128 rollouts · 1 chunk · 1,240 tokens/s · 10 s"
    line = LiveProgress(Clock(), "evaluation", console=plain(), noun="responses").line(snapshot)
    assert line == "evaluation: 0/128 responses · 1,240 tokens/s · 10 s"


def test_rate_follows_the_last_ten_seconds():
    live = LiveProgress(Clock(), console=plain())
    rates = []
    for seconds, tokens in [(5, 500), (10, 1000), (16, 1000), (21, 1000), (26, 1600)]:
        line = live.line(replace(START, seconds=float(seconds), tokens=tokens))
        rates.append(line.split(" · ")[-2])
    assert rates == ["100 tokens/s", "100 tokens/s", "0 tokens/s", "0 tokens/s", "60 tokens/s"]


def test_rate_starts_anew_with_the_sampler():
    live = LiveProgress(Clock(), console=plain())
    live.line(replace(START, seconds=50.0, tokens=9000))
    assert "100 tokens/s" in live.line(replace(START, seconds=2.0, tokens=200))


def test_no_time_at_all_is_no_division_by_zero():
    assert "0 tokens/s" in LiveProgress(Clock(), console=plain()).line(replace(START, seconds=0.0, tokens=0))


def test_terminal_line_is_rewritten_in_place_and_erased():
    console, clock = terminal(), Clock()
    with LiveProgress(clock, "update 3", console=console, refresh_seconds=0.001):
        wait_for(lambda: clock.looks >= 3)
    output = console.file.getvalue()
    assert "\n" not in output
    assert output.count("\r\x1b[2Kupdate 3: 37/128 rollouts") >= 2
    assert output.endswith("\r\x1b[2K")


def test_terminal_line_never_wraps():
    console, clock = terminal(width=30), Clock()
    with LiveProgress(clock, "update 3", console=console, refresh_seconds=0.001):
        wait_for(lambda: clock.looks >= 2)
    drawn = [line for line in console.file.getvalue().split("\r\x1b[2K") if line]
    assert drawn
    assert all(len(line) <= 29 and line.endswith("…") for line in drawn)


def test_elsewhere_heartbeats_go_to_the_log(caplog):
    console, clock = plain(), Clock(seconds_per_look=10.0)
    live = LiveProgress(clock, "update 3", console=console, heartbeat_seconds=30.0)
    live._interval = 0.001
    with caplog.at_level(logging.INFO, logger=LOGGER), live:
        wait_for(lambda: clock.looks >= 9)
    beats = [record.message.split(" · ")[-1] for record in caplog.records if record.levelno == logging.INFO]
    assert beats[:2] == ["30 s", "60 s"]
    assert console.file.getvalue() == ""


REVIEWS, CORRECTION = Waiting("review", 5, row=17, seconds=140.2), Waiting("correction", 1, row=3, seconds=20.0)
TOKENS = Waiting("policy", 1, row=9, seconds=12.0)


@pytest.mark.parametrize(
    ("calls", "waiting"),
    [
        ((REVIEWS,), "5 reviews by the judge at http://judge/v1 (row 17 for 140 s)"),
        (
            (CORRECTION, TOKENS),
            "1 correction by the judge at http://judge/v1 (row 3 for 20 s), tokens for 1 rollout by the policy (row 9 "
            "for 12 s)",
        ),
        ((), "a place to begin"),
    ],
    ids=["reviews", "correction", "none"],
)
def test_standstill_is_warned_of_once_and_names_the_calls_that_are_waited_for(caplog, calls, waiting):
    clock = Clock(replace(START, waiting=calls), seconds_per_look=50.0)
    doors = {"judge": "http://judge/v1"}
    with LiveProgress(clock, "update 3", console=terminal(), refresh_seconds=0.001, stall_seconds=120.0, doors=doors):
        wait_for(lambda: clock.looks >= 12)
        clock.snapshot = replace(clock.snapshot, tokens=clock.snapshot.tokens + 1)
        looks = clock.looks
        wait_for(lambda: clock.looks >= looks + 8)
    warnings = [record.message for record in caplog.records]
    assert warnings == [f"update 3: nothing has moved for 150 s; waiting for {waiting}."] * 2


def test_all_done_is_no_standstill(caplog):
    clock = Clock(replace(START, finished=128), seconds_per_look=500.0)
    with LiveProgress(clock, console=terminal(), refresh_seconds=0.001):
        wait_for(lambda: clock.looks >= 5)
    assert not caplog.records


def test_nothing_is_said_before_the_sampler_starts():
    console, clock = terminal(), Clock(replace(START, total=0, finished=0))
    with LiveProgress(clock, console=console, refresh_seconds=0.001):
        wait_for(lambda: clock.looks >= 3)
    assert "rollouts" not in console.file.getvalue()


@pytest.mark.parametrize(("enabled", "shown"), [(False, False), (None, True), (True, True)])
def test_switched_off_it_starts_no_thread(enabled, shown):
    console = terminal()
    with LiveProgress(Clock(), console=console, refresh_seconds=0.001, enabled=enabled):
        assert any(thread.name == "live-progress" for thread in threading.enumerate()) is shown
    assert bool(console.file.getvalue()) is shown


def test_an_error_inside_passes_and_the_thread_ends():
    with pytest.raises(KeyError), LiveProgress(Clock(), console=terminal(), refresh_seconds=60.0):
        raise KeyError("inside")
    assert not any(thread.name == "live-progress" for thread in threading.enumerate())


def test_closing_does_not_wait_for_the_next_heartbeat():
    started = time.monotonic()
    with LiveProgress(Clock(), console=plain(), heartbeat_seconds=3600.0, stall_seconds=3600.0):
        pass
    assert time.monotonic() - started < 5.0
