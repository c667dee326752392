"""A number of places, given to whoever is most urgent when one becomes free.

It owns who waits and who is next. It never knows what the places are for. The invariants: no more places are taken
than there are; a free place never waits while someone waits for it, whoever is cancelled meanwhile.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any


class Places:
    """Like a semaphore, but not first come first served.

    Args:
        count (`int`): Places, at least 1.
    """

    def __init__(self, count: int):
        self._free = count
        self._waiting: dict[asyncio.Future[None], Callable[[], Any]] = {}  # in order of coming

    @asynccontextmanager
    async def taken(self, rank: Callable[[], Any]) -> AsyncIterator[None]:
        """Hold a place.

        Args:
            rank (`Callable[[], Any]`): Asked for whenever a place becomes free. Of those who wait, the lowest is next;
                of equals, the first to come.
        """
        if self._free:
            self._free -= 1
        else:
            turn = asyncio.get_running_loop().create_future()
            self._waiting[turn] = rank
            try:
                await turn
            except asyncio.CancelledError:
                if self._waiting.pop(turn, None) is None:  # its turn had come
                    self._pass_on()
                raise
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        waiting = [turn for turn in self._waiting if not turn.done()]
        if waiting:
            turn = min(waiting, key=lambda turn: self._waiting[turn]())
            del self._waiting[turn]
            turn.set_result(None)
        else:
            self._free += 1
