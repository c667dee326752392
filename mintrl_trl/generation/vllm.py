"""Continues token ids on a vLLM server: one streamed request per continuation, ids in and ids out.

Owns what is asked of `/v1/completions` and when a request is repeated. It never sends or reads text, never shares a
request between prefixes, never changes the server. Invariant: a stream is the server's own sampling from exactly
the prefix it was given, by the weights named `weight_version`; a request is repeated only before its first token, or
goes on after the tokens it has where a [`Recovery`] vouches for the weights.

Every process has a generator of its own; nothing is shared but the server. The request spells out every sampling
setting, because vLLM fills gaps from the model's `generation_config.json` (Qwen3 has `top_k` 20 and `top_p` 0.95).
"""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import ConfigError, ServerLostError
from ..rollouts.doors import SampledToken
from .completion import CompletionReply
from .recovery import Recovery
from .server import BUSY_STATUSES, LOST_KINDS, ServerControl, ServerError, as_fault, open_async_client, pause_seconds

if TYPE_CHECKING:
    import openai

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_ODD = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio: spreads consecutive positions over all seeds
_SEEDS = 2**63
_GONE = LOST_KINDS | {"status_404"}  # no server there, or a new one that does not know the adapter
_QUIET_SECONDS = 30.0  # between two log lines about one kind of fault
_REST_SECONDS = 1.0  # for the bytes after the last token


@dataclass
class _Session:
    """What belongs to one event loop."""

    client: "openai.AsyncOpenAI"
    slots: asyncio.Semaphore


class VLLMGenerator:
    """A [`PolicyGenerator`] behind a vLLM server.

    Args:
        base_url (`str`): Address of the server, with or without `/v1`.
        model (`str`): Name to ask for: the served model or a LoRA adapter.
        end_ids (`Iterable[int]`): Ids that end a response. The server stops at these and at no others.
        vocabulary_size (`int`): Ids the model can be fed; an id outside is an error.
        temperature (`float`): Sampling temperature, at least 0. 0 takes the likeliest token.
        top_p (`float`), top_k (`int`), min_p (`float`), repetition_penalty (`float`): Off by default. With any of them
            the tokens no longer follow the policy's own distribution.
        logprobs (`bool`): Ask for the log-probability of each token. Without it, NaN logits go unnoticed.
        api_key (`str`, *optional*): The server's own key.
        max_concurrency (`int`): Requests open at once, per event loop; more wait for a place.
        stream_interval (`int`): Tokens the server sends at once; the first and the last never wait. Larger is
            cheaper on both sides, smaller stops sooner.
        silence_seconds (`float`): Longest silence inside a stream.
        seconds_per_token (`float`): Before the first token the server may be busy with other requests, so that silence
            may last `silence_seconds + seconds_per_token * max_tokens`.
        max_retries (`int`): Repetitions of a request that failed before its first token.

    Attributes:
        model (`str`): Name asked for; set by [`~VLLMGenerator.use_weights`].
        weight_version (`str`): Version of the weights behind it; empty until it is set.
        recovery ([`Recovery`], *optional*): Waits for a lost server, and sees to its weights. Streams then go on where
            they broke off.

    Raises:
        ConfigError: A value outside its range.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        end_ids: Iterable[int],
        vocabulary_size: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        logprobs: bool = True,
        api_key: str | None = None,
        max_concurrency: int = 512,
        stream_interval: int = 8,
        silence_seconds: float = 180.0,
        seconds_per_token: float = 0.1,
        max_retries: int = 3,
    ):
        self.control = ServerControl(base_url, api_key=api_key)
        self.model, self.weight_version = model, ""
        self.recovery: Recovery | None = None
        self._counted = Counter(repeated=0, continued=0)
        self._told: dict[str, float] = {}  # kind of fault -> when it was logged last
        self.end_ids = frozenset(end_ids)
        self.vocabulary_size, self.max_concurrency = vocabulary_size, max_concurrency
        self.silence_seconds, self.seconds_per_token = silence_seconds, seconds_per_token
        self.max_retries = max_retries
        if not self.end_ids or not all(0 <= token < vocabulary_size for token in self.end_ids):
            allowed = f"at least one id, each below {vocabulary_size}"
            raise ConfigError("end_ids", sorted(self.end_ids), allowed, "pass the ids that end a response")
        for field, value, low in (
            ("temperature", temperature, 0),
            ("max_concurrency", max_concurrency, 1),
            ("stream_interval", stream_interval, 1),
            ("max_retries", max_retries, 0),
        ):
            if not value >= low:
                raise ConfigError(field, value, f"at least {low}", f"set {field}={low} or more")
        self._url = f"{self.control.root}/v1/completions"
        self._api_key = api_key
        self._sampling = {
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "watermarking": False,
            "logprobs": 0 if logprobs else None,  # 0: the sampled token alone
            "stop_token_ids": sorted(self.end_ids),
            "ignore_eos": True,  # the server's own idea of an end; ours are the stop ids
            "stream_interval": stream_interval,
        }
        # At temperature 1 without a cut, raw and processed log-probabilities are the same.
        plain = (temperature, top_p, max(top_k, 0), min_p, repetition_penalty) == (1, 1, 0, 0, 1)
        self._reports_logps = plain and logprobs
        self._sessions: dict[asyncio.AbstractEventLoop, _Session] = {}

    def __repr__(self) -> str:
        return f"VLLMGenerator({self.control.root!r}, {self.model!r}, weight_version={self.weight_version!r})"

    def use_weights(self, weight_version: str, model: str | None = None) -> None:
        """Name the weights that streams opened from now on are sampled by, and the model to ask for, if it changed."""
        self.weight_version = weight_version
        self.model = model or self.model

    def counters(self) -> dict[str, float]:
        """By metric name: requests repeated before their first token, streams that went on after a break, each kind of
        fault, of waits too, how often the server got its weights back, how long it was waited for. They only grow.
        """
        recovery = self.recovery
        restored, seconds_lost = (0, 0.0) if recovery is None else (recovery.restored, recovery.seconds_lost)
        counted = Counter(self._counted)
        if recovery is not None:
            counted.update({f"fault/{kind}": number for kind, number in recovery.faults.items()})
        counted.update(restored=restored, seconds_lost=seconds_lost)
        return {f"server/{name}": float(number) for name, number in counted.items()}

    def verify(self, *, max_prompt_length: int, max_completion_length: int, wait_seconds: float = 240.0) -> None:
        """Check at start-up that the server is up, serves `model` and has room for the longest response.

        Blocks; meant for start-up, outside any event loop.

        Raises:
            ConfigError: The server serves other models, or its context is too short. Both sides are named.
            GenerationError: The server is not up within `wait_seconds`.
        """
        root, limit = self.control.root, self.silence_seconds
        self.control.wait_until_ready(wait_seconds)
        cards = self.control.models(seconds=limit)
        if self.model not in cards:
            allowed = f"what {root} serves: {', '.join(map(repr, cards)) or 'nothing'}"
            fix = f"start the server with --served-model-name {self.model}, or ask for a name it serves"
            raise ConfigError("model", self.model, allowed, fix)
        card = cards[self.model]
        room = card.get("max_model_len") or cards.get(card.get("parent"), {}).get("max_model_len")
        need = max_prompt_length + max_completion_length
        if room is not None and need > room:
            raise ConfigError(
                "max_prompt_length + max_completion_length",
                need,
                f"at most {room}, the context length of {root}; the two are {max_prompt_length} and "
                f"{max_completion_length}",
                f"start the server with --max-model-len {need}, if its model has so many positions, or lower one",
            )
        self._learn_logprobs_mode()

    def _learn_logprobs_mode(self) -> None:
        """With a temperature or a cut, log-probabilities are reported only if the server is known to apply it too."""
        if self._reports_logps or self._sampling["logprobs"] is None or self._sampling["temperature"] == 0:
            return
        try:
            info = self.control.call("GET", "/server_info?config_format=json", seconds=self.silence_seconds)
            mode = info["vllm_config"]["model_config"]["logprobs_mode"]
        except (ServerError, TypeError, KeyError):  # the route exists in vLLM's development mode only
            mode = "unknown"
        self._reports_logps = mode == "processed_logprobs"
        if not self._reports_logps:
            logger.warning(
                "Log-probabilities of %s are not used: its logprobs mode is %s, and the sampling settings are not "
                "plain. Start it with --logprobs-mode processed_logprobs and VLLM_SERVER_DEV_MODE=1 to have them.",
                self.control.root,
                mode,
            )

    async def stream(self, prefix_ids: Sequence[int], max_tokens: int, seed: int) -> AsyncIterator[SampledToken]:
        """Sample a continuation of `prefix_ids` (`doors.PolicyGenerator.stream`).

        Closing the stream drops the HTTP connection, upon which the server aborts the request. The server's noise
        depends on its seed and on the tokens *of the request*, so the prefix length enters the seed: requests that
        continue each other under one seed do not repeat their noise. The same prefix, seed, weights and server give
        the same tokens again, up to the server's own numerical noise.

        Raises:
            GenerationError: The server refuses (its own text is in the message), stays silent too long, answers to
                another prompt, or gives NaN, an unknown id or an end that is none.
            ValueError: An empty prefix, or `max_tokens` below 1.
        """
        prefix = list(prefix_ids)
        if not prefix or max_tokens < 1:
            raise ValueError(f"nothing to continue: {len(prefix)} prefix ids, max_tokens={max_tokens}")
        session = self._session()
        last: list[SampledToken] = []
        attempt, failing_since = 0, math.inf  # since the last token
        async with session.slots:
            while True:
                if self.recovery is not None:
                    await self.recovery.ready()
                request, asked = self._request(prefix, max_tokens, seed), len(prefix)
                reply = CompletionReply(
                    f"POST {self._url} ({self.model}, {len(prefix)} prompt ids, at most {max_tokens} more)",
                    prefix,
                    max_tokens,
                    end_ids=self.end_ids,
                    vocabulary_size=self.vocabulary_size,
                    reports_logps=self._reports_logps,
                )
                try:
                    async with aclosing(self._receive(session.client, request, reply)) as batches:
                        async for batch in batches:
                            if self.recovery is not None:
                                self.recovery.heard()
                            if reply.finished:
                                last = batch
                                continue
                            for token in batch:
                                prefix.append(token.id)
                                yield token
                    break
                except ServerError as fault:
                    self._counted[f"fault/{fault.kind}"] += 1
                    got = len(prefix) - asked  # what came in one piece with a fault was not handed out
                    if got:
                        attempt, failing_since = 0, math.inf
                    failing_since = min(failing_since, time.monotonic())
                    if not self._may_go_on(fault, got, attempt, time.monotonic() - failing_since):
                        raise
                    self._tell(fault)
                    self._counted["continued" if got else "repeated"] += 1
                    pause = max(pause_seconds(attempt, seed), fault.wait_seconds)
                max_tokens -= got
                await asyncio.sleep(pause)
                attempt += 1
        # Handed out with the connection back in its pool: whoever lingers on the last tokens holds nothing.
        for token in last:
            yield token

    def _tell(self, fault: ServerError) -> None:
        """Of hundreds of streams that break at once, the first says why."""
        now = time.monotonic()
        if now - self._told.get(fault.kind, -math.inf) >= _QUIET_SECONDS:
            self._told[fault.kind] = now
            text = "Asking again after: %s. Others that fail alike within %g s are only counted."
            logger.info(text, fault, _QUIET_SECONDS)

    def _request(self, prefix: list[int], max_tokens: int, seed: int) -> dict[str, Any]:
        return {
            "model": self.model,
            "prompt": list(prefix),
            "max_tokens": max_tokens,
            "seed": (seed + len(prefix) * _ODD) % _SEEDS,
            "n": 1,
            "stream": True,
            "return_token_ids": True,
            **self._sampling,
        }

    def _may_go_on(self, fault: ServerError, tokens: int, attempt: int, failing_seconds: float) -> bool:
        """Whether the same continuation may be asked for again, after the `tokens` that it already gave.

        A server that says it is busy is asked for as long as a lost one is waited for. Whatever else may pass is tried
        `max_retries` times: it may be the request that breaks the server.
        """
        if self.recovery is None:
            return fault.retryable and not tokens and attempt < self.max_retries
        if fault.status in BUSY_STATUSES:
            if failing_seconds >= self.recovery.wait_seconds:
                raise ServerLostError(f"for {failing_seconds:.0f} s nothing but this came: {fault}") from fault
            return True
        if fault.kind in _GONE:
            self.recovery.lost()
        return (fault.retryable or fault.kind in _GONE) and attempt < self.max_retries

    async def _receive(
        self, client: "openai.AsyncOpenAI", request: dict[str, Any], reply: CompletionReply
    ) -> AsyncIterator[list[SampledToken]]:
        """Send one request and read its reply to the end, batch by batch."""
        import openai

        now = asyncio.get_running_loop().time
        opened = heard = now()
        patience = self.silence_seconds + self.seconds_per_token * request["max_tokens"]

        async def within_limit(step: Awaitable[_T]) -> _T:
            try:
                async with asyncio.timeout_at(heard + patience):
                    return await step
            except TimeoutError as error:
                raise ServerError(
                    f"{reply.what}: silent for {now() - heard:.1f} s (limit {patience:.1f} s). The request is "
                    f"{now() - opened:.1f} s old and gave {reply.count} tokens",
                    kind="silent",
                ) from error
            except Exception as error:
                raise as_fault(error, reply.what, now() - opened) from error

        # `completions.create` would spend 0.1 s of this thread on checking 16,000 prompt ids one by one.
        response = (
            await within_limit(
                client.post(
                    "/v1/completions",
                    body=request,
                    cast_to=object,
                    stream=True,
                    stream_cls=openai.AsyncStream[object],
                )
            )
        ).response
        try:
            chunks = response.aiter_bytes()
            while not reply.finished:
                data = await within_limit(anext(chunks, None))
                if data is None:
                    raise reply.cut_short()
                if tokens := reply.feed(data):
                    yield tokens
                    heard, patience = now(), self.silence_seconds  # the reader's own time is not the server's silence
            with suppress(Exception):  # all tokens are here; reading on only saves the connection for the next request
                async with asyncio.timeout(_REST_SECONDS):
                    async for _ in chunks:
                        pass
        finally:
            await response.aclose()

    def _session(self) -> _Session:
        """The running loop's client and places: connections belong to the loop that opened them."""
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None:
            self._sessions = {other: kept for other, kept in self._sessions.items() if not other.is_closed()}
            client = open_async_client(self.control.root, api_key=self._api_key, max_connections=self.max_concurrency)
            session = self._sessions[loop] = _Session(client, asyncio.Semaphore(self.max_concurrency))
        return session

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.client.close()

    def close(self) -> None:
        """Close the connections of all event loops that run in other threads; those of ended loops are gone already."""
        for loop, session in list(self._sessions.items()):
            if loop.is_running():
                asyncio.run_coroutine_threadsafe(session.client.close(), loop).result(timeout=_REST_SECONDS * 5)
        self._sessions.clear()
