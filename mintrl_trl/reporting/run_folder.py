"""The run folder: plain files that a person, a plot or a later run reads back without any tracker.

    recipe.json      where a recipe started the run: task, data, evaluation, model and adapter
    settings.json    the trainer's resolved settings; secrets are replaced by `<hidden>`
    start.json       the model that training began with, where its name says all of it, and the kind of device
    versions.json    packages, Python, platform, git commit
    metrics.jsonl    one object per log step: `update` and named numbers
    rollouts.jsonl   one `RolloutRecord` per rollout
    evaluations.jsonl  one object per evaluation on fixed problems: `update` and counts per problem

Invariant: nothing that was written is changed or lost. JSON lines are appended whole and flushed; a line that a crash
tore stays as it is, the next one starts on a line of its own, and readers skip what does not parse. A run that goes on
from a checkpoint first moves what came after it into a folder `abandoned-1`, `abandoned-2`, ..., so the lines are those
of one history; with other settings it gets a `settings-2.json` beside the first. A new run first moves an older one,
model and checkpoints too, into a folder `previous-1`, `previous-2`, ... Only one process of a run writes. No file has a
name that a saved model uses (`config.json`), so a model may be saved into the same folder. While a run writes here it
holds `.running`, which no other process gets; `.rollouts.index` belongs to who reads the rollouts.
"""

import dataclasses
import json
import logging
import math
import os
import platform
import re
import shutil
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO

from .folder_lock import NAME as LOCK
from .folder_lock import FolderLock
from .records import RolloutRecord

_CHECKPOINT = "checkpoint-"  # how transformers begins the names of its checkpoint folders
_PREVIOUS, _ABANDONED = "previous-", "abandoned-"
WEIGHTS_BEFORE = "weights-before-"  # and an update's number: a folder with the weights of an update that broke

logger = logging.getLogger(__name__)

HIDDEN = "<hidden>"
_SECRET_NAME = re.compile(
    r"(^|[_-])((api|access|secret|private|auth)[_-]?key|token|password|passwd|passphrase|pwd|secret|auth|authorization"
    r"|bearer|cookie|credentials?)$"
)
_NO_SECRETS = frozenset({"bos_token", "eos_token", "pad_token", "unk_token"})
_SECRET_VALUE = re.compile(
    r"(?<=://)[^/\s]+(?=@)|\bBearer\s+\S+|\bBasic\s+(?=\S*[0-9=])\S{8,}|\bAKIA[0-9A-Z]{12,}"
    r"|\b(hf_|sk-|gh[opsu]_|github_pat_|glpat-|gsk_|nvapi-|xox[abp]-|AIza)[A-Za-z0-9_-]{8,}"
)
_SECRET_IN_ADDRESS = re.compile(
    r"(?i)([?&](?:[\w-]*(?:key|token|secret)|auth|password|sig|signature)=)[^&#\s]+"  # name, then value
)
_UPDATE = re.compile(rb'\{"update": (\d+),')  # how a line begins
_LINES = ("metrics.jsonl", "rollouts.jsonl", "evaluations.jsonl")
_MARKS = ("settings.json", *_LINES)  # a folder with one of these holds a run
_PACKAGES = ("mintrl_trl", "torch", "trl", "transformers", "peft", "accelerate", "datasets", "vllm", "openai")


class RunFolder:
    """A folder of plain files about one run. Creates it when something is first written.

    Args:
        path (`str` or `Path`): The folder, such as the trainer's `output_dir`.
        recipe (`Mapping`, *optional*): What a recipe adds to the trainer's settings; written beside them.
        start (`Mapping`, *optional*): What a run begins with; written here, and not into its checkpoints.
    """

    def __init__(
        self, path: str | Path, recipe: Mapping[str, Any] | None = None, start: Mapping[str, Any] | None = None
    ):
        self.path, self.recipe, self.start = Path(path), recipe, start
        self.trained_here = False  # whether training has begun; set from outside
        self.begun_by_evaluation = False  # whether what is here was written by this object, before any training
        self.in_use = FolderLock(self.path)  # held while a run writes here
        self._lock = threading.Lock()

    def write_config(self, config: Mapping[str, Any] | Any) -> Path:
        """Write the resolved settings, without secrets.

        Args:
            config (`Mapping` or dataclass or object with `to_dict`): The settings.

        Returns:
            `Path`: The file that holds them: `settings.json`, or a numbered one where earlier settings differ.
        """
        return self._write_once("settings", jsonable(config))

    def write_recipe(self, recipe: Mapping[str, Any]) -> Path:
        """Write what a recipe adds to the settings, without secrets."""
        return self._write_once("recipe", jsonable(recipe))

    def set_aside_older_run(self) -> Path | None:
        """Move a run that was written here before into a folder of its own, before a new one begins.

        All its files go, the saved model among them, and its checkpoints, so that nothing here is of two runs.

        Returns:
            `Path`: The folder it is in now; `None` where there was none.
        """
        if not self.holds_data and not any((self.path / mark).exists() for mark in _MARKS):
            return None
        older = [
            path
            for path in self.path.iterdir()
            if (path.is_file() and path.name != LOCK) or path.name.startswith((_CHECKPOINT, _ABANDONED, WEIGHTS_BEFORE))
        ]
        folder = self._numbered(_PREVIOUS)
        for path in older:
            path.rename(folder / path.name)
        return folder

    @property
    def holds_data(self) -> bool:
        """Whether a run has left metrics, rollouts or checkpoints here."""
        return any((self.path / name).exists() for name in _LINES) or any(self.path.glob(f"{_CHECKPOINT}*"))

    def rewind(self, update: int, checkpoints: Iterable[Path] = ()) -> Path | None:
        """Take back everything that came after an update: a run goes on from there as if it had not been.

        Args:
            update (`int`): Lines of later updates, and all that follow them, move into a folder of their own.
            checkpoints (`Iterable[Path]`, *optional*): Folders to move there as well.

        Returns:
            `Path`: The folder; `None` if nothing came after.
        """
        tails = {name: self._end_of(name, update) for name in _LINES if (self.path / name).exists()}
        tails = {name: end for name, end in tails.items() if end < (self.path / name).stat().st_size}
        broken = (path for number, path in weights_before(self.path).items() if number > update)
        checkpoints = [*checkpoints, *broken]
        if not tails and not checkpoints:
            return None
        folder = self._numbered(_ABANDONED)
        for path in checkpoints:
            path.rename(folder / path.name)
        for name, end in tails.items():
            with open(self.path / name, "rb+") as file, open(folder / name, "xb") as kept:
                file.seek(end)
                shutil.copyfileobj(file, kept)
                kept.flush()
                os.fsync(kept.fileno())  # there before it is gone here
                file.truncate(end)
        return folder

    def flush(self) -> None:
        """Bring all lines to the disk."""
        for name in _LINES:
            if (self.path / name).exists():
                with open(self.path / name, "rb") as file:
                    os.fsync(file.fileno())

    def describe(self, folder: Path, config: Any) -> None:
        """Write settings, versions and what a recipe adds into a folder: this one, or a checkpoint."""
        target = RunFolder(folder)
        if self.recipe is not None:
            target.write_recipe(self.recipe)
        target.write_config(config)
        target.write_versions()
        if self.start is not None and target.path == self.path:
            target.write_start(self.start)

    def write_start(self, start: Mapping[str, Any]) -> Path:
        """Write what a run begins with: `model`, a name or an absolute path or `None`, and `device`."""
        return self._write_once("start", jsonable(start))

    def write_versions(self) -> Path:
        """Write the versions of what runs: packages, Python, platform, and the git commit of a source checkout."""
        return self._write_once("versions", versions())

    def append_metrics(self, update: int, values: Mapping[str, Any]) -> None:
        """Append one line of named numbers.

        Args:
            update (`int`): Optimizer steps taken.
            values (`Mapping[str, Any]`): Numbers; NaN and infinities become null, meaning unknown.
        """
        if not self.trained_here and not self.holds_data:
            self.begun_by_evaluation = True
        self._append("metrics.jsonl", [{"update": update} | jsonable(values)])

    def append_rollouts(self, records: Iterable[RolloutRecord]) -> None:
        """Append finished rollouts."""
        self._append("rollouts.jsonl", [record.to_json() for record in records])

    def append_evaluation(self, update: int, values: Mapping[str, Any]) -> None:
        """Append the counts of one evaluation on fixed problems, after `update` optimizer steps."""
        self._append("evaluations.jsonl", [{"update": update} | jsonable(values)])

    def evaluations(self) -> Iterator[dict[str, Any]]:
        """Lines of `evaluations.jsonl`, in order; none where there is no such file."""
        for _, line in self._read("evaluations.jsonl"):
            yield line

    def metrics(self) -> Iterator[dict[str, Any]]:
        """Lines of `metrics.jsonl`, in order; none where there is no such file."""
        for _, line in self._read("metrics.jsonl"):
            yield line

    def rollouts(self, first: int = 0) -> Iterator[RolloutRecord]:
        """Lines of `rollouts.jsonl` from the update `first` on, in order; none where there is no such file.

        Raises:
            DataError: A line is JSON, but not a rollout; names file and line.
        """
        for number, line in self._read("rollouts.jsonl", first):
            record = RolloutRecord.from_json(line, where=f"{self.path / 'rollouts.jsonl'}, line {number}")
            if record.update >= first:
                yield record

    def _write_once(self, stem: str, value: Any) -> Path:
        text = json.dumps(value, indent=2) + "\n"
        self.path.mkdir(parents=True, exist_ok=True)
        number = 1
        while True:
            path = self.path / (f"{stem}.json" if number == 1 else f"{stem}-{number}.json")
            if not path.exists():
                path.write_text(text, encoding="utf-8")
                return path
            if path.read_text(encoding="utf-8") == text:
                return path
            number += 1

    def _numbered(self, stem: str) -> Path:
        """A new folder `stem1`, `stem2`, ... here."""
        number = 1
        while (folder := self.path / f"{stem}{number}").exists():
            number += 1
        folder.mkdir()
        return folder

    def _end_of(self, name: str, update: int) -> int:
        """Where in a file the lines of the updates up to `update` end, in bytes. A torn last line is beyond."""
        end = 0
        with open(self.path / name, "rb") as file:
            for raw in file:
                try:
                    line = json.loads(raw)
                except ValueError:
                    line = {}
                if not raw.endswith(b"\n") or (isinstance(line, dict) and line.get("update", 0) > update):
                    break
                end += len(raw)
        return end

    def _append(self, name: str, lines: list[dict[str, Any]]) -> None:
        if not lines:
            return
        data = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode("ascii")
        self.path.mkdir(parents=True, exist_ok=True)
        with self._lock, open(self.path / name, "ab+") as file:
            file.write(b"\n" + data if _ends_inside_a_line(file) else data)

    def _read(self, name: str, first: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
        path = self.path / name
        if not path.exists():
            return
        with open(path, "rb") as file:
            for number, raw in enumerate(file, start=1):
                update = _UPDATE.match(raw) if first else None
                if update and int(update[1]) < first:  # not parsed: a long run writes many gigabytes
                    continue
                try:
                    line = json.loads(raw)
                except ValueError:  # torn: not JSON, or not even UTF-8
                    line = None
                if not isinstance(line, dict):
                    logger.warning("%s, line %d is not whole and was skipped.", path, number)
                else:
                    yield number, line


def weights_before(folder: Path) -> dict[int, Path]:
    """Folders with the weights of updates that broke, by update."""
    named = ((path.name.removeprefix(WEIGHTS_BEFORE), path) for path in folder.glob(f"{WEIGHTS_BEFORE}*"))
    return {int(number): path for number, path in named if number.isdecimal()}


def _ends_inside_a_line(file: BinaryIO) -> bool:
    """Whether an earlier run was cut off while it wrote."""
    if not file.seek(0, os.SEEK_END):
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"


def jsonable(value: Any, name: str = "") -> Any:
    """Plain JSON values for settings and metrics. What could be a secret becomes `<hidden>`, NaN becomes None.

    Args:
        value (`Any`): Mappings, sequences, sets, dataclasses, objects with `to_dict`, enums, paths, numbers of numpy
            and torch; anything else is written as text.
        name (`str`, *optional*): The key it stands under, which decides whether it is a secret.
    """
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()  # accessToken is access_token
    if _SECRET_NAME.search(name) and name not in _NO_SECRETS:
        return HIDDEN if value else None
    if isinstance(value, Enum):
        return jsonable(value.value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return _without_secrets(value)
    if isinstance(value, Mapping):
        return {str(key): jsonable(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((jsonable(item) for item in value), key=str)
    if hasattr(value, "to_dict"):
        return jsonable(value.to_dict())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: jsonable(getattr(value, field.name), field.name) for field in dataclasses.fields(value)}
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return jsonable(value.item())
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return _without_secrets(str(value))


def _without_secrets(text: str) -> str:
    return _SECRET_IN_ADDRESS.sub(rf"\1{HIDDEN}", _SECRET_VALUE.sub(HIDDEN, text))


def installed_version(package: str) -> str | None:
    """Version of a package; `None` where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, Any]:
    """What runs here: package versions (None: not installed), Python, platform, git commit of a source checkout."""
    return {
        "packages": {name: installed_version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "git_commit": _git_commit(Path(__file__).parent),
    }


def _git_commit(folder: Path) -> str | None:
    """Commit of the checkout that tracks this very folder, with `-dirty` after local changes; None elsewhere."""
    commands = (
        ["git", "ls-files", "--error-unmatch", Path(__file__).name],
        ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"],
    )
    output = ""
    for command in commands:
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        if done.returncode:
            return None
        output = done.stdout.strip()
    return output
