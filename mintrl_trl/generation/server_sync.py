"""What every way of bringing weights to a vLLM server shares: names of versions, one time limit, proof of arrival.

Owns the label that a version has on its server, the limit for all server calls of a sync together, and the order in
which full weights take the place of others. How weights travel is [`weight_sync`][mintrl_trl.generation.weight_sync]'s
(files) or [`nccl_sync`][mintrl_trl.generation.nccl_sync]'s (from GPU to GPU). Invariant: a server whose full weights
are being replaced has a version that no process takes for a whole one, from before the first byte until the end.
"""

import re
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from ..errors import ConfigError, GenerationError
from .server import ServerControl, ServerError

VERIFY_SECONDS = 30.0  # a healthy server tells its version in milliseconds
FIRST_WEIGHTS = "default"  # vLLM's name for the weights it starts with
DEV_MODE = "VLLM_SERVER_DEV_MODE=1 in its environment"
_POLL_SECONDS = 0.2
_T = TypeVar("_T")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class WeightSync(Protocol):
    """How new weights reach the server behind a generator."""

    def sync(self, version: str, weights: Any) -> str:
        """Have the server serve `weights`, in the form this way takes; returns the model name to ask for them by."""

    def verify(self, version: str) -> None:
        """Raise [`GenerationError`] unless the server serves `version` now."""

    def restore(self, version: str) -> bool:
        """Have the server serve `version` again if it was restarted since; says whether it was."""

    def close(self) -> None:
        """Give up what is held open between syncs."""


class LostWeightsError(GenerationError):
    """The server does not have this run's weights any more, and no other run's: it was restarted."""


def replaced_by(control: ServerControl, *, seconds: float) -> str | None:
    """Which version has taken the place of the weights that a server was started with; `None` where none has.

    It takes the route that tells of it, without which nothing can replace them.

    Raises:
        ServerError: The server gave no answer within `seconds`.
    """
    try:
        answer = control.call("GET", "/weight_info", seconds=seconds)
    except ServerError as fault:
        if fault.status == 404:
            return None
        raise
    version = answer.get("weight_version") if isinstance(answer, dict) else answer
    return None if version == FIRST_WEIGHTS else str(version)


class ServerSync(ABC):
    """A [`WeightSync`] to one server.

    A sync has three parts, `prepare`, `load` and `tidy`, so that weights may be prepared once for several servers.

    Args:
        base_url (`str`): Address of the server, with or without `/v1`.
        run_id (`str`, *optional*): Sets this run apart from others on the same server; the same in all processes of a
            run. Random by default.
        api_key (`str`, *optional*): The server's own key.
        timeout_seconds (`float`): Limit for all server calls of one sync together.
    """

    kind: str  # first word of labels
    at_once = True  # whether several servers may load at the same time

    def __init__(
        self,
        base_url: str,
        *,
        run_id: str | None = None,
        api_key: str | None = None,
        timeout_seconds: float = 300.0,
    ):
        self.run_id = run_id or uuid.uuid4().hex[:8]
        if not _WORD.fullmatch(self.run_id):
            raise ConfigError("run_id", run_id, "letters, digits, '.', '_' and '-'", "leave it out for a random one")
        if not timeout_seconds > 0:
            raise ConfigError("timeout_seconds", timeout_seconds, "above 0", "allow for the size of the model")
        self.timeout_seconds = timeout_seconds
        self.control = ServerControl(base_url, api_key=api_key)
        self._deadline = 0.0

    def sync(self, version: str, weights: Any) -> str:
        """Have the server load weights and check that it did.

        No request may be open on the server meanwhile. A version names one set of weights: syncing it again (after
        the server was restarted) is fine, with other weights it is not.

        Args:
            version (`str`): Name of the weights: letters, digits, `.`, `_`, `-`.
            weights (`Any`): As `prepare` takes them.

        Returns:
            `str`: The model name by which the server serves them.

        Raises:
            GenerationError: The server refused (its own text is in the message) or took longer than
                `timeout_seconds`, `prepare` not counted.
        """
        prepared = self.prepare(version, weights)
        model = self.load(version, prepared)
        self.tidy()
        return model

    @abstractmethod
    def prepare(self, version: str, weights: Any) -> Any:
        """Make weights ready to be loaded by any server; the first part of `sync`."""

    def load(self, version: str, prepared: Any) -> str:
        """Have the server load what `prepare` gave, and check that it did; the middle part of `sync`.

        Raises:
            GenerationError: As `sync`.
        """
        self._deadline = time.monotonic() + self.timeout_seconds
        return self._load(self.label(version), prepared)

    @abstractmethod
    def tidy(self) -> None:
        """Remove what no server needs any more; the last part of `sync`."""

    def verify(self, version: str) -> None:
        """Check that the server serves `version` now, as before each batch of rollouts. Changes nothing.

        Raises:
            GenerationError: It does not: it was restarted, a sync failed half-way, or another run uses it.
        """
        self._deadline = time.monotonic() + min(VERIFY_SECONDS, self.timeout_seconds)
        self._check(self.label(version))

    @abstractmethod
    def restore(self, version: str) -> bool:
        """Have the server load `version` again, if it was restarted since.

        Returns:
            `bool`: Whether it had to.

        Raises:
            GenerationError: As `sync`; also where another run's weights are on the server.
        """

    @abstractmethod
    def close(self) -> None:
        """Give up what is held open between syncs."""

    def label(self, version: str) -> str:
        """Name of a version on the server and on disk; unlike that of any other run."""
        if not _WORD.fullmatch(version):
            raise ValueError(f"a version holds letters, digits, '.', '_' and '-': {version!r}")
        return self._prefix + version

    @property
    def _prefix(self) -> str:
        return f"{self.kind}-{self.run_id}-v-"

    @abstractmethod
    def _load(self, label: str, prepared: Any) -> str:
        """Have the server load and show `label`; returns the model name to ask for."""

    @abstractmethod
    def _check(self, label: str) -> Any:
        """Raise [`GenerationError`] unless the server serves `label`."""

    def _models(self) -> dict[str, dict[str, Any]]:
        return self.control.models(seconds=self._seconds_left("GET", "/v1/models"))

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None, *, needs: str = "") -> Any:
        """One server call within what is left of the time limit. `needs` says what a missing route asks for."""
        try:
            return self.control.call(method, path, body, seconds=self._seconds_left(method, path))
        except ServerError as fault:
            if needs and fault.status == 404 and str(fault).endswith("Not Found"):
                raise GenerationError(f"{fault}. The server has no such route: start it with {needs}") from fault
            raise

    def _seconds_left(self, method: str, path: str) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise GenerationError(
                f"{method} {self.control.root}{path} was not reached: the calls before it used up the "
                f"{self.timeout_seconds:g} s that a weight sync may take"
            )
        return left


class FullWeightsSync(ServerSync):
    """Full weights in place of those on the server. Needs `VLLM_SERVER_DEV_MODE=1` on the server.

    Args:
        base_url, run_id, api_key, timeout_seconds: As for [`ServerSync`].
        idle_seconds (`float`): How long to wait for requests that were just aborted to leave the server.
    """

    kind = "weights"

    def __init__(self, base_url: str, *, idle_seconds: float = 10.0, **options: Any):
        super().__init__(base_url, **options)
        self.idle_seconds = idle_seconds

    def _replace(self, label: str, deliver: Callable[[], None]) -> str:
        """Have `deliver` bring the weights of `label`; returns the model name to ask for."""
        # Marked first: if anything below fails, no process takes the weights for those of the version before.
        self._set_version(f"loading-{label}")
        self._empty_prefix_cache("before")
        deliver()
        self._empty_prefix_cache("after")
        self._set_version(label)
        self._check(label)
        return next(name for name, card in self._models().items() if not card.get("parent"))

    def _check(self, label: str) -> None:
        served = self._served()
        if served != label:
            ours = str(served).removeprefix("loading-").startswith(self._prefix)
            raise (LostWeightsError if ours or served == FIRST_WEIGHTS else GenerationError)(
                f"{self.control.root} serves weight version {served!r}, not {label!r}: it was restarted, a sync failed "
                "half-way, or another run uses it. Sync again before generating"
            )

    def _served(self) -> Any:
        """The version that the server says it has."""
        answer = self._call("GET", "/weight_info", needs=DEV_MODE)
        return answer.get("weight_version") if isinstance(answer, dict) else answer

    def _server_config(self) -> dict[str, Any]:
        """vLLM's own settings, as far as the server tells them."""
        info = self._call("GET", "/server_info?config_format=json", needs=DEV_MODE)
        return info.get("vllm_config", {}) if isinstance(info, dict) else {}

    def _set_version(self, label: str) -> None:
        self._call("POST", "/update_weight_version", {"new_version": label}, needs=DEV_MODE)

    def _empty_prefix_cache(self, moment: str) -> None:
        """vLLM says no while any request holds cache blocks, so a yes also proves that nothing is running."""
        give_up = min(time.monotonic() + self.idle_seconds, self._deadline)
        while True:
            answer = self._call("POST", "/reset_prefix_cache", needs=DEV_MODE)
            if isinstance(answer, dict) and answer.get("success") is True:
                return
            if time.monotonic() >= give_up:
                raise GenerationError(
                    f"{self.control.root}/reset_prefix_cache answered {answer} {moment} the weights were loaded: "
                    "requests are still open, and cached blocks belong to the old weights. Finish or close all "
                    "streams, and let no other client use this server during a sync"
                )
            time.sleep(_POLL_SECONDS)


def on_a_thread(function: Callable[[], _T]) -> "Future[_T]":
    """`function` on a thread that does not hold up the end of the process."""
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="weight-sync", daemon=True).start()
    return future
