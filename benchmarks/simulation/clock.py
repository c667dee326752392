"""An event loop whose clock is virtual: it stands still while anything runs, and jumps to the next timer otherwise.

It owns the clock and nothing else: sockets and calls from other threads work as in any loop. The invariant: what runs
on it takes the same virtual time on every machine, however slow.
"""

import asyncio
import selectors


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """Pass it to `BackgroundLoop(loop=...)`. Its `time()` starts at 0."""

    def __init__(self):
        self.now = 0.0  # seconds
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        """Virtual seconds."""
        return self.now


class _JumpingSelector(selectors.DefaultSelector):
    """Waits for sockets alone. Where the loop would wait for a timer, the clock jumps to it."""

    def __init__(self, loop: VirtualClockLoop):
        super().__init__()
        self._virtual = loop

    def select(self, timeout: float | None = None) -> list:
        if timeout is None:  # no timer at all: another thread has to say what is next
            return super().select(None)
        events = super().select(0)
        if not events:
            self._virtual.now += max(timeout, 0.0)
        return events
