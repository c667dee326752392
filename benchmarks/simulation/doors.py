"""The two doors of the sampler, made of simulated servers, and a vocabulary in which a token says who wrote it.

The policy's side is a function of the row and of how much of it stands: row `r` ends after `scenario.lengths[r]` tokens
of the policy, in whatever chunks and around whatever corrections. The judge's side is a function of the seed. So the
same rollouts come out of every way of making them, and only the time differs.
"""

import asyncio
import random
from collections.abc import Sequence

from mintrl_trl.rollouts.doors import KEEP, Correction, Revise, SampledToken, Verdict
from mintrl_trl.rollouts.rollout import Problem, RolloutRequest
from mintrl_trl.rollouts.schedule import Phase

from .scenario import Scenario
from .server import SimulatedServer

POLICY, JUDGE = "policy", "judge"  # pools of requests

END = 0
FIX = 1  # what the judge writes in corrections
VERDICT = 2
HEAD, TAIL, INTERVENE = 3, 4, 5  # of the judge's prompts
_GROUPS = 16  # from here on: prompts, then two ids for each row
_LOGP = -0.5


class SimulatedVocabulary:
    """Ids of a scenario: those above, one for each prompt, and for each row a word and an end of a step."""

    special_texts = ()
    end_ids = special_ids = frozenset({END})

    def __init__(self, scenario: Scenario):
        self._rows_from = _GROUPS + scenario.prompts
        self.size = self._rows_from + 2 * len(scenario.lengths)

    def prompt_of(self, row: int, group_size: int, tokens: int) -> tuple[int, ...]:
        """What the rows of a group share, then the row's own token."""
        return (_GROUPS + row // group_size,) * (tokens - 1) + (self.word_of(row),)

    def word_of(self, row: int) -> int:
        """The row's token inside of steps. The next id ends its steps."""
        return self._rows_from + 2 * row

    def row_of(self, prompt_end: int) -> int:
        """The row whose prompt ends with this id."""
        return (prompt_end - self._rows_from) // 2

    def token_bytes(self, token_id: int) -> bytes:
        """A letter, or a blank line."""
        if token_id in self.special_ids:
            return b""
        ends_step = token_id >= self._rows_from and (token_id - self._rows_from) % 2
        return b"\n\n" if ends_step else b"a"

    def encode(self, text: str) -> tuple[int, ...]:
        """Corrections are ids here."""
        raise NotImplementedError


def requests(scenario: Scenario, phase: Phase) -> list[RolloutRequest]:
    """The rows of a batch."""
    vocabulary, schedule = SimulatedVocabulary(scenario), scenario.schedule
    return [
        RolloutRequest(
            row=row,
            prompt_ids=vocabulary.prompt_of(row, schedule.group_size, scenario.prompt_tokens),
            problem=Problem(str(row // schedule.group_size)),
            role=schedule.role(row, phase),
            update=0,
        )
        for row in range(len(scenario.lengths))
    ]


class SimulatedStream:
    """One request to the policy, read as messages of some tokens come in."""

    def __init__(
        self, server: SimulatedServer, prefix: tuple[int, ...], answer: list[SampledToken], scenario: Scenario
    ):
        self._server, self._prefix, self._answer, self._scenario = server, prefix, answer, scenario
        self._request = None
        self._read = 0

    def __aiter__(self) -> "SimulatedStream":
        return self

    async def __anext__(self) -> SampledToken:
        if self._read == len(self._answer):
            raise StopAsyncIteration
        if self._request is None:
            await asyncio.sleep(self._scenario.request_seconds)
            every = self._scenario.stream_tokens
            self._request = self._server.submit(self._prefix, [token.id for token in self._answer], POLICY, every)
        while self._read == self._request.sent:
            self._request.news.clear()
            await self._request.news.wait()
        self._read += 1
        return self._answer[self._read - 1]

    def take(self) -> list[SampledToken]:
        """The rest of the message."""
        ready = self._answer[self._read : self._request.sent]
        self._read += len(ready)
        return ready

    async def aclose(self) -> None:
        """Abort the request."""
        if self._request is not None:
            self._server.close(self._request)


class SimulatedPolicy:
    """A `PolicyGenerator` on one or more servers, each row at home on one of them."""

    weight_version = "0"

    def __init__(self, scenario: Scenario, servers: Sequence[SimulatedServer]):
        self._scenario, self._servers = scenario, servers
        self._vocabulary = SimulatedVocabulary(scenario)

    def stream(self, prefix_ids: Sequence[int], max_tokens: int, seed: int) -> SimulatedStream:
        """Go on with the row until it has all its tokens; `seed` changes nothing."""
        start = self._scenario.prompt_tokens
        row = self._vocabulary.row_of(prefix_ids[start - 1])
        standing = len(prefix_ids) - start - prefix_ids[start:].count(FIX)
        stop = min(standing + max_tokens, self._scenario.lengths[row])
        word, every = self._vocabulary.word_of(row), self._scenario.step_tokens
        step = [SampledToken(word, _LOGP)] * (every - 1) + [SampledToken(word + 1, _LOGP)]
        answer = (step * (stop // every + 1))[standing:stop]
        if stop == self._scenario.lengths[row]:
            answer[-1] = SampledToken(END, _LOGP)
        return SimulatedStream(self._servers[row % len(self._servers)], tuple(prefix_ids), answer, self._scenario)


class SimulatedJudge:
    """A `Judge` on one or more servers, each prompt at home on one of them."""

    def __init__(self, scenario: Scenario, servers: Sequence[SimulatedServer]):
        self._scenario, self._servers = scenario, servers

    async def review(self, problem: Problem, steps: Sequence, first_new: int, *, seed: int) -> Verdict:
        """Read all steps, write a verdict."""
        scenario, rng = self._scenario, random.Random(seed)
        ids = [token for step in steps for token in step.ids]
        await self._ask(problem, HEAD, ids, [TAIL] * scenario.judge_tail_tokens, scenario.verdict_length(rng), VERDICT)
        if rng.random() >= scenario.revise_rate:
            return KEEP
        return Revise(rng.randrange(first_new, len(steps)))

    async def intervene(
        self, problem: Problem, accepted: str, verdict: Revise, max_tokens: int, *, seed: int
    ) -> Correction:
        """Read what is accepted, write as much as is allowed."""
        await self._ask(problem, INTERVENE, accepted.ids, (), max_tokens, FIX)
        return Correction(ids=(FIX,) * max_tokens, logps=(_LOGP,) * max_tokens)

    async def _ask(
        self, problem: Problem, head: int, shown: Sequence[int], tail: Sequence[int], tokens: int, token: int
    ) -> None:
        group = int(problem.question)
        prompt = (*((head,) + (_GROUPS + group,) * (self._scenario.judge_head_tokens - 1)), *shown, *tail)
        await self._servers[group % len(self._servers)].complete(prompt, (token,) * tokens, JUDGE)
