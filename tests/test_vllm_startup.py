"""The vLLM generator at start-up: settings that cannot work, and a server that does not fit."""

import asyncio
import time

import pytest

from mintrl_trl.errors import ConfigError, GenerationError
from mintrl_trl.generation.vllm import VLLMGenerator
from mintrl_trl.rollouts.doors import SampledToken

from .fake_vllm import END, FakeVLLM, Status, events


@pytest.fixture
def server():
    with FakeVLLM() as fake:
        yield fake


def generator(server: FakeVLLM, **settings) -> VLLMGenerator:
    settings = {"end_ids": [END], "vocabulary_size": 1000} | settings
    return VLLMGenerator(server.url, "policy", **settings)


def collect(policy: VLLMGenerator, prefix: list[int]) -> list[SampledToken]:
    async def run():
        tokens = [token async for token in policy.stream(prefix, 50, 0)]
        await policy.aclose()
        return tokens

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"end_ids": []}, "end_ids"),
        ({"end_ids": [1000]}, "end_ids"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"max_concurrency": 0}, "max_concurrency"),
        ({"stream_interval": 0}, "stream_interval"),
    ],
    ids=str,
)
def test_settings_that_cannot_work(server, settings, field):
    with pytest.raises(ConfigError, match=f"`{field}`"):
        generator(server, **settings)


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", ""])
def test_addresses_that_cannot_work(url):
    with pytest.raises(ConfigError, match="http"):
        VLLMGenerator(url, "policy", end_ids=[0], vocabulary_size=9)


@pytest.mark.parametrize("tail", ["", "/", "/v1", "/v1/"])
def test_address_with_and_without_version(server, tail):
    policy = VLLMGenerator(server.url + tail, "policy", end_ids=[END], vocabulary_size=9)
    policy.verify(max_prompt_length=10, max_completion_length=10)
    assert [token.id for token in collect(policy, [2])] == [1, 0]


def test_room_for_prompt_and_response(server):
    server.max_model_len = 16384
    policy = generator(server)
    policy.verify(max_prompt_length=2048, max_completion_length=14336)
    with pytest.raises(ConfigError, match=r"18432.*16384.*2048 and 16384.*--max-model-len 18432"):
        policy.verify(max_prompt_length=2048, max_completion_length=16384)


def test_room_of_an_adapter_is_that_of_its_base_model(server):
    server.adapters["adapter"] = "/path"
    policy = generator(server)
    policy.use_weights("1", "adapter")
    with pytest.raises(ConfigError, match="max-model-len 5096"):
        policy.verify(max_prompt_length=1000, max_completion_length=4096)


def test_served_models_are_named(server):
    server.adapters["other"] = "/path"
    policy = VLLMGenerator(server.url, "Qwen/Qwen3-1.7B", end_ids=[END], vocabulary_size=9)
    with pytest.raises(ConfigError, match=r"'policy', 'other'.*--served-model-name Qwen/Qwen3-1.7B"):
        policy.verify(max_prompt_length=1, max_completion_length=1)


def test_start_up_waits_for_the_server_but_not_for_ever(server):
    policy = generator(server)
    server.faults["/health"].append(Status(503))
    policy.verify(max_prompt_length=1, max_completion_length=1)
    server.faults["/health"].extend([Status(503, "still loading")] * 20)
    started = time.monotonic()
    with pytest.raises(GenerationError, match=r"not ready within 0.7 s.*answered 503.*still loading"):
        policy.verify(max_prompt_length=1, max_completion_length=1, wait_seconds=0.7)
    assert time.monotonic() - started < 2.0


@pytest.mark.parametrize(
    ("settings", "mode", "known"),
    [
        ({}, "raw_logprobs", True),
        ({"temperature": 0.6}, "raw_logprobs", False),
        ({"temperature": 0.6}, "processed_logprobs", True),
        ({"top_p": 0.9}, "processed_logprobs", True),
        ({"top_k": 20}, "raw_logprobs", False),
        ({"temperature": 0.0}, "processed_logprobs", False),
    ],
    ids=str,
)
def test_log_probabilities_of_another_temperature_are_unknown(server, settings, mode, known, caplog):
    server.logprobs_mode = mode
    policy = generator(server, **settings)
    policy.verify(max_prompt_length=1, max_completion_length=1)
    tokens = collect(policy, [2])
    assert [token.logp is not None for token in tokens] == [known] * 2
    warned = "--logprobs-mode processed_logprobs" in caplog.text
    assert warned == (mode == "raw_logprobs" and bool(settings))


def test_log_probabilities_need_not_be_asked_for(server, caplog):
    server.script = lambda body: [event_without_logps(body)]
    policy = generator(server, logprobs=False, temperature=0.6)
    policy.verify(max_prompt_length=1, max_completion_length=1)
    assert collect(policy, [2]) == [SampledToken(END, None)]
    assert server.bodies("/v1/completions")[0]["logprobs"] is None
    assert not caplog.text


def event_without_logps(body: dict) -> dict:
    (event,) = events(body["prompt"], [END])
    event["choices"][0]["logprobs"] = None
    return event


def test_log_probabilities_stay_unknown_without_development_mode(server, caplog):
    server.dev_mode = False
    policy = generator(server, temperature=0.6)
    policy.verify(max_prompt_length=1, max_completion_length=1)
    assert [token.logp for token in collect(policy, [2])] == [None, None]
    assert "mode is unknown" in caplog.text
