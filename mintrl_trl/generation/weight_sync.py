"""Brings the trainer's weights to a vLLM server through files, and proves that they arrived.

Two ways: [`CheckpointSync`] has the server reload a folder of full weights, [`LoRASync`] has it load an adapter beside
the base model. Owns version folders and the order of the server calls. It never saves a model itself, never touches a
generator, needs no CUDA. Invariant: `sync` returns only after the server has shown that it serves exactly that
version; after a failed or half-done `sync`, `verify` fails for the version that may have been harmed.

Both need the folder to be readable by the server under the same path. Only the main process syncs; every process may
`verify`, given the same `run_id`.
"""

import fcntl
import re
import shutil
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from ..errors import ConfigError, GenerationError
from .server import ServerControl, ServerError
from .vllm_worker import EXTENSION

KEPT_VERSIONS = 2  # the one that is served and the one before it
VERIFY_SECONDS = 30.0  # a healthy server tells its version in milliseconds
_POLL_SECONDS = 0.2
_FIRST_WEIGHTS = "default"  # vLLM's name for the weights it starts with
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LABEL = re.compile(r"(weights|adapter)-[A-Za-z0-9._-]+-v-[A-Za-z0-9._-]+")


class WeightSync(Protocol):
    """How new weights reach the server behind a generator."""

    def sync(self, version: str, save: Callable[[Path], None]) -> str:
        """Have the server serve the weights that `save` writes; returns the model name to ask for them by."""

    def verify(self, version: str) -> None:
        """Raise [`GenerationError`] unless the server serves `version` now."""

    def restore(self, version: str) -> bool:
        """Have the server serve `version` again if it was restarted since; says whether it was."""


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
    return None if version == _FIRST_WEIGHTS else str(version)


class FolderSync(ABC):
    """What both ways share: names, version folders, one time limit for all server calls of a sync.

    A sync has three parts, `save`, `load` and `remove_old_folders`, so that one saved folder may serve several servers.
    """

    kind: str  # first word of folder names

    def __init__(
        self,
        base_url: str,
        folder: str | Path,
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
        self.folder = Path(folder).resolve()
        self.timeout_seconds = timeout_seconds
        self.control = ServerControl(base_url, api_key=api_key)
        self._saved: list[str] = []  # labels, oldest first
        self._deadline = 0.0

    def sync(self, version: str, save: Callable[[Path], None]) -> str:
        """Save the weights into a folder of their own, have the server load them, and check that it did.

        No request may be open on the server meanwhile. A version names one set of weights: syncing it again (after
        the server was restarted) is fine, with other weights it is not.

        Args:
            version (`str`): Name of the weights: letters, digits, `.`, `_`, `-`.
            save (`Callable[[Path], None]`): Writes the weights into the empty folder it is given.

        Returns:
            `str`: The model name by which the server serves them.

        Raises:
            GenerationError: The server refused (its own text is in the message) or took longer than
                `timeout_seconds`, saving not counted.
        """
        path = self.save(version, save)
        model = self.load(version, path)
        self.remove_old_folders()
        return model

    def load(self, version: str, path: Path) -> str:
        """Have the server load a version that is saved in `path`, and check that it did; the middle part of `sync`.

        Raises:
            GenerationError: As `sync`.
        """
        self._deadline = time.monotonic() + self.timeout_seconds
        return self._load(self.label(version), path)

    def verify(self, version: str) -> None:
        """Check that the server serves `version` now, as before each batch of rollouts. Changes nothing.

        Raises:
            GenerationError: It does not: it was restarted, a sync failed half-way, or another run uses it.
        """
        self._deadline = time.monotonic() + min(VERIFY_SECONDS, self.timeout_seconds)
        self._check(self.label(version))

    def restore(self, version: str) -> bool:
        """Have the server load `version` again, from the folder it was saved in, if it was restarted since.

        Any process may do so: one at a time, and the others find it done.

        Returns:
            `bool`: Whether it had to.

        Raises:
            GenerationError: As `sync`; also where another run's weights are on the server.
        """
        try:
            self.verify(version)
            return False
        except LostWeightsError:
            pass
        path = self.folder / self.label(version)
        with (self.folder / ".restoring").open("w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            try:
                self.verify(version)
            except LostWeightsError:
                self.load(version, path)
        return True

    def label(self, version: str) -> str:
        """Name of a version on the server and on disk; unlike that of any other run."""
        if not _WORD.fullmatch(version):
            raise ValueError(f"a version holds letters, digits, '.', '_' and '-': {version!r}")
        return self._prefix + version

    @property
    def _prefix(self) -> str:
        return f"{self.kind}-{self.run_id}-v-"

    def save(self, version: str, save: Callable[[Path], None]) -> Path:
        """Save the weights into the folder of `version`, anew if it is there; the first part of `sync`."""
        label = self.label(version)
        path = self.folder / label
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        try:
            save(path)
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
        self._saved = [other for other in self._saved if other != label] + [label]
        return path

    @abstractmethod
    def _load(self, label: str, path: Path) -> str:
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

    def remove_old_folders(self) -> None:
        """Keep the newest versions of this run; remove older ones and those that earlier runs left behind."""
        self._saved = self._saved[-KEPT_VERSIONS:]
        for path in self.folder.iterdir():
            if path.is_dir() and _LABEL.fullmatch(path.name) and path.name not in self._saved:
                shutil.rmtree(path, ignore_errors=True)


class CheckpointSync(FolderSync):
    """Full weights: the server reloads a checkpoint folder in place. Needs `VLLM_SERVER_DEV_MODE=1` on the server.

    Args:
        base_url (`str`): Address of the server, with or without `/v1`.
        folder (`str` or `Path`): Where version folders are made. It belongs to this run alone: the newest two versions
            stay, older version folders in it are removed.
        run_id (`str`, *optional*): Sets this run apart from others on the same server; the same in all processes of a
            run. Random by default.
        api_key (`str`, *optional*): The server's own key.
        timeout_seconds (`float`): Limit for all server calls of one sync together.
        idle_seconds (`float`): How long to wait for requests that were just aborted to leave the server.
        tied_weights (`bool`): Whether the model's output layer is its input embeddings. A server on CPU then needs
            [`vllm_worker.WholeReload`][mintrl_trl.generation.vllm_worker], or it keeps its old output layer.
    """

    kind = "weights"
    _NEEDS = "VLLM_SERVER_DEV_MODE=1 in its environment"

    def __init__(
        self,
        base_url: str,
        folder: str | Path,
        *,
        run_id: str | None = None,
        api_key: str | None = None,
        timeout_seconds: float = 300.0,
        idle_seconds: float = 10.0,
        tied_weights: bool = False,
    ):
        super().__init__(base_url, folder, run_id=run_id, api_key=api_key, timeout_seconds=timeout_seconds)
        self.idle_seconds, self.tied_weights = idle_seconds, tied_weights

    def _load(self, label: str, path: Path) -> str:
        # Marked first: if anything below fails, no process takes the weights for those of the version before.
        self._set_version(f"loading-{label}")
        self._empty_prefix_cache("before")
        self._call(
            "POST",
            "/collective_rpc",
            {
                "method": self._reload_method(),
                "kwargs": {"weights_path": str(path)},
                "timeout": self._deadline - time.monotonic(),
            },
            needs=self._NEEDS,
        )
        self._empty_prefix_cache("after")
        self._set_version(label)
        self._check(label)
        return next(name for name, card in self._models().items() if not card.get("parent"))

    def _reload_method(self) -> str:
        """What the server's worker is told to do: vLLM's own reload, or ours where that forgets a layer."""
        if not self.tied_weights:
            return "reload_weights"
        info = self._call("GET", "/server_info?config_format=json", needs=self._NEEDS)
        config = info.get("vllm_config", {}) if isinstance(info, dict) else {}
        if config.get("device_config", {}).get("device") != "cpu":
            return "reload_weights"
        if config.get("parallel_config", {}).get("worker_extension_cls") != EXTENSION:
            raise GenerationError(
                f"{self.control.root} runs on CPU, where vLLM's reload keeps the old output layer of a model that ties "
                f"it to the input embeddings. Start it with --worker-extension-cls {EXTENSION} and this package's "
                "folder in PYTHONPATH, or train an adapter"
            )
        return "reload_whole_weights"

    def _check(self, label: str) -> None:
        answer = self._call("GET", "/weight_info", needs=self._NEEDS)
        served = answer.get("weight_version") if isinstance(answer, dict) else answer
        if served != label:
            ours = str(served).removeprefix("loading-").startswith(self._prefix)
            raise (LostWeightsError if ours or served == _FIRST_WEIGHTS else GenerationError)(
                f"{self.control.root} serves weight version {served!r}, not {label!r}: it was restarted, a sync failed "
                "half-way, or another run uses it. Sync again before generating"
            )

    def _set_version(self, label: str) -> None:
        self._call("POST", "/update_weight_version", {"new_version": label}, needs=self._NEEDS)

    def _empty_prefix_cache(self, moment: str) -> None:
        """vLLM says no while any request holds cache blocks, so a yes also proves that nothing is running."""
        give_up = min(time.monotonic() + self.idle_seconds, self._deadline)
        while True:
            answer = self._call("POST", "/reset_prefix_cache", needs=self._NEEDS)
            if isinstance(answer, dict) and answer.get("success") is True:
                return
            if time.monotonic() >= give_up:
                raise GenerationError(
                    f"{self.control.root}/reset_prefix_cache answered {answer} {moment} the weights were loaded: "
                    "requests are still open, and cached blocks belong to the old weights. Finish or close all "
                    "streams, and let no other client use this server during a sync"
                )
            time.sleep(_POLL_SECONDS)


class LoRASync(FolderSync):
    """Adapter weights: loaded under a new name and path per version, beside the base model, which stays available.

    A new name and path matter: the server's prefix cache knows an adapter by them, so blocks of an old version are
    never reused. Needs `--enable-lora` and `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True` on the server, and that no
    [`CheckpointSync`] has replaced its base weights.

    Args:
        base_url, folder, run_id, api_key, timeout_seconds: As for [`CheckpointSync`].
    """

    kind = "adapter"
    _NEEDS = "--enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment"

    def _load(self, label: str, path: Path) -> str:
        if label in self._models():
            self._unload(label)
        self._call("POST", "/v1/load_lora_adapter", {"lora_name": label, "lora_path": str(path)}, needs=self._NEEDS)
        models = self._check(label)
        root = models[label].get("root")
        if root not in (None, str(path)):
            raise GenerationError(f"{self.control.root} serves the adapter {label!r} from {root!r}, not from {path}")
        for old in models:
            if old != label and old.startswith(self._prefix):
                self._unload(old)
        return label

    def _check(self, label: str) -> dict[str, dict[str, Any]]:
        models = self._models()
        if label not in models:
            raise LostWeightsError(
                f"{self.control.root} does not serve the adapter {label!r}, only {', '.join(map(repr, models))}: it "
                "was restarted, or the adapter was unloaded. Sync again before generating"
            )
        self._check_base()
        return models

    def _check_base(self) -> None:
        """Refuse a server whose base weights an earlier run replaced."""
        version = replaced_by(self.control, seconds=self._seconds_left("GET", "/weight_info"))
        if version is not None:
            raise GenerationError(
                f"{self.control.root} no longer has the base weights it was started with, but {version!r}: a run with "
                "full weights used it. Restart it"
            )

    def _unload(self, label: str) -> None:
        try:
            self._call("POST", "/v1/unload_lora_adapter", {"lora_name": label}, needs=self._NEEDS)
        except ServerError as fault:
            if fault.status != 404:  # 404: it is not loaded, which is what was wanted
                raise
