"""Scripted doors: a policy, a judge and vocabularies without a model. They record every call and every close."""

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from mintrl_trl.rollouts.doors import KEEP, Correction, Revise, SampledToken, Verdict
from mintrl_trl.rollouts.rollout import Problem, Role, RolloutRequest
from mintrl_trl.rollouts.sampler import InterventionSampler, SamplerSettings
from mintrl_trl.rollouts.schedule import InterventionBudget

PROBLEM = Problem("How much is 2 + 3?")
PROMPT_IDS = (1, 2, 3)
END = 999  # the end token of `counting`


class ByteVocabulary:
    """One id per byte, then three control tokens. Like real tokenizers, `encode` turns their texts into control ids."""

    special_texts = ("<|end|>", "<|stop|>", "<|user|>")
    end_ids = frozenset({256, 257})
    special_ids = frozenset({256, 257, 258})
    size = 259

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""

    def encode(self, text: str) -> tuple[int, ...]:
        ids, data = [], text.encode()
        marks = [mark.encode() for mark in self.special_texts]
        while data:
            special = next((i for i, mark in enumerate(marks) if data.startswith(mark)), None)
            ids.append(data[0] if special is None else 256 + special)
            data = data[1 if special is None else len(marks[special]) :]
        return tuple(ids)


class TableVocabulary:
    """Ids are positions in a table of pieces; the piece `None` is the end token."""

    def __init__(self, pieces: Sequence[str | bytes | None]):
        self.pieces = list(pieces)
        self.size = len(self.pieces)
        self.end_ids = self.special_ids = frozenset(i for i, piece in enumerate(self.pieces) if piece is None)
        self.special_texts = ("<end>",) if self.end_ids else ()

    def token_bytes(self, token_id: int) -> bytes:
        piece = self.pieces[token_id] or b""
        return piece.encode() if isinstance(piece, str) else piece

    def encode(self, text: str) -> tuple[int, ...]:
        """Longest match from the left."""
        ids, data = [], text.encode()
        by_length = sorted(range(self.size), key=lambda i: -len(self.token_bytes(i)))
        while data:
            ids.append(next(i for i in by_length if self.token_bytes(i) and data.startswith(self.token_bytes(i))))
            data = data[len(self.token_bytes(ids[-1])) :]
        return tuple(ids)


class StepVocabulary:
    """Every token is a step of its own, and spells its id."""

    def __init__(self, end_id: int | None = None, size: int = 1000):
        self.size = size
        self.end_ids = self.special_ids = frozenset(() if end_id is None else {end_id})
        self.special_texts = ()

    def token_bytes(self, token_id: int) -> bytes:
        return b"" if token_id in self.end_ids else b"%d\n\n" % token_id

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(int(number) for number in text.split())


@dataclass(frozen=True)
class StreamRequest:
    prefix_ids: tuple[int, ...]
    max_tokens: int
    seed: int


class ScriptedGenerator:
    """A policy whose token depends on seed and absolute position alone.

    Args:
        script: From (seed, position) to an id, an exception to raise, or `None`: the stream just ends.
        end_ids: Ids that end a stream.
        pause: From (seed, position) to how often the loop runs before a token; `math.inf` hangs. By default never:
            the stream does not suspend at all.
        buffered: Offer `take`, and hand out up to three tokens at a time through it.
        logp: Log-probability of each token.
        closing_ticks: How often the loop runs while a stream closes.
        stream_type: The class of its streams, where it is another one.
    """

    def __init__(
        self,
        script: Callable[[int, int], int | BaseException | None],
        end_ids: frozenset[int] = frozenset(),
        *,
        pause: Callable[[int, int], float] | None = None,
        buffered: bool = False,
        logp: float | None = -0.5,
        closing_ticks: int = 0,
        stream_type: "type[ScriptedStream] | None" = None,
    ):
        self.script, self.end_ids, self.pause, self.logp = script, end_ids, pause, logp
        self.closing_ticks = closing_ticks
        self.stream_type = stream_type or (BufferedStream if buffered else ScriptedStream)
        self.weight_version = "v1"
        self.requests: list[StreamRequest] = []
        self.streams: list[ScriptedStream] = []

    def stream(self, prefix_ids: Sequence[int], max_tokens: int, seed: int) -> "ScriptedStream":
        self.requests.append(StreamRequest(tuple(prefix_ids), max_tokens, seed))
        stream = self.stream_type(self, self.requests[-1])
        self.streams.append(stream)
        return stream

    @property
    def open_streams(self) -> int:
        return sum(stream.closes != 1 for stream in self.streams)

    @property
    def tokens_made(self) -> int:
        return sum(stream.made for stream in self.streams)


class ScriptedStream:
    def __init__(self, generator: ScriptedGenerator, request: StreamRequest):
        self.generator, self.request = generator, request
        self.made = self.closes = 0
        self.ended = False

    def __aiter__(self):
        return self

    async def __anext__(self) -> SampledToken:
        position = len(self.request.prefix_ids) + self.made
        ticks = self.generator.pause(self.request.seed, position) if self.generator.pause else 0
        if ticks == math.inf:
            await asyncio.Event().wait()
        for _ in range(ticks):
            await asyncio.sleep(0)
        return self._next()

    def _next(self) -> SampledToken:
        if self.ended or self.made == self.request.max_tokens:
            raise StopAsyncIteration
        token = self.generator.script(self.request.seed, len(self.request.prefix_ids) + self.made)
        if token is None:
            raise StopAsyncIteration
        if isinstance(token, BaseException):
            raise token
        self.made += 1
        self.ended = token in self.generator.end_ids
        return SampledToken(token, self.generator.logp)

    async def aclose(self) -> None:
        for _ in range(self.generator.closing_ticks):
            await asyncio.sleep(0)
        self.closes += 1


class BufferedStream(ScriptedStream):
    def take(self) -> list[SampledToken]:
        ready = []
        with suppress(StopAsyncIteration):
            while len(ready) < 2:
                ready.append(self._next())
        return ready


@dataclass(frozen=True)
class ReviewCall:
    problem: Problem
    steps: tuple[str, ...]
    first_new: int
    seed: int

    @property
    def new_steps(self) -> tuple[str, ...]:
        return self.steps[self.first_new :]


@dataclass(frozen=True)
class CorrectionCall:
    problem: Problem
    accepted: str
    verdict: Revise
    max_tokens: int
    seed: int


@dataclass
class ScriptedJudge:
    """A judge that follows a script.

    Args:
        verdict: From a [`ReviewCall`] to the verdict, or a list of verdicts given out in order, then Keep. What is an
            exception is raised; `None` hangs.
        correction: The same for corrections.
        ticks: From a seed to how often the loop runs before an answer.
        weight_version: As corrections name it.
    """

    verdict: Callable[[ReviewCall], Verdict | BaseException | None] | list = field(default_factory=list)
    correction: Callable[[CorrectionCall], Correction | BaseException | None] | list = field(default_factory=list)
    ticks: Callable[[int], int] = lambda seed: 0
    weight_version: str = "j1"
    reviews: list[ReviewCall] = field(default_factory=list)
    corrections: list[CorrectionCall] = field(default_factory=list)
    running: int = 0
    most_running: int = 0

    async def review(self, problem, steps, first_new, *, seed):
        self.reviews.append(ReviewCall(problem, tuple(steps), first_new, seed))
        return await self._answer(self.verdict, self.reviews, seed)

    async def intervene(self, problem, accepted, verdict, max_tokens, *, seed):
        self.corrections.append(CorrectionCall(problem, accepted, verdict, max_tokens, seed))
        return await self._answer(self.correction, self.corrections, seed)

    async def _answer(self, script, calls, seed):
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            call, number = calls[-1], len(calls) - 1
            for _ in range(self.ticks(seed)):
                await asyncio.sleep(0)
            if callable(script):
                answer = script(call)
            else:
                answer = script[number] if number < len(script) else KEEP
            if answer is None:
                await asyncio.Event().wait()
            if isinstance(answer, BaseException):
                raise answer
            return answer
        finally:
            self.running -= 1


def request(row=0, role=Role.INTERVENED, update=0):
    return RolloutRequest(row, PROMPT_IDS, PROBLEM, role, update)


def settings(k=4, reviews=2, h=2, limit=12, overlap=True, review_final_chunk=True, **others):
    return SamplerSettings(InterventionBudget(k, reviews, h, limit, review_final_chunk), 7, overlap, **others)


def counting(end_at=None, **options):
    """The policy of the test vectors: token 100 + response length, or the end token at one position."""

    def script(seed, position):
        length = position - len(PROMPT_IDS)
        return END if length == end_at else 100 + length

    return ScriptedGenerator(script, end_ids=frozenset({END}), **options)


def sample(loop, generator, judge, vocabulary=None, requests=None, **options):
    vocabulary = vocabulary if vocabulary is not None else StepVocabulary(END)
    with InterventionSampler(generator, judge, vocabulary, settings(**options), loop=loop) as sampler:
        sampler.start(requests if requests is not None else [request()])
        rollouts = sampler.collect()
    assert generator.open_streams == 0
    return rollouts
