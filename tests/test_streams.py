"""What the policy yields is checked token by token, and every stream is closed once."""

import asyncio
import math

import pytest

from mintrl_trl.errors import GenerationError
from mintrl_trl.rollouts.doors import Correction, Revise, SampledToken
from mintrl_trl.rollouts.loop import BackgroundLoop
from mintrl_trl.rollouts.rollout import Role
from mintrl_trl.rollouts.sampler import InterventionSampler

from .doors import (
    END,
    ScriptedGenerator,
    ScriptedJudge,
    ScriptedStream,
    StepVocabulary,
    counting,
    request,
    sample,
    settings,
)


@pytest.fixture(scope="module")
def loop():
    loop = BackgroundLoop()
    yield loop
    loop.close()


@pytest.mark.parametrize("buffered", [False, True], ids=["token by token", "buffered"])
@pytest.mark.parametrize(
    ("token", "message"),
    [
        (None, r"row 0: the stream that continues 3 tokens ended after 5 of 12 tokens without an end id"),
        (1000, r"row 0: .* yielded id 1000; the vocabulary has 1000 ids"),
        (-1, r"yielded id -1"),
        (5.0, r"row 0: .* yielded id 5\.0; the vocabulary has 1000 ids, whole numbers"),
        (True, r"yielded id True"),
        ("5", r"yielded id '5'"),
        (GenerationError("server gone"), "server gone"),
    ],
    ids=["ends early", "id beyond the vocabulary", "negative id", "float", "bool", "text", "raises"],
)
def test_a_broken_stream_stops_the_run(loop, token, message, buffered):
    generator = ScriptedGenerator(lambda seed, position: token if position == 8 else 5, buffered=buffered)
    with pytest.raises(GenerationError, match=message):
        sample(loop, generator, ScriptedJudge())
    assert generator.open_streams == 0


@pytest.mark.parametrize("logp", [float("nan"), float("inf"), float("-inf")])
def test_broken_logps_stop_the_run(loop, logp):
    with pytest.raises(GenerationError, match=rf"row 0: .* log-probability {logp} for id 100: the logits .* broken"):
        sample(loop, counting(logp=logp), ScriptedJudge())


def test_other_errors_of_the_generator_name_the_rollout(loop):
    generator = ScriptedGenerator(lambda seed, position: ConnectionError("reset"))
    with pytest.raises(ConnectionError, match="reset") as caught:
        sample(loop, generator, ScriptedJudge())
    assert caught.value.__notes__ == ["raised by row 0: the stream that continues 3 tokens"]


def test_tokens_after_the_end_are_ignored(loop):
    """A stream that goes on after its end id or its limit adds nothing."""
    generator = counting(end_at=5, buffered=True)
    generator.end_ids = frozenset()
    rollout = sample(loop, generator, ScriptedJudge())[0]
    assert rollout.ids == (100, 101, 102, 103, 104, END)


# Closing


def test_async_generator_functions_are_streams(loop):
    """What a user writes first: `yield` in an `async def`, with its cleaning up in `finally`."""
    closed = []

    class Simple:
        weight_version = "v1"

        async def stream(self, prefix_ids, max_tokens, seed):
            try:
                for position in range(max_tokens):
                    await asyncio.sleep(0)
                    yield SampledToken(len(prefix_ids) + position, None)
            finally:
                await asyncio.sleep(0)
                closed.append(len(prefix_ids))

    judge = ScriptedJudge([Revise(2)], [Correction(ids=(7,))])
    with InterventionSampler(Simple(), judge, StepVocabulary(), settings(), loop=loop) as sampler:
        sampler.start([request()])
        rollout = sampler.collect()[0]
    assert rollout.ids == (3, 4, 7, *range(6, 15))
    assert closed == [3, 6]


@pytest.mark.parametrize("then", ["go on", "end"])
def test_a_stream_that_swallows_cancellation_is_still_closed(loop, then):
    class Stubborn(ScriptedStream):
        async def __anext__(self):
            try:
                return await super().__anext__()
            except asyncio.CancelledError:
                if then == "end":
                    raise StopAsyncIteration from None
                return self._next()

    generator = counting(pause=lambda seed, position: math.inf, stream_type=Stubborn)
    with InterventionSampler(generator, None, StepVocabulary(END), settings(), loop=loop) as sampler:
        sampler.start([request(role=Role.CONTROL)])
        while not generator.streams:
            loop.run(asyncio.sleep(0))
        sampler.cancel()
        assert generator.open_streams == 0 and generator.tokens_made <= 1
