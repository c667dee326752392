"""A policy generator in the training process: it samples from the very module that is being trained, without a copy.

Owns the public door: checking what is asked for, streams, versions, and the hand-over of the model between trainer and
generator. The work is done by one engine thread (`engine.py`), which decodes all open streams together (`decoding.py`).
It never sees text and never trains. Invariant: a sampled token depends on the tokens before it, the request's seed and
the token's absolute position only; see `noise.py`.
"""

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from torch import nn

from ..errors import ConfigError, GenerationError
from ..rollouts.doors import SampledToken
from .engine import Engine
from .lane import Lane
from .lent_model import LentModel, Weights
from .requests import Mailbox, Outbox, ScoreRequest, StreamRequest


class LocalGenerator:
    """Continues token ids in process; implements [`PolicyGenerator`] for CPU, notebooks, tests and small runs.

    Requests wait in a queue and join the rows that are being decoded between two tokens; rows that end or are closed
    leave. While a request is open the model is in evaluation mode and belongs to the generator. A trainer brackets
    rollouts with [`LocalGenerator.active`]; outside of it the engine is idle and the model as it was.

    Log-probabilities, of streams and of scores, are in nats under softmax(logits / temperature), computed in float32
    (float64 for a float64 model).

    Args:
        model (`nn.Module`): The causal language model that is trained; may be wrapped by DDP or PEFT.
        end_ids (`Collection[int]`): Any of these ends a stream, which yields it.
        pad_id (`int`, *optional*, defaults to 0): Any valid id; it fills masked places only.
        temperature (`float`, *optional*, defaults to 1.0): Above 0.
        max_batch (`int`, *optional*, defaults to 256): Rows decoded together, for each kind of weights.
        prefill_tokens (`int`, *optional*, defaults to 1024): Tokens of new requests read between two tokens of the
            running ones; eight times more while nothing runs.
        base_model (`nn.Module`, *optional*): Frozen module for `weights="base"`. Not needed with a PEFT model, whose
            base weights are its own with the adapter disabled.
        autocast (`Callable[[], ContextManager]`, *optional*): Makes the context that forward passes run in, such as
            `accelerator.autocast`.
        weight_version (`str`, *optional*, defaults to `"0"`): Name of the weights as they are now.

    Raises:
        ConfigError: A value out of range, or a model that cannot be served: sliding windows, sharded parameters,
            prompt-learning adapters, rotary frequencies that depend on the batch.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        end_ids: Collection[int],
        pad_id: int = 0,
        temperature: float = 1.0,
        max_batch: int = 256,
        prefill_tokens: int = 1024,
        base_model: nn.Module | None = None,
        autocast: Callable[[], AbstractContextManager] | None = None,
        weight_version: str = "0",
    ):
        self._model = LentModel(model, base_model, autocast)
        size = self._model.vocabulary_size
        _check("temperature", temperature, temperature > 0, "above 0", "use 1.0")
        _check("max_batch", max_batch, max_batch >= 1, "1 or more", "use 256")
        _check("prefill_tokens", prefill_tokens, prefill_tokens >= 1, "1 or more", "use 1024")
        _check("pad_id", pad_id, _are_ids((pad_id,), size), f"0 to {size - 1}", "pass the tokenizer's pad_token_id")
        _check("end_ids", end_ids, _are_ids(end_ids, size), f"ids from 0 to {size - 1}", "pass the tokenizer's end ids")
        self.end_ids = frozenset(end_ids)
        self.temperature = temperature
        self.weight_version = weight_version
        self.base_version = "base"
        outbox = Outbox()
        self._lanes = {
            kind: Lane(
                self._model,
                kind,
                end_ids=self.end_ids,
                pad_id=pad_id,
                temperature=temperature,
                max_batch=max_batch,
                prefill_tokens=prefill_tokens,
                outbox=outbox,
            )
            for kind in self._model.kinds
        }
        self._engine = Engine(self._model, self._lanes, outbox)
        self._mailboxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Mailbox] = weakref.WeakKeyDictionary()
        self._active_depth = 0
        weakref.finalize(self, self._engine.stop)

    @property
    def has_base(self) -> bool:
        """Whether `weights="base"` can be asked for."""
        return Weights.BASE in self._lanes

    @property
    def max_positions(self) -> int | None:
        """Positions of the model, for prefix and continuation together; `None` where it has no limit."""
        return self._model.max_positions

    @property
    def num_rows(self) -> int:
        """Rows being decoded now."""
        return sum(lane.num_rows for lane in self._lanes.values())

    @property
    def idle(self) -> bool:
        """Whether the model is with its owner and no request is open."""
        return self._engine.idle

    def work(self, weights: str = "policy") -> tuple[int, int]:
        """Forward passes with these weights so far, and the tokens in them, padding included. They only grow."""
        kind = self._kind(weights)
        return self._model.forwards[kind], self._model.positions[kind]

    def counters(self) -> dict[str, float]:
        """The policy's work so far, by metric name."""
        passes, positions = self.work()
        return {"passes/policy": float(passes), "positions/policy": float(positions)}

    def stream(
        self, prefix_ids: Sequence[int], max_tokens: int, seed: int, *, weights: str = "policy"
    ) -> AsyncIterator[SampledToken]:
        """Sample a continuation, token by token; see [`TokenStream`].

        Nothing happens before the first token is asked for.

        Args:
            prefix_ids (`Sequence[int]`): At least one id.
            max_tokens (`int`): At least one.
            seed (`int`): In [-2**63, 2**63). Equal prefix, seed and weights give equal tokens.
            weights (`str`, *optional*, defaults to `"policy"`): `"policy"` or `"base"`.

        Raises:
            GenerationError: Ids out of range, too many tokens for the model's positions, or (while streaming) a
                paused or closed generator, or a model whose logits are not finite.
            ConfigError: `weights="base"` without base weights.
        """
        kind = self._kind(weights)
        prefix = self._checked(prefix_ids, max_tokens)
        if max_tokens < 1:
            raise GenerationError(f"asked for {max_tokens} tokens; at least one is needed")
        if not -(2**63) <= seed < 2**63:
            raise GenerationError(f"seed {seed} does not fit in 64 bits")
        return TokenStream(self._engine, lambda: StreamRequest(prefix, kind, self._mailbox(), max_tokens, seed))

    async def score(
        self, prefix_ids: Sequence[int], continuation_ids: Sequence[int], *, weights: str = "policy"
    ) -> tuple[float, ...]:
        """Log-probability of each id of a continuation; see [`LocalGenerator.score_all`]."""
        (logps,) = await self.score_all(prefix_ids, [continuation_ids], weights=weights)
        return logps

    async def score_all(
        self, prefix_ids: Sequence[int], continuations: Sequence[Sequence[int]], *, weights: str = "policy"
    ) -> list[tuple[float, ...]]:
        """Log-probability of each id of several continuations of one prefix.

        The prefix is read once. Requests that arrive together, of any callers, are one batch.

        Args:
            prefix_ids (`Sequence[int]`): At least one id.
            continuations (`Sequence[Sequence[int]]`): What to score; an empty one gives an empty result.
            weights (`str`, *optional*, defaults to `"policy"`): `"policy"` or `"base"`.

        Raises:
            GenerationError: As for [`LocalGenerator.stream`].
            ConfigError: `weights="base"` without base weights.
        """
        kind = self._kind(weights)
        prefix = self._checked(prefix_ids, max(map(len, continuations), default=0))
        ids = [self._checked(continuation, 0) if continuation else () for continuation in continuations]
        mailbox = self._mailbox()
        requests = [ScoreRequest(prefix, kind, mailbox, continuation) for continuation in ids if continuation]
        self._engine.submit(requests)
        try:
            results = iter(await asyncio.gather(*(request.result for request in requests)))
        finally:
            for request in requests:
                request.closed = True
        return [next(results) if continuation else () for continuation in ids]

    def set_version(self, weight_version: str) -> None:
        """Name the weights anew after they changed.

        Raises:
            GenerationError: Requests are open: their tokens would mix two versions.
        """
        if weight_version != self.weight_version and not self.idle:
            raise GenerationError("the weights changed while requests were open; train only outside of `active()`")
        self.weight_version = weight_version

    def bump_version(self) -> None:
        """Name the weights anew by counting up; for a version that is a number."""
        self.set_version(str(int(self.weight_version) + 1))

    @contextmanager
    def active(self) -> Iterator["LocalGenerator"]:
        """The generator has the model inside; afterwards it is paused until the next `active` or `resume`.

        Requests that are open at the end are ended with an error. On leaving, the engine is idle and every module is in
        the mode it was in, so training may go on. May be nested.
        """
        if not self._active_depth:
            self._engine.resume(keep_model=True)
        self._active_depth += 1
        try:
            yield self
        finally:
            self._active_depth -= 1
            if not self._active_depth:
                self._engine.pause()

    def pause(self) -> None:
        """End open requests with an error, refuse new ones, and return once the model is back with its owner."""
        self._engine.pause()

    def resume(self) -> None:
        """Serve requests at any time, as a new generator does. The model is given back whenever nothing is open."""
        self._engine.resume(keep_model=False)

    def close(self) -> None:
        """Pause for good and end the thread."""
        self._engine.close()

    def _kind(self, weights: str) -> Weights:
        kind = Weights(weights)
        if kind not in self._lanes:
            fix = "pass base_model=, a frozen copy of the initial model, or train a PEFT adapter"
            raise ConfigError("weights", weights, 'only "policy" for a model whose every weight is trained', fix)
        return kind

    def _checked(self, ids: Sequence[int], more_tokens: int) -> tuple[int, ...]:
        size, limit = self._model.vocabulary_size, self._model.max_positions
        if not ids or not _are_ids(ids, size):
            raise GenerationError(f"need one or more ids from 0 to {size - 1}, got {len(ids)}, {_odd_ids(ids, size)}")
        if limit is not None and len(ids) + more_tokens > limit:
            raise GenerationError(f"{len(ids)} + {more_tokens} tokens exceed the model's {limit} positions")
        return tuple(ids)

    def _mailbox(self) -> Mailbox:
        loop = asyncio.get_running_loop()
        if loop not in self._mailboxes:
            self._mailboxes[loop] = Mailbox(loop)
        return self._mailboxes[loop]


class TokenStream(AsyncIterator[SampledToken]):
    """A continuation as it is sampled: an async iterator of [`SampledToken`] that ends after an end id or the limit.

    The request starts with the first token that is asked for. Dropping the stream closes it.
    """

    def __init__(self, engine: Engine, make_request: Callable[[], StreamRequest]):
        self._engine, self._make_request = engine, make_request
        self._request: StreamRequest | None = None
        self._closed = False

    async def __anext__(self) -> SampledToken:
        if self._closed:
            raise StopAsyncIteration
        if self._request is None:
            self._request = self._make_request()
            self._engine.submit([self._request])
        request = self._request
        while not request.tokens and not request.finished:
            if request.waiter is not None:
                raise RuntimeError("a stream has one reader at a time")
            request.waiter = request.mailbox.loop.create_future()
            try:
                await request.waiter
            finally:
                request.waiter = None
        if request.tokens:
            return request.tokens.popleft()
        self._closed = True
        if request.error is not None:
            raise request.error
        raise StopAsyncIteration

    def take(self) -> list[SampledToken]:
        """The tokens that are already here, in order, without waiting; they are not yielded again."""
        if self._closed or self._request is None:
            return []
        tokens = list(self._request.tokens)
        self._request.tokens.clear()
        return tokens

    async def aclose(self) -> None:
        """Stop: the row leaves the batch before its next token. Closing twice, or after the end, does nothing."""
        self._close()

    def _close(self) -> None:
        self._closed = True
        if self._request is not None:
            self._request.closed = True
            self._request.tokens.clear()

    def __del__(self):
        self._close()


def _check(field: str, value: object, is_good: bool, allowed: str, fix: str) -> None:
    if not is_good:
        raise ConfigError(field, value, allowed, fix)


def _are_ids(ids: Collection[int], size: int) -> bool:
    return all(type(token) is int for token in ids) and (not ids or (min(ids) >= 0 and max(ids) < size))


def _odd_ids(ids: Sequence[int], size: int) -> str:
    odd = [token for token in ids if not _are_ids((token,), size)]
    return f"among them {odd[:5]}" if odd else "all in range"
