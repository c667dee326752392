"""All requests for one kind of weights: who waits, what is being read, what is being decoded.

A step does one bounded piece of reading (new rows, or continuations to score) and then one token for every live row,
so neither stalls the other for long. It owns no thread and no lock. Invariant: every request it was given is in exactly
one place (a queue, the group being read, or the batch) until the consumer has heard of its end or has closed it.
"""

from collections import deque
from collections.abc import Generator

from ..errors import GenerationError
from .decoding import DecodingBatch
from .lent_model import LentModel, Weights
from .prefill import prefill, score
from .requests import Outbox, Request, ScoreRequest, StreamRequest

_READING_ALONE = 8  # with nothing to decode, this many times more is read at once


class Lane:
    """One kind of weights.

    Args:
        model ([`LentModel`]): Runs the forward passes.
        kind ([`Weights`]): Which weights.
        end_ids (`frozenset[int]`): Ids that end a row.
        pad_id (`int`): Any valid id; it fills masked places.
        temperature (`float`): Above 0.
        max_batch (`int`): Rows decoded, or scored, at once.
        prefill_tokens (`int`): Tokens read between two tokens of the live rows.
        outbox ([`Outbox`]): Takes tokens and results.
    """

    def __init__(
        self,
        model: LentModel,
        kind: Weights,
        *,
        end_ids: frozenset[int],
        pad_id: int,
        temperature: float,
        max_batch: int,
        prefill_tokens: int,
        outbox: Outbox,
    ):
        self._model, self._kind, self._pad_id, self._temperature = model, kind, pad_id, temperature
        self._max_batch, self._prefill_tokens = max_batch, prefill_tokens
        self._slice_tokens = prefill_tokens
        self._outbox = outbox
        self._batch = DecodingBatch(model, kind, end_ids, temperature, outbox)
        self._streams: deque[StreamRequest] = deque()
        self._scores: deque[ScoreRequest] = deque()
        self._reading: Generator[None, None, None] | None = None
        self._group: list[Request] = []  # what `_reading` is for
        self._scored_last = False

    @property
    def num_rows(self) -> int:
        """Rows being decoded."""
        return len(self._batch.rows)

    @property
    def is_reading(self) -> bool:
        """Whether the next step goes on reading."""
        return self._reading is not None

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._batch.rows or self._reading or self._streams or self._scores)

    def add(self, request: Request) -> None:
        """Queue a request."""
        (self._scores if isinstance(request, ScoreRequest) else self._streams).append(request)

    def step(self, *, alone: bool) -> None:
        """Read a slice, then decode one token. A slice may be long if `alone`: no row of any lane waits for its end."""
        self._slice_tokens = self._prefill_tokens * (_READING_ALONE if alone else 1)
        self._batch.drop_closed()
        if self._reading is None:
            self._reading = self._next_group()
        if self._reading is None and not self._batch.rows:
            return
        self._model.use(self._kind)
        if self._reading is not None:
            try:
                next(self._reading)
            except StopIteration:
                self._reading, self._group = None, []
        if self._batch.rows:
            self._batch.step()

    def fail(self, message: str, cause: Exception | None = None, *, waiting: bool = False) -> None:
        """End what is being read and decoded, and with `waiting` what is queued, with a `GenerationError`."""
        requests = [*self._group, *self._batch.rows]
        if waiting:
            requests += [*self._streams, *self._scores]
            self._streams.clear()
            self._scores.clear()
        self._reading, self._group = None, []
        self._batch.clear()
        for request in dict.fromkeys(requests):  # a request whose admission failed half-way is in two places
            error = GenerationError(message)
            error.__cause__ = cause
            self._outbox.put(request.mailbox, request.finish, error)

    def _next_group(self) -> Generator[None, None, None] | None:
        """Start reading for the requests that wait longest; streams and scores take turns."""
        for scored in (not self._scored_last, self._scored_last):
            room = self._max_batch if scored else self._max_batch - len(self._batch.rows)
            self._group = self._take(self._scores if scored else self._streams, room)
            if self._group:
                self._scored_last = scored
                return self._score() if scored else self._join()
        return None

    def _take(self, queue: deque, room: int) -> list:
        """Up to `room` requests whose reading is one slice, or one request if that is longer."""
        group: list[Request] = []
        prefixes: set[tuple[int, ...]] = set()
        longest_prefix = longest_continuation = 0
        while queue and len(group) < room:
            request = queue[0]
            if not request.gone:
                longest_prefix = max(longest_prefix, len(request.prefix))
                longest_continuation = max(longest_continuation, len(request.continuation))
                prefixes.add(request.prefix)
                tokens = len(prefixes) * longest_prefix + (len(group) + 1) * longest_continuation
                if group and tokens > self._slice_tokens:
                    break
                group.append(request)
            queue.popleft()
        return group

    def _join(self) -> Generator[None, None, None]:
        prefixes = [request.prefix for request in self._group]
        read = yield from prefill(self._model, self._kind, prefixes, self._pad_id, lambda: self._slice_tokens)
        self._batch.admit(self._group, read)

    def _score(self) -> Generator[None, None, None]:
        scores = yield from score(
            self._model, self._kind, self._group, self._pad_id, self._temperature, lambda: self._slice_tokens
        )
        for request, logps in zip(self._group, scores, strict=True):
            self._outbox.put(request.mailbox, request.resolve, logps)
