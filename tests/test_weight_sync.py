"""Weight sync against a scripted server: what it is told, in which order, and what stops a sync."""

import asyncio
import errno
import time

import pytest

from mintrl_trl.errors import ConfigError, GenerationError
from mintrl_trl.generation.vllm import VLLMGenerator
from mintrl_trl.generation.vllm_worker import EXTENSION
from mintrl_trl.generation.weight_sync import CheckpointSync, LoRASync

from .fake_vllm import END, HANG, FakeVLLM, Status, events


@pytest.fixture
def server():
    with FakeVLLM() as fake:
        yield fake


def write(text: str = "weights"):
    return lambda path: (path / "model.safetensors").write_text(text)


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def posts(server: FakeVLLM) -> list[tuple[str, dict | None]]:
    return [(seen.path, seen.body) for seen in server.seen if seen.method == "POST"]


def both(test):
    return pytest.mark.parametrize("kind", [CheckpointSync, LoRASync])(test)


# --- Full weights


def test_checkpoint_sync_in_order(server, tmp_path):
    sync = CheckpointSync(server.url, tmp_path, run_id="run")
    assert sync.sync("update-7", write("seven")) == "policy"
    path = str(tmp_path / "weights-run-v-update-7")
    timeout = server.bodies("/collective_rpc")[0].pop("timeout")
    assert posts(server) == [
        ("/update_weight_version", {"new_version": "loading-weights-run-v-update-7"}),
        ("/reset_prefix_cache", None),
        ("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": path}}),
        ("/reset_prefix_cache", None),
        ("/update_weight_version", {"new_version": "weights-run-v-update-7"}),
    ]
    assert 290 < timeout <= 300
    assert server.weights_path == path
    assert (tmp_path / "weights-run-v-update-7" / "model.safetensors").read_text() == "seven"
    sync.verify("update-7")


@pytest.mark.parametrize(
    ("device", "extension", "tied", "method"),
    [
        ("cpu", EXTENSION, True, "reload_whole_weights"),
        ("cpu", "", False, "reload_weights"),
        ("cuda", "", True, "reload_weights"),
    ],
    ids=["tied on CPU", "untied on CPU", "tied on GPU"],
)
def test_a_server_on_cpu_reloads_a_tied_output_layer_too(server, tmp_path, device, extension, tied, method):
    server.device, server.worker_extension = device, extension
    CheckpointSync(server.url, tmp_path, tied_weights=tied).sync("1", write())
    (body,) = server.bodies("/collective_rpc")
    assert body["method"] == method


def test_a_server_on_cpu_that_would_keep_its_old_output_layer_is_refused(server, tmp_path):
    server.device = "cpu"
    sync = CheckpointSync(server.url, tmp_path, tied_weights=True)
    with pytest.raises(GenerationError, match=rf"runs on CPU.*--worker-extension-cls {EXTENSION}"):
        sync.sync("1", write())
    assert server.weights_path is None
    with pytest.raises(GenerationError):
        sync.verify("1")


def test_restarted_server_is_noticed_and_synced_again(server, tmp_path):
    sync = CheckpointSync(server.url, tmp_path, run_id="run")
    sync.sync("40", write())
    server.restart()
    with pytest.raises(GenerationError, match=r"serves weight version 'default', not 'weights-run-v-40'"):
        sync.verify("40")
    sync.sync("40", write())
    sync.verify("40")


def test_another_run_on_the_same_server_is_noticed(server, tmp_path):
    ours, theirs = CheckpointSync(server.url, tmp_path / "a"), CheckpointSync(server.url, tmp_path / "b")
    ours.sync("1", write())
    theirs.sync("1", write())
    with pytest.raises(GenerationError, match=theirs.run_id):
        ours.verify("1")


def test_failed_transfer_carries_the_words_of_the_server_and_leaves_no_version_valid(server, tmp_path):
    sync = CheckpointSync(server.url, tmp_path, run_id="run")
    sync.sync("1", write())
    server.faults["/collective_rpc"].append(Status(500, "dtype mismatch: float32 into bfloat16"))
    started = time.monotonic()
    with pytest.raises(GenerationError, match=rf"{server.url}/collective_rpc answered 500 .*float32 into bfloat16"):
        sync.sync("2", write())
    assert time.monotonic() - started < 20
    for version in ("1", "2"):
        with pytest.raises(GenerationError, match=r"'loading-weights-run-v-2'"):
            sync.verify(version)
    sync.sync("2", write())
    sync.verify("2")


def test_open_requests_stop_a_sync_before_weights_are_touched(server, tmp_path):
    server.script = lambda body: [*events(body["prompt"], [5, 4], finish=None)[:1], HANG]
    policy = VLLMGenerator(server.url, "policy", end_ids=[END], vocabulary_size=9)
    sync = CheckpointSync(server.url, tmp_path, idle_seconds=0.3)

    async def run():
        stream = policy.stream([7], 5, 0)
        await anext(stream)
        with pytest.raises(GenerationError, match=r"'success': False.* before the weights .*requests are still open"):
            await asyncio.to_thread(sync.sync, "1", write())
        assert server.weights_path is None
        closing = asyncio.create_task(asyncio.to_thread(sync.sync, "1", write()))
        await asyncio.sleep(0.05)
        await stream.aclose()  # a request that was just closed may take a moment to leave
        assert await closing == "policy"
        await policy.aclose()

    asyncio.run(run())
    sync.verify("1")


def test_prefix_cache_that_stays_full_after_loading_stops_the_sync(server, tmp_path):
    sync = CheckpointSync(server.url, tmp_path, run_id="run", idle_seconds=0.0)
    reload = server._collective_rpc

    def reload_with_a_late_request(body):
        server.open_streams += 1
        return reload(body)

    server._collective_rpc = reload_with_a_late_request
    with pytest.raises(GenerationError, match=r"after the weights were loaded"):
        sync.sync("1", write())
    with pytest.raises(GenerationError, match=r"loading-weights-run-v-1"):
        sync.verify("1")


def test_server_without_development_mode_is_told_what_it_needs(server, tmp_path):
    server.dev_mode = False
    with pytest.raises(GenerationError, match=r"/update_weight_version answered 404.*VLLM_SERVER_DEV_MODE=1"):
        CheckpointSync(server.url, tmp_path).sync("1", write())


def test_name_of_the_base_model_is_returned_with_adapters_present(server, tmp_path):
    server.adapters["judge-adapter"] = "/path"
    assert CheckpointSync(server.url, tmp_path).sync("1", write()) == "policy"


# --- Adapters


def test_adapters_get_a_new_name_and_path_and_the_old_one_goes(server, tmp_path):
    server.adapters["of-another-user"] = "/path"
    sync = LoRASync(server.url, tmp_path, run_id="run")
    first = sync.sync("1", write("one"))
    second = sync.sync("2", write("two"))
    assert (first, second) == ("adapter-run-v-1", "adapter-run-v-2")
    assert server.adapters == {"of-another-user": "/path", second: str(tmp_path / second)}
    assert posts(server) == [
        ("/v1/load_lora_adapter", {"lora_name": first, "lora_path": str(tmp_path / first)}),
        ("/v1/load_lora_adapter", {"lora_name": second, "lora_path": str(tmp_path / second)}),
        ("/v1/unload_lora_adapter", {"lora_name": first}),
    ]
    sync.verify("2")
    with pytest.raises(GenerationError, match=r"does not serve the adapter 'adapter-run-v-1'"):
        sync.verify("1")


def test_generator_asks_for_the_adapter(server, tmp_path):
    policy = VLLMGenerator(server.url, "policy", end_ids=[END], vocabulary_size=9)
    sync = LoRASync(server.url, tmp_path)
    policy.use_weights("1", sync.sync("1", write()))

    async def run():
        tokens = [token.id async for token in policy.stream([2], 5, 0)]
        await policy.aclose()
        return tokens

    assert asyncio.run(run()) == [1, END]
    assert server.bodies("/v1/completions")[0]["model"] == f"adapter-{sync.run_id}-v-1" == policy.model


def test_adapter_lost_in_a_restart_is_noticed_and_synced_again(server, tmp_path):
    sync = LoRASync(server.url, tmp_path, run_id="run")
    sync.sync("40", write())
    server.restart()
    with pytest.raises(GenerationError, match=r"'adapter-run-v-40', only 'policy'"):
        sync.verify("40")
    sync.sync("40", write())
    sync.verify("40")


def test_version_that_is_loaded_already_is_unloaded_first(server, tmp_path):
    sync = LoRASync(server.url, tmp_path, run_id="run")
    sync.sync("1", write())
    assert sync.sync("1", write()) == "adapter-run-v-1"
    assert [path for path, _ in posts(server)].count("/v1/load_lora_adapter") == 2


def test_failed_load_leaves_the_version_before_in_place(server, tmp_path):
    sync = LoRASync(server.url, tmp_path)
    sync.sync("1", write())
    server.faults["/v1/load_lora_adapter"].append(Status(500, "rank 64 is above max_lora_rank 16"))
    with pytest.raises(GenerationError, match=r"/v1/load_lora_adapter answered 500 .*rank 64 is above"):
        sync.sync("2", write())
    sync.verify("1")
    with pytest.raises(GenerationError):
        sync.verify("2")


def test_server_without_runtime_adapters_is_told_what_it_needs(server, tmp_path):
    server.lora = False
    with pytest.raises(GenerationError, match=r"answered 404.*VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"):
        LoRASync(server.url, tmp_path).sync("1", write())


def test_adapter_served_from_another_path_is_an_error(server, tmp_path):
    load = server._load_adapter
    server._load_adapter = lambda body: load(body | {"lora_path": str(tmp_path)})
    with pytest.raises(GenerationError, match=r"serves the adapter .* from .*, not from "):
        LoRASync(server.url, tmp_path).sync("1", write())


# --- Both


@both
def test_two_folders_stay(server, tmp_path, kind):
    (tmp_path / "notes").mkdir()
    (tmp_path / f"{kind.kind}-0123abcd-v-9").mkdir()  # left by a run that crashed
    sync = kind(server.url, tmp_path, run_id="run")
    for version in ("1", "2", "3"):
        sync.sync(version, write())
    assert names(tmp_path) == sorted([f"{kind.kind}-run-v-2", f"{kind.kind}-run-v-3", "notes"])


@both
def test_every_process_can_verify(server, tmp_path, kind):
    main = kind(server.url, tmp_path)
    main.sync("5", write())
    kind(server.url, tmp_path, run_id=main.run_id).verify("5")


@both
def test_failed_save_leaves_nothing_and_asks_nothing(server, tmp_path, kind):
    def save(path):
        (path / "half").write_text("x")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        kind(server.url, tmp_path).sync("1", save)
    assert names(tmp_path) == []
    assert server.seen == []


@both
def test_silent_server_is_an_error_within_the_limit(server, tmp_path, kind):
    path = "/collective_rpc" if kind is CheckpointSync else "/v1/load_lora_adapter"
    server.faults[path].append(HANG)
    started = time.monotonic()
    with pytest.raises(GenerationError, match=rf"POST {server.url}{path} failed after \d\.\d s: ReadTimeout"):
        kind(server.url, tmp_path, timeout_seconds=0.5).sync("1", write())
    assert time.monotonic() - started < 20


@both
def test_limit_covers_all_calls_together(server, tmp_path, kind):
    for path in ("/update_weight_version", "/reset_prefix_cache", "/v1/models", "/v1/load_lora_adapter"):
        server.faults[path].append(0.25)
    started = time.monotonic()
    with pytest.raises(GenerationError, match=r"ReadTimeout|used up the 0.4 s"):
        kind(server.url, tmp_path, timeout_seconds=0.4).sync("1", write())
    assert time.monotonic() - started < 20


@both
def test_missing_server_is_named(tmp_path, kind):
    with FakeVLLM() as gone:
        pass
    sync = kind(gone.url, tmp_path)
    with pytest.raises(GenerationError, match=rf"{gone.url}/.* failed after .*ConnectError"):
        sync.sync("1", write())
    with pytest.raises(GenerationError, match=rf"{gone.url}/.* failed after .*ConnectError"):
        sync.verify("1")


@both
@pytest.mark.parametrize("version", ["", "../x", "a b", ".hidden"])
def test_versions_are_plain_words(server, tmp_path, kind, version):
    with pytest.raises(ValueError, match="a version holds"):
        kind(server.url, tmp_path).sync(version, write())
    assert names(tmp_path) == []


@both
def test_settings_that_cannot_work(tmp_path, kind):
    with pytest.raises(ConfigError, match="run_id"):
        kind("http://127.0.0.1:1", tmp_path, run_id="a/b")
    with pytest.raises(ConfigError, match="timeout_seconds"):
        kind("http://127.0.0.1:1", tmp_path, timeout_seconds=0)


@pytest.mark.parametrize("dev_mode", [True, False], ids=["development mode", "plain server"])
def test_an_adapter_needs_the_base_weights_it_belongs_to(server, tmp_path, dev_mode):
    CheckpointSync(server.url, tmp_path / "other", run_id="other").sync("9", write())
    server.dev_mode = dev_mode
    sync = LoRASync(server.url, tmp_path, run_id="run")
    if dev_mode:
        with pytest.raises(GenerationError, match=r"no longer has the base weights.*'weights-other-v-9'.*Restart it"):
            sync.sync("1", write())
        server.restart()
    sync.sync("1", write())
    sync.verify("1")


@both
def test_a_file_system_without_locks_does_not_keep_weights_from_a_restarted_server(server, tmp_path, monkeypatch, kind):
    def no_locks(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    sync = kind(server.url, tmp_path)
    sync.sync("1", write())
    monkeypatch.setattr("mintrl_trl.generation.weight_sync.fcntl.flock", no_locks)
    server.restart()
    assert sync.restore("1")
    sync.verify("1")
