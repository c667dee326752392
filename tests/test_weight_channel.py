"""The trainer's end over vLLM's functions, which stand in here under the names that TRL gives them."""

import contextlib
import inspect
from types import SimpleNamespace

import pytest
import torch

from mintrl_trl import trl_seams
from mintrl_trl.config import MInTRLConfig
from mintrl_trl.config_combinations import check_device
from mintrl_trl.errors import ConfigError
from mintrl_trl.weight_channel import GPUChannel

from .trainers import settings

WEIGHTS = {"a": torch.ones(2, 3, requires_grad=True), "b": torch.zeros(4, dtype=torch.bfloat16)}
MANIFEST = {"names": ["a", "b"], "dtype_names": ["float32", "bfloat16"], "shapes": [[2, 3], [4]]}
INVITATION = {"master_address": "10.0.0.1", "master_port": 5000, "rank_offset": 1, "world_size": 3}
CUDA = torch.device("cuda", 1)


@pytest.fixture
def upstream():
    """TRL's module, which its own notice of being experimental would stop here."""
    trl_seams.weight_transfer()
    from trl.experimental.async_grpo import weight_transfer

    return weight_transfer


@pytest.fixture(params=[True, False], ids=["vLLM 0.28 and later", "before"])
def vllm(request, upstream, monkeypatch):
    """What was called, with vLLM's functions of either kind in TRL's module."""
    calls = SimpleNamespace(stateful=request.param, opened=[], sent=[])

    def opened(info):
        calls.opened.append(info)
        return "the group"

    def sent(iterator, group, src=0, post_iter_func=lambda pair: pair[1]):
        calls.sent.append((group, src, [(pair[0], post_iter_func(pair)) for pair in iterator]))

    engine = SimpleNamespace(
        trainer_init=opened,
        trainer_send_weights=lambda iterator, trainer_args: sent(iterator, trainer_args.group),
    )
    names = {"get_ip": lambda: "10.0.0.1", "get_open_port": lambda: 5000}
    if request.param:
        names |= {"open_trainer_endpoint": opened, "packed_nccl_broadcast_producer": sent}
    else:
        names |= {"NCCLWeightTransferEngine": engine, "NCCLTrainerSendWeightsArgs": SimpleNamespace}
    for name, value in names.items():
        monkeypatch.setattr(upstream, name, value, raising=False)
    monkeypatch.setattr(upstream, "_HAS_STATEFUL_TRAINER_ENGINE", request.param)
    return calls


@pytest.fixture
def devices(monkeypatch):
    """A machine with GPUs, as far as the channel looks: which devices were entered, and what was waited for."""
    seen = []

    @contextlib.contextmanager
    def device(which):
        seen.append(which)
        yield

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: seen.append("synchronized"))
    return seen


def test_all_goes_out_from_the_trainers_device_after_its_update(vllm, devices):
    channel = GPUChannel(CUDA)
    packed = {"packed": True}
    invitation = channel.invitation(3)
    assert invitation == INVITATION | (packed if vllm.stateful else {})
    assert channel.manifest(WEIGHTS) == MANIFEST | ({} if vllm.stateful else packed)
    assert channel.open(invitation) == "the group"
    assert vllm.opened == [invitation]
    channel.device = torch.device("cpu")  # where tensors may go
    channel.send("the group", WEIGHTS)
    ((group, src, pairs),) = vllm.sent
    assert (group, src) == ("the group", 0)
    assert [name for name, _ in pairs] == ["a", "b"]
    for name, tensor in pairs:
        assert torch.equal(tensor, WEIGHTS[name])
        assert not tensor.requires_grad
    assert devices == [CUDA, "synchronized", torch.device("cpu"), "synchronized"]


@pytest.mark.parametrize("can_abort", [True, False])
def test_a_group_that_is_given_up_is_aborted_and_its_port_is_free(vllm, can_abort):
    aborted = []
    group = SimpleNamespace(group=SimpleNamespace(store=1, socket=2))
    if can_abort:
        group.destroy = lambda: aborted.append(True)
    GPUChannel(CUDA).abandon(group)
    assert aborted == [True] * can_abort
    assert (group.group.store, group.group.socket) == (None, None)


def test_a_trainer_on_a_cpu_and_one_without_vllm_are_refused(monkeypatch):
    with pytest.raises(ConfigError, match="the trainer is on 'cpu': NCCL needs CUDA"):
        GPUChannel(torch.device("cpu"))
    monkeypatch.setattr(trl_seams, "weight_transfer", lambda: None)
    with pytest.raises(ConfigError, match=r"vLLM is not installed.*pip install 'mintrl_trl\[vllm\]'"):
        GPUChannel(CUDA)


def test_a_machine_without_cuda_is_refused_before_a_model_loads(monkeypatch, tmp_path):
    server = {"use_vllm": True, "vllm_server_base_url": "http://localhost:8000"}
    args = MInTRLConfig(str(tmp_path), **settings(use_cpu=False, weight_sync="nccl", **server))
    with_files = MInTRLConfig(str(tmp_path), **settings(use_cpu=False, **server))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"`weight_sync` is 'nccl'\. Allowed: .* on a machine without CUDA"):
        check_device(args)
    check_device(with_files)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    check_device(args)


def test_upstreams_client_still_does_what_ours_does(upstream):
    """The calls, and vLLM's functions by version, are read off TRL's own client."""
    client = upstream.WeightTransferClient
    text = inspect.getsource(client)
    for name in (
        "get_ip()",
        "get_open_port()",
        '"rank_offset": 1',
        'init_info["packed"] = True',
        '"packed": True}',
        "open_trainer_endpoint(init_info)",
        "NCCLWeightTransferEngine.trainer_init(init_info)",
        "packed_nccl_broadcast_producer(",
        "post_iter_func=lambda item: item[1]",
        "NCCLTrainerSendWeightsArgs(group=self.model_update_group, packed=True)",
        "model_update_group.group.store = None",
    ):
        assert name in text, name
    routes = inspect.getsource(upstream.VLLMClient)
    for route in (
        "/get_world_size",
        "/init_weight_transfer_engine",
        "/start_weight_update",
        "/update_weights",
        "/finish_weight_update",
        '"is_checkpoint_format": True',
    ):
        assert route in routes, route


def test_without_vllm_upstream_names_none_of_its_functions(upstream):
    assert (trl_seams.weight_transfer() is None) == (not hasattr(upstream, "get_ip"))
