"""Signs of life while rollouts are made: one rewriting line on a terminal, a heartbeat in the log elsewhere.

A thread reads cheap snapshots a few times a second; the sampler never waits for it and never knows of it. It writes to
the terminal or to the log, nowhere else, and leaves the terminal as it found it.
"""

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType
from rich.text import Text

from ..rollouts.progress import Progress, Waiting

logger = logging.getLogger(__name__)

_LOOKS = 10  # snapshots for each line of the log, so that a line is late by a tenth at most
_RATE_WINDOW_SECONDS = 10.0  # tokens/s is a mean over this long, so it is steady and still follows a slowdown


class LiveProgress:
    """Show how rollouts come along, for as long as the `with` block lasts.

    On a terminal one line is rewritten in place and erased at the end. Elsewhere (a file, a notebook, a scheduler) a
    line goes to this module's logger at INFO every `heartbeat_seconds`. Where nothing has moved for `stall_seconds`, a
    warning says so once, and names the calls that are waited for, with the rollout that has waited longest.

    Args:
        progress (`Callable[[], Progress]`): Snapshot of the sampler, readable from another thread.
        label (`str`, *optional*, defaults to `"rollouts"`): What is being made, first in the line.
        enabled (`bool`, *optional*): `False` shows nothing, warnings included, and starts no thread.
        console (`Console`, *optional*): Where the line goes. Defaults to standard error.
        refresh_seconds (`float`, *optional*, defaults to 0.25): Time between two drawings on a terminal.
        heartbeat_seconds (`float`, *optional*, defaults to 30.0): Time between two log lines elsewhere.
        stall_seconds (`float`, *optional*, defaults to 120.0): Standstill after which a warning is logged.
        time_left (`bool`, *optional*, defaults to `False`): Whether the line says how long the rest will take at the
            mean pace so far.
        noun (`str`, *optional*, defaults to `"rollouts"`): What they are called. Others have no chunks.
        doors (`Mapping[str, str]`, *optional*): Who is behind a call, for the warning: an address or a name, by
            `"policy"` and `"judge"`.
        away (`Callable[[], Sequence[str]]`, *optional*): Servers that are lost and waited for at this moment, in words;
            the line names them.

    Examples:

    ```python
    with LiveProgress(sampler.progress, "update 12"):
        sampler.start(requests)
        rollouts = sampler.collect()
    ```
    """

    def __init__(
        self,
        progress: Callable[[], Progress],
        label: str = "rollouts",
        *,
        enabled: bool | None = None,
        console: Console | None = None,
        refresh_seconds: float = 0.25,
        heartbeat_seconds: float = 30.0,
        stall_seconds: float = 120.0,
        time_left: bool = False,
        noun: str = "rollouts",
        doors: Mapping[str, str] | None = None,
        away: Callable[[], Sequence[str]] = tuple,
    ):
        self._progress, self._label, self._time_left, self._noun = progress, label, time_left, noun
        self._doors = {} if doors is None else doors
        self._away = away
        self._console = console if console is not None else Console(file=sys.stderr)
        self._on_terminal = self._console.is_terminal and not self._console.is_dumb_terminal
        self._interval = refresh_seconds if self._on_terminal else min(heartbeat_seconds, stall_seconds) / _LOOKS
        self._heartbeat_seconds, self._stall_seconds = heartbeat_seconds, stall_seconds
        self._window: deque[tuple[float, int]] = deque()  # (seconds, tokens) of the last snapshots
        self._moved: tuple[tuple, float] = ((), 0.0)  # last counters that differed, and when they were seen
        self._stalled = False
        self._last_beat = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="live-progress", daemon=True)
        self._enabled = enabled is not False

    def __enter__(self) -> "LiveProgress":
        if self._enabled:
            self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if not self._enabled:
            return
        self._done.set()
        self._thread.join()
        if self._on_terminal:
            self._erase()

    def _watch(self) -> None:
        while not self._done.wait(self._interval):
            snapshot = self._progress()
            if not snapshot.total:
                continue  # entered before the sampler was started
            self._warn_of_standstill(snapshot)
            if self._on_terminal:
                self._draw(self.line(snapshot))
            elif snapshot.seconds - self._last_beat >= self._heartbeat_seconds:
                self._last_beat = snapshot.seconds
                logger.info(self.line(snapshot))

    def line(self, snapshot: Progress) -> str:
        """One line about `snapshot`; tokens/s is the rate since the snapshots of the last ten seconds."""
        parts = [f"{self._label}: {snapshot.finished}/{snapshot.total} {self._noun}"]
        if away := self._away():  # near the line's beginning, which every terminal has room for
            parts.append(f"waiting for {' and '.join(away)}")
        if self._time_left and snapshot.finished:
            left = snapshot.seconds * (snapshot.total - snapshot.finished) / snapshot.finished
            parts.append(f"about {_duration(left)} left")
        parts += [_count(snapshot.chunks, "chunk")] if self._noun == "rollouts" else []
        if snapshot.reviews or snapshot.reviews_in_flight:
            parts.append(_count(snapshot.reviews, "review") + f" ({snapshot.reviews_in_flight} in flight)")
            parts.append(_count(snapshot.revisions, "revision"))
        if snapshot.no_verdicts:
            parts.append(f"{snapshot.no_verdicts:,} without verdict")
        parts += [f"{self._rate(snapshot):,.0f} tokens/s", f"{snapshot.seconds:.0f} s"]
        return " · ".join(parts)

    def _rate(self, snapshot: Progress) -> float:
        if self._window and snapshot.tokens < self._window[-1][1]:
            self._window.clear()  # the sampler was started anew
        self._window.append((snapshot.seconds, snapshot.tokens))
        while len(self._window) > 1 and snapshot.seconds - self._window[0][0] > _RATE_WINDOW_SECONDS:
            self._window.popleft()
        since, tokens = self._window[0] if len(self._window) > 1 else (0.0, 0)
        return (snapshot.tokens - tokens) / max(snapshot.seconds - since, 1e-9)

    def _warn_of_standstill(self, snapshot: Progress) -> None:
        counters = (snapshot.finished, snapshot.chunks, snapshot.reviews, snapshot.tokens)
        if counters != self._moved[0]:
            self._moved, self._stalled = (counters, snapshot.seconds), False
            return
        idle = snapshot.seconds - self._moved[1]
        if idle < self._stall_seconds or self._stalled or snapshot.finished == snapshot.total:
            return
        self._stalled = True
        waiting = ", ".join(self._named(waiting) for waiting in snapshot.waiting) or "a place to begin"
        logger.warning("%s: nothing has moved for %.0f s; waiting for %s.", self._label, idle, waiting)

    def _named(self, waiting: Waiting) -> str:
        """`2 reviews by the judge at http://... (row 17 for 140 s)`."""
        who = self._doors.get("policy" if waiting.call == "policy" else "judge", "")
        of = "the policy" if waiting.call == "policy" else "the judge"
        what = f"tokens for {_count(waiting.number, 'rollout')}" if waiting.call == "policy" else ""
        what = what or _count(waiting.number, waiting.call)
        return f"{what} by {of}{who and f' at {who}'} (row {waiting.row} for {waiting.seconds:.0f} s)"

    def _draw(self, line: str) -> None:
        text = Text(line)
        text.truncate(self._console.width - 1, overflow="ellipsis")  # a full line would wrap and could not be erased
        self._erase()
        self._console.print(text, end="", soft_wrap=True)

    def _erase(self) -> None:
        self._console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 90 else f"{minutes} min" if minutes < 90 else f"{seconds / 3600:.1f} h"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
