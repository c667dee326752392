"""What passes between a consumer's event loop and the engine thread: requests one way, tokens and results the other.

A request is made on the loop and served by the engine. What the engine has for consumers gathers in its outbox and goes
out at most once per step, with one wake of each loop however many rows there are. Invariant: what a consumer reads
changes only on its loop, in the order the engine sent it; the engine in turn polls nothing but `Request.gone`.
"""

import asyncio
import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import GenerationError
from ..rollouts.doors import SampledToken
from .lent_model import Weights

_PATIENCE_SECONDS = 0.01  # how long a token may wait for the next ones

Call = tuple[Callable[..., None], tuple[Any, ...]]


class Mailbox:
    """Runs calls on one event loop, in order, on behalf of another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self.loop = loop
        self._lock = threading.Lock()
        self._calls: list[Call] = []

    def send(self, calls: list[Call]) -> None:
        """Have the loop make `calls` soon. Calls for a loop that is closed are dropped."""
        with self._lock:
            awaited = bool(self._calls)  # the loop was woken before and has not come yet
            self._calls += calls
        if not awaited and not self.loop.is_closed():
            try:
                self.loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # closed in this very moment
                return

    def _deliver(self) -> None:
        with self._lock:
            calls, self._calls = self._calls, []
        for function, arguments in calls:
            function(*arguments)


class Outbox:
    """What the engine has for its consumers, sent with one wake per loop.

    Tokens may wait a moment for more of them, so that a small model's consumers are not woken for each one; whatever
    ends a request goes out at once, and takes along what waits.
    """

    def __init__(self):
        self._calls: defaultdict[Mailbox, list[Call]] = defaultdict(list)
        self._due = math.inf

    def put(self, mailbox: Mailbox, function: Callable[..., None], *arguments: Any, can_wait: bool = False) -> None:
        """Add one call for `mailbox`'s loop."""
        self._calls[mailbox].append((function, arguments))
        self._due = min(self._due, time.monotonic() + _PATIENCE_SECONDS if can_wait else -math.inf)

    def send(self, *, at_once: bool = False) -> None:
        """Send everything, if that is due or `at_once`."""
        if not at_once and time.monotonic() < self._due:
            return
        for mailbox, calls in self._calls.items():
            mailbox.send(calls)
        self._calls.clear()
        self._due = math.inf


class Request:
    """What the engine knows of any request.

    Args:
        prefix (`tuple[int, ...]`): Token ids, at least one.
        weights (`Weights`): Which weights to run.
        mailbox (`Mailbox`): Of the consumer's loop.
    """

    def __init__(self, prefix: tuple[int, ...], weights: Weights, mailbox: Mailbox):
        self.prefix, self.weights, self.mailbox = prefix, weights, mailbox
        self.closed = False  # set by the consumer, who waits no more

    @property
    def gone(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.closed or self.mailbox.loop.is_closed()

    def finish(self, error: GenerationError | None = None) -> None:
        """On the loop: nothing more will come, because of `error` if given."""
        raise NotImplementedError


class StreamRequest(Request):
    """Sample up to `max_tokens` tokens after the prefix, under `seed`."""

    continuation: tuple[int, ...] = ()

    def __init__(self, prefix: tuple[int, ...], weights: Weights, mailbox: Mailbox, max_tokens: int, seed: int):
        super().__init__(prefix, weights, mailbox)
        self.seed = seed
        # The engine's notes: tokens still to come, and the column of the batch in which the row begins.
        self.remaining, self.origin = max_tokens, 0
        # The consumer's end.
        self.tokens: deque[SampledToken] = deque()
        self.finished = False
        self.error: GenerationError | None = None
        self.waiter: asyncio.Future[None] | None = None

    def finish(self, error: GenerationError | None = None) -> None:
        if not self.finished:
            self.finished, self.error = True, error
            self.wake()

    def wake(self) -> None:
        """On the loop: let the consumer look, if it waits."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


def hand_out(requests: Sequence[StreamRequest], ids: Sequence[int], logps: Sequence[float]) -> None:
    """On the loop: one token for each of `requests`."""
    for request, token_id, logp in zip(requests, ids, logps, strict=True):
        request.tokens.append(SampledToken(token_id, logp))
        request.wake()


class ScoreRequest(Request):
    """Log-probabilities of `continuation` (at least one id) after the prefix, one float per token, in `result`."""

    def __init__(self, prefix: tuple[int, ...], weights: Weights, mailbox: Mailbox, continuation: tuple[int, ...]):
        super().__init__(prefix, weights, mailbox)
        self.continuation = continuation
        self.result: asyncio.Future[tuple[float, ...]] = mailbox.loop.create_future()

    def finish(self, error: GenerationError | None = None) -> None:
        if not self.result.done():
            self.result.set_exception(error or GenerationError("scoring ended without a result"))

    def resolve(self, logps: Sequence[float]) -> None:
        """On the loop: the result."""
        if any(math.isnan(logp) for logp in logps):
            self.finish(GenerationError("the model's logits are not finite; its weights may have diverged"))
        elif not self.result.done():
            self.result.set_result(tuple(logps))
