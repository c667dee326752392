"""Makes many rollouts side by side on a background thread, for callers that block.

It owns the tasks, their results and their end: starting, waiting, the first fatal error, cancelling. It never looks
into a rollout. The invariants: once an error is raised or `cancel` returns, no task it started is left; otherwise every
rollout that was started is handed out exactly once.

All state lives on the loop's thread. The public methods are called from any other thread and wait for it.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from .loop import BackgroundLoop
from .progress import Tally
from .rollout import Rollout, RolloutRequest


class RolloutPool:
    """Runs one coroutine per rollout.

    Args:
        make (`Callable[[RolloutRequest], Awaitable[Rollout]]`): Makes one rollout; what it raises is fatal.
        loop ([`BackgroundLoop`]): Where it runs.
        max_concurrent (`int`): Rollouts in flight at most.
        on_finished (`Callable[[Rollout], None]`, *optional*): Called with each finished rollout on the loop's thread.
    """

    def __init__(
        self,
        make: Callable[[RolloutRequest], Awaitable[Rollout]],
        loop: BackgroundLoop,
        max_concurrent: int,
        on_finished: Callable[[Rollout], None] | None = None,
    ):
        self.loop = loop
        self.tally = Tally()
        self._make, self._on_finished = make, on_finished
        self._slots = asyncio.Semaphore(max_concurrent)
        self._rows: dict[int, asyncio.Future[Rollout]] = {}  # started and not yet collected
        self._batches: set[asyncio.Task] = set()  # one for each call of `start` with rollouts in flight
        self._error: BaseException | None = None  # the first fatal one, until it is raised or cancelled

    def start(self, requests: tuple[RolloutRequest, ...]) -> None:
        """Start rollouts and return at once; as [`InterventionSampler.start`]."""
        self.loop.run(self._start(requests))

    def collect(self, rows: tuple[int, ...] | None) -> dict[int, Rollout]:
        """Wait for rollouts and hand them out, once; as [`InterventionSampler.collect`]."""
        try:
            return self.loop.run(self._collect(rows))
        except (KeyboardInterrupt, SystemExit):
            self.cancel()
            raise

    def cancel(self) -> None:
        """Stop and forget all rollouts; returns when no task is left."""
        self.loop.run(self._cancel())

    # On the loop's thread from here on

    async def _start(self, requests: tuple[RolloutRequest, ...]) -> None:
        if self._error is not None:
            await self._raise_error()
        times = Counter(request.row for request in requests)
        doubled = [row for row, count in times.items() if count > 1 or row in self._rows]
        if doubled:
            raise ValueError(f"rows {doubled} are started twice, or again before they were collected")
        if not self._rows:
            self.tally = Tally()
        self.tally.total += len(requests)
        futures = {row: asyncio.get_running_loop().create_future() for row in times}
        self._rows |= futures
        batch = asyncio.create_task(self._run_batch(requests, futures))
        self._batches.add(batch)
        batch.add_done_callback(self._batches.discard)

    async def _collect(self, rows: tuple[int, ...] | None) -> dict[int, Rollout]:
        rows = tuple(self._rows) if rows is None else rows
        unknown = [row for row in rows if row not in self._rows]
        if unknown and self._error is None:
            raise ValueError(f"rows {unknown} were not started, or are collected already")
        futures = {row: self._rows[row] for row in rows if row in self._rows}
        if futures:
            await asyncio.wait(futures.values())
        if self._error is not None:
            await self._raise_error()
        rollouts = {row: future.result() for row, future in futures.items()}
        for row in rollouts:
            self._rows.pop(row, None)
        return rollouts

    async def _cancel(self) -> None:
        for future in self._rows.values():
            future.cancel()
        self._rows.clear()
        await self._stop_batches()
        self._error = None

    async def _raise_error(self) -> None:
        """Hand out the fatal error once nothing is left running, and be ready for new rollouts."""
        await self._stop_batches()
        error, self._error = self._error, None
        self._rows.clear()
        raise error

    async def _stop_batches(self) -> None:
        others = self._batches - {asyncio.current_task()}
        for batch in others:
            batch.cancel()
        if others:
            await asyncio.wait(others)

    async def _run_batch(
        self, requests: tuple[RolloutRequest, ...], futures: dict[int, asyncio.Future[Rollout]]
    ) -> None:
        """Make rollouts side by side; the first fatal error cancels these and all other batches."""
        try:
            async with asyncio.TaskGroup() as group:
                for request in requests:
                    group.create_task(self._run(request, futures[request.row]))
        except* (Exception, SystemExit, KeyboardInterrupt) as failed:
            if self._error is None:
                self._error = failed.exceptions[0]
                await self._stop_batches()
        finally:
            for future in futures.values():
                future.cancel()  # no effect on finished ones

    async def _run(self, request: RolloutRequest, future: asyncio.Future[Rollout]) -> None:
        async with self._slots:
            rollout = await self._make(request)
        if self._on_finished is not None:
            self._on_finished(rollout)
        self.tally.finished += 1
        if not future.done():
            future.set_result(rollout)
