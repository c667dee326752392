"""Watches how often a judge says nothing usable, and what follows when that is too often: the run stops, or goes on.

It owns the window over the latest reviews and the pauses of a judge that is down. It asks no judge. Invariant: more
failures than the limit never pass without an error or a pause, and a judge that answers again is asked again.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Sequence

from ..errors import FailureLimitError, JudgeLostError, NoVerdict

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 60.0, 960.0
_FEWEST_REVIEWS = 20  # a share of fewer reviews says little
# Reasons of a judge that did not answer, rather than answer badly.
_SILENT_REASONS = frozenset({"connection", "timeout", "server_error", "rate_limited", "bad_response"})


class FailureWindow:
    """The latest reviews.

    Args:
        limit (`float`): Share of them without verdict, in [0, 1], above which the run stops, or reviews pause.
        size (`int`): How many they are.
        pauses (`bool`): Whether reviews pause, and the run goes on without them. After a pause they are tried again;
            while they fail, pauses double.

    Attributes:
        paused (`int`): How often reviews were paused.
        no_verdicts (`Counter[str]`): All reviews without verdict, by reason.
    """

    def __init__(self, limit: float, size: int, *, pauses: bool):
        self.paused, self.no_verdicts = 0, Counter[str]()
        self._limit, self._pauses = limit, pauses
        self._reasons: deque[str | None] = deque(maxlen=size)  # reason of each review; None: a verdict
        self._failures = 0  # reasons in the window
        self._pause_seconds = 0.0  # of the latest pause; 0 once a verdict came
        self._until = 0.0  # on the loop's clock

    @property
    def reasons(self) -> list[str | None]:
        """For each of the latest reviews, oldest first, the reason why it gave no verdict; `None`: it gave one."""
        return list(self._reasons)

    @reasons.setter
    def reasons(self, reasons: Sequence[str | None]) -> None:
        self._reasons.clear()
        self._reasons.extend(reasons)
        self._failures = sum(reason is not None for reason in self._reasons)

    @property
    def pausing(self) -> bool:
        """Whether no review should be asked for now."""
        return self._pause_seconds > 0 and asyncio.get_running_loop().time() < self._until

    def count(self, failure: NoVerdict | None) -> None:
        """Enter one finished review.

        Raises:
            JudgeLostError: Too many of the latest reviews gave no verdict, most of them because the judge did not
                answer. The window starts anew.
            FailureLimitError: The same, where it did answer.
        """
        if failure is not None:
            self.no_verdicts[failure.reason] += 1
        if self._pause_seconds:
            self._count_on_trial(failure)
            return
        if len(self._reasons) == self._reasons.maxlen:
            self._failures -= self._reasons[0] is not None
        self._reasons.append(None if failure is None else failure.reason)
        self._failures += failure is not None
        reviews, share = len(self._reasons), self._failures / len(self._reasons)
        if reviews < min(self._reasons.maxlen, _FEWEST_REVIEWS) or share <= self._limit:
            return
        reasons = Counter(reason for reason in self._reasons if reason is not None)
        top = ", ".join(f"{reason} {number}" for reason, number in reasons.most_common(3))
        found = f"{share:.0%} of the last {reviews} reviews gave no verdict; `no_verdict_limit` is {self._limit:.0%}. "
        self.reasons = ()
        if self._pauses:
            self._pause(FIRST_PAUSE_SECONDS, f"{found}Reasons: {top}.")
            return
        silent = sum(number for reason, number in reasons.items() if reason in _SILENT_REASONS)
        raise (JudgeLostError if 2 * silent > reasons.total() else FailureLimitError)(
            f"{found}Reasons: {top}. The log holds the first failure of each kind. Mend the judge "
            "(its server, its prompt, its token limit) and continue from the last checkpoint, or raise "
            "`no_verdict_limit`, or go on without reviews while it fails (`judge_failure: continue_on_policy`)."
        )

    def _count_on_trial(self, failure: NoVerdict | None) -> None:
        """What comes during a pause was asked before it. Then the first answer decides: go on, or a longer pause."""
        if self.pausing:
            return
        if failure is None:
            logger.warning("The judge gives verdicts again; reviews go on.")
            self._pause_seconds = 0.0
        else:
            self._pause(min(2 * self._pause_seconds, LONGEST_PAUSE_SECONDS), f"The judge still fails ({failure}).")

    def _pause(self, seconds: float, why: str) -> None:
        self.paused += 1
        self._pause_seconds, self._until = seconds, asyncio.get_running_loop().time() + seconds
        logger.warning("%s Rollouts are the policy's own for %g s; then the judge is asked again.", why, seconds)
