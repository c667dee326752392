"""Several policy servers: who samples which rollout, and that a sync reaches all of them or counts for none."""

import asyncio
import os
import subprocess
import sys
import threading
from contextlib import ExitStack

import pytest

from mintrl_trl.errors import ConfigError, GenerationError
from mintrl_trl.generation.servers import SeveralServers, SyncToAll
from mintrl_trl.generation.vllm import VLLMGenerator
from mintrl_trl.generation.weight_sync import CheckpointSync, LoRASync

from .commands import ROOT
from .fake_vllm import END, HANG, FakeVLLM, Status

COMPLETIONS, RELOAD = "/v1/completions", "/collective_rpc"


@pytest.fixture
def servers():
    with ExitStack() as stack:
        yield [stack.enter_context(FakeVLLM()) for _ in range(2)]


def policy(servers) -> SeveralServers:
    return SeveralServers([VLLMGenerator(fake.url, "policy", end_ids=[END], vocabulary_size=9) for fake in servers])


def write(path):
    (path / "model.safetensors").write_text("weights")


def sync_to(servers, folder, kind=CheckpointSync) -> SyncToAll:
    return SyncToAll([kind(fake.url, folder, run_id="run") for fake in servers])


def test_rollouts_go_where_the_fewest_are_and_stay_there(servers):
    generator = policy(servers)

    async def run():
        with generator.for_rollout() as first, generator.for_rollout() as second:
            with generator.for_rollout() as third:
                for prompt in ([3], [3, 2], [4]):  # a rollout that is continued
                    assert [token.id async for token in first.stream(prompt, 9, 0)][-1] == END
                assert [token.id async for token in second.stream([5], 9, 0)] == [4, 3, 2, 1, 0]
                assert [token.id async for token in third.stream([2], 9, 0)] == [1, 0]
            with generator.for_rollout() as fourth:  # the third has ended
                assert [token.id async for token in fourth.stream([6], 9, 0)] == [5, 4, 3, 2, 1, 0]
        assert [token.id async for token in generator.stream([7], 2, 0)] == [6, 5]
        await generator.aclose()

    asyncio.run(run())
    assert set(generator.counters().values()) == {0}
    prompts = [[body["prompt"] for body in fake.bodies(COMPLETIONS)] for fake in servers]
    assert prompts == [[[3], [3, 2], [4], [2], [6], [7]], [[5]]]


def test_a_rollout_that_fails_leaves_its_place(servers):
    generator = policy(servers)
    for _ in range(3):
        with pytest.raises(KeyError), generator.for_rollout():
            raise KeyError("a rollout's own fault")
    with generator.for_rollout() as first, generator.for_rollout() as second:
        assert repr(first._place) != repr(second._place)


@pytest.mark.parametrize("kind", [CheckpointSync, LoRASync])
def test_weights_are_saved_once_and_loaded_by_all(servers, tmp_path, kind):
    saved = []
    sync, generator = sync_to(servers, tmp_path, kind), policy(servers)
    generator.use_weights("1", sync.sync("1", lambda path: saved.append(path)))
    assert len(saved) == 1
    sync.verify("1")
    if kind is CheckpointSync:
        assert [fake.weights_path for fake in servers] == [str(saved[0])] * 2
        assert generator.model == "policy"
    else:
        assert [fake.adapters for fake in servers] == [{generator.model: str(saved[0])}] * 2
    assert generator.weight_version == "1"
    assert [one.weight_version for one in generator.generators] == ["1", "1"]


def test_servers_load_at_the_same_time(servers, tmp_path):
    together = threading.Barrier(2, timeout=5)
    for fake in servers:
        load = fake._collective_rpc
        # Answers run on threads of their own servers, so each may wait for the other.
        fake._collective_rpc = lambda body, load=load: (together.wait(), load(body))[1]
    sync_to(servers, tmp_path).sync("1", write)


def test_one_refusal_makes_the_version_count_for_none(servers, tmp_path):
    sync = sync_to(servers, tmp_path)
    sync.sync("1", write)
    servers[1].faults[RELOAD].append(Status(500, "no memory"))
    with pytest.raises(GenerationError, match=rf"{servers[1].url}/collective_rpc answered 500 .*no memory"):
        sync.sync("2", write)
    for version in ("1", "2"):
        with pytest.raises(GenerationError):
            sync.verify(version)
    sync.sync("2", write)
    sync.verify("2")


def test_a_restart_of_one_server_is_noticed(servers, tmp_path):
    sync = sync_to(servers, tmp_path)
    sync.sync("1", write)
    servers[1].restart()
    with pytest.raises(GenerationError, match=rf"{servers[1].url} serves weight version 'default'"):
        sync.verify("1")


def test_servers_of_different_names_are_refused(servers, tmp_path):
    servers[1].model = "other"
    with pytest.raises(ConfigError, match=r"`model` is 'policy'.*'other'"):
        policy(servers).verify(max_prompt_length=1, max_completion_length=1, wait_seconds=1)
    with pytest.raises(GenerationError, match=r"'other', 'policy'.*start them alike"):
        sync_to(servers, tmp_path).sync("1", write)


def test_a_run_id_given_later_reaches_all(servers, tmp_path):
    sync = sync_to(servers, tmp_path)
    sync.run_id = "again"
    sync.sync("1", write)
    assert sync.run_id == "again"
    assert {fake.weight_version for fake in servers} == {"weights-again-v-1"}


INTERRUPTED = """
import os, signal, sys, threading
from mintrl_trl.generation.servers import SyncToAll
from mintrl_trl.generation.weight_sync import LoRASync

sync = SyncToAll([LoRASync(url, sys.argv[1], run_id="run") for url in sys.argv[2:]])
try:
    sync.sync("1", lambda path: threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start())
except KeyboardInterrupt:
    sys.exit(7)
"""


@pytest.mark.slow
def test_an_interrupt_waits_for_no_server(servers, tmp_path):
    servers[1].faults["/v1/load_lora_adapter"].append(HANG)
    words = [sys.executable, "-c", INTERRUPTED, str(tmp_path), *(fake.url for fake in servers)]
    done = subprocess.run(words, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, timeout=50)
    assert done.returncode == 7, done.stderr
