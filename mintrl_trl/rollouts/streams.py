"""Reads what the policy samples, ahead of whoever waits for it.

Each stream has one task that reads it to its end, checks every token, and closes it. Nothing here knows chunks, judges
or text. The invariants: every stream that was opened is closed exactly once, by the task that reads it; that task is
cancelled at most once, so closing is never cut short; the last tokens of a stream are handed out after it is closed.
"""

import asyncio
import math

from ..errors import GenerationError
from .doors import PolicyGenerator, SampledToken, Vocabulary
from .progress import Tally
from .rollout import Author, Span

_BREATH_TOKENS = 64  # a generator that never suspends lets others run after this many tokens


class StreamReader:
    """One stream of the policy, read on whether or not anyone waits for its tokens.

    Args:
        generator (`PolicyGenerator`): The policy.
        prefix_ids (`tuple[int, ...]`): What it continues.
        max_tokens (`int`): Limit of the stream, at least 1.
        seed (`int`): Seed of the request.
        vocabulary (`Vocabulary`): Says which ids exist and which end a response.
        tally (`Tally`): Counts the tokens read.
        label (`str`): Names the rollout in errors.
    """

    def __init__(
        self,
        generator: PolicyGenerator,
        prefix_ids: tuple[int, ...],
        max_tokens: int,
        seed: int,
        *,
        vocabulary: Vocabulary,
        tally: Tally,
        label: str,
    ):
        self._vocabulary, self._tally = vocabulary, tally
        self._label = f"{label}: the stream that continues {len(prefix_ids)} tokens"
        self._weight_version = ""
        self.ended = False  # an end id was read
        self._ids: list[int] = []  # read and not yet taken
        self._logps: list[float | None] = []
        self._left = max_tokens  # tokens that may still come
        self._wanted = 0  # tokens that `take` waits for
        self._news = asyncio.Event()
        self._reading, self._closing = True, False
        self._read_until = math.inf
        self._task = asyncio.create_task(self._read(generator, prefix_ids, max_tokens, seed))
        self._task.add_done_callback(lambda _: self._news.set())

    @property
    def spent(self) -> bool:
        """Whether the stream is closed and all its tokens are taken."""
        return self._task.done() and not self._ids

    @property
    def untaken_tokens(self) -> int:
        """How many tokens could be taken at once."""
        return len(self._ids)

    def idle_seconds(self, since: float) -> float:
        """How long since the moment `since` of the loop's clock nothing has been read, because the stream ended."""
        now = asyncio.get_running_loop().time()
        return now - min(max(since, self._read_until), now)

    async def take(self, count: int) -> Span:
        """The next `count` tokens, or fewer where the policy ended its response.

        Raises:
            GenerationError: The stream ended early, or yielded a token that cannot be.
        """
        while not self._task.done() and (len(self._ids) < count or not self._left):
            self._wanted = count
            self._news.clear()
            await self._news.wait()
        if self._task.done():
            self._task.result()
        ids, logps = tuple(self._ids[:count]), tuple(self._logps[:count])
        del self._ids[:count], self._logps[:count]
        return Span(ids, Author.POLICY, self._weight_version, None if None in logps else logps)

    async def aclose(self) -> int:
        """Stop the work behind the stream. Returns how many tokens were read ahead and are thrown away."""
        if self._reading and not self._closing:
            self._closing = True
            self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.result()
        thrown_away = len(self._ids)
        self._ids.clear()
        self._logps.clear()
        return thrown_away

    async def _read(self, generator: PolicyGenerator, prefix_ids: tuple[int, ...], max_tokens: int, seed: int) -> None:
        stream, unbroken = None, 0
        try:
            self._weight_version = generator.weight_version
            stream = generator.stream(prefix_ids, max_tokens, seed)
            take_buffered = getattr(stream, "take", None)
            async for token in stream:
                self._add(token)
                if take_buffered is not None:
                    for buffered in take_buffered():
                        self._add(buffered)
                if not self._left or self._closing:
                    return
                if len(self._ids) >= self._wanted:
                    self._news.set()
                unbroken += 1
                if unbroken % _BREATH_TOKENS == 0:
                    await asyncio.sleep(0)
            if not self._closing:
                raise GenerationError(
                    f"{self._label} ended after {max_tokens - self._left} of {max_tokens} tokens without an end id"
                )
        except asyncio.CancelledError:
            if self._closing:
                raise
            raise GenerationError(f"{self._label} was cancelled by the generator") from None
        except Exception as error:
            error.add_note(f"raised by {self._label}")
            raise
        finally:
            self._reading, self._read_until = False, asyncio.get_running_loop().time()
            if hasattr(stream, "aclose"):
                await stream.aclose()

    def _add(self, token: SampledToken) -> None:
        """Check a token and keep it; what comes after the end of the response is ignored."""
        if not self._left:
            return
        token_id, logp = token
        if type(token_id) is not int or not 0 <= token_id < self._vocabulary.size:
            raise GenerationError(
                f"{self._label} yielded id {token_id!r}; the vocabulary has {self._vocabulary.size} ids, whole numbers "
                "(int) from 0"
            )
        if logp is not None and not math.isfinite(logp):
            raise GenerationError(
                f"{self._label} yielded log-probability {logp} for id {token_id}: the logits behind it are broken "
                "(overflow or diverged weights); lower the learning rate or use a wider number format"
            )
        self._ids.append(token_id)
        self._logps.append(logp)
        self._tally.tokens += 1
        self.ended = token_id in self._vocabulary.end_ids
        self._left = 0 if self.ended else self._left - 1
