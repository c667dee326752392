"""Plain folders from checkpoints of every kind: they load, with the weights of the run."""

import json
import shutil

import pytest
import torch
from peft import AutoPeftModelForCausalLM, LoraConfig
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from mintrl_trl import ConfigError, cli
from mintrl_trl.errors import CheckpointError
from mintrl_trl.export import export_checkpoint
from tests.tiny import tiny_model, tiny_tokenizer
from tests.trainers import assert_same_weights, make_trainer

SAVING = {"save_strategy": "steps", "save_steps": 1, "max_steps": 3, "intervention_updates": 1, "save_total_limit": 9}
PROMPT = torch.tensor([[1, 5, 9, 12, 7]])


def logits(model):
    with torch.no_grad():
        return model.float().eval()(PROMPT).logits


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """A run of all weights: its first checkpoint is thinned, its last is not. And the trained model."""
    folder = tmp_path_factory.mktemp("full")
    trainer = make_trainer(folder, **SAVING)
    trainer.train()
    return folder, tiny_like(trainer.model)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapter")
    tiny_model(seed=3).save_pretrained(folder / "base")
    tiny_tokenizer().save_pretrained(folder / "base")
    trainer = make_trainer(
        folder / "run",
        model=str(folder / "base"),
        trainer_kwargs={"peft_config": LoraConfig(r=2, lora_alpha=8, target_modules=["q_proj", "v_proj"])},
        **SAVING,
    )
    trainer.train()
    merged = trainer.model.merge_and_unload()
    return folder, tiny_like(merged)


def weights_of(model):
    return dict(model.named_parameters())


def tiny_like(model):
    copy = tiny_model()
    copy.load_state_dict(model.state_dict())
    return copy


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_all_weights(full, tmp_path, dtype):
    folder, trained = full
    out = export_checkpoint(folder / "checkpoint-3", tmp_path / "deep" / "out", dtype=dtype)
    model = AutoModelForCausalLM.from_pretrained(out)
    assert model.dtype == getattr(torch, dtype)
    assert_same_weights(weights_of(model), weights_of(tiny_like(trained).to(model.dtype)))
    assert AutoTokenizer.from_pretrained(out)("1+1=")["input_ids"] == tiny_tokenizer()("1+1=")["input_ids"]
    names = {path.name for path in out.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert not names & {"optimizer.pt", "trainer_state.json", "complete.json", "mintrl_state.json"}
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_a_thinned_checkpoint(full, tmp_path):
    folder, _ = full
    assert not (folder / "checkpoint-1" / "optimizer.pt").exists()
    out = export_checkpoint(folder / "checkpoint-1", tmp_path / "out", dtype="float32")
    thinned = load_file(folder / "checkpoint-1" / "model.safetensors")
    model = AutoModelForCausalLM.from_pretrained(out)
    assert model.dtype == torch.float32
    for name, tensor in thinned.items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(model.state_dict()[name], tensor.float())
    assert AutoModelForCausalLM.from_pretrained(folder / "checkpoint-1").dtype == torch.bfloat16


@pytest.mark.parametrize("number", [1, 3], ids=["thinned", "whole"])
def test_an_adapter_as_it_is(adapter, tmp_path, number):
    folder, _ = adapter
    out = export_checkpoint(folder / "run" / f"checkpoint-{number}", tmp_path / "out")
    tensors = load_file(out / "adapter_model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert {"adapter_config.json", "tokenizer.json"} <= {path.name for path in out.iterdir()}
    assert not (out / "complete.json").exists()
    model = AutoPeftModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    saved = load_file(folder / "run" / f"checkpoint-{number}" / "adapter_model.safetensors")
    assert torch.equal(tensors[name := next(iter(saved))], saved[name].bfloat16())
    assert logits(model).isfinite().all()


def test_an_adapter_merged(adapter, tmp_path):
    folder, trained = adapter
    out = export_checkpoint(folder / "run" / "checkpoint-3", tmp_path / "out", dtype="float32", merge=True)
    model = AutoModelForCausalLM.from_pretrained(out)
    torch.testing.assert_close(logits(model), logits(trained))
    assert not torch.equal(logits(model), logits(tiny_model(seed=3)))
    assert not (out / "adapter_config.json").exists()


def test_a_base_that_has_moved(adapter, tmp_path):
    folder, trained = adapter
    checkpoint = tmp_path / "checkpoint-3"
    shutil.copytree(folder / "run" / "checkpoint-3", checkpoint)
    config = json.loads((checkpoint / "adapter_config.json").read_text())
    for named in (None, "gone/away"):
        (checkpoint / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": named}))
        with pytest.raises(ConfigError, match="on the command line --base"):
            export_checkpoint(checkpoint, tmp_path / "out", merge=True)
        assert not (tmp_path / "out").exists()
    out = export_checkpoint(checkpoint, tmp_path / "out", dtype="float32", merge=True, base=str(folder / "base"))
    torch.testing.assert_close(logits(AutoModelForCausalLM.from_pretrained(out)), logits(trained))


def test_what_cannot_be_exported(full, tmp_path):
    folder, _ = full
    good = folder / "checkpoint-3"
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(ConfigError, match="a folder that does not exist yet, or is empty"):
        export_checkpoint(good, tmp_path / "taken")
    with pytest.raises(ConfigError, match="'bfloat16' or 'float32'"):
        export_checkpoint(good, tmp_path / "out", dtype="int8")
    with pytest.raises(ConfigError, match="unset for a checkpoint of all weights"):
        export_checkpoint(good, tmp_path / "out", merge=True)
    with pytest.raises(CheckpointError, match="does not exist"):
        export_checkpoint(folder / "checkpoint-9", tmp_path / "out")
    with pytest.raises(CheckpointError, match=r"folder of a run. Name one of its checkpoints: .*checkpoint-3"):
        export_checkpoint(folder, tmp_path / "out")
    with pytest.raises(ConfigError, match="a folder outside of the checkpoint"):
        export_checkpoint(good, good / "plain")
    with pytest.raises(ConfigError, match="a folder that can be made"):
        export_checkpoint(good, tmp_path / "taken" / "file" / "out")
    half = tmp_path / "checkpoint-4"
    half.mkdir()
    (half / "model.safetensors").touch()
    with pytest.raises(CheckpointError, match="no completion mark"):
        export_checkpoint(half, tmp_path / "out")
    (half / "model.safetensors").unlink()
    (half / "complete.json").write_text('{"update": 4, "resumable": true, "files": {}}')
    with pytest.raises(CheckpointError, match="only DeepSpeed reads"):
        export_checkpoint(half, tmp_path / "out")


def test_the_command(full, tmp_path, capsys):
    folder, _ = full
    assert cli.main(["export", str(folder / "checkpoint-2"), str(tmp_path / "out"), "--dtype", "float32"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'out'}\n"
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").dtype == torch.float32
    assert cli.main(["export", str(folder / "checkpoint-2"), str(tmp_path / "out")]) == 2
    assert "mintrl export: `OUT` is " in capsys.readouterr().err
    assert cli.main(["export", str(folder / "checkpoint-7"), str(tmp_path / "new")]) == 2
    assert "does not exist" in capsys.readouterr().err
