"""The four ways of making a batch on a real vLLM server: the small, slow sibling of the simulation.

It owns the server it starts and a scripted judge that only takes time. The policy is real; where a row ends is not: it
ends once it has its own number of policy tokens, so that all ways do the same work. Used by `rollout_overhead.py`.
"""

import asyncio
import math
import os
import random
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from functools import cached_property

from simulation.lockstep import LockStep
from simulation.modes import Mode, Tokens, count_tokens

from mintrl_trl.generation.vllm import VLLMGenerator
from mintrl_trl.rollouts.doors import KEEP, Correction, Revise, SampledToken, Verdict
from mintrl_trl.rollouts.loop import BackgroundLoop
from mintrl_trl.rollouts.rollout import Problem, Role, Rollout, RolloutRequest
from mintrl_trl.rollouts.sampler import InterventionSampler, SamplerSettings
from mintrl_trl.rollouts.schedule import InterventionBudget

# SmolLM2's ids of control tokens; here they mark the end and what the judge wrote. Where the model samples one of them
# itself, `LETTER` takes its place.
END, FIX, LETTER = 5, 6, 1001
_VOCABULARY_SIZE = 49_152


@dataclass(frozen=True)
class LiveScenario:
    """A batch that a CPU makes in about a minute, in the proportions of the paper's settings. Times in seconds.

    A chunk of 64 takes such a server 10 to 20 s, as one of 512 takes a GPU at 512 rows; so the judge is given the time
    and the crowd that it has there: about an eighth of its reviewed rows at once.
    """

    rows: int = 32
    prompt_tokens: int = 60
    mean_tokens: float = 160.0
    length_sigma: float = 0.8
    cap_tokens: int = 480
    chunk_tokens: int = 64
    max_reviews: int = 4
    correction_tokens: int = 16
    revise_rate: float = 0.3
    review_seconds: float = 2.0
    correction_seconds: float = 1.0
    judge_places: int = 4
    step_tokens: int = 12  # on average; an id ends a step by chance

    @property
    def budget(self) -> InterventionBudget:
        """Limits of a rollout; no correction displaces the policy."""
        room = self.cap_tokens + self.max_reviews * self.correction_tokens
        return InterventionBudget(self.chunk_tokens, self.max_reviews, self.correction_tokens, room)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Policy tokens of each row."""
        rng, location = random.Random(0), math.log(self.mean_tokens) - self.length_sigma**2 / 2
        drawn = (rng.lognormvariate(location, self.length_sigma) for _ in range(self.rows))
        return tuple(min(max(round(length), 1), self.cap_tokens) for length in drawn)

    def requests(self, mode: Mode, update: int) -> list[RolloutRequest]:
        """The rows. Seeds, and with them verdicts, are those of the update; prompts are new in every batch, so that no
        batch finds another's work in the server's cache.
        """
        rng = random.Random(f"{update} {mode.value}")
        reviewed = Role.CONTROL if mode is Mode.ON_POLICY else Role.INTERVENED
        return [
            RolloutRequest(
                row,
                (*rng.choices(range(1000, 40_000), k=self.prompt_tokens - 1), _first_of_row(row)),
                Problem(str(row)),
                reviewed if row % 2 else Role.CONTROL,
                update,
            )
            for row in range(self.rows)
        ]


def _first_of_row(row: int) -> int:
    return 1000 + row


class Vocabulary:
    """Ids of the model, read as letters and ends of steps."""

    size, special_texts = _VOCABULARY_SIZE, ()
    end_ids = special_ids = frozenset({END})

    def __init__(self, scenario: LiveScenario):
        self._every = scenario.step_tokens

    def token_bytes(self, token_id: int) -> bytes:
        """A letter, or a blank line."""
        return b"" if token_id == END else b"a" if token_id % self._every else b"\n\n"

    def encode(self, text: str) -> tuple[int, ...]:
        """Corrections are ids here."""
        raise NotImplementedError


class MeteredPolicy:
    """A server's policy, whose rows end when they have their number of tokens."""

    def __init__(self, generator: VLLMGenerator, scenario: LiveScenario):
        self._generator, self._scenario = generator, scenario
        self.weight_version = ""

    async def stream(self, prefix_ids: Sequence[int], max_tokens: int, seed: int) -> AsyncIterator[SampledToken]:
        """As the server samples, but for the last token of a row, and for ends and marks that are none."""
        start, prefix = self._scenario.prompt_tokens, [*prefix_ids]
        row = prefix[start - 1] - _first_of_row(0)
        left = self._scenario.lengths[row] - (len(prefix) - start - prefix[start:].count(FIX))
        room = min(max_tokens, left)
        while room:
            async with aclosing(self._generator.stream(prefix, room, seed)) as tokens:
                async for token in tokens:
                    left, room = left - 1, room - 1
                    sampled = LETTER if token.id in (END, FIX) else token.id
                    prefix.append(sampled)
                    yield SampledToken(sampled if left else END, token.logp)


class ScriptedJudge:
    """Takes its time, on a limited number of places, and says what the seed says."""

    def __init__(self, scenario: LiveScenario):
        self._scenario = scenario
        self._places = asyncio.Semaphore(scenario.judge_places)

    async def review(self, problem: Problem, steps: Sequence[str], first_new: int, *, seed: int) -> Verdict:
        """A verdict after a while."""
        rng = random.Random(seed)
        async with self._places:
            await asyncio.sleep(self._scenario.review_seconds * rng.lognormvariate(-0.125, 0.5))
        return Revise(rng.randrange(first_new, len(steps))) if rng.random() < self._scenario.revise_rate else KEEP

    async def intervene(
        self, problem: Problem, accepted: str, verdict: Revise, max_tokens: int, *, seed: int
    ) -> Correction:
        """A correction after a while."""
        async with self._places:
            await asyncio.sleep(self._scenario.correction_seconds)
        return Correction(ids=(FIX,) * max_tokens)


@dataclass(frozen=True)
class LiveOutcome:
    """What one way took, once."""

    seconds: float
    tokens: Tokens
    held_up_seconds: float  # mean over reviewed rollouts


def make_batch(
    generator: VLLMGenerator, scenario: LiveScenario, mode: Mode, update: int, loop: BackgroundLoop
) -> LiveOutcome:
    """Make one batch in one way."""
    policy, judge, vocabulary = MeteredPolicy(generator, scenario), ScriptedJudge(scenario), Vocabulary(scenario)
    batch, started = scenario.requests(mode, update), time.perf_counter()
    if mode is Mode.LOCK_STEP:
        rollouts = loop.run(LockStep(policy, judge, vocabulary, scenario.budget, 0).rollouts(batch))
    else:
        settings = SamplerSettings(
            scenario.budget,
            0,
            overlap_reviews=mode is Mode.OVERLAP,
            max_concurrent_reviews=scenario.judge_places,
            no_verdict_limit=0.0,
        )
        with InterventionSampler(policy, judge, vocabulary, settings, loop=loop) as sampler:
            sampler.start(batch)
            rollouts = sampler.collect()
    seconds, tokens = time.perf_counter() - started, count_tokens(rollouts.values())
    if tokens.policy != sum(scenario.lengths):
        raise RuntimeError(f"{mode.value}: {tokens.policy} policy tokens, not {sum(scenario.lengths)}")
    return LiveOutcome(seconds, tokens, _held_up(rollouts))


def _held_up(rollouts: dict[int, Rollout]) -> float:
    reviewed = [rollout.held_up_seconds for rollout in rollouts.values() if rollout.reviews]
    return sum(reviewed) / (len(reviewed) or 1)


def take_turns(url: str, scenario: LiveScenario, rounds: int) -> dict[Mode, list[LiveOutcome]]:
    """All ways on one server, in turns, so that a busy machine slows them alike. One short batch warms up."""
    generator = VLLMGenerator(
        url, "policy", end_ids=[END], vocabulary_size=_VOCABULARY_SIZE, max_concurrency=scenario.rows
    )
    room = scenario.budget.max_completion_tokens
    generator.verify(max_prompt_length=scenario.prompt_tokens, max_completion_length=room, wait_seconds=600)
    loop = BackgroundLoop("live")
    outcomes: dict[Mode, list[LiveOutcome]] = {mode: [] for mode in Mode}
    try:
        make_batch(generator, LiveScenario(mean_tokens=16.0), Mode.ON_POLICY, rounds, loop)
        for turn in range(rounds):
            order = list(Mode) if turn % 2 == 0 else list(reversed(Mode))
            for mode in order:
                outcomes[mode].append(make_batch(generator, scenario, mode, turn, loop))
                print(f"  round {turn}: {mode.value:11} {outcomes[mode][-1].seconds:6.1f} s", flush=True)
        loop.run(generator.aclose())
    finally:
        loop.close()
    return outcomes


@contextmanager
def vllm_server(python: str, model: str) -> Iterator[str]:
    """A vLLM server on this CPU, started by a Python that has vLLM; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", "policy"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--max-model-len", "1024"]
    # vLLM 0.31 dies on a CPU where a prompt with a seed is cut into chunks ("CPU Generator does not use offset").
    command += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "8192"]
    environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1"}
    environment.pop("PYTHONPATH", None)
    with tempfile.NamedTemporaryFile("w+", suffix=".log") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        try:
            yield f"http://127.0.0.1:{port}"
        except BaseException:
            log.seek(0)
            written = log.read()
            first_error = written.find(" ERROR ")  # what follows it in a server's log is mostly its echo
            print(written[first_error:][:6000] if first_error >= 0 else written[-3000:])
            raise
        finally:
            server.terminate()
            server.wait()
