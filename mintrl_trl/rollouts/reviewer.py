"""Asks the judge and believes nothing it says unchecked.

It owns the bound on concurrent calls and the checks of verdicts and corrections; failures are counted in a
[`FailureWindow`]. It never changes a rollout and never retries. The invariants: a Revise that leaves here names a new
step; the ids of a correction exist in the policy's vocabulary, hold no control token and fit the room left for them.
"""

import asyncio
import inspect
import logging
import math
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from ..errors import FailureLimitError, JudgeError, NoVerdict, ServerLostError
from .doors import Correction, Judge, Keep, Revise, TokenText, Verdict, Vocabulary
from .failure_window import FailureWindow
from .places import Places
from .rollout import Author, Problem, Span

logger = logging.getLogger(__name__)

_WORD_BORDER = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")

Rank = tuple[bool, int]  # of a rollout whose call waits: whether the policy has ended it, and how long it is
_FIRST: Rank = (False, -1)

Usable = TypeVar("Usable")


class Answer(NamedTuple):
    """What came of one call, a usable value or the `NoVerdict`, and the seconds it took, waiting included."""

    value: Any
    seconds: float


class Reviewer:
    """The judge behind its checks.

    Args:
        judge (`Judge`): Whom to ask.
        vocabulary (`Vocabulary`): The policy's.
        max_concurrent (`int`): Calls in flight at most.
        failures ([`FailureWindow`]): Counts how often there was no verdict.
        timeout_seconds (`float`, *optional*, defaults to 600.0): One call at most, retries included; then there is no
            verdict (`timeout`), so a judge that hangs cannot stop the run without a word.
    """

    def __init__(
        self,
        judge: Judge,
        vocabulary: Vocabulary,
        *,
        max_concurrent: int,
        failures: FailureWindow,
        timeout_seconds: float = 600.0,
    ):
        self._judge, self._vocabulary = judge, vocabulary
        self._places = Places(max_concurrent)
        self.failures, self._timeout_seconds = failures, timeout_seconds
        self._logged: set[str] = set()

    async def review(
        self, problem: Problem, steps: Sequence[TokenText], first_new: int, seed: int, rank: Callable[[], Rank]
    ) -> Answer:
        """Ask for a verdict; of those who wait, the lowest `rank()` is next.

        The answer's value is a `Keep`, a `Revise` of a new step, or a `NoVerdict`.
        """

        def check(verdict: Verdict) -> Verdict:
            if isinstance(verdict, Revise):
                if type(verdict.step) is not int or not first_new <= verdict.step < len(steps):
                    raise NoVerdict("out_of_range", f"step {verdict.step!r} of {first_new}..{len(steps) - 1}")
            elif not isinstance(verdict, Keep):
                raise NoVerdict("invalid_verdict", f"the judge returned {verdict!r:.200}")
            return verdict

        return await self._ask(lambda: self._judge.review(problem, steps, first_new, seed=seed), check, rank)

    async def correct(
        self, problem: Problem, accepted: TokenText, verdict: Revise, max_tokens: int, seed: int
    ) -> Answer:
        """Ask for a correction, ahead of all reviews that wait: its rollout stands still until it comes.

        The answer's value is a `Span`, `None` where it came back empty, or a `NoVerdict`.
        """
        return await self._ask(
            lambda: self._judge.intervene(problem, accepted, verdict, max_tokens, seed=seed),
            lambda correction: self._span(correction, max_tokens),
            lambda: _FIRST,
        )

    @property
    def accepts(self) -> bool:
        """Whether the judge takes reviews. Where it does not, rollouts go on without, and nothing is counted."""
        return not getattr(self._judge, "exhausted", False) and not self.failures.pausing

    async def _ask(
        self, call: Callable[[], Awaitable], check: Callable[[Any], Usable], rank: Callable[[], Rank]
    ) -> Answer:
        """Call the judge and check what it returns; everything that may be tolerated becomes a `NoVerdict`."""
        now, limit, unexpected = asyncio.get_running_loop().time, None, None
        started = now()
        try:
            async with self._places.taken(rank):
                awaitable = call()
                if not inspect.isawaitable(awaitable):
                    raise JudgeError("the judge's `review` and `intervene` must be coroutine functions (`async def`)")
                async with asyncio.timeout(self._timeout_seconds) as limit:
                    value = check(await awaitable)
        except (JudgeError, FailureLimitError, ServerLostError):  # the last: the policy's server, which it shares
            raise
        except asyncio.CancelledError:
            value = NoVerdict("cancelled", "something inside the judge was cancelled")
        except NoVerdict as failure:
            value = failure
        except Exception as error:
            if limit is not None and limit.expired():
                value = NoVerdict("timeout", f"the judge took more than {self._timeout_seconds:g} s")
            else:
                unexpected = error
                value = NoVerdict(_WORD_BORDER.sub("_", type(error).__name__).lower(), str(error))
            value.__cause__ = error
        if asyncio.current_task().cancelling():
            raise asyncio.CancelledError  # even where the judge swallowed it
        if isinstance(value, NoVerdict):
            self._log(value, unexpected)
        return Answer(value, now() - started)

    def _log(self, failure: NoVerdict, unexpected: Exception | None) -> None:
        """Say the first failure of each kind, with its traceback where nobody foresaw it; the others are counted."""
        if failure.reason not in self._logged:
            self._logged.add(failure.reason)
            text = "no verdict (%s): the chunk is kept; more of this kind are only counted"
            logger.warning(text, failure, exc_info=unexpected)

    def _span(self, correction: Correction, max_tokens: int) -> Span | None:
        """What of `correction` may be spliced in."""
        if not isinstance(correction, Correction):
            raise NoVerdict("invalid_correction", f"the judge returned {correction!r:.200}")
        if correction.text is not None:
            ids, logps = self._encode(correction.text), None
        else:
            ids, logps = correction.ids, correction.logps
            self._check_ids(ids)
        allowed = max_tokens
        for position, token in enumerate(ids[:max_tokens]):
            if token in self._vocabulary.special_ids or token in self._vocabulary.end_ids:
                allowed = position
                break
        if logps is not None and not all(map(math.isfinite, logps)):
            raise NoVerdict("broken_logps", f"log-probabilities {logps} of a correction")
        if not ids[:allowed]:
            return None
        version = str(getattr(self._judge, "weight_version", ""))
        return Span(tuple(ids[:allowed]), Author.INTERVENTION, version, logps and tuple(logps[:allowed]))

    def _encode(self, text: str) -> tuple[int, ...]:
        """Ids of the text before the first mark of a control token, encoded alone."""
        marks = [text.find(mark) for mark in self._vocabulary.special_texts if mark in text]
        return tuple(self._vocabulary.encode(text[: min(marks, default=len(text))]))

    def _check_ids(self, ids: Sequence[int]) -> None:
        for token in ids:
            if type(token) is not int or not 0 <= token < self._vocabulary.size:
                raise JudgeError(
                    f"a correction holds id {token!r}, but the policy's vocabulary has {self._vocabulary.size} ids: "
                    "the judge uses another tokenizer. Return Correction(text=...) instead"
                )
