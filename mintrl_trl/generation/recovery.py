"""Waits for a server that was lost, and lets it serve only what it served before.

A server that was killed and started again answers as if nothing had happened, from the weights it started with. Owns
the answer to one question: may the next request be sent? It sends none itself and knows no weights: how they are
brought back is a function passed in. Invariant: no request is sent unless the server was heard within
`FRESH_SECONDS`, which no restart is quick enough for, or has shown its version since.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable

from .server import ServerControl, ServerError

logger = logging.getLogger(__name__)

FRESH_SECONDS = 2.0  # a server loads its model for longer than that
_PAUSE_SECONDS = 0.5


class Recovery:
    """Keeps the requests to one server from a process that is no longer the one that was synced.

    Args:
        control ([`ServerControl`]): The server.
        restore (`Callable[[], bool]`): Blocks until the server has the right weights; says whether it had lost them.
            Raises what `ServerError` is, where the server does not answer, or what else no waiting can help against.
        wait_seconds (`float`): How long a lost server is waited for.

    Attributes:
        restored (`int`): How often weights had to be brought back.
    """

    def __init__(self, control: ServerControl, restore: Callable[[], bool], *, wait_seconds: float):
        self.restored = 0
        self._control, self._restore, self._wait_seconds = control, restore, wait_seconds
        self._heard = -math.inf
        self._gates: dict[asyncio.AbstractEventLoop, asyncio.Lock] = {}

    def heard(self) -> None:
        """The server has just answered, so it still is what it was."""
        self._heard = time.monotonic()

    def lost(self) -> None:
        """A request failed as it does where there is no server any more."""
        self._heard = -math.inf

    async def ready(self) -> None:
        """Return when a request may be sent.

        Raises:
            GenerationError: The server is not back in time, or cannot have its weights back.
        """
        if self._fresh:
            return
        gate = self._gates.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with gate:
            if not self._fresh:
                await asyncio.to_thread(self.restore)

    @property
    def _fresh(self) -> bool:
        return time.monotonic() - self._heard < FRESH_SECONDS

    def restore(self) -> None:
        """What `ready` does where the server was not heard; blocks."""
        deadline = time.monotonic() + self._wait_seconds
        while True:
            asked = time.monotonic()
            try:
                if self._restore():
                    self.restored += 1
                    logger.warning("%s was restarted and has its weights back.", self._control.root)
                self._heard = asked
                return
            except ServerError as fault:
                if not fault.retryable or time.monotonic() >= deadline:
                    raise
            time.sleep(_PAUSE_SECONDS)
            self._control.wait_until_ready(deadline - time.monotonic())
