"""Brings full weights to a vLLM server from GPU to GPU, without a file, and proves that they arrived.

Owns the order of the server calls, the two halves of a transfer that wait for each other, and what is kept to bring the
weights again. The trainer's end of the transfer, which needs CUDA and vLLM, is passed in as a [`WeightChannel`].

A broadcast has no time limit and cannot be interrupted. So it runs on a thread of its own, and so does the server call
that goes with it; the caller waits for both, within what is left of the time limit, and raises what fails first.
Invariant: no transfer is waited for longer than the limit, and after a failure three times `GRACE_SECONDS` at most for
the other half, the group and the server to let go; a group that took part in a failed one is never used again.

The main process alone has a channel: it syncs and restores. All others `verify`, and wait while weights are lost.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from ..errors import GenerationError
from .server import LOST_KINDS, ServerError
from .server_sync import DEV_MODE, FullWeightsSync, LostWeightsError, on_a_thread

GRACE_SECONDS = 5.0  # for the other half to say why, and to take leave of a broken group
TRANSFER_FLAG = ("--weight-transfer-config", json.dumps({"backend": "nccl"}))
_ANSWER_SECONDS = 0.5  # a call that times out has its own words; they are waited for

_T = TypeVar("_T")


class WeightChannel(Protocol):
    """The trainer's end of a transfer. `open` and `send` block, on a thread that is not the caller's."""

    def invitation(self, places: int) -> dict[str, Any]:
        """Where the workers of a server meet this process, as one group of `places`; vLLM's `init_info`."""

    def manifest(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """What is to be sent, by name, dtype and shape; vLLM's `update_info`."""

    def open(self, invitation: dict[str, Any]) -> Any:
        """Wait until all workers have come; returns the group."""

    def send(self, group: Any, weights: Mapping[str, Any]) -> None:
        """Send the weights to all workers, in the order of their names in the manifest."""

    def abandon(self, group: Any) -> None:
        """Break off whatever is under way in a group, and give it up."""


class NCCLSync(FullWeightsSync):
    """Full weights from GPU to GPU. Needs `VLLM_SERVER_DEV_MODE=1` and `--weight-transfer-config` on the server.

    One group per server, made at the first sync and again after a restart or a failure.

    Args:
        base_url, run_id, api_key, timeout_seconds, idle_seconds: As for [`FullWeightsSync`].
        channel ([`WeightChannel`], *optional*): The trainer's end. `None` in processes that do not sync.
    """

    at_once = False  # all transfers start from one GPU, on the same streams

    def __init__(self, base_url: str, channel: WeightChannel | None, **options: Any):
        super().__init__(base_url, **options)
        self.channel = channel
        self._group: Any = None
        self._mark: str | None = None  # what this process last told the server to call its weights
        self._held: tuple[str, Mapping[str, Any]] | None = None
        self._turn = threading.Lock()

    def prepare(self, version: str, weights: Mapping[str, Any]) -> Mapping[str, Any]:
        """Weights by their names in a checkpoint are ready as they are; they must stay what they are until the next."""
        return weights

    def load(self, version: str, prepared: Mapping[str, Any]) -> str:
        """As [`ServerSync.load`]; keeps the weights, so that `restore` can bring them again."""
        self._held = version, prepared
        return super().load(version, prepared)

    def tidy(self) -> None:
        """Nothing is left behind."""

    def close(self) -> None:
        """Leave the group. A later sync makes a new one."""
        self._hang_up()

    def restore(self, version: str) -> bool:
        """Have the server load `version` again if it was restarted since. The main process does, the others wait.

        Raises:
            ServerError: In a process without a channel: the weights are not back yet, and asking later may help.
            GenerationError: As `sync`; also where another run's weights are on the server.
        """
        with self._turn:
            try:
                self.verify(version)
                return False
            except LostWeightsError as lost:
                if self.channel is None:
                    message = f"{lost}. The main process alone can bring them"
                    raise ServerError(message, retryable=True, kind="stale") from lost
                if self._held is None or self._held[0] != version:
                    raise
            self.load(version, self._held[1])
            return True

    def _load(self, label: str, weights: Mapping[str, Any]) -> str:
        if self._group is not None and self._served() != self._mark:  # restarted, or taken by another run
            self._hang_up()
        if self._group is None:
            self._open()
        return self._replace(label, lambda: self._deliver(weights))

    def _set_version(self, label: str) -> None:
        super()._set_version(label)
        self._mark = label

    def _open(self) -> None:
        """Form the group with all workers of the server."""
        self._check_backend()
        answer = self._call("GET", "/get_world_size", needs=DEV_MODE)
        workers = answer.get("world_size") if isinstance(answer, dict) else None
        if not isinstance(workers, int) or workers < 1:
            raise GenerationError(f"{self.control.root}/get_world_size gave no number of workers: {str(answer)[:200]}")
        invitation = self.channel.invitation(workers + 1)
        self._group = self._together(
            "/init_weight_transfer_engine", {"init_info": invitation}, lambda: self.channel.open(invitation)
        )

    def _check_backend(self) -> None:
        config = self._server_config()
        if "weight_transfer_config" not in config:
            return  # it does not tell
        backend = (config["weight_transfer_config"] or {}).get("backend")
        if backend != "nccl":
            raise GenerationError(
                f"{self.control.root} takes no weights from GPU to GPU (its weight transfer is {backend!r}). Start it "
                f"with {TRANSFER_FLAG[0]} '{TRANSFER_FLAG[1]}', or set weight_sync='checkpoint'"
            )

    def _deliver(self, weights: Mapping[str, Any]) -> None:
        self._call("POST", "/start_weight_update", {"is_checkpoint_format": True}, needs=DEV_MODE)
        group, body = self._group, {"update_info": self.channel.manifest(weights)}
        try:
            self._together("/update_weights", body, lambda: self.channel.send(group, weights))
        except BaseException:
            self._end_broken_update()
            raise
        self._call("POST", "/finish_weight_update")

    def _together(self, path: str, body: dict[str, Any], errand: Callable[[], _T]) -> _T:
        """Make a server call and do `errand`, each of which waits for the other.

        Raises:
            ServerError: The server refused, or was silent; its own words come first, because they say more.
            GenerationError: `errand` failed, or did not end within the limit.
        """
        started, left = time.monotonic(), self._seconds_left("POST", path)
        call = on_a_thread(lambda: self._call("POST", path, body, needs=DEV_MODE))
        ours = on_a_thread(errand)
        try:
            wait((call, ours), timeout=left + _ANSWER_SECONDS, return_when=FIRST_EXCEPTION)
            if _succeeded(call) and _succeeded(ours):
                return ours.result()
        except BaseException:  # the user's interrupt
            self._hang_up()
            raise
        failure = _failure(ours)  # asked first: what follows from hanging up is no cause
        self._hang_up()
        if failure is not None:
            wait((call,), timeout=GRACE_SECONDS)
        refusal = _failure(call)
        if refusal is not None and (failure is None or getattr(refusal, "kind", None) in LOST_KINDS):
            raise refusal
        where = f"POST {self.control.root}{path}: the trainer's end of the transfer"
        seconds = time.monotonic() - started
        if failure is None:
            raise GenerationError(f"{where} did not finish within {seconds:.1f} s, and the server did not complain")
        words = f". The server says: {refusal}" if refusal is not None else ""
        raise GenerationError(
            f"{where} failed after {seconds:.1f} s: {type(failure).__name__}: {failure}{words}"
        ) from failure

    def _end_broken_update(self) -> None:
        """Let workers that still wait for more of a broken update take the next one; those that failed refuse this."""
        with suppress(ServerError):
            self.control.call("POST", "/finish_weight_update", seconds=GRACE_SECONDS)

    def _hang_up(self) -> None:
        """Give the group up. Who waits in it, on either side, gets out as far as that can be had."""
        group, self._group = self._group, None
        if group is not None:
            wait((on_a_thread(lambda: self.channel.abandon(group)),), timeout=GRACE_SECONDS)


def _succeeded(future: Future) -> bool:
    return future.done() and future.exception() is None


def _failure(future: Future) -> BaseException | None:
    return future.exception() if future.done() else None
