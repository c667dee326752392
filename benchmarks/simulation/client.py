"""What the client itself costs, in real CPU time: sampler, HTTP, events and checks at hundreds of open streams.

It owns a stand-in for a vLLM server, in a process of its own, that sends what vLLM 0.31 sends at the pace of a GPU; the
thread of the client's event loop is timed. It never measures the server.
"""

import asyncio
import json
import multiprocessing
import random
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

from mintrl_trl.generation.vllm import VLLMGenerator
from mintrl_trl.rollouts.doors import KEEP, Correction, Revise, Verdict
from mintrl_trl.rollouts.loop import BackgroundLoop
from mintrl_trl.rollouts.rollout import Problem, Rollout
from mintrl_trl.rollouts.sampler import InterventionSampler, SamplerSettings
from mintrl_trl.rollouts.schedule import InterventionBudget, Phase

from .doors import END, FIX, SimulatedVocabulary, requests
from .scenario import Scenario

_EVENT_TOKENS = 8
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
_STEP_SECONDS = 0.0234  # of 512 rows in the scenario


def client_cpu(streams: int, tokens: int) -> tuple[float, float]:
    """CPU milliseconds of the client for 1,000 tokens, and tokens per second meanwhile.

    Args:
        streams (`int`): Rollouts in flight, half of them reviewed by a judge that answers at once. A multiple of 16.
        tokens (`int`): Length of each, a multiple of 64; a chunk is an eighth of it.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=_serve, args=(theirs,), daemon=True)
    server.start()
    try:
        url = f"http://127.0.0.1:{ours.recv()}"
        _measure(url, 16, 64)  # the first request imports the HTTP library
        return _measure(url, streams, tokens)
    finally:
        server.terminate()
        server.join()


def _measure(url: str, streams: int, tokens: int) -> tuple[float, float]:
    scenario = Scenario(prompts=streams // 16)
    vocabulary = SimulatedVocabulary(scenario)
    generator = VLLMGenerator(url, "policy", end_ids=[END], vocabulary_size=vocabulary.size, max_concurrency=streams)
    budget = InterventionBudget(tokens // 8, 4, 64, tokens)
    settings = SamplerSettings(budget, 0, max_concurrent_rollouts=streams, no_verdict_limit=0.0)
    loop = BackgroundLoop("client")

    async def cpu_seconds() -> float:
        return time.thread_time()

    try:
        with InterventionSampler(generator, _AtOnce(), vocabulary, settings, loop=loop) as sampler:
            before, started = loop.run(cpu_seconds()), time.perf_counter()
            sampler.start(requests(scenario, Phase.INTERVENTION))
            rollouts = sampler.collect()
            made = sampler.progress().tokens
            used, seconds = loop.run(cpu_seconds()) - before, time.perf_counter() - started
        loop.run(generator.aclose())
    finally:
        loop.close()
    _check(rollouts, tokens)
    return 1e6 * used / made, made / seconds


def _check(rollouts: dict[int, Rollout], tokens: int) -> None:
    if any(len(rollout.ids) != tokens for rollout in rollouts.values()):
        raise RuntimeError("the stand-in did not give every rollout its length")


class _AtOnce:
    """A judge that costs nothing and rejects three chunks in ten."""

    async def review(self, problem: Problem, steps: Sequence[str], first_new: int, *, seed: int) -> Verdict:
        return Revise(first_new) if random.Random(seed).random() < 0.3 else KEEP

    async def intervene(
        self, problem: Problem, accepted: str, verdict: Revise, max_tokens: int, *, seed: int
    ) -> Correction:
        return Correction(ids=(FIX,) * max_tokens)


def _serve(pipe: Connection) -> None:
    """The stand-in: answers every completion with its own prompt's last id, some tokens at a time."""

    async def run() -> None:
        server = await asyncio.start_server(_answer, "127.0.0.1", 0, backlog=2048)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            body = json.loads(await reader.readexactly(length))
            writer.write(_HEAD)
            for event in _events(body["prompt"], body["max_tokens"]):
                await asyncio.sleep(_STEP_SECONDS * _EVENT_TOKENS)
                writer.write(b"%x\r\n%s\r\n" % (len(event), event))
                await writer.drain()
            done = b"data: [DONE]\n\n"
            writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(done), done))
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


def _events(prompt: list[int], max_tokens: int) -> list[bytes]:
    """The events of one completion as vLLM writes them."""
    written = []
    for start in range(0, max_tokens, _EVENT_TOKENS):
        count = min(_EVENT_TOKENS, max_tokens - start)
        choice = {
            "index": 0,
            "text": " word" * count,
            "logprobs": {
                "text_offset": [5 * (start + place) for place in range(count)],
                "token_logprobs": [-0.6931471824645996] * count,
                "tokens": [" word"] * count,
                "top_logprobs": [{" word": -0.6931471824645996}] * count,
            },
            "finish_reason": "length" if start + count == max_tokens else None,
            "stop_reason": None,
            "token_ids": [prompt[-1]] * count,
            "prompt_token_ids": prompt if start == 0 else None,
        }
        event = {"id": "cmpl-1", "object": "text_completion", "created": 0, "model": "policy", "choices": [choice]}
        written.append(b"data: " + json.dumps(event | {"usage": None}).encode() + b"\n\n")
    return written
