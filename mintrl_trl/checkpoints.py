"""Checkpoints as folders: which of them are whole, which a run can go on from, and which keep their weights alone.

It knows files and nothing of models or trainers. A checkpoint counts once it holds its completion mark, which is
written last, by rename, after everything else has reached the disk, and which lists every file with its size.
Invariant: at any moment, a kill included, a folder with a mark is whole, or thinned, or on its way there with every
weight readable; what is being deleted has lost its name first.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import CheckpointError

MARK = "complete.json"
STATE = "mintrl_state.json"  # what the run was, beside transformers' `trainer_state.json`
_NAME = re.compile(r"checkpoint-(\d+)")
_DOOMED = ".deleting-"  # how the names of folders begin that are being deleted
# What only going on needs: moments, schedule, random numbers, and weights in the form of a sharding engine.
_RESUME_FILES = re.compile(
    r"optimizer(\.pt|\.bin|_\d+)?|scheduler\.pt|scaler\.pt|rng_state.*\.pth|reference\.safetensors"
    r"|pytorch_model_fsdp(\.bin|_\d+)|global_step\d+|latest|zero_to_fp32\.py"
)
_WEIGHTS = re.compile(r"(adapter_)?model(-\d+-of-\d+)?\.safetensors")
ADAPTER = "adapter_config.json"  # in the folder of an adapter, and of no other model
SHARDS = "pytorch_model_fsdp_0"  # where accelerate writes FSDP's sharded weights


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder as it is on the disk.

    Args:
        path (`Path`): The folder.
        update (`int`): Optimizer steps taken, by its name.
        mark (`dict`, *optional*): Content of the completion mark; `None` where there is none.
    """

    path: Path
    update: int
    mark: dict[str, Any] | None

    @property
    def problem(self) -> str | None:
        """Why no run can go on from it, in words; `None` if one can."""
        if self.mark is None:
            return f"has no completion mark ({MARK}): its run was stopped while it saved, or another program wrote it"
        if not self.mark.get("resumable"):
            return "keeps the weights alone: optimizer and random numbers were not saved, or were thinned out"
        for name, size in self.mark["files"].items():
            file = self.path / name
            if not file.is_file():
                return f"lacks {name}, which its completion mark lists"
            if file.stat().st_size != size:
                return f"holds {name} with {file.stat().st_size:,} bytes; its completion mark says {size:,}"
        return None


def read_checkpoint(path: Path) -> Checkpoint | None:
    """The checkpoint at `path`; `None` if that is no folder."""
    if not path.is_dir():
        return None
    name = _NAME.fullmatch(path.resolve().name)
    try:
        mark = json.loads((path / MARK).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        mark = None
    if not isinstance(mark, dict) or not isinstance(mark.get("files"), dict) or type(mark.get("update")) is not int:
        mark = None
    update = mark["update"] if mark is not None else int(name[1]) if name else -1
    return Checkpoint(path, update, mark)


def list_checkpoints(output_dir: str | Path) -> list[Checkpoint]:
    """All checkpoint folders in `output_dir`, whole or not, oldest first."""
    folder = Path(output_dir)
    if not folder.is_dir():
        return []
    found = [read_checkpoint(path) for path in folder.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda checkpoint: int(_NAME.fullmatch(checkpoint.path.name)[1]))


def last_good(output_dir: str | Path) -> Checkpoint | None:
    """The latest checkpoint in `output_dir` that a run can go on from."""
    good = (checkpoint for checkpoint in reversed(list_checkpoints(output_dir)) if checkpoint.problem is None)
    return next(good, None)


def wanted_checkpoint(resume: str | bool | os.PathLike | None, output_dir: str | Path) -> str | bool | None:
    """What `resume_from_checkpoint` says, in one form: `None` for a new run, True for the last one, or a path."""
    if resume is None or resume is False or str(resume).lower() in ("false", "none", ""):
        return None
    return True if resume is True or str(resume).lower() in ("true", "last") else os.fspath(resume)


def find_checkpoint(resume: str | bool | os.PathLike | None, output_dir: str | Path) -> Checkpoint | None:
    """The checkpoint to go on from; `None` for a new run.

    Args:
        resume (`str` or `bool` or path, *optional*): `True`, `"true"` or `"last"` for the last one of `output_dir` that
            a run can go on from; a folder; or `None`, `False` or `"false"`.
        output_dir (`str` or `Path`): The run folder.

    Raises:
        CheckpointError: There is no such checkpoint, or it is half, thinned or foreign. Names the last good one.
    """
    wanted = wanted_checkpoint(resume, output_dir)
    if wanted is None:
        return None
    good = last_good(output_dir)
    if wanted is True:
        if good is not None:
            return good
        bad = "".join(f" {checkpoint.path} {checkpoint.problem}." for checkpoint in list_checkpoints(output_dir)[-1:])
        raise CheckpointError(
            f"{output_dir} holds no checkpoint that a run can go on from.{bad} Start anew without "
            "resume_from_checkpoint, or name a checkpoint of another folder."
        )
    checkpoint = read_checkpoint(Path(wanted))
    problem = "does not exist" if checkpoint is None else checkpoint.problem
    if problem is None:
        return checkpoint
    if good is not None:
        advice = f"The last one that a run can go on from is {good.path}."
    else:
        advice = f"{output_dir} holds none that a run can go on from: start anew without resume_from_checkpoint."
    raise CheckpointError(f"{wanted} {problem}. {advice}")


def write_mark(path: Path, update: int, *, resumable: bool, thinned: bool = False) -> None:
    """Declare a checkpoint complete, after all its files have reached the disk.

    Args:
        path (`Path`): The checkpoint.
        update (`int`): Optimizer steps taken.
        resumable (`bool`): Whether a run can go on from it.
        thinned (`bool`, *optional*): Whether thinning is over.
    """
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.name != MARK)
    for file in files:
        _to_disk(file)
    for folder in {file.parent for file in files} | {path}:
        _to_disk(folder)
    listed = {file.relative_to(path).as_posix(): file.stat().st_size for file in files}
    mark = {"update": update, "resumable": resumable, "thinned": thinned, "files": listed}
    replace_text(path / MARK, json.dumps(mark, indent=2) + "\n")


def replace_text(path: Path, text: str) -> None:
    """Write a file so that it holds the old text or the new one, whenever the process ends."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, encoding="utf-8")
    _to_disk(beside)
    beside.replace(path)
    _to_disk(path.parent)


def make_room(
    output_dir: str | Path, *, resumable: int, limit: int | None, protected: Collection[Path], cast: Callable
) -> None:
    """Thin all but the last `resumable` checkpoints, and delete whole old ones beyond `limit`.

    Args:
        output_dir (`str` or `Path`): The run folder.
        resumable (`int`): How many of the latest complete checkpoints keep everything.
        limit (`int`, *optional*): How many checkpoints stay at all; `None` or 0 means all.
        protected (`Collection[Path]`): Checkpoints that stay as they are.
        cast (`Callable[[Path], None]`): Makes the weights of a checkpoint plain files in bfloat16. They stay readable
            throughout, and it may be run again on its own result.
    """
    clear_doomed(output_dir)
    complete = [checkpoint for checkpoint in list_checkpoints(output_dir) if checkpoint.mark is not None]
    if limit:
        for checkpoint in complete[: -max(limit, 1)]:
            if checkpoint.path.resolve() not in {path.resolve() for path in protected}:
                delete(checkpoint.path)
        complete = [checkpoint for checkpoint in complete if checkpoint.path.exists()]
    for checkpoint in complete[:-resumable]:
        if not checkpoint.mark.get("thinned") and checkpoint.path.resolve() not in {p.resolve() for p in protected}:
            thin(checkpoint, cast)


def thin(checkpoint: Checkpoint, cast: Callable[[Path], bool]) -> None:
    """Keep a checkpoint's weights alone. A kill leaves it resumable and untouched, or no longer resumable and readable.

    What only going on needs is deleted once the weights are there as plain files. A checkpoint whose weights are in
    another form (DeepSpeed's, not gathered) stays as it is.
    """
    path = checkpoint.path
    if not plain_weights(path) and not (path / SHARDS).is_dir():
        return
    if checkpoint.mark["resumable"]:
        write_mark(path, checkpoint.update, resumable=False)
    cast(path)
    for item in sorted(path.iterdir()):
        if _RESUME_FILES.fullmatch(item.name):
            delete(item)
    clear_doomed(path)
    write_mark(path, checkpoint.update, resumable=False, thinned=True)


def delete(path: Path) -> None:
    """Delete a file or folder that may be large: it loses its name first, so that half of it is taken for nothing."""
    if not path.is_dir():
        path.unlink()
        return
    doomed = path.with_name(_DOOMED + path.name)
    shutil.rmtree(doomed, ignore_errors=True)
    path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def clear_doomed(folder: str | Path) -> None:
    """Finish deletions that a kill cut short."""
    for path in Path(folder).glob(f"{_DOOMED}*"):
        shutil.rmtree(path, ignore_errors=True)


def plain_weights(path: Path) -> list[Path]:
    """The files that hold a checkpoint's weights in the form that `from_pretrained` reads: its own, and of adapters
    that PEFT saves in folders by their names. What other programs, or a kill, left in further folders is not its."""
    own = [file for file in path.glob("*.safetensors") if _WEIGHTS.fullmatch(file.name)]
    adapters = [file for file in path.glob("*/adapter_model.safetensors") if not file.parent.name.startswith(".")]
    return sorted(file for file in [*own, *adapters] if file.is_file())


def share_weights(folder: Path) -> None:
    """Let whoever may read a model's configuration read its weights, too: safetensors keeps them to their owner."""
    for file in plain_weights(folder):
        for config in (file.with_name("config.json"), file.with_name(ADAPTER)):
            with suppress(OSError):  # none, or a disk without such rights
                file.chmod(config.stat().st_mode & 0o777)


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
