"""Training against a policy server that takes its weights by name, over gloo where a run has NCCL."""

from functools import partial

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file

from mintrl_trl import ConfigError, GenerationError, served_policy, training_rows

from .fake_vllm import CUT, Status, events
from .served import COMPLETIONS, MODEL, Snapshots, posts, served_trainers, write
from .tiny_qwen import cached_qwen
from .weight_receiver import Channel, Receiver

INIT, UPDATE = "/init_weight_transfer_engine", "/update_weights"
SYNC = ["/update_weight_version", "/reset_prefix_cache", "/start_weight_update", UPDATE, "/finish_weight_update",
        "/reset_prefix_cache", "/update_weight_version"]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def model():
    with cached_qwen(MODEL):
        yield


@pytest.fixture
def server():
    with Receiver(MODEL) as fake:
        fake.script = write
        yield fake


@pytest.fixture
def channel(monkeypatch):
    """The trainer's end, on a machine that passes for one with a GPU."""
    channel = Channel()
    monkeypatch.setattr(training_rows, "check_device", lambda args: None)
    monkeypatch.setattr(served_policy, "GPUChannel", lambda device: channel)
    return channel


@pytest.fixture
def train(server, channel, tmp_path):
    """Makes trainers and closes them."""
    with served_trainers(server.url) as make:
        yield partial(make, tmp_path, weight_sync="nccl", use_cpu=False, dataloader_pin_memory=False)


@pytest.fixture
def trainer(train):
    return train()


def test_the_weights_of_every_update_arrive_as_a_checkpoint_would_hold_them(server, channel, trainer, tmp_path):
    got, finish = [], server._finish

    def finish_and_look(body):
        got.append(server.received)
        return finish(body)

    server._finish = finish_and_look
    snapshots = Snapshots()
    trainer.add_callback(snapshots)
    trainer.train()
    assert posts(server) == [INIT, *SYNC, COMPLETIONS, *SYNC, COMPLETIONS]
    for received, taken in zip(got, snapshots.taken, strict=False):
        for name, weight in received.items():
            assert torch.equal(weight, taken[name]), name
    changed = [name for name in got[0] if not torch.equal(got[0][name], got[1][name])]
    assert changed
    trainer.policy.served.sync("last")
    trainer.model.save_pretrained(tmp_path / "saved")
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert set(got[-1]) == set(saved)
    for name, weight in saved.items():
        assert torch.equal(got[-1][name], weight.cpu()), name
        assert got[-1][name].dtype == weight.dtype
    assert not (tmp_path / "weight_sync").exists()
    trainer.close()
    assert len(channel.abandoned) == 1


def test_a_refused_update_stops_the_run_with_the_words_of_the_server(server, channel, trainer):
    server.faults[UPDATE].extend([None, Status(500, "CUDA out of memory")])
    with pytest.raises(GenerationError, match=rf"{server.url}{UPDATE} answered 500 .*CUDA out of memory"):
        trainer.train()
    assert trainer.state.global_step == 1


def test_an_adapter_is_refused(train):
    with pytest.raises(ConfigError, match=r"`weight_sync` is 'nccl'\. Allowed: lora or auto .* trains an adapter"):
        train(peft_config=LoraConfig(r=2))


def test_a_server_lost_while_it_takes_weights_gets_them_again(server, channel, trainer):
    server.faults[UPDATE].append(CUT)
    trainer.train()
    assert trainer.state.global_step == 2
    assert channel.opened == 2


def test_a_server_restarted_in_the_middle_of_rollouts_gets_the_weights_before_it_goes_on(server, channel, trainer):
    broken, by = [], []

    def lose_everything(body):
        by.append(bool(server.received))
        if trainer.state.global_step == 1 and len(broken) < 8:
            broken.append(body)
            if len(broken) == 8:
                server.restart()
            return [*events(body["prompt"], [70, 71], finish=None), 0.05, CUT]
        return write(body)

    server.script = lose_everything
    trainer.train()
    assert trainer.state.global_step == 2
    assert all(by)
    assert channel.opened == 2
    last = [line for line in trainer.state.log_history if "server/restored" in line][-1]
    assert (last["server/restored"], last["server/continued"]) == (1, 8)
