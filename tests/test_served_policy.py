"""Training against a policy server: which weights it had when, and what happens where it refuses them."""

import time
from functools import partial
from itertools import groupby
from pathlib import Path

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file

from mintrl_trl import ConfigError, GenerationError
from mintrl_trl.reporting.run_folder import RunFolder
from mintrl_trl.rollouts.rollout import Author

from .fake_vllm import CUT, FakeVLLM, Status, events
from .served import COMPLETIONS, LOAD_ADAPTER, MODEL, RELOAD, Snapshots, posts, served_trainers, write
from .tiny_qwen import cached_qwen
from .trainers import assert_same_weights, weights

CHECKPOINT_SYNC = ["/update_weight_version", "/reset_prefix_cache", RELOAD, "/reset_prefix_cache"]


@pytest.fixture(scope="module", autouse=True)
def model():
    with cached_qwen(MODEL):
        yield


@pytest.fixture
def server():
    with FakeVLLM(MODEL) as fake:
        fake.script = write
        yield fake


@pytest.fixture
def train(server, tmp_path):
    """Makes trainers on the server and closes them; then no connection may be left."""
    with served_trainers(server.url) as make:
        yield partial(make, tmp_path)
    deadline = time.monotonic() + 5
    while server.open_connections and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.open_connections == 0


def test_full_weights_reach_the_server_before_each_batch(server, train, tmp_path):
    trainer, snapshots = train(weight_sync="checkpoint"), Snapshots()
    trainer.add_callback(snapshots)
    trainer.train()
    sync = [*CHECKPOINT_SYNC, "/update_weight_version", COMPLETIONS]
    assert posts(server) == sync * 2
    folders = [Path(body["kwargs"]["weights_path"]) for body in server.bodies(RELOAD)]
    assert [folder.name.rpartition("-v-")[2] for folder in folders] == ["update-0", "update-1"]
    for folder, taken in zip(folders, snapshots.taken, strict=False):
        assert_same_weights(load_file(folder / "model.safetensors"), taken)
    before, between, after = snapshots.taken
    for left, right in ((before, between), (between, after)):
        assert all(not torch.equal(left[name], right[name]) for name in left)
    versions = {
        (record.update, span.weight_version)
        for record in RunFolder(tmp_path).rollouts()
        for span in record.spans
        if span.author is Author.POLICY
    }
    assert versions == {(1, "update-0"), (2, "update-1")}
    assert {body["model"] for body in server.bodies(COMPLETIONS)} == {MODEL}


def test_each_update_has_an_adapter_of_its_own(server, train):
    trainer, snapshots = train(peft_config=LoraConfig(r=2)), Snapshots()
    trainer.add_callback(snapshots)
    trainer.train()
    assert posts(server) == [LOAD_ADAPTER, COMPLETIONS, LOAD_ADAPTER, "/v1/unload_lora_adapter", COMPLETIONS]
    first, second = server.bodies(LOAD_ADAPTER)
    assert list(server.adapters) == [second["lora_name"]]
    asked = [body["model"] for body in server.bodies(COMPLETIONS)]
    assert [name for name, _ in groupby(asked)] == [first["lora_name"], second["lora_name"]]
    for body, taken in zip((first, second), snapshots.taken, strict=False):
        files = load_file(Path(body["lora_path"]) / "adapter_model.safetensors")
        sent = {name.replace(".weight", ".default.weight"): value for name, value in files.items()}
        assert_same_weights(sent, {name: value for name, value in taken.items() if ".lora_" in name})


@pytest.mark.parametrize("peft_config", [None, LoraConfig(r=2)], ids=["full weights", "adapter"])
def test_two_servers_share_the_rollouts_and_have_the_same_weights(server, train, tmp_path, peft_config):
    with FakeVLLM(MODEL) as other:
        other.script = write
        trainer = train(vllm_server_base_url=f"{server.url}, {other.url}/", peft_config=peft_config)
        trainer.train()
        trainer.close()
        if peft_config is None:
            assert server.weights_path == other.weights_path
        else:
            assert server.adapters == other.adapters
            assert server.bodies(LOAD_ADAPTER) == other.bodies(LOAD_ADAPTER)
        for fake in (server, other):
            begun = [body for body in fake.bodies(COMPLETIONS) if len(body["prompt"]) == len("0+1=")]
            assert len(begun) == 8  # half of two batches
    versions = {span.weight_version for record in RunFolder(tmp_path).rollouts() for span in record.spans}
    assert versions == {"update-0", "update-1", "judge"}


def test_a_judge_on_the_server_of_full_weights_is_refused(server, train):
    judge = {"judge": "llm", "judge_base_url": f"{server.url}/v1"}
    with pytest.raises(ConfigError, match=r"`judge_base_url`.*another server than the policy's.*train an adapter"):
        train(**judge)
    train(**judge, peft_config=LoraConfig(r=2))  # the base model stays beside the adapter


def test_an_evaluation_uses_the_weights_that_are_there(server, train):
    trainer = train(max_steps=1, intervention_updates=1, num_generations_eval=4)
    trainer.train()
    synced = len(server.bodies(RELOAD))
    for _ in range(2):
        trainer.evaluate(trainer.train_dataset)
    assert len(server.bodies(RELOAD)) == synced + 1
    assert server.weight_version.endswith("-v-update-1")


@pytest.mark.parametrize(
    ("path", "peft_config"), [(RELOAD, None), (LOAD_ADAPTER, LoraConfig(r=2))], ids=["full weights", "adapter"]
)
@pytest.mark.parametrize("update", [0, 1])
def test_a_refused_sync_stops_the_run_with_the_words_of_the_server(server, train, path, peft_config, update):
    server.faults[path].extend([None] * update + [Status(500, "CUDA out of memory")])
    trainer, snapshots = train(peft_config=peft_config), Snapshots()
    trainer.add_callback(snapshots)
    with pytest.raises(GenerationError, match=rf"{server.url}{path} answered 500 .*CUDA out of memory"):
        trainer.train()
    assert trainer.state.global_step == update
    assert posts(server).count(COMPLETIONS) == update
    assert_same_weights(weights(trainer), snapshots.taken[update])


def test_training_again_starts_by_bringing_the_weights_it_starts_from(server, train):
    trainer = train(max_steps=1, intervention_updates=1, peft_config=LoraConfig(r=2), set_aside_older_run=True)
    trainer.train()
    between = weights(trainer)
    trainer.train()
    first, second = server.bodies(LOAD_ADAPTER)
    assert first["lora_name"] != second["lora_name"]  # the server's prefix cache goes by name and path
    sent = load_file(Path(second["lora_path"]) / "adapter_model.safetensors")
    name = next(name for name in sent if "lora_B" in name)
    assert torch.equal(sent[name], between[name.replace(".weight", ".default.weight")])
    assert server.bodies(COMPLETIONS)[-1]["model"] == second["lora_name"]


def test_a_server_that_lost_the_weights_gets_them_again(server, train):
    trainer = train()
    evaluation = trainer.train_dataset.select(range(2))
    trainer.evaluate(evaluation)
    first, asked = server.weights_path, len(server.bodies(COMPLETIONS))
    server.restart()
    trainer.evaluate(evaluation)
    assert (server.weights_path, server.weight_version.rpartition("-v-")[2]) == (first, "update-0")
    after = [seen.path for seen in server.seen if seen.path in (RELOAD, COMPLETIONS)][asked + 1 :]
    assert after[0] == RELOAD
    assert set(after[1:]) == {COMPLETIONS}


def test_a_server_that_another_run_took_stops_the_run(server, train):
    trainer = train()
    evaluation = trainer.train_dataset.select(range(2))
    trainer.evaluate(evaluation)
    server.weight_version = "weights-other-v-update-7"
    with pytest.raises(GenerationError, match=rf"{server.url} serves weight version 'weights-other-v-update-7'"):
        trainer.evaluate(evaluation)


@pytest.mark.parametrize("peft_config", [None, LoraConfig(r=2)], ids=["full weights", "adapter"])
def test_a_server_restarted_in_the_middle_of_rollouts_gets_the_weights_before_it_goes_on(server, train, peft_config):
    """All streams of the second update break off after two tokens; the server comes back with the base weights."""
    broken, by = [], []

    def lose_everything(body):
        by.append((body["model"], server.weights_path, dict(server.adapters)))
        answer = write(body)
        if trainer.state.global_step == 1 and len(broken) < 8:
            broken.append(body)
            if len(broken) == 8:
                server.restart()
            return [*events(body["prompt"], [70, 71], finish=None), 0.05, CUT]
        return answer

    server.script = lose_everything
    trainer = train(peft_config=peft_config)
    trainer.train()
    assert trainer.state.global_step == 2
    went_on = [body["prompt"][-2:] for body in server.bodies(COMPLETIONS)].count([70, 71])
    assert went_on >= 8
    for model, path, adapters in by[by.index(by[-1]) :]:
        assert path if peft_config is None else model in adapters
    last = [line for line in trainer.state.log_history if "server/restored" in line][-1]
    assert (last["server/restored"], last["server/continued"], last["server/repeated"]) == (1, 8, 0)


@pytest.mark.parametrize(
    ("weight_sync", "peft_config", "allowed"),
    [("lora", None, "checkpoint, nccl or auto for a model that trains full weights"),
     ("checkpoint", LoraConfig(r=2), "lora or auto for a model that trains an adapter")],
    ids=["full weights", "adapter"],
)  # fmt: skip
def test_a_way_of_syncing_that_does_not_go_with_the_model_is_refused(train, weight_sync, peft_config, allowed):
    with pytest.raises(ConfigError, match=f"`weight_sync` is '{weight_sync}'. Allowed: {allowed}"):
        train(weight_sync=weight_sync, peft_config=peft_config)


def test_a_server_of_another_model_is_refused(server, train):
    server.model = "other"
    with pytest.raises(ConfigError, match=f"`model` is '{MODEL}'.*'other'.*--served-model-name {MODEL}"):
        train()


@pytest.mark.filterwarnings("ignore:Could not find a config file")  # of PEFT, which asks the hub when it saves
@pytest.mark.parametrize("peft_config", [None, LoraConfig(r=2)], ids=["full weights", "adapter"])
def test_a_run_that_goes_on_first_brings_its_own_weights(server, train, tmp_path, peft_config):
    """S08: never the server's. S07: an adapter goes as an adapter each time, and is not added to the base twice."""
    saving = {"save_strategy": "steps", "save_steps": 1, "max_steps": 4, "intervention_updates": 3}
    train(peft_config=peft_config, resumable_checkpoints=4, **saving).train()
    uninterrupted = len(server.seen)
    server.restart()
    trainer, snapshots = train(peft_config=peft_config, resumable_checkpoints=4, **saving), Snapshots()
    trainer.add_callback(snapshots)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    weights_file = "model.safetensors" if peft_config is None else "adapter_model.safetensors"
    path = RELOAD if peft_config is None else LOAD_ADAPTER
    told = [seen.path for seen in server.seen[uninterrupted:] if seen.method == "POST"]
    assert told.index(path) < told.index(COMPLETIONS)
    bodies = server.bodies(path)
    folders = [Path(body["kwargs"]["weights_path"] if peft_config is None else body["lora_path"]) for body in bodies]
    assert [folder.name.rpartition("-v-")[2] for folder in folders] == [f"update-{n}" for n in (0, 1, 2, 3, 2, 3)]
    for folder, update in zip(folders[-2:], (2, 3), strict=True):
        saved = load_file(tmp_path / f"checkpoint-{update}" / weights_file)
        assert_same_weights(load_file(folder / weights_file), saved)
    again = {(record.update, record.row): record.ids for record in RunFolder(tmp_path).rollouts()}
    before = {(record.update, record.row): record.ids for record in RunFolder(tmp_path / "abandoned-1").rollouts()}
    assert before and before.items() <= again.items()
