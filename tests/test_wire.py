"""Which addresses are one server, who is asked without a proxy, and how long is waited."""

import asyncio

import pytest

from mintrl_trl.errors import GenerationError
from mintrl_trl.generation.server import ServerControl, pause_seconds
from mintrl_trl.generation.vllm import VLLMGenerator
from mintrl_trl.judges.llm import LLMJudge
from mintrl_trl.rollouts.doors import KEEP
from mintrl_trl.rollouts.loop import BackgroundLoop
from mintrl_trl.rollouts.rollout import Problem
from mintrl_trl.wire import is_local, listening_host, machine_of, proxy_of, server_of

from .fake_vllm import END, FakeVLLM, Status


@pytest.mark.parametrize(
    "other",
    ["http://127.0.0.1:8000", "http://LOCALHOST:8000/v1/", "http://[::1]:8000/v1", "http://0.0.0.0:8000"],
)
def test_one_server_by_many_spellings(other):
    assert server_of(other) == server_of("http://localhost:8000")
    assert is_local(other) and machine_of(other) == "localhost"


@pytest.mark.parametrize(
    "other", ["http://localhost:8001", "http://node2:8000", "http://localhost:8000/a/v1", "http://10.0.0.1:8000"]
)
def test_others_are_others(other):
    assert server_of(other) != server_of("http://localhost:8000/v1")


def test_ports_that_go_without_saying():
    assert server_of("http://node2") == server_of("http://node2:80/v1") != server_of("https://node2")
    assert server_of("https://node2") == server_of("https://NODE2:443/")


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://localhost:8000", "127.0.0.1"),
        ("http://127.0.0.2:8000", "127.0.0.2"),
        ("http://[::1]:8000", "::1"),
        ("http://0.0.0.0:8000", "0.0.0.0"),
        ("http://node2:8000", "0.0.0.0"),
        ("http://[fd00::2]:8000", "::"),
    ],
)
def test_a_server_listens_where_it_is_looked_for(url, host):
    assert listening_host(url) == host


def test_no_proxy_leads_to_this_machine(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://user:secret@127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    loop = BackgroundLoop()

    async def rollout(url):
        policy = VLLMGenerator(url, "policy", end_ids=[END], vocabulary_size=99, max_retries=0)
        judge = LLMJudge("policy", f"{url}/v1", max_retries=0)
        try:
            verdict = await judge.review(Problem("1 + 1?"), ["2"], 0, seed=0)
            return [token.id async for token in policy.stream([3], 9, 0)], verdict
        finally:
            await policy.aclose()
            await judge.aclose()

    with FakeVLLM() as server:
        server.chat = lambda body: '{"reason": "fine", "decision": "keep"}'
        assert loop.run(rollout(server.url)) == ([2, 1, END], KEEP)
        assert list(ServerControl(server.url).models(seconds=5)) == ["policy"]
    loop.close()
    assert proxy_of("http://node2:8000") == "127.0.0.1:9"
    with pytest.raises(GenerationError, match=r"node2:8000/health \(by way of the proxy 127.0.0.1:9, unless NO_PROXY"):
        ServerControl("http://node2:8000").call("GET", "/health", seconds=2)
    monkeypatch.setenv("no_proxy", "node2")
    assert proxy_of("http://node2:8000") is None


def test_a_server_that_asks_for_time_gets_it(monkeypatch):
    pauses, sleep = [], asyncio.sleep

    async def note(seconds):
        pauses.append(seconds)
        await sleep(0)

    async def rollout(url):
        policy = VLLMGenerator(url, "policy", end_ids=[END], vocabulary_size=99)
        try:
            return [token.id async for token in policy.stream([2], 9, 0)]
        finally:
            await policy.aclose()

    monkeypatch.setattr("mintrl_trl.generation.vllm.asyncio.sleep", note)
    with FakeVLLM() as server:
        headers = ("3", "9999", "Wed, 21 Oct 2026 07:28:00 GMT")
        server.faults["/v1/completions"].extend(Status(429, retry_after=header) for header in headers)
        assert asyncio.run(rollout(server.url)) == [1, END]
    assert [pause for pause in pauses if pause] == [3.0, 30.0, pause_seconds(2, 0)]  # libraries pause for 0 s
