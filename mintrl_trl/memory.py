"""How much memory an update took, what it is made of, and what to change when it does not fit.

It reads counters of the device or of the operating system and does sums. It changes no setting. Sizes are bytes of this
process; of a sharded tensor only its own shard counts. Invariant: what the system does not tell is `None`, never 0.
"""

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

LIMIT_SHARE = 0.9  # of what there is: fragmentation and longer-lived buffers need the rest
_GIB = 2**30


class DeviceMemory:
    """A CUDA device, as PyTorch's allocator sees it.

    Args:
        device (`torch.device`): Which.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.name = torch.cuda.get_device_name(device)

    def reset(self) -> None:
        """Begin anew with the peak."""
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)

    def held(self) -> int:
        """Bytes of tensors now."""
        return torch.cuda.memory_allocated(self.device)

    def peak(self) -> int:
        """Bytes of tensors at most since `reset`."""
        torch.cuda.synchronize(self.device)
        return torch.cuda.max_memory_allocated(self.device)

    def reserved(self) -> int | None:
        """Bytes that the allocator held at most since `reset`, unused blocks included."""
        return torch.cuda.max_memory_reserved(self.device)

    def room(self) -> int | None:
        """Bytes that tensors may take in all: the device without what other processes, and CUDA itself, hold."""
        free, _ = torch.cuda.mem_get_info(self.device)
        return free + torch.cuda.memory_reserved(self.device)


class ProcessMemory:
    """The resident memory of this process, as Linux counts it; elsewhere only its peak is known.

    What was freed may stay resident and be used again: activations can look smaller than they are; the peak is right.

    Args:
        processes (`int`): Processes of the run on this machine, which share the memory that is available.
        root (`Path`, *optional*): Where `proc` and `sys` are.
    """

    name = "main memory"

    def __init__(self, processes: int = 1, root: Path = Path("/")):
        self.processes, self.root = processes, root

    def reset(self) -> None:
        """Begin anew with the peak, where the system allows it; otherwise it stays that of the whole process."""
        with suppress(OSError):
            (self.root / "proc/self/clear_refs").write_text("5")

    def held(self) -> int:
        """Bytes that are resident now."""
        return self._status("VmRSS") or self.peak()

    def peak(self) -> int:
        """Bytes that were resident at most since `reset`."""
        return self._status("VmHWM") or _peak_of_process()

    def reserved(self) -> int | None:
        """Nothing is reserved ahead."""
        return None

    def room(self) -> int | None:
        """Bytes that this process may take in all: what it holds and its part of what is available."""
        available = self._kilobytes("proc/meminfo", "MemAvailable")
        if available is None:
            return None
        room = self.held() + available // self.processes
        for path in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
            try:
                limit = (self.root / path).read_text().strip()
            except OSError:
                continue
            if limit.isdigit():
                room = min(room, int(limit) // self.processes)
        return room

    def _status(self, name: str) -> int | None:
        return self._kilobytes("proc/self/status", name)

    def _kilobytes(self, path: str, name: str) -> int | None:
        try:
            lines = (self.root / path).read_text().splitlines()
        except OSError:
            return None
        found = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
        return int(found[0]) * 1024 if found else None


def _peak_of_process() -> int:
    import resource  # not on every system

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def memory_of(device: torch.device) -> DeviceMemory | ProcessMemory:
    """The memory that a model on `device` uses."""
    if device.type == "cuda":
        return DeviceMemory(device)
    return ProcessMemory(int(os.environ.get("LOCAL_WORLD_SIZE", 1)))


def tensor_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the tensors that this process holds, each counted once."""
    local = (tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors)
    return sum({tensor.data_ptr(): tensor.numel() * tensor.element_size() for tensor in local}.values())


@dataclass(frozen=True)
class MemoryUse:
    """Memory of an update at full length, on one process.

    Args:
        rows (`int`): Rows of the micro-batch.
        prompt_tokens (`int`), completion_tokens (`int`): Length of each.
        place (`str`): The device, or main memory.
        weights (`int`), gradients (`int`), optimizer (`int`): Bytes of these.
        held (`int`): Bytes held before the forward pass: these three and whatever else there is.
        peak (`int`): Bytes at most.
        reserved (`int`, *optional*): Bytes that the allocator took for that.
        room (`int`, *optional*): Bytes there are.
        seconds (`float`): Time it took.
    """

    rows: int
    prompt_tokens: int
    completion_tokens: int
    place: str
    weights: int
    gradients: int
    optimizer: int
    held: int
    peak: int
    reserved: int | None
    room: int | None
    seconds: float

    @property
    def passes(self) -> int:
        """Bytes of the forward and backward passes and of the optimizer's step: activations, above all."""
        return max(self.peak - self.held, 0)

    @property
    def limit(self) -> int | None:
        """Bytes that an update may take."""
        return None if self.room is None else int(LIMIT_SHARE * self.room)

    @property
    def fits(self) -> bool:
        """Whether the peak leaves the room that a long run needs; true where the room is not known."""
        return self.limit is None or self.peak <= self.limit

    @property
    def size(self) -> str:
        """The micro-batch in words."""
        return f"{self.rows} x ({self.prompt_tokens:,} + {self.completion_tokens:,}) tokens"

    def __str__(self) -> str:
        other = max(self.held - self.weights - self.gradients - self.optimizer, 0)
        parts = {
            "weights": self.weights,
            "gradients": self.gradients,
            "optimizer": self.optimizer,
            "activations": self.passes,
            "other": other,
        }
        made_of = ", ".join(f"{name} {size / _GIB:.2f}" for name, size in parts.items())
        room = "" if self.room is None else f" of {self.room / _GIB:.2f} GiB ({self.peak / self.room:.0%})"
        reserved = "" if self.reserved is None else f", {self.reserved / _GIB:.2f} reserved"
        unit = " GiB" if self.room is None else ""
        return f"peak {self.peak / _GIB:.2f}{unit}{room} of {self.place}{reserved}: {made_of} GiB"


@dataclass(frozen=True)
class Knobs:
    """The settings that advice is about.

    Args:
        rows (`int`): `per_device_train_batch_size`.
        rows_per_update (`int`): Rows of one process in one update; a smaller micro-batch divides them.
        prompt_tokens (`int`), completion_tokens (`int`): Longest allowed.
        gradient_checkpointing (`bool`), adapter (`bool`), sharded (`bool`): Whether these are used already.
    """

    rows: int
    rows_per_update: int
    prompt_tokens: int
    completion_tokens: int
    gradient_checkpointing: bool
    adapter: bool
    sharded: bool


def what_to_change(knobs: Knobs, use: MemoryUse | None) -> list[str]:
    """Changes that make an update fit, the least harmful first; together they go from best to worst.

    Args:
        knobs ([`Knobs`]): What is set.
        use ([`MemoryUse`], *optional*): What was measured; `None` where memory ran out before there was anything.

    Returns:
        `list[str]`: Settings as a user writes them. Fewer rows and less text shrink activations in proportion, so an
        estimate stands beside them where there is a measurement.
    """
    share = None  # of the activations that there is room for
    if use is not None:
        share = max(use.limit - use.held, 0) / max(use.passes, 1)
    smaller = [rows for rows in range(knobs.rows - 1, 0, -1) if knobs.rows_per_update % rows == 0]
    changes = []
    if smaller:
        fitting = [rows for rows in smaller if share is None or rows <= share * knobs.rows]
        halved = next((rows for rows in smaller if 2 * rows <= knobs.rows), smaller[-1])
        rows = halved if share is None else (fitting or smaller[-1:])[0]
        changes.append(f"per_device_train_batch_size={rows}" + _estimate(use, rows / knobs.rows))
    if not knobs.gradient_checkpointing:
        changes.append("gradient_checkpointing=True")
    rows_fit = share is not None and share * knobs.rows >= 1  # a smaller micro-batch alone is enough
    if not rows_fit:
        length = knobs.prompt_tokens + knobs.completion_tokens
        wanted = knobs.completion_tokens // 2
        if share:
            wanted = int(share * knobs.rows * length) - knobs.prompt_tokens
        wanted = wanted // 256 * 256 if wanted > 256 else wanted
        if 0 < wanted < knobs.completion_tokens:
            part = (knobs.prompt_tokens + wanted) / length / knobs.rows
            changes.append(f"max_completion_length={wanted}" + _estimate(use, part))
    if not knobs.adapter:
        changes.append("LoRA (use_peft: true in a recipe, or peft_config): no gradients or moments of frozen weights")
    if not knobs.sharded:
        changes.append("FSDP2 over several devices (accelerate launch --config_file recipes/accelerate/fsdp2.yaml)")
    if share == 0:  # weights, gradients and moments alone are too much: these come first
        changes.sort(key=lambda change: not change.startswith(("LoRA", "FSDP2")))
    return changes


def _estimate(use: MemoryUse | None, part: float) -> str:
    return "" if use is None else f" (about {(use.held + part * use.passes) / _GIB:.1f} GiB)"
