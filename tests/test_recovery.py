"""A policy server that is lost: who waits for it, what it is asked first, and where streams go on."""

import asyncio
import time
from functools import partial

import pytest

from mintrl_trl.errors import GenerationError, ServerLostError
from mintrl_trl.generation import recovery as module
from mintrl_trl.generation.recovery import Recovery, first_ready
from mintrl_trl.generation.server import ServerControl, ServerError
from mintrl_trl.generation.vllm import VLLMGenerator
from mintrl_trl.generation.weight_sync import CheckpointSync, LoRASync

from .fake_vllm import CUT, END, FakeVLLM, Status, count_down, events

COMPLETIONS, RELOAD, HEALTH = "/v1/completions", "/collective_rpc", "/health"


@pytest.fixture
def server():
    with FakeVLLM() as fake:
        yield fake


def synced(server, folder, kind=CheckpointSync, wait_seconds=5.0) -> VLLMGenerator:
    """A generator whose server has version 1."""
    sync = kind(server.url, folder, run_id="run")
    policy = VLLMGenerator(server.url, "policy", end_ids=[END], vocabulary_size=99)
    policy.use_weights("1", sync.sync("1", lambda path: (path / "model.safetensors").write_text("weights")))
    policy.recovery = Recovery(policy.control, lambda: sync.restore("1"), wait_seconds=wait_seconds)
    return policy


def collect(policy, prefix, max_tokens=99, seed=0) -> list[int]:
    async def run():
        try:
            return [token.id async for token in policy.stream(prefix, max_tokens, seed)]
        finally:
            await policy.aclose()

    return asyncio.run(run())


def cut_once(tokens: int, then=lambda: None):
    """A script whose first answer breaks off after some tokens."""
    left = [1]

    def script(body):
        if not left:
            return count_down(body)
        left.pop()
        then()
        ids = list(range(body["prompt"][-1] - 1, body["prompt"][-1] - 1 - tokens, -1))
        return [*events(body["prompt"], ids, finish=None), CUT]

    return script


def paths(server) -> list[str]:
    return [seen.path for seen in server.seen if seen.path in (COMPLETIONS, RELOAD, "/v1/load_lora_adapter")]


@pytest.mark.parametrize("tokens", [0, 1, 4])
def test_a_stream_that_breaks_off_goes_on_after_the_tokens_it_has(server, tmp_path, tokens):
    policy = synced(server, tmp_path)
    server.script = cut_once(tokens)
    assert collect(policy, [3, 9], max_tokens=7) == [8, 7, 6, 5, 4, 3, 2]
    first, second = server.bodies(COMPLETIONS)
    assert second["prompt"] == [3, *range(9, 9 - tokens - 1, -1)]
    assert (first["max_tokens"], second["max_tokens"]) == (7, 7 - tokens)
    assert (first["seed"] == second["seed"]) == (tokens == 0)
    continued = float(tokens > 0)
    assert policy.counters() == {
        "server/repeated": 1 - continued,
        "server/continued": continued,
        "server/fault/cut": 1.0,
        "server/restored": 0.0,
        "server/seconds_lost": 0.0,
    }


def test_without_recovery_a_stream_that_breaks_off_is_an_error(server, tmp_path):
    policy = synced(server, tmp_path)
    policy.recovery = None
    server.script = cut_once(2)
    with pytest.raises(GenerationError, match=r"v1/completions .* failed after"):
        collect(policy, [9])


@pytest.mark.parametrize("kind", [CheckpointSync, LoRASync])
def test_a_restarted_server_has_its_weights_back_before_it_is_asked_again(server, tmp_path, kind):
    policy = synced(server, tmp_path, kind)
    load = paths(server)
    server.script = cut_once(2, then=server.restart)
    assert collect(policy, [9]) == [8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert paths(server) == [*load, COMPLETIONS, *load, COMPLETIONS]
    assert policy.recovery.restored == 1


def test_a_restart_in_a_quiet_moment_is_noticed_before_the_next_request(server, tmp_path, monkeypatch):
    policy = synced(server, tmp_path)
    assert collect(policy, [2]) == [1, 0]
    server.restart()
    monkeypatch.setattr(module, "FRESH_SECONDS", 0.05)
    time.sleep(0.1)
    assert collect(policy, [3]) == [2, 1, 0]
    assert paths(server) == [RELOAD, COMPLETIONS, RELOAD, COMPLETIONS]


def test_a_server_that_was_just_heard_is_not_asked_for_its_version(server, tmp_path):
    policy = synced(server, tmp_path)
    for _ in range(3):
        collect(policy, [2])
    assert sum(seen.path == "/weight_info" for seen in server.seen) == 2  # once by the sync


def test_many_streams_wait_for_one_restoration(server, tmp_path):
    policy = synced(server, tmp_path)
    server.restart()

    async def run():
        async def one(start):
            return [token.id async for token in policy.stream([start], 99, 0)]

        answers = await asyncio.gather(*map(one, range(20, 60)))
        await policy.aclose()
        return answers

    assert [len(answer) for answer in asyncio.run(run())] == list(range(20, 60))
    assert paths(server)[:2] == [RELOAD, RELOAD]
    assert paths(server).count(RELOAD) == 2


def test_many_streams_that_break_off_at_once_are_one_line_of_the_log(server, tmp_path, caplog):
    policy, cut = synced(server, tmp_path), set()

    def script(body):
        first = body["prompt"][0]
        if first in cut:
            return count_down(body)
        cut.add(first)
        return [CUT]

    async def run():
        try:
            return await asyncio.gather(*(_listed(policy.stream([n, 2], 99, 0)) for n in range(50, 70)))
        finally:
            await policy.aclose()

    server.script = script
    with caplog.at_level("INFO", logger="mintrl_trl.generation.vllm"):
        assert asyncio.run(run()) == [[1, 0]] * 20
    said = [record.message for record in caplog.records if record.message.startswith("Asking again after: ")]
    assert len(said) == 1
    assert policy.counters()["server/fault/cut"] == 20


def test_a_server_that_is_down_is_waited_for(server, tmp_path):
    policy = synced(server, tmp_path)
    server.faults["/weight_info"].extend([Status(503, "starting")] * 2)
    server.faults[HEALTH].extend([Status(503, "loading the model")] * 2)
    assert collect(policy, [2]) == [1, 0]


def test_a_wait_is_counted_by_its_kind_and_its_seconds_in_vain_too(server, tmp_path):
    policy = synced(server, tmp_path)
    policy.recovery.wait_until_ready(0.3)
    assert (policy.recovery.faults, policy.recovery.seconds_lost) == ({}, 0)
    nobody = ServerControl("http://127.0.0.1:1")
    policy.recovery = Recovery(nobody, lambda: nobody.call("GET", "/weight_info", seconds=0.1), wait_seconds=0.2)
    with pytest.raises(ServerLostError):
        policy.recovery.wait_until_ready(0.2)
    with pytest.raises(ServerLostError):
        collect(policy, [2])
    counted = policy.counters()
    assert counted["server/fault/refused"] == 2
    assert 0.4 <= counted["server/seconds_lost"] < 4


def test_a_wait_can_be_looked_at_while_it_lasts(server, tmp_path):
    policy, seen = synced(server, tmp_path), []
    outage = policy.recovery.outage
    assert outage is None
    server.faults["/weight_info"].append(Status(503, "starting"))
    server.faults[HEALTH].extend([Status(503, "loading the model")] * 2)

    async def look():
        while not seen:
            seen.extend([policy.recovery.outage] if policy.recovery.outage else [])
            await asyncio.sleep(0.01)

    async def run():
        try:
            async with asyncio.timeout(10):
                _, tokens = await asyncio.gather(look(), _listed(policy.stream([2], 99, 0)))
            return tokens
        finally:
            await policy.aclose()

    assert asyncio.run(run()) == [1, 0]
    assert (seen[0].server, seen[0].limit_seconds) == (server.url, 5.0)
    assert 0 <= seen[0].seconds < 5
    assert policy.recovery.outage is None


async def _listed(stream) -> list[int]:
    return [token.id async for token in stream]


def test_a_server_that_stays_away_is_an_error_at_the_limit(server, tmp_path):
    policy = synced(server, tmp_path, wait_seconds=0.7)
    server.faults["/weight_info"].extend([Status(503, "starting")] * 99)
    server.faults[HEALTH].extend([Status(503, "loading the model")] * 99)
    started = time.monotonic()
    with pytest.raises(GenerationError, match=r"not ready within .*loading the model"):
        collect(policy, [2])
    assert time.monotonic() - started < 5


def test_weights_of_another_run_are_left_alone(server, tmp_path):
    policy = synced(server, tmp_path)
    server.weight_version = "weights-other-v-1"
    with pytest.raises(GenerationError, match="'weights-other-v-1'"):
        collect(policy, [2])
    assert paths(server) == [RELOAD]


def test_a_request_that_breaks_the_server_every_time_ends(server, tmp_path, monkeypatch):
    monkeypatch.setattr("mintrl_trl.generation.vllm.pause_seconds", lambda attempt, seed: 0.0)
    policy = synced(server, tmp_path)
    server.script = lambda body: [CUT]
    with pytest.raises(GenerationError, match=r"v1/completions .* failed after"):
        collect(policy, [9])
    assert len(server.bodies(COMPLETIONS)) == policy.max_retries + 1


def test_nobody_goes_on_waiting_for_a_server_once_the_rollouts_are_cancelled(server, tmp_path):
    """A thread that waits would hold up the end of the program, after Ctrl-C for one."""
    policy = synced(server, tmp_path, wait_seconds=600)
    server.faults["/weight_info"].extend([Status(503, "starting")] * 99)
    server.faults[HEALTH].extend([Status(503, "loading the model")] * 99)

    async def run():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await anext(policy.stream([2], 9, 0))
        await policy.aclose()

    started = time.monotonic()
    asyncio.run(run())  # joins the threads of its loop
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("back", [[False, True], [False, False]])
def test_of_several_servers_the_first_that_is_back_will_do(back):
    """A judge on the policy's servers waits for them as the policy does, and no longer."""
    away = ServerError("nobody there", retryable=True, kind="refused")

    def restore(is_back):
        if not is_back:
            raise away
        return False

    nobody = ServerControl("http://127.0.0.1:1")
    waits = [Recovery(nobody, partial(restore, one), wait_seconds=0.1) for one in back]
    if any(back):
        asyncio.run(first_ready(waits))
    else:
        with pytest.raises(ServerLostError):
            asyncio.run(first_ready(waits))
