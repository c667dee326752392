"""A scripted vLLM server that takes weights from a channel, and the channel, over gloo in place of NCCL.

Both ends meet in this process as ranks of real gloo groups, so that a broadcast whose other end is missing blocks as
one over NCCL does, until gloo's own limit.
"""

import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .fake_vllm import FakeVLLM

GLOO_SECONDS = 3.0  # ends threads that a test left behind
STORES: dict[int, dist.Store] = {}
GROUPS: list[dist.ProcessGroup] = []  # kept: the end of a group waits for its broadcasts, and holds the interpreter
WORK: list[dist.Work] = []


def group(port: int, rank: int, places: int) -> dist.ProcessGroup:
    made = dist.ProcessGroupGloo(STORES[port], rank, places, timedelta(seconds=GLOO_SECONDS))
    GROUPS.append(made)
    return made


class Channel:
    """The trainer's end. `before_open` and `before_send` are called on the sending thread, to fail or to wait there."""

    def __init__(self):
        self.before_open = self.before_send = lambda: None
        self.opened, self.abandoned = 0, []
        self.threads: list[threading.Thread] = []

    def invitation(self, places: int) -> dict[str, Any]:
        port = 20000 + len(STORES)
        STORES[port] = dist.HashStore()
        return {"master_address": "127.0.0.1", "master_port": port, "rank_offset": 1, "world_size": places}

    def manifest(self, weights: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        return {
            "names": list(weights),
            "dtype_names": [str(weight.dtype).removeprefix("torch.") for weight in weights.values()],
            "shapes": [list(weight.shape) for weight in weights.values()],
        }

    def open(self, invitation: dict[str, Any]) -> dist.ProcessGroup:
        self.threads.append(threading.current_thread())
        self.before_open()
        self.opened += 1
        return group(invitation["master_port"], 0, invitation["world_size"])

    def send(self, group: dist.ProcessGroup, weights: Mapping[str, torch.Tensor]) -> None:
        self.threads.append(threading.current_thread())
        self.before_send()
        for weight in weights.values():
            work = group.broadcast(weight.detach().clone(), 0)
            WORK.append(work)
            while not work.is_completed():
                if group in self.abandoned:  # gloo cannot abort; NCCL ends its kernels
                    raise RuntimeError("NCCL communicator was aborted")
                time.sleep(0.01)
            work.wait()

    def abandon(self, group: dist.ProcessGroup) -> None:
        self.abandoned.append(group)


class FileChannel(Channel):
    """A channel to a server in another process, which takes no part: what is sent lies in `folder`, in order."""

    def __init__(self, folder: Path):
        super().__init__()
        self.folder = folder

    def open(self, invitation: dict[str, Any]) -> str:
        return "the group"

    def send(self, group: str, weights: Mapping[str, torch.Tensor]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        torch.save(dict(weights), self.folder / f"sent-{len(list(self.folder.iterdir()))}.pt")

    def abandon(self, group: str) -> None:
        self.abandoned.append(group)


class Receiver(FakeVLLM):
    """A server with one worker. `received` are the weights it serves, `active` whether an update is under way."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.transfer = {"backend": "nccl"}

    def restart(self) -> None:
        super().restart()
        self.group, self.active, self.received = None, False, {}

    def _control(self, seen) -> tuple[int, Any]:
        route = {
            ("GET", "/get_world_size"): self._world_size,
            ("POST", "/init_weight_transfer_engine"): self._join,
            ("POST", "/start_weight_update"): self._start,
            ("POST", "/update_weights"): self._update,
            ("POST", "/finish_weight_update"): self._finish,
        }.get((seen.method, seen.path))
        if route is None or not self.dev_mode:
            return super()._control(seen)
        try:
            return 200, route(seen.body or {})
        except Exception as error:  # as vLLM's handler words what a worker raises
            return 500, {"error": {"message": str(error), "type": "InternalServerError", "code": 500}}

    def _world_size(self, body: dict) -> dict:
        return {"world_size": 1}

    def _join(self, body: dict) -> dict:
        info = body["init_info"]
        self.group = group(info["master_port"], info["rank_offset"], info["world_size"])
        return {"message": "Weight transfer initialized"}

    def _start(self, body: dict) -> dict:
        if self.active:
            raise RuntimeError("start_weight_update called while a weight update is already active.")
        self.active = True
        return {"message": "Weight update started"}

    def _update(self, body: dict) -> dict:
        info, received = body["update_info"], {}
        if self.group is None:
            raise RuntimeError("NCCL weight transfer not initialized.")
        for name, dtype, shape in zip(info["names"], info["dtype_names"], info["shapes"], strict=True):
            received[name] = torch.empty(shape, dtype=getattr(torch, dtype))
            self.group.broadcast(received[name], 0).wait()
        self.received = received
        return {"message": "Weights updated"}

    def _finish(self, body: dict) -> dict:
        if not self.active:
            raise RuntimeError("finish_weight_update called without a matching start_weight_update.")
        self.active = False
        return {"message": "Weight update finished"}
