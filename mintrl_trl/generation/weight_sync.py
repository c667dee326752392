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
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import GenerationError
from .server import ServerError
from .server_sync import DEV_MODE, FullWeightsSync, LostWeightsError, ServerSync, replaced_by
from .vllm_worker import EXTENSION

KEPT_VERSIONS = 2  # the one that is served and the one before it
_LABEL = re.compile(r"(weights|adapter)-[A-Za-z0-9._-]+-v-[A-Za-z0-9._-]+")


class FolderSync(ServerSync):
    """What both ways share: version folders.

    Args:
        base_url, run_id, api_key, timeout_seconds: As for [`ServerSync`].
        folder (`str` or `Path`): Where version folders are made. It belongs to this run alone: the newest two versions
            stay, older version folders in it are removed.
    """

    def __init__(self, base_url: str, folder: str | Path, **options: Any):
        super().__init__(base_url, **options)
        self.folder = Path(folder).resolve()
        self._saved: list[str] = []  # labels, oldest first

    def prepare(self, version: str, weights: Callable[[Path], None]) -> Path:
        """Save the weights into the folder of `version`, anew if it is there.

        Args:
            version (`str`): Name of the weights.
            weights (`Callable[[Path], None]`): Writes them into the empty folder it is given.
        """
        label = self.label(version)
        path = self.folder / label
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        try:
            weights(path)
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
        self._saved = [other for other in self._saved if other != label] + [label]
        return path

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
            with suppress(OSError):  # a cluster's file system may have no locks: the others then load it, too
                fcntl.flock(turn, fcntl.LOCK_EX)
            try:
                self.verify(version)
            except LostWeightsError:
                self.load(version, path)
        return True

    def tidy(self) -> None:
        """Keep the newest versions of this run; remove older ones and those that earlier runs left behind."""
        self._saved = self._saved[-KEPT_VERSIONS:]
        for path in self.folder.iterdir():
            if path.is_dir() and _LABEL.fullmatch(path.name) and path.name not in self._saved:
                shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        """Nothing is held open."""


class CheckpointSync(FolderSync, FullWeightsSync):
    """Full weights: the server reloads a checkpoint folder in place. Needs `VLLM_SERVER_DEV_MODE=1` on the server.

    Args:
        base_url, folder, run_id, api_key, timeout_seconds, idle_seconds: As for [`FolderSync`] and [`FullWeightsSync`].
        tied_weights (`bool`): Whether the model's output layer is its input embeddings. A server on CPU then needs
            [`vllm_worker.WholeReload`][mintrl_trl.generation.vllm_worker], or it keeps its old output layer.
    """

    def __init__(self, base_url: str, folder: str | Path, *, tied_weights: bool = False, **options: Any):
        super().__init__(base_url, folder, **options)
        self.tied_weights = tied_weights

    def _load(self, label: str, path: Path) -> str:
        return self._replace(label, lambda: self._reload(path))

    def _reload(self, path: Path) -> None:
        method, kwargs = self._reload_method(), {"weights_path": str(path)}
        left = self._seconds_left("POST", "/collective_rpc")
        body = {"method": method, "kwargs": kwargs, "timeout": left}
        self._call("POST", "/collective_rpc", body, needs=DEV_MODE)

    def _reload_method(self) -> str:
        """What the server's worker is told to do: vLLM's own reload, or ours where that forgets a layer."""
        if not self.tied_weights:
            return "reload_weights"
        config = self._server_config()
        if config.get("device_config", {}).get("device") != "cpu":
            return "reload_weights"
        if config.get("parallel_config", {}).get("worker_extension_cls") != EXTENSION:
            raise GenerationError(
                f"{self.control.root} runs on CPU, where vLLM's reload keeps the old output layer of a model that ties "
                f"it to the input embeddings. Start it with --worker-extension-cls {EXTENSION} and this package's "
                "folder in PYTHONPATH, or train an adapter"
            )
        return "reload_whole_weights"


class LoRASync(FolderSync):
    """Adapter weights: loaded under a new name and path per version, beside the base model, which stays available.

    A new name and path matter: the server's prefix cache knows an adapter by them, so blocks of an old version are
    never reused. Needs `--enable-lora` and `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True` on the server, and that no
    [`CheckpointSync`] has replaced its base weights.

    Args:
        base_url, folder, run_id, api_key, timeout_seconds: As for [`FolderSync`].
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
