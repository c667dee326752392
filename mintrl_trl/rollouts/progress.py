"""How far rollouts have come, as numbers to show. Counted on the sampler's thread, readable from any other.

It owns counters and a clock. It never decides anything: nothing that is trained on depends on it.
"""

import time
from dataclasses import dataclass


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


class Tally:
    """The counters behind [`Progress`]. One thread counts, any thread takes snapshots."""

    def __init__(self):
        self.total = self.finished = self.chunks = self.reviews = self.reviews_in_flight = 0
        self.revisions = self.no_verdicts = self.tokens = 0
        self._started = time.perf_counter()

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
        )
