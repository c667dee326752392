"""Keeps the processes of a run in step: what stops one of them stops all, with the same message.

A collective call that one process never reaches holds the others until a timeout. So everything that a process does by
itself and may fail at (sampling, reviews, rewards, a server, a file) stands in an [`all_or_none`] block, and a broken
loss is told to all before the optimizer's step. Invariant: every process makes the same collective calls in the same
order, whether anything failed or not; with one process there are none.
"""

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather, gather_object
from torch import Tensor

from .errors import MInTRLError, NumericsError, PeerError


@contextmanager
def all_or_none(instead: Callable[[], Any] | None = None) -> Iterator[None]:
    """A block that all processes leave, or none: an exception in one of them is raised in each. Also a barrier.

    The block itself must make no collective call, except one that `instead` makes up for.

    Args:
        instead (`Callable`, *optional*): Makes the collective calls that the others made in the block, where this
            process failed before it came to them.

    Raises:
        Exception: Where the block failed, its own exception. Elsewhere an equal one if it is one of ours; otherwise
            [`PeerError`], which says what happened in which process.
    """
    state, failure = PartialState(), None
    try:
        yield
    except Exception as error:
        failure = error
        if state.num_processes > 1 and instead is not None:
            instead()
    failures = [failure]
    if state.num_processes > 1:
        failures = gather_object([_portable(failure, state.process_index)])
    for error in (failure, *failures):
        if error is not None:
            with suppress(AttributeError):  # a foreign exception that cannot be written to
                error.raised_by_all = True
            raise error


def is_raised_by_all(error: BaseException) -> bool:
    """Whether all processes raise at this very point, so that they may still make collective calls together."""
    return getattr(error, "raised_by_all", False)


def _portable(failure: Exception | None, process: int) -> MInTRLError | None:
    """What another process raises in place of an exception."""
    if failure is None:
        return None
    if isinstance(failure, MInTRLError):
        try:
            copy = pickle.loads(pickle.dumps(failure))
        except Exception:  # an error of ours that holds what cannot be sent
            copy = None
        if copy is not None and str(copy) == str(failure):
            return failure
    return PeerError(f"process {process} stopped with {type(failure).__name__}: {failure}")


class FiniteLosses:
    """The losses of one update, on all processes: any that is not a finite number stops the run before the step."""

    def __init__(self):
        self._sum: Tensor | None = None

    def add(self, loss: Tensor) -> None:
        """Take note of the loss () of a micro-batch. Reads nothing back from the device."""
        loss = loss.detach().reshape(1)
        self._sum = loss if self._sum is None else self._sum + loss

    def check(self, update: int) -> None:
        """Called by every process before the update's last backward pass.

        Args:
            update (`int`): Number of the update that is being made, from 1.

        Raises:
            NumericsError: Some loss is not finite; the optimizer has not seen it.
        """
        sums, self._sum = gather(self._sum), None  # (processes,)
        broken = sums[~torch.isfinite(sums)]
        if len(broken):
            raise NumericsError(
                f"the loss of update {update} is {broken[0].item()}; no weight was changed. Continue from the last "
                "checkpoint with a lower learning rate, in float32 or bfloat16 instead of float16, or with a clean "
                "copy of the model."
            )
