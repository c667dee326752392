"""The simulation of the overhead benchmark: its clock, its servers, and four ways of making one batch."""

import asyncio
import math
import time

import pytest

from benchmarks.simulation.clock import VirtualClockLoop
from benchmarks.simulation.doors import POLICY
from benchmarks.simulation.modes import Mode, simulate
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.server import SimulatedServer
from benchmarks.simulation.step import Split, splits, whole_step
from mintrl_trl.rollouts.loop import BackgroundLoop

STEP, ROW = 1.0, 0.1
COSTS = Scenario(
    decode_seconds=STEP,
    row_seconds=ROW,
    prefill_tokens_per_second=10.0,
    prefill_step_tokens=100,
    block_tokens=4,
    request_seconds=0.0,
)
SMALL = Scenario(
    prompts=2, mean_tokens=150.0, cap_tokens=600, chunk_tokens=64, correction_tokens=8, step_tokens=10, judge_places=4
)


@pytest.fixture
def clock():
    clock = VirtualClockLoop()
    loop = BackgroundLoop(loop=clock)
    clock.run = loop.run
    yield clock
    loop.close()


def test_the_clock_jumps_and_keeps_the_order_of_timers(clock):
    async def run():
        woken = []

        async def sleep(seconds):
            await asyncio.sleep(seconds)
            woken.append((seconds, clock.time()))

        await asyncio.gather(*map(sleep, (3600, 7200, 60)))
        return woken

    started = time.monotonic()
    assert clock.run(run()) == [(60, 60.0), (3600, 3600.0), (7200, 7200.0)]
    assert time.monotonic() - started < 5


def test_the_clock_stands_still_without_timers(clock):
    clock.run(asyncio.sleep(5))
    time.sleep(0.02)
    assert clock.run(asyncio.sleep(0, clock.time())) == 5.0


def finish_times(clock, places, *requests):
    """When each request (prompt, answer length) ends, and the server."""

    async def run():
        server = SimulatedServer(COSTS, {POLICY: places})

        async def one(prompt, tokens):
            await server.complete(prompt, (9,) * tokens, POLICY)
            return clock.time()

        return await asyncio.gather(*(one(*request) for request in requests)), server

    return clock.run(run())


def test_a_step_costs_its_rows_and_its_prompt_tokens(clock):
    times, server = finish_times(clock, 8, ((1,) * 20, 3), ((2,) * 10, 1))
    # 30 prompt tokens take 3 s in the first step, which ends with one token for both.
    first = STEP + 2 * ROW + 3.0
    assert times == pytest.approx([first + 2 * (STEP + ROW), first])
    assert server.busy_seconds == pytest.approx(times[0])


def test_a_long_prompt_takes_several_steps(clock):
    times, _ = finish_times(clock, 8, ((1,) * 250, 1))
    assert times == pytest.approx([3 * STEP + ROW + 25.0])


def test_more_requests_than_places_wait(clock):
    times, _ = finish_times(clock, 1, ((1,), 2), ((2,), 2))
    one = 0.1 + 2 * (STEP + ROW)
    assert times == pytest.approx([one, 2 * one])


def test_a_known_prefix_is_not_prefilled_again(clock):
    async def run():
        server = SimulatedServer(COSTS, {POLICY: 8})
        await server.complete((1,) * 10, (9,) * 6, POLICY)
        before = clock.time()
        await server.complete(((1,) * 10 + (9,) * 6 + (2,) * 4), (9,), POLICY)
        return clock.time() - before, server.usage[POLICY]

    seconds, usage = clock.run(run())
    assert seconds == pytest.approx(STEP + ROW + 0.4)
    assert (usage.prompt_tokens, usage.cached_tokens, usage.sampled_tokens) == (30, 16, 7)


@pytest.mark.parametrize("after", [0.5, 2.5], ids=["in its prompt", "while it decodes"])
def test_a_closed_request_gives_its_place_back(clock, after):
    async def run():
        server = SimulatedServer(COSTS, {POLICY: 1})
        request = server.submit((1,) * 5, (9,) * 100, POLICY, every=1)
        waits = server.submit((2,), (9,), POLICY, every=1)
        await asyncio.sleep(after)
        server.close(request)
        server.close(request)
        await waits.news.wait()
        return clock.time(), server.usage[POLICY].sampled_tokens

    end, sampled = clock.run(run())
    step = STEP + ROW
    begun = 0.5 + step * math.ceil((after - 0.5) / step)  # closing takes effect after the step
    assert end == pytest.approx(max(begun, 0.5 + step) + step + 0.1)
    assert sampled == 1 + (after > 1.6)


@pytest.mark.parametrize("judge_servers", [0, 1, 2])
def test_every_way_makes_the_same_rollouts(judge_servers):
    scenario = SMALL.but(judge_servers=judge_servers, policy_servers=2)
    outcomes = {mode: simulate(mode, scenario) for mode in Mode}
    assert {outcome.tokens.policy for outcome in outcomes.values()} == {sum(scenario.lengths)}
    assert len({outcomes[mode].digest for mode in Mode if mode is not Mode.ON_POLICY}) == 1
    plain, overlap, waits = outcomes[Mode.ON_POLICY], outcomes[Mode.OVERLAP], outcomes[Mode.NO_OVERLAP]
    assert plain.reviews == plain.tokens.corrections == plain.tokens.wasted == 0
    assert overlap.reviews == waits.reviews > overlap.revisions > 0
    assert overlap.tokens.corrections == 8 * overlap.revisions
    assert overlap.tokens.discarded == waits.tokens.discarded > 0
    assert overlap.tokens.lookahead > 0 == waits.tokens.lookahead
    assert overlap.judge == waits.judge
    assert overlap.held_up_seconds < waits.held_up_seconds
    assert plain.seconds < overlap.seconds < outcomes[Mode.LOCK_STEP].seconds


def test_the_simulation_repeats_itself():
    assert simulate(Mode.OVERLAP, SMALL) == simulate(Mode.OVERLAP, SMALL)


def test_without_a_revise_overlap_costs_the_policy_nothing():
    scenario = SMALL.but(revise_rate=0.0)
    plain, overlap = simulate(Mode.ON_POLICY, scenario), simulate(Mode.OVERLAP, scenario)
    assert overlap.tokens.wasted == 0 < overlap.reviews
    assert overlap.policy_busy_seconds == pytest.approx(plain.policy_busy_seconds)


def test_lengths_follow_the_scenario():
    scenario = Scenario(prompts=200, mean_tokens=1000.0)
    lengths = scenario.lengths
    assert len(lengths) == 3200 and max(lengths) <= scenario.cap_tokens
    assert sum(lengths) / len(lengths) == pytest.approx(1000, rel=0.05)
    assert sorted(lengths)[1600] == pytest.approx(1000 * math.exp(-0.32), rel=0.05)


def test_a_chunk_ends_with_a_message():
    with pytest.raises(ValueError, match="stream_tokens"):
        Scenario(chunk_tokens=100)


def test_splits_use_every_gpu():
    every = splits(8)
    assert all(split.gpus == 8 and min(split.trainers, split.policy) > 0 for split in every)
    assert len(set(every)) == len(every) == 7 + 6 + 5


def test_a_step_is_its_parts():
    scenario = SMALL.but(trainer_flops=1e12)
    step = whole_step(scenario, Split(2, 1, 1))
    rollout = simulate(Mode.OVERLAP, scenario.but(max_concurrent_reviews=4))
    tokens = rollout.tokens.policy + rollout.tokens.corrections + 32 * 200
    assert step.rollout_seconds == rollout.seconds
    assert step.update_seconds == pytest.approx(8 * 1.7e9 * tokens / 2e12)
    assert step.sync_seconds == pytest.approx(0.5 + 0.34)
    assert step.seconds == step.rollout_seconds + step.update_seconds + step.sync_seconds
    used = rollout.policy_busy_seconds + rollout.judge_busy_seconds + 2 * step.update_seconds + 3 * step.sync_seconds
    assert step.idle_share == pytest.approx(1 - used / (4 * step.seconds))
    assert whole_step(scenario, Split(4, 1, 1)).update_seconds == pytest.approx(step.update_seconds / 2)
