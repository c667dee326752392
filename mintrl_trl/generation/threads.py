"""How many threads a model in this process computes with on a CPU, where nobody has said.

One for a small model: torch hands each of its tiny operations to all cores, which then cost more by waiting for each
other than by computing; in the small world twenty times more. Whoever set a number, by the environment or in torch, is
believed. Invariant: after the block the number is what it was before.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

SMALL = 10_000_000  # parameters, below which one thread computes
_SAID = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@contextmanager
def fitting_threads(model: torch.nn.Module) -> Iterator[None]:
    """One thread for a small model on a CPU while the block lasts; it begins before the threads that compute.

    Args:
        model (`torch.nn.Module`): The model that computes.
    """
    before = torch.get_num_threads()
    if not _is_small(model) or any(os.environ.get(name) for name in _SAID) or before < _cores() // 2:
        yield  # torch takes half of the cores or more, so fewer are somebody's choice
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _is_small(model: torch.nn.Module) -> bool:
    parameters = list(model.parameters())
    on_cpu = all(parameter.device.type == "cpu" for parameter in parameters)
    return on_cpu and sum(parameter.numel() for parameter in parameters) < SMALL


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
