"""The trainer's end of a transfer of weights from GPU to GPU: vLLM's functions, as TRL picks them by version.

Owns the device that sends and the streams it waits for. It makes no server call and has no time limit: that is
[`nccl_sync`][mintrl_trl.generation.nccl_sync]'s. Invariant: nothing is sent before the update that made the weights has
ended on the device.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from . import trl_seams
from .errors import ConfigError


class GPUChannel:
    """A [`WeightChannel`][mintrl_trl.generation.nccl_sync.WeightChannel] over NCCL.

    Args:
        device (`torch.device`): The GPU that sends.

    Raises:
        ConfigError: It is no CUDA device, or vLLM is not installed beside the trainer.
    """

    def __init__(self, device: torch.device):
        if device.type != "cuda":
            allowed = f"auto, checkpoint or lora where the trainer is on {device.type!r}: NCCL needs CUDA"
            raise ConfigError("weight_sync", "nccl", allowed, "set weight_sync='auto'")
        self.device = device
        self._vllm = trl_seams.weight_transfer()
        if self._vllm is None:
            allowed = "auto, checkpoint or lora where vLLM is not installed in the trainer's own environment"
            fix = "run pip install 'mintrl_trl[vllm]' there, or set weight_sync='auto'"
            raise ConfigError("weight_sync", "nccl", allowed, fix)

    def invitation(self, places: int) -> dict[str, Any]:
        """This machine's address as vLLM finds it (`VLLM_HOST_IP` names another), and a free port."""
        info = {
            "master_address": self._vllm.get_ip(),
            "master_port": self._vllm.get_open_port(),
            "rank_offset": 1,
            "world_size": places,
        }
        return info | ({"packed": True} if self._vllm.packs_by_group else {})

    def manifest(self, weights: Mapping[str, Tensor]) -> dict[str, Any]:
        """Names, dtypes and shapes, in the order in which `send` goes."""
        info = {
            "names": list(weights),
            "dtype_names": [str(weight.dtype).removeprefix("torch.") for weight in weights.values()],
            "shapes": [list(weight.shape) for weight in weights.values()],
        }
        return info | ({} if self._vllm.packs_by_group else {"packed": True})

    def open(self, invitation: dict[str, Any]) -> Any:
        """The group, once all workers have come."""
        with self._on_device():
            return self._vllm.open_group(invitation)

    def send(self, group: Any, weights: Mapping[str, Tensor]) -> None:
        """Broadcast the weights in packs; those that were gathered to the CPU pass through the GPU one by one."""
        with self._on_device():
            self._vllm.send(((name, weight.detach().to(self.device)) for name, weight in weights.items()), group)

    def abandon(self, group: Any) -> None:
        """Abort the communicator, where this vLLM can, and free the port that its workers met at."""
        if hasattr(group, "destroy"):
            group.destroy()
        group.group.store = group.group.socket = None

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        """A new thread begins on the first device, and its streams do not wait for those of the update."""
        with torch.cuda.device(self.device), torch.no_grad():
            torch.cuda.synchronize()
            yield
