"""Every fault of a policy server, between it and its client: who goes on, who stops, and what counted it."""

import asyncio
import math
import threading
import time

import pytest

from mintrl_trl.errors import LOST, GenerationError, ServerLostError
from mintrl_trl.generation.recovery import Recovery
from mintrl_trl.generation.vllm import VLLMGenerator
from mintrl_trl.generation.weight_sync import CheckpointSync

from .fake_vllm import END, FakeVLLM
from .fault_proxy import Answer, Change, Cut, FaultProxy, Garbage, Silence, Trickle

pytestmark = pytest.mark.slow
COMPLETIONS, HEALTH, WEIGHTS = "/v1/completions", "/health", "/weight_info"
PREFIX, WHOLE = [3, 9], [8, 7, 6, 5, 4, 3, 2, 1, 0]  # the server counts down


@pytest.fixture
def server():
    with FakeVLLM() as fake:
        yield fake


@pytest.fixture
def proxy(server, monkeypatch):
    monkeypatch.setattr("mintrl_trl.generation.vllm.pause_seconds", lambda attempt, seed: 0.02)
    with FaultProxy(server.url) as proxy:
        yield proxy
    deadline = time.monotonic() + 5
    while server.open_streams and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.open_streams == 0


def synced(proxy, folder, *, wait_seconds=5.0, **options) -> VLLMGenerator:
    """A generator whose server has version 1, and which may be silent for half a second."""
    sync = CheckpointSync(proxy.url, folder, run_id="run")
    options = {"silence_seconds": 0.5, "seconds_per_token": 0.0} | options
    policy = VLLMGenerator(proxy.url, "policy", end_ids=[END], vocabulary_size=99, **options)
    policy.use_weights("1", sync.sync("1", lambda path: (path / "model.safetensors").write_text("weights")))
    policy.recovery = Recovery(policy.control, lambda: sync.restore("1"), wait_seconds=wait_seconds)
    return policy


def collect(policy, taken=None, max_tokens=99) -> list[int]:
    """All ids of a stream; those that came before an error are in `taken`."""
    taken = [] if taken is None else taken

    async def run():
        try:
            async with asyncio.timeout(20):
                async for token in policy.stream(PREFIX, max_tokens, 0):
                    taken.append(token.id)
        finally:
            await policy.aclose()

    asyncio.run(run())
    return taken


def counted(policy) -> dict[str, float]:
    """What was counted, but zeros and times."""
    return {name: n for name, n in policy.counters().items() if n and name != "server/seconds_lost"}


def edited(**fields):
    """Events with other values in their choice; those given as functions are of the prompt."""

    def change(event):
        choice = event["choices"][0]
        for name, value in fields.items():
            choice[name] = value(choice.get(name)) if callable(value) else value
        return event

    return Change(change)


GOES_ON = {
    "500": ([Answer(500)] * 2, {"repeated": 2, "fault/status_500": 2}),
    "503, longer than other faults are borne": ([Answer(503)] * 6, {"repeated": 6, "fault/status_503": 6}),
    "429": ([Answer(429, headers={"retry-after": "0.1"})] * 6, {"repeated": 6, "fault/status_429": 6}),
    "502, a page of a proxy": ([Answer(502, b"<html>Bad Gateway</html>")], {"repeated": 1, "fault/status_502": 1}),
    "cut before the first token": ([Cut()], {"repeated": 1, "fault/cut": 1}),
    "cut in the middle, twice": ([Cut(3), Cut(2)], {"continued": 2, "fault/cut": 2}),
    "cut before each token": ([Cut(1)] * 8, {"continued": 8, "fault/cut": 8}),
    "garbage first": ([Garbage()], {"repeated": 1, "fault/garbage": 1}),
    "garbage in the middle": ([Garbage(3)], {"continued": 1, "fault/garbage": 1}),
    "JSON that is no event": ([Garbage(2, b"data: [1]\n")], {"continued": 1, "fault/garbage": 1}),
    "an event without its parts": ([Garbage(2, b'data: {"choices": [7]}\n')], {"continued": 1, "fault/garbage": 1}),
    "text for log-probabilities": (
        [edited(logprobs={"token_logprobs": ["-0.5"]})],
        {"repeated": 1, "fault/garbage": 1},
    ),
    "an aborted request": ([edited(finish_reason="abort")], {"repeated": 1, "fault/end": 1}),
    "a slow trickle": ([Trickle(0.25)], {}),
}


@pytest.mark.parametrize("name", GOES_ON)
def test_a_passing_fault_costs_no_token(proxy, server, tmp_path, name):
    faults, counts = GOES_ON[name]
    policy = synced(proxy, tmp_path)
    proxy.plan(COMPLETIONS, *faults)
    assert collect(policy) == WHOLE
    assert counted(policy) == {f"server/{count}": number for count, number in counts.items()}
    assert collect(policy) == WHOLE
    assert len(server.bodies("/collective_rpc")) == 1


STOPS = {
    "500 for ever": (Answer(500), GenerationError, "answered 500 .*planned fault", 4, {"fault/status_500": 4}),
    "503 for ever": (Answer(503), ServerLostError, "for 1 s nothing but this came: .* answered 503", None, None),
    "429 for ever": (Answer(429), ServerLostError, "for 1 s nothing but this came: .* answered 429", None, None),
    "400": (Answer(400), GenerationError, "answered 400 .*planned fault", 1, {"fault/status_400": 1}),
    "cut for ever": (Cut(), GenerationError, "v1/completions .* failed after", 4, {"fault/cut": 4}),
    "garbage for ever": (Garbage(), GenerationError, "not JSON.*502 Bad Gateway", 4, {"fault/garbage": 4}),
    "silence": (Silence(), GenerationError, r"silent for 0\.[5-9].*gave 0 tokens", 1, {"fault/silent": 1}),
    "silence in the middle": (Silence(3), GenerationError, r"silent for 0\.[5-9].*gave 3 tokens", 1,
                              {"fault/silent": 1}),
    "comments for tokens": (Trickle(5.0), GenerationError, "silent for 0.*gave 0 tokens", 1, {"fault/silent": 1}),
    "null": (edited(logprobs={"token_logprobs": [None]}), GenerationError, "gave NaN as a", 1, {"fault/nan": 1}),
    "NaN": (edited(logprobs={"token_logprobs": [math.nan]}), GenerationError, "gave NaN as a", 1, {"fault/nan": 1}),
    "minus infinity": (edited(logprobs={"token_logprobs": [-math.inf]}), GenerationError, "gave -inf as a", 1,
                       {"fault/nan": 1}),
    "another echo": (edited(prompt_token_ids=[3, 8]), GenerationError, "another prompt than was sent", 1,
                     {"fault/echo": 1}),
    "an id beyond the vocabulary": (edited(token_ids=[99]), GenerationError, "no id below 99", 1, {"fault/ids": 1}),
}  # fmt: skip


@pytest.mark.parametrize("name", STOPS)
def test_a_lasting_fault_is_an_error_in_time(proxy, tmp_path, name):
    fault, error, message, requests, counts = STOPS[name]
    policy = synced(proxy, tmp_path, wait_seconds=1.0)
    proxy.always[COMPLETIONS] = fault
    started = time.monotonic()
    with pytest.raises(error, match=message) as caught:
        collect(policy)
    assert time.monotonic() - started < 15
    assert caught.value.exit_code == (LOST if error is ServerLostError else 1)
    if requests is not None:
        assert len(proxy.bodies(COMPLETIONS)) == requests
        repeated = {"server/repeated": requests - 1} if requests > 1 else {}
        assert counted(policy) == repeated | {f"server/{count}": number for count, number in counts.items()}
    else:
        status = f"server/fault/status_{fault.status}"
        assert counted(policy)[status] > policy.max_retries + 1


@pytest.mark.parametrize("name", GOES_ON)
def test_a_passing_fault_changes_no_limit(proxy, server, tmp_path, name):
    policy = synced(proxy, tmp_path)
    proxy.plan(COMPLETIONS, *GOES_ON[name][0])
    assert collect(policy, max_tokens=6) == WHOLE[:6]
    for body in proxy.bodies(COMPLETIONS):
        assert len(body["prompt"]) + body["max_tokens"] == len(PREFIX) + 6


def test_a_server_that_is_not_there_for_a_while_is_waited_for(proxy, tmp_path):
    policy = synced(proxy, tmp_path)

    def away():
        with proxy.down():
            time.sleep(1.5)

    vanishing = threading.Thread(target=away)
    proxy.plan(COMPLETIONS, Cut(4, then=vanishing.start))
    assert collect(policy) == WHOLE
    vanishing.join()
    assert counted(policy)["server/continued"] >= 1
    assert counted(policy)["server/fault/cut"] == 1
    assert policy.counters()["server/seconds_lost"] > 0.5
    assert "server/restored" not in counted(policy)


def test_a_server_that_does_not_come_back_is_given_up_at_the_limit(proxy, tmp_path):
    policy = synced(proxy, tmp_path, wait_seconds=1.0)
    taken, started = [], time.monotonic()
    away = {WEIGHTS: Answer(503), HEALTH: Answer(503)}
    proxy.plan(COMPLETIONS, Cut(4, then=lambda: proxy.always.update(away)))
    with pytest.raises(ServerLostError, match=r"(not ready|not back) within .*answered 503"):
        collect(policy, taken)
    assert taken == WHOLE[:4]
    assert 1 < time.monotonic() - started < 10


def test_a_server_restarted_with_its_first_weights_gets_the_right_ones_before_it_goes_on(proxy, server, tmp_path):
    policy, by = synced(proxy, tmp_path), []
    count_down = server.script

    def remember(body):
        by.append(server.weights_path)
        return count_down(body)

    server.script = remember
    loaded = server.weights_path
    proxy.plan(COMPLETIONS, Cut(4, then=server.restart))
    assert collect(policy) == WHOLE
    assert by == [loaded, loaded]
    assert counted(policy) == {"server/continued": 1, "server/fault/cut": 1, "server/restored": 1}
