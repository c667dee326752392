"""Waits for a server that was lost, and lets it serve only what it served before.

A server that was killed and started again answers as if nothing had happened, from the weights it started with. Owns
the answer to one question: may the next request be sent? It sends none itself and knows no weights: how they are
brought back is a function passed in. Invariant: no request is sent unless the server was heard within
`FRESH_SECONDS`, which no restart is quick enough for, or has shown its version since.
"""

import asyncio
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ..errors import ServerLostError
from .server import ServerControl, ServerError

logger = logging.getLogger(__name__)

FRESH_SECONDS = 2.0  # a server loads its model for longer than that
_PAUSE_SECONDS = 0.5


@dataclass(frozen=True)
class Outage:
    """A wait for a server that lasts.

    Args:
        server (`str`): Its address.
        seconds (`float`): How long it has been waited for.
        limit_seconds (`float`): How long it will be at most.
    """

    server: str
    seconds: float
    limit_seconds: float


class Recovery:
    """Keeps the requests to one server from a process that is no longer the one that was synced.

    Args:
        control ([`ServerControl`]): The server.
        restore (`Callable[[], bool]`): Blocks until the server has the right weights; says whether it had lost them.
            Raises what `ServerError` is, where the server does not answer, or what else no waiting can help against.
        wait_seconds (`float`): How long a lost server is waited for.

    Attributes:
        restored (`int`): How often weights had to be brought back.
        seconds_lost (`float`): How long it was waited for, in all; in vain, too.
        faults (`Counter[str]`): How often it had to be waited for, by what was wrong first.
    """

    def __init__(self, control: ServerControl, restore: Callable[[], bool], *, wait_seconds: float):
        self.restored, self.seconds_lost, self.wait_seconds = 0, 0.0, wait_seconds
        self.faults: Counter[str] = Counter()
        self._control, self._restore = control, restore
        self._heard = -math.inf
        self._away_since: float | None = None
        self._gates: dict[asyncio.AbstractEventLoop, asyncio.Lock] = {}

    def heard(self) -> None:
        """The server has just answered, so it still is what it was."""
        self._heard = time.monotonic()

    def lost(self) -> None:
        """A request failed as it does where there is no server any more."""
        self._heard = -math.inf

    @property
    def outage(self) -> Outage | None:
        """The wait that lasts at this moment, on whichever thread; `None` where the server is there."""
        since = self._away_since
        return None if since is None else Outage(self._control.root, time.monotonic() - since, self.wait_seconds)

    async def ready(self) -> None:
        """Return when a request may be sent.

        Raises:
            ServerLostError: The server is not back in time.
            GenerationError: It cannot have its weights back.
        """
        if self._fresh:
            return
        gate = self._gates.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with gate:
            if not self._fresh:
                given_up = threading.Event()
                try:
                    await asyncio.to_thread(self.restore, given_up)
                finally:  # a thread cannot be cancelled with whoever waits for it, and would hold up the program's end
                    given_up.set()

    @property
    def _fresh(self) -> bool:
        return time.monotonic() - self._heard < FRESH_SECONDS

    def restore(self, given_up: threading.Event | None = None) -> None:
        """What `ready` does where the server was not heard; blocks.

        Args:
            given_up (`threading.Event`, *optional*): Once it is set, nobody waits for the server any more.
        """
        given_up = given_up or threading.Event()
        with self._outage() as on_fault:
            self._restore_in_time(given_up, on_fault)

    def wait_until_ready(self, seconds: float) -> None:
        """As [`ServerControl.wait_until_ready`], and counted where it has to wait; weights are not looked at."""
        with self._outage() as on_fault:
            self._control.wait_until_ready(seconds, on_fault=on_fault)

    @contextmanager
    def _outage(self) -> Iterator[Callable[[ServerError], None]]:
        """Around a wait: what it is told first is counted, and the seconds from there on, however the wait ends."""
        started, faults = time.monotonic(), []

        def on_fault(fault: ServerError) -> None:
            faults.append(fault)
            self._away_since = started

        try:
            yield on_fault
        finally:
            self._away_since = None
            if faults:
                self.faults[faults[0].kind] += 1
                self.seconds_lost += time.monotonic() - started

    def _restore_in_time(self, given_up: threading.Event, on_fault: Callable[[ServerError], None]) -> None:
        deadline = time.monotonic() + self.wait_seconds
        while True:
            asked = time.monotonic()
            try:
                if self._restore():
                    self.restored += 1
                    logger.warning("%s was restarted and has its weights back.", self._control.root)
                self._heard = asked
                return
            except ServerError as fault:
                if not fault.retryable:
                    raise
                on_fault(fault)
                if given_up.is_set() or time.monotonic() >= deadline:
                    message = f"{self._control.root} was lost and is not back within {self.wait_seconds:g} s: {fault}"
                    raise ServerLostError(message) from fault
            given_up.wait(_PAUSE_SECONDS)
            self._control.wait_until_ready(max(deadline - time.monotonic(), _PAUSE_SECONDS), given_up)


async def first_ready(recoveries: Sequence[Recovery]) -> None:
    """Return once one of several servers, none of which could be reached, may be asked again.

    Raises:
        ServerLostError: One of them was waited for in vain, and none was back before.
        GenerationError: It cannot have its weights back.
    """
    for recovery in recoveries:
        recovery.lost()
    waits = [asyncio.ensure_future(recovery.ready()) for recovery in recoveries]
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in done:
            if wait.exception() is None:
                return
        done.pop().result()
    finally:
        for wait in waits:
            wait.cancel()
