"""A simulated inference server: continuous batching, chunked prefill, a prefix cache, a limit on places.

It owns time: how long a step takes and who has a token when. It never looks at what tokens mean. The invariant: every
step costs `decode_seconds + row_seconds * rows that decode + prompt tokens / prefill rate`, whoever asked.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from .scenario import Scenario

Pool = str  # requests of one pool share its places


@dataclass(eq=False)
class Request:
    """One request and how far it has come.

    Args:
        prompt (`Sequence[int]`): Its prompt.
        answer (`Sequence[int]`): What it will say.
        pool (`str`): Whose places it takes.
        every (`int`): Tokens it sends at once.
    """

    prompt: Sequence[int]
    answer: Sequence[int]
    pool: Pool
    every: int
    sent: int = 0  # tokens of the answer that left the server
    sampled: int = 0  # tokens of the answer that the server worked on
    to_prefill: int = 0
    started_step: int = 0  # the step before its first token
    closed: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def finished(self) -> bool:
        return self.sent == len(self.answer)


@dataclass
class Usage:
    """What a pool of requests used of a server."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    sampled_tokens: int = 0


class SimulatedServer:
    """Runs requests on the running event loop, whose clock should be virtual.

    Args:
        scenario ([`Scenario`]): Costs.
        places (`dict[str, int]`): By pool, requests that run at once; more wait in line.
    """

    def __init__(self, scenario: Scenario, places: dict[Pool, int]):
        self.usage: dict[Pool, Usage] = defaultdict(Usage)
        self.busy_seconds = 0.0
        self._scenario, self._places = scenario, dict(places)
        self._blocks: set[int] = set()  # hashes of cached prefixes
        self._waiting: dict[Pool, deque[Request]] = {pool: deque() for pool in places}
        self._prefilling: deque[Request] = deque()
        self._running: set[Request] = set()
        self._due: dict[int, list[Request]] = defaultdict(list)  # by step, who sends something after it
        self._step = 0
        self._engine: asyncio.Task | None = None

    def submit(self, prompt: Sequence[int], answer: Sequence[int], pool: Pool, every: int) -> Request:
        """Queue a request. Watch its `news` and `sent`, and [`close`] it."""
        request = Request(prompt, answer, pool, every)
        self.usage[pool].requests += 1
        self._waiting[pool].append(request)
        if self._engine is None:
            self._engine = asyncio.get_running_loop().create_task(self._run())
        return request

    async def complete(self, prompt: Sequence[int], answer: Sequence[int], pool: Pool) -> None:
        """Run a request to its end."""
        await asyncio.sleep(self._scenario.request_seconds)
        request = self.submit(prompt, answer, pool, every=len(answer))
        try:
            while not request.finished:
                await request.news.wait()
                request.news.clear()
        finally:
            self.close(request)

    def close(self, request: Request) -> None:
        """Take a request off the server, finished or not. Safe to call twice."""
        if request.closed:
            return
        request.closed = True
        if request in self._running:
            self._running.discard(request)
            request.sampled = self._step - request.started_step
        elif request in self._prefilling:
            self._prefilling.remove(request)
        elif request in self._waiting[request.pool]:
            self._waiting[request.pool].remove(request)
            return  # it had no place
        else:
            return  # it ran to its end
        self._leave(request)

    def _leave(self, request: Request) -> None:
        self._places[request.pool] += 1
        self.usage[request.pool].sampled_tokens += request.sampled
        self._remember((*request.prompt, *request.answer[: request.sampled]))

    async def _run(self) -> None:
        """Steps, until nothing is left to do."""
        costs = self._scenario
        while True:
            self._admit()
            if not self._running and not self._prefilling:
                self._engine = None
                return
            prefilled = self._prefill()
            seconds = costs.decode_seconds + costs.row_seconds * len(self._running)
            seconds += prefilled / costs.prefill_tokens_per_second
            self.busy_seconds += seconds
            await asyncio.sleep(seconds)
            self._step += 1
            for request in self._due.pop(self._step, ()):
                if not request.closed:
                    self._send(request)

    def _admit(self) -> None:
        for pool, waiting in self._waiting.items():
            while waiting and self._places[pool] > 0:
                request = waiting.popleft()
                self._places[pool] -= 1
                cached = self._remember(request.prompt)
                request.to_prefill = max(len(request.prompt) - cached, 1)
                self.usage[pool].prompt_tokens += len(request.prompt)
                self.usage[pool].cached_tokens += len(request.prompt) - request.to_prefill
                self._prefilling.append(request)

    def _prefill(self) -> int:
        """Work on prompts, first come first served, within one step's limit. Returns how many tokens of them."""
        room = self._scenario.prefill_step_tokens
        while self._prefilling and room:
            request = self._prefilling[0]
            worked = min(room, request.to_prefill)
            request.to_prefill -= worked
            room -= worked
            if request.to_prefill == 0:  # this same step gives its first token
                self._running.add(self._prefilling.popleft())
                request.started_step = self._step
                self._schedule(request)
        return self._scenario.prefill_step_tokens - room

    def _schedule(self, request: Request) -> None:
        sends_at = min(request.sent + request.every, len(request.answer))
        self._due[request.started_step + sends_at].append(request)

    def _send(self, request: Request) -> None:
        request.sent = self._step - request.started_step
        if request.finished:
            self._running.discard(request)
            request.sampled = request.sent
            self._leave(request)
        else:
            self._schedule(request)
        request.news.set()

    def _remember(self, ids: Sequence[int]) -> int:
        """Enter the whole blocks of `ids` into the cache. Returns how many of the tokens were there already."""
        size, key, cached, hit = self._scenario.block_tokens, 0, 0, True
        for end in range(size, len(ids) + 1, size):
            key = hash((key, tuple(ids[end - size : end])))
            hit = hit and key in self._blocks
            cached += size * hit
            self._blocks.add(key)
        return cached
