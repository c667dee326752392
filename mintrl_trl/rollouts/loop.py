"""An event loop on a thread of its own, so that blocking code (a trainer, a notebook cell) can run coroutines.

It owns the thread and the loop, nothing that runs there. It never touches the caller's own loop: a notebook already
runs one. The invariant: after `close` nothing is left running on it.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

Result = TypeVar("Result")

_EXIT_SECONDS = 5.0  # a door that will not end must not keep the interpreter from exiting


class BackgroundLoop:
    """Runs coroutines on a daemon thread.

    Args:
        name (`str`, *optional*, defaults to `"mintrl-loop"`): Name of the thread.
        loop (`asyncio.AbstractEventLoop`, *optional*): The event loop to run there, such as one with a clock of its
            own. It is closed with this one. Defaults to a new loop.

    Example:

    >>> import asyncio
    >>> loop = BackgroundLoop()
    >>> loop.run(asyncio.sleep(0, "done"))
    'done'
    >>> loop.close()
    """

    def __init__(self, name: str = "mintrl-loop", loop: asyncio.AbstractEventLoop | None = None):
        self._loop = asyncio.new_event_loop() if loop is None else loop
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run `coroutine` on the loop and wait for its result, or raise what it raises.

        An exception in the waiting thread, such as a keyboard interrupt, cancels the coroutine.

        Raises:
            RuntimeError: Called from the loop's own thread, where waiting would never end, or after `close`.
        """
        if self._closed or threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("the loop is closed" if self._closed else "cannot wait for the loop on its own thread")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()  # no effect on a finished one

    def close(self, timeout_seconds: float | None = None) -> None:
        """Cancel whatever runs on the loop, wait until it has ended, and stop the thread. Safe to call twice.

        Args:
            timeout_seconds (`float`, *optional*): Waits no longer than this for code that will not end.
        """
        if not self._closed:
            self._closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout_seconds)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            while not self._closed:
                with suppress(SystemExit, KeyboardInterrupt):  # raised by a task: its waiter gets it, others go on
                    self._loop.run_forever()
            self._loop.run_until_complete(self._wind_down())
        finally:
            self._loop.close()

    async def _wind_down(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()


_shared: dict[int, BackgroundLoop] = {}  # by process: a thread does not survive a fork
_shared_lock = threading.Lock()


def shared_loop() -> BackgroundLoop:
    """The process's one loop for doors and samplers, made on first use and closed at exit.

    A door that holds connections is tied to the loop that it was first used on, so samplers that share a generator or
    a judge share the loop.
    """
    with _shared_lock:
        loop = _shared.get(os.getpid())
        if loop is None or loop.closed:
            loop = _shared[os.getpid()] = BackgroundLoop("mintrl-shared-loop")
            atexit.register(loop.close, _EXIT_SECONDS)
        return loop
