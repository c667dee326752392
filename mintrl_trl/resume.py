"""How a run begins, goes on and leaves checkpoints: the glue between trainer, run folder and `checkpoints`.

It decides whether a run may start in its folder or go on from a checkpoint, and completes what `transformers` saves.
It keeps no number of its own. Invariants: the main process decides and touches files, and every process learns the
outcome, an error too; the completion mark is the last thing written of a checkpoint, and older checkpoints are touched
only after it.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import DistributedType, broadcast_object_list, gather_object
from safetensors.torch import load_model, save_model
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from .checkpoint_state import changes, describe_data, describe_run, run_state
from .checkpoints import (
    MARK,
    STATE,
    Checkpoint,
    find_checkpoint,
    last_good,
    list_checkpoints,
    make_room,
    plain_weights,
    replace_text,
    share_weights,
    write_mark,
)
from .config import MInTRLConfig
from .errors import CheckpointError, ConfigError
from .export import cast_in_place
from .processes import all_or_none
from .reporting.run_folder import RunFolder

if TYPE_CHECKING:
    from .trainer import MInTRLTrainer

logger = logging.getLogger(__name__)

_REFERENCE = "reference.safetensors"  # the moving reference model of `sync_ref_model`
_SHARDED = (DistributedType.FSDP, DistributedType.DEEPSPEED)


def check_output_folder(args: MInTRLConfig, resume: str | bool | None = None) -> Checkpoint | None:
    """Whether a run with these settings may start, or go on, in its output folder. Changes nothing, loads nothing.

    Args:
        args ([`MInTRLConfig`]): Settings; `output_dir`, `resume_from_checkpoint` and `set_aside_older_run` matter.
        resume (`str` or `bool`, *optional*): The checkpoint, instead of `args.resume_from_checkpoint`.

    Returns:
        `Checkpoint`: The one to go on from; `None` for a new run.

    Raises:
        CheckpointError: There is no such checkpoint, or no run can go on from it. Names the last good one.
        ConfigError: The folder holds another run.
    """
    checkpoint = find_checkpoint(resume if resume is not None else args.resume_from_checkpoint, args.output_dir)
    if args.set_aside_older_run or _of_this_run(checkpoint, args) or not RunFolder(args.output_dir).holds_data:
        return checkpoint
    good = last_good(args.output_dir)
    go_on = f"go on with resume_from_checkpoint={good.path}" if good is not None else "name another folder"
    if good is not None and 0 < args.max_steps <= good.update:
        go_on = f"that run has all {args.max_steps:,} updates that are asked for: name another folder"
    raise ConfigError(
        "output_dir",
        str(args.output_dir),
        "a folder without the metrics, rollouts or checkpoints of another run",
        f"{go_on}, or move that run into a folder previous-N there with set_aside_older_run=true",
    )


def started_with(model: Any, device: torch.device, altered_by: Any = None) -> dict[str, str | None]:
    """What a run begins with, for its folder.

    Args:
        model (`Any`): As the trainer got it.
        device (`torch.device`): Where it trains.
        altered_by (`Any`, *optional*): An adapter or a quantization that its name does not tell.
    """
    name = model if isinstance(model, str) and altered_by is None else None
    if name is not None and Path(name).is_dir():
        name = str(Path(name).resolve())  # found from any folder
    return {"model": name, "device": device.type}


@contextmanager
def running(trainer: "MInTRLTrainer", resume: str | bool | None) -> Iterator[str | None]:
    """[`begin_run`], and the run folder kept from other runs while the block lasts."""
    try:
        yield begin_run(trainer, resume)
    finally:
        if trainer.run_folder is not None:
            trainer.run_folder.in_use.release()


def begin_run(trainer: "MInTRLTrainer", resume: str | bool | None) -> str | None:
    """Make the run folder ready for a new run, or take it back to a checkpoint. Called on every process.

    Args:
        trainer ([`MInTRLTrainer`]): Before its training loop.
        resume (`str` or `bool`, *optional*): As `train` takes it.

    Returns:
        `str`: The checkpoint to load; `None` for a new run.

    Raises:
        CheckpointError, ConfigError: See `check_output_folder`; also where the checkpoint's run differs from this one.
        JudgeError, NoVerdict: The judge does not answer.
    """
    if trainer.args.sync_ref_model and trainer.accelerator.distributed_type in _SHARDED:
        allowed = "false with FSDP or DeepSpeed, where the moving reference is not part of a checkpoint"
        if trainer.args.save_strategy != "no" and not trainer.args.save_only_model:
            raise ConfigError("sync_ref_model", True, allowed, "set save_only_model=True, or remove sync_ref_model")
    begun = None
    with all_or_none():
        if trainer.accelerator.is_main_process:
            begun = _begin(trainer, resume)
    path, state = broadcast_object_list([begun])[0]
    trainer.resumed_from, trainer.carried = path, state["carried"]
    own, windows, spent = trainer.accelerator.process_index, state["review_windows"], state["judge_spent"]
    trainer.sampler.review_window = windows[own] if own < len(windows) else []
    with all_or_none():
        if not trainer.accelerator.is_main_process and trainer.args.needs_judge:
            trainer.policy.probe()
    if own < len(spent) and spent[own] is not None and hasattr(trainer.judge, "spent"):
        trainer.judge.spent = tuple(spent[own])
    return path


def _begin(trainer: "MInTRLTrainer", resume: str | bool | None) -> tuple[str | None, dict[str, Any]]:
    """The checkpoint to go on from, and what the run, and each of its processes, left in it."""
    args, folder = trainer.args, trainer.run_folder
    if folder.begun_by_evaluation:  # of this very trainer, before it trained
        checkpoint = find_checkpoint(resume if resume is not None else args.resume_from_checkpoint, args.output_dir)
    else:
        checkpoint = check_output_folder(args, resume)
    if trainer.run_description is None:
        trainer.run_description = describe_run(trainer)
    state = {} if checkpoint is None else _compare(checkpoint, trainer)
    if args.needs_judge:
        trainer.policy.probe()
    older = None
    if (other := folder.in_use.take()) is not None:
        allowed = f"a folder that no other run is writing to now, as {other} is"
        raise ConfigError("output_dir", str(args.output_dir), allowed, "end that run first, or name another folder")
    if _of_this_run(checkpoint, args):
        later = [other.path for other in list_checkpoints(args.output_dir) if _is_stale(other, checkpoint)]
        if (abandoned := folder.rewind(checkpoint.update, later)) is not None:
            logger.warning("What came after update %d is in %s now.", checkpoint.update, abandoned)
    elif not folder.begun_by_evaluation and (older := folder.set_aside_older_run()) is not None:
        logger.warning("The run that was here before, model and checkpoints too, is in %s now.", older)
    folder.trained_here, folder.begun_by_evaluation = True, False
    left = {"review_windows": [], "judge_spent": [], "carried": {}}
    left = {name: state.get(name, nothing) for name, nothing in left.items()}
    if checkpoint is None:
        return None, left
    if older is not None and not checkpoint.path.exists():  # it lay in `abandoned-1` of that run
        return str(older / checkpoint.path.resolve().relative_to(folder.path.resolve())), left
    return str(checkpoint.path), left


def _compare(checkpoint: Checkpoint, trainer: "MInTRLTrainer") -> dict[str, Any]:
    """Refuse, or allow and log, what differs from the run that wrote the checkpoint. Returns the state it left."""
    try:
        state = json.loads((checkpoint.path / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{checkpoint.path} holds no {STATE} that can be read. Name another one.") from error
    different = changes(state["run"], trainer.run_description | _same_beginning(state, trainer))
    if not different:
        return state
    listed = "".join(f"\n  {line}" for line in different)
    if not trainer.args.allow_changed_resume:
        raise CheckpointError(
            f"this run differs from the one that wrote {checkpoint.path}:{listed}\n"
            "Set that back, or go on all the same with allow_changed_resume=true."
        )
    logger.warning("Going on from %s although this differs:%s", checkpoint.path, listed)
    return state


def _same_beginning(state: dict[str, Any], trainer: "MInTRLTrainer") -> dict[str, Any]:
    """The rows as the checkpoint's run had them, where further ones are new at the end and none of them had its turn.

    A longer run on problems that are drawn one after the other has such rows.
    """
    args, was = trainer.args, state["run"]["data"]
    seen = state["update"] // args.updates_per_batch * args.updates_per_generation * args.prompts_per_update
    if args.shuffle_dataset or not seen <= was["rows"] < len(trainer.train_dataset):
        return {}
    begins = describe_data(trainer.train_dataset.select(range(was["rows"])))
    return {"data": begins} if begins == was else {}


def _of_this_run(checkpoint: Checkpoint | None, args: MInTRLConfig) -> bool:
    """Whether a checkpoint lies in the run's own folder, so that its files are the beginning of this run's."""
    return checkpoint is not None and checkpoint.path.resolve().parent == Path(args.output_dir).resolve()


def _is_stale(other: Checkpoint, start: Checkpoint) -> bool:
    """Whether a checkpoint is of updates that are taken back, or was never completed."""
    return other.update > start.update or other.mark is None


# Saving


@contextmanager
def completing_checkpoint(trainer: "MInTRLTrainer") -> Iterator[None]:
    """Around `transformers`' saving of a checkpoint: add the run's state, mark it complete, then thin older ones."""
    args, main = trainer.args, trainer.accelerator.is_main_process
    path = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{trainer.state.global_step}"
    if main:
        (path / MARK).unlink(missing_ok=True)
    limit, args.save_total_limit = args.save_total_limit, None  # older ones are deleted after the mark
    try:
        yield
    finally:
        args.save_total_limit = limit
    by_process = gather_object([(trainer.sampler.review_window, getattr(trainer.judge, "spent", None))])
    trainer.accelerator.wait_for_everyone()
    with all_or_none():
        if main:
            _complete(trainer, path, by_process)
            best = trainer.state.best_model_checkpoint
            make_room(
                args.output_dir,
                resumable=args.resumable_checkpoints,
                limit=limit,
                protected=[path, *([Path(best)] if best else [])],
                cast=cast_in_place,
            )


def _complete(trainer: "MInTRLTrainer", path: Path, by_process: list[tuple]) -> None:
    args, update = trainer.args, trainer.state.global_step
    if not plain_weights(path):
        _describe_model(trainer, path)
    if args.sync_ref_model and not args.save_only_model:
        save_model(trainer.accelerator.unwrap_model(trainer.ref_model), str(path / _REFERENCE))
    share_weights(path)
    trainer.run_folder.describe(path, args)
    trainer.run_folder.flush()
    replace_text(path / STATE, json.dumps(run_state(trainer, by_process), indent=2) + "\n")
    between_batches = update % args.updates_per_batch == 0  # rollouts are not saved
    write_mark(path, update, resumable=between_batches and not args.save_only_model)


def _describe_model(trainer: "MInTRLTrainer", path: Path) -> None:
    """Config, adapter config and tokenizer, which `transformers` leaves out beside sharded weights."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    model.config.save_pretrained(path)
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.save_pretrained(path)
    if hasattr(model, "peft_config"):
        model.peft_config[model.active_adapter].save_pretrained(path)
    trainer.processing_class.save_pretrained(path)


class ContinueCallback(TrainerCallback):
    """Brings back what `transformers` does not when a run goes on from a checkpoint.

    Args:
        trainer ([`MInTRLTrainer`]): Knows the checkpoint and its sampler of rows.
    """

    def __init__(self, trainer: "MInTRLTrainer"):
        self.trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        trainer = self.trainer
        if trainer.resumed_from is None:
            return
        args.eval_on_start = False  # it was done when the run started
        passes = state.global_step // _updates_per_pass(kwargs["train_dataloader"], args)
        if args.shuffle_dataset:  # each pass over the rows draws an order of its own from one generator
            for _ in range(passes):
                torch.randperm(trainer.row_sampler.num_samples, generator=trainer.row_sampler.generator)
        reference = Path(trainer.resumed_from) / _REFERENCE
        if trainer.args.sync_ref_model and reference.exists():
            load_model(trainer.accelerator.unwrap_model(trainer.ref_model), str(reference))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """A log line ends with each checkpoint: what it averages over would not be known to a run that goes on."""
        control.should_log |= control.should_save and args.logging_strategy != "no"

    on_epoch_end = on_step_end


def _updates_per_pass(dataloader: Any, args: TrainingArguments) -> int:
    """Optimizer steps of one pass over the rows, as `transformers` counts them."""
    return max(1, -(-len(dataloader) // args.gradient_accumulation_steps))
