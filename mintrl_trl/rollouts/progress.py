"""How far rollouts have come, as numbers to show. Counted on the sampler's thread, readable from any other.

It owns counters and a clock. It never decides anything: nothing that is trained on depends on it.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

Call = Literal["policy", "review", "correction"]


@dataclass(frozen=True)
class Waiting:
    """Calls of one kind that rollouts wait for at this moment.

    Args:
        call (`str`): `"policy"`, tokens of a stream; `"review"` or `"correction"`, the judge.
        number (`int`): How many.
        row (`int`): The rollout that has waited longest.
        seconds (`float`): How long that one has.
    """

    call: Call
    number: int
    row: int
    seconds: float


@dataclass(frozen=True)
class Progress:
    """A snapshot of the rollouts started since the sampler was last idle.

    Args:
        total (`int`): Rollouts started.
        finished (`int`): Rollouts finished.
        chunks (`int`): Stretches of policy text taken; a control rollout is one.
        reviews (`int`): Reviews that came back, with or without a verdict.
        reviews_in_flight (`int`): Chunks that a judge is asked about at this moment, or a correction of them.
        revisions (`int`): Corrections spliced in.
        no_verdicts (`int`): Reviews without a usable verdict or correction.
        tokens (`int`): Tokens read from the policy, those that were thrown away later included.
        seconds (`float`): Time since the first of these rollouts was started.
        waiting (`tuple[Waiting, ...]`): What rollouts wait for, the longest wait first.
    """

    total: int
    finished: int
    chunks: int
    reviews: int
    reviews_in_flight: int
    revisions: int
    no_verdicts: int
    tokens: int
    seconds: float
    waiting: tuple[Waiting, ...] = ()


class Tally:
    """The counters behind [`Progress`]. One thread counts, any thread takes snapshots."""

    def __init__(self):
        self.total = self.finished = self.chunks = self.reviews = self.reviews_in_flight = 0
        self.revisions = self.no_verdicts = self.tokens = 0
        self._started = time.perf_counter()
        self._calls: dict[object, tuple[Call, int, float]] = {}  # kind, row, since when; the oldest first

    @contextmanager
    def call(self, call: Call, row: int) -> Iterator[None]:
        """A rollout waits for a call while the `with` block lasts."""
        key = object()
        self._calls[key] = (call, row, time.perf_counter())
        try:
            yield
        finally:
            del self._calls[key]

    def snapshot(self) -> Progress:
        """The counters as they stand."""
        return Progress(
            total=self.total,
            finished=self.finished,
            chunks=self.chunks,
            reviews=self.reviews,
            reviews_in_flight=self.reviews_in_flight,
            revisions=self.revisions,
            no_verdicts=self.no_verdicts,
            tokens=self.tokens,
            seconds=time.perf_counter() - self._started,
            waiting=self._waiting(),
        )

    def _waiting(self) -> tuple[Waiting, ...]:
        now, found = time.perf_counter(), {}
        for call, row, since in list(self._calls.values()):  # a copy: the other thread goes on counting
            first = found.get(call)
            found[call] = Waiting(call, 1, row, now - since) if first is None else _one_more(first)
        return tuple(found.values())


def _one_more(waiting: Waiting) -> Waiting:
    return Waiting(waiting.call, waiting.number + 1, waiting.row, waiting.seconds)
