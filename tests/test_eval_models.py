"""What a person may name to be evaluated, and how it is told apart: hub ids, folders, adapters, checkpoints, runs."""

import json
import shutil

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from mintrl_trl.checkpoints import write_mark
from mintrl_trl.data.chains import BOS_ID, EOS_ID, base_model_path
from mintrl_trl.errors import CheckpointError, ConfigError
from mintrl_trl.eval_models import EvalModel, Servers, find_models, local_generator
from mintrl_trl.rollouts.loop import shared_loop

from .fake_vllm import FakeVLLM


def copy_of_base(path, update: int | None = None):
    """A copy of the small world's model; as a checkpoint, with other weights for each update."""
    shutil.copytree(base_model_path(), path)
    if update is not None:
        tensors = load_file(path / "model.safetensors")
        name = min(tensors)
        tensors[name] = tensors[name] + update
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        write_mark(path, update, resumable=False)
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "mine"
    for update in (100, 50):
        copy_of_base(run / f"checkpoint-{update}", update)
    shutil.copytree(base_model_path(), run / "checkpoint-150")  # half: no mark
    return run


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapter") / "mine"
    model = AutoModelForCausalLM.from_pretrained(base_model_path())
    model = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False))
    model.save_pretrained(folder)
    return folder, model.eval()


def test_a_run_stands_for_its_whole_checkpoints_oldest_first(run):
    models = find_models([str(run)])
    assert [(model.label, model.run, model.update) for model in models] == [
        ("mine/checkpoint-50", "mine", 50),
        ("mine/checkpoint-100", "mine", 100),
    ]
    assert [model.slug for model in models] == ["mine--checkpoint-50", "mine--checkpoint-100"]
    assert len({model.fingerprint for model in models}) == 2
    (one,) = find_models([str(run / "checkpoint-50")])
    assert (one.label, one.run, one.update, one.fingerprint) == (
        "mine/checkpoint-50",
        "mine",
        50,
        models[0].fingerprint,
    )


def test_a_folder_and_a_hub_id_are_what_they_say(run):
    folder, hub = find_models([str(base_model_path()), "Qwen/Qwen3-1.7B"])
    assert (folder.label, folder.run, folder.update, folder.is_adapter) == ("chains_base", "", None, False)
    assert (hub.label, hub.folder, hub.slug) == ("Qwen/Qwen3-1.7B", None, "Qwen--Qwen3-1.7B")
    assert folder.positions >= 52
    assert folder.vocabulary.end_ids == {EOS_ID}
    assert folder.vocabulary.size == folder.config.vocab_size


def test_the_fingerprint_is_of_weights_alone(tmp_path):
    first = EvalModel("first", str(copy_of_base(tmp_path / "first")))
    second = EvalModel("second", str(copy_of_base(tmp_path / "second")))
    (tmp_path / "second" / "README.md").write_text("another")
    assert first.fingerprint == second.fingerprint


def test_large_files_are_known_by_pieces_of_them(tmp_path):
    def fingerprint(place: int) -> str:
        data = bytearray(40 << 20)
        data[place] = 1
        (tmp_path / "model.safetensors").write_bytes(data)
        return EvalModel("large", str(tmp_path)).fingerprint

    assert len({fingerprint(place) for place in (0, (40 << 20) - 1, 19 << 20)}) == 3


@pytest.mark.parametrize("name", ["/no/such/folder", "runs/none", "models/none", "./none", "a/b/c"])
def test_a_path_that_is_not_there(name):
    with pytest.raises(ConfigError, match=r"`model` is .* a checkpoint or a run"):
        find_models([name])


def test_folders_without_a_model(tmp_path, run):
    with pytest.raises(ConfigError, match="a folder with weights"):
        find_models([str(tmp_path)])
    with pytest.raises(ConfigError, match="each model once"):
        find_models([str(run), str(run / "checkpoint-50")])
    sharded = tmp_path / "checkpoint-7"
    (sharded / "pytorch_model_fsdp_0").mkdir(parents=True)
    write_mark(sharded, 7, resumable=True)
    with pytest.raises(CheckpointError, match=f"mintrl export {sharded}"):
        find_models([str(sharded)])
    with pytest.raises(ConfigError, match="a folder or hub id that loads"):
        _ = EvalModel("x", str(tmp_path)).config


def test_an_adapter_runs_on_its_base_model(adapter):
    folder, trained = adapter
    (model,) = find_models([str(folder)])
    assert model.is_adapter
    assert model.base == str(base_model_path())
    ids = [BOS_ID, 5, 6, 7, 8]
    with local_generator(model, temperature=1.0, max_batch=4, dtype="float32", device="cpu") as generator:
        logps = shared_loop().run(generator.score(ids[:1], ids[1:]))
    with torch.no_grad():
        logits = trained(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
    assert logps == pytest.approx([logits[place, token].item() for place, token in enumerate(ids[1:])], abs=1e-4)


def test_weights_that_are_damaged_are_no_traceback(tmp_path):
    copy_of_base(tmp_path / "cut")
    with open(tmp_path / "cut" / "model.safetensors", "rb+") as file:
        file.truncate(1000)
    (model,) = find_models([str(tmp_path / "cut")])
    with pytest.raises(ConfigError, match="that loads"), local_generator(model, temperature=1.0, max_batch=1):
        pass


def test_an_adapter_without_a_base(adapter, tmp_path):
    shutil.copytree(adapter[0], tmp_path / "lost")
    config = tmp_path / "lost" / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": None}))
    with pytest.raises(ConfigError, match="an adapter that names its base model"):
        _ = find_models([str(tmp_path / "lost")])[0].base


def ask(generator) -> list[int]:
    async def read():
        return [token.id async for token in generator.stream([BOS_ID, 5], 3, seed=1)]

    return shared_loop().run(read())


def served(server: FakeVLLM, model: EvalModel, served_name: str | None = None, room: int = 52) -> str:
    """Sample once on a server; the model that it was asked for."""
    servers = Servers([server.url], served_name, wait_seconds=5, temperature=1.0, top_p=1.0, max_concurrency=4)
    with servers.generator(model, 10, room) as generator:
        assert ask(generator)
    return server.bodies("/v1/completions")[-1]["model"]


def test_a_model_that_a_server_has_is_used_as_it_is(run):
    (model,) = find_models([str(base_model_path())])
    with FakeVLLM(model.name) as server:
        assert served(server, model) == model.name
        assert server.weights_path is None
    with FakeVLLM("by another name") as server:
        assert served(server, model, "by another name") == "by another name"
        assert server.weights_path is None


def test_checkpoints_are_brought_to_a_server_one_after_the_other(run):
    with FakeVLLM("base") as server:
        for model in find_models([str(run)]):
            assert served(server, model) == "base"
            assert server.weights_path == str(model.folder)
            assert model.fingerprint in server.weight_version


def test_a_server_whose_weights_were_replaced_is_found_out(run):
    (base,) = find_models([str(base_model_path())])
    (checkpoint, _) = find_models([str(run)])
    with FakeVLLM(base.name) as server:
        served(server, checkpoint)
        assert server.weights_path == str(checkpoint.folder)
        assert served(server, base) == base.name
        assert server.weights_path == str(base.folder), "a folder is brought back"
        with pytest.raises(ConfigError, match=r"a server with the weights it was started with.*restart"):
            served(server, checkpoint, base.name)
    with FakeVLLM(base.name, dev_mode=False) as server:
        assert served(server, base) == base.name


def test_an_adapter_is_brought_beside_its_base_model(adapter):
    (model,) = find_models([str(adapter[0])])
    with FakeVLLM("base") as server:
        name = served(server, model)
        assert server.adapters == {name: str(model.folder)}
        assert server.weights_path is None


def test_two_servers_share_the_samples(run):
    (model, _) = find_models([str(run)])
    with FakeVLLM("base") as one, FakeVLLM("base") as other:
        servers = Servers([one.url, other.url], wait_seconds=5, temperature=1.0, top_p=1.0, max_concurrency=4)
        with servers.generator(model, 10, 52) as generator:
            for _ in range(2):
                with generator.for_rollout() as own:
                    ask(own)
        assert [server.weights_path for server in (one, other)] == [str(model.folder)] * 2
        assert len(one.bodies("/v1/completions")) + len(other.bodies("/v1/completions")) == 2


def test_servers_that_do_not_have_the_model(run):
    hub = EvalModel("org/name", "org/name")
    hub.__dict__["vocabulary"] = find_models([str(run)])[0].vocabulary  # no hub is asked
    with FakeVLLM("base") as server:
        with pytest.raises(ConfigError, match=r"`base_url`.*serves: 'base'.*--model org/name"):
            served(server, hub)
        with pytest.raises(ConfigError, match="--served-name"):
            served(server, find_models([str(run)])[0], "nothing")
        with pytest.raises(ConfigError, match="at most 4096"):
            served(server, find_models([str(run)])[0], room=5000)


def test_the_small_worlds_base_model_has_a_name():
    (named,), (path,) = find_models(["chains_base"]), find_models([str(base_model_path())])
    assert named == path
    assert (named.label, named.folder) == ("chains_base", base_model_path())


def test_a_name_that_is_no_folder_and_no_hub_id_is_refused_at_once():
    with pytest.raises(ConfigError, match="chains_base, the small world's"):
        find_models(["chains-base"])
