"""Pushes the model of a run that has ended, from its folder alone; what `mintrl push` does."""

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from ..checkpoints import ADAPTER, last_good, read_checkpoint
from ..errors import CheckpointError, ConfigError, DataError, HubError
from ..reporting.plots import learning_curves
from ..reporting.run_folder import RunFolder
from .contents import WAITING, card_of, fill
from .folders import is_checkpoint, own_weights
from .pusher import HubPusher


def push_run(
    source: str | Path,
    pusher: HubPusher,
    *,
    merge: bool = False,
    base: str | None = None,
    license: str | None = None,
    judge_license: str | None = None,
    examples: int = 3,
    message: str = "Upload model",
    stage: Path | None = None,
) -> str:
    """Push a model with its card, recipe and numbers.

    Args:
        source (`str` or `Path`): A run folder with a saved model, or one of its checkpoints.
        pusher ([`HubPusher`]): Where to.
        merge (`bool`, *optional*, defaults to `False`): Push an adapter merged into its base model.
        base (`str`, *optional*): With `merge`, the base model, where the adapter's own word for it is missing.
        license, judge_license (`str`, *optional*): For the card; by default those that the hub has.
        examples (`int`, *optional*, defaults to 3): Rollouts that the card shows.
        message (`str`, *optional*): Of the commit.
        stage (`Path`, *optional*): Write what would be pushed into this folder, and push nothing.

    Returns:
        `str`: Where it is.

    Raises:
        CheckpointError: There are no weights to push.
        ConfigError: Something to merge that is no adapter, or a folder to write to that is not empty.
        HubError: It could not be pushed.
    """
    source = Path(source)
    if not source.is_dir() or not own_weights(source):
        good = last_good(source) if source.is_dir() else None
        fix = f" Name one of its checkpoints, such as {good.path}." if good is not None else ""
        raise CheckpointError(f"{source} holds no weights that can be pushed.{fix}")
    adapter = (source / ADAPTER).is_file()
    if merge and not adapter:
        raise ConfigError("merge", True, "unset for a model of all weights", "leave --merge out")
    checkpoint = read_checkpoint(source) if is_checkpoint(source) else None
    run = source if checkpoint is None else source.resolve().parent
    until = checkpoint.update if checkpoint is not None and checkpoint.update >= 0 else None
    with suppress(DataError, OSError):  # nothing was logged, or nothing may be written here
        learning_curves(RunFolder(run))
    card = card_of(
        run,
        pusher.repo,
        adapter=adapter and not merge,
        base_model=base or _base_of(source),
        licence_of=pusher.licence_of if stage is None else lambda model: None,
        license=license,
        judge_license=judge_license,
        update=until,
        examples=examples,
    )
    if stage is not None and stage.exists() and (stage.is_file() or any(stage.iterdir())):
        raise ConfigError("stage", str(stage), "a folder that does not exist yet, or is empty", "name another")
    try:
        if stage is not None:
            stage.parent.mkdir(parents=True, exist_ok=True)
            target = stage
        else:  # beside the weights, where linking them costs nothing
            target = Path(tempfile.mkdtemp(prefix=WAITING, dir=run if os.access(run, os.W_OK) else None))
        fill(target, model=source, run=run, card=card, merge=merge, base=base, until=until)
    except OSError as error:
        raise HubError(f"what is to be pushed could not be gathered: {error}") from error
    if until is not None:
        with suppress(DataError, OSError):
            learning_curves(RunFolder(target))  # in place of those of the whole run
    return str(target if stage is not None else pusher.push(target, message).commit_url)


def _base_of(source: Path) -> str | None:
    """The base model that an adapter names."""
    try:
        return json.loads((source / ADAPTER).read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError):
        return None
