"""One update at full length before the first rollout, to see whether the longest batch fits. Changes nothing.

Memory that suffices for the first updates need not suffice for the longest rollouts, which may come after hours. So
one micro-batch of the largest size allowed goes through the trainer's own loss, backward pass and optimizer, with the
optimizer's state in place. It makes no rollout and writes no file.

Invariant: weights, optimizer state, random states, metrics and counters are afterwards, bit for bit, what they were.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather_object
from peft import PeftModel
from rich.console import Console
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from . import trl_seams
from .checkpoint_state import bit_sums
from .errors import MemoryLimitError, NumericsError
from .memory import LIMIT_SHARE, DeviceMemory, Knobs, MemoryUse, ProcessMemory, memory_of, tensor_bytes, what_to_change
from .rollouts.schedule import Phase

if TYPE_CHECKING:
    from .trainer import MInTRLTrainer


class DryRunCallback(TrainerCallback):
    """Runs [`dry_run`] when training begins, and says what came of it on the main process.

    Args:
        trainer ([`MInTRLTrainer`]): Whose update.
        console (`Console`, *optional*): Where to. Defaults to standard output.
        memory (`DeviceMemory` or `ProcessMemory`, *optional*): What is measured. Defaults to the trainer's device.
    """

    def __init__(self, trainer: "MInTRLTrainer", console: Console | None = None, memory: Any = None):
        self.trainer, self.memory = trainer, memory
        self.console = console if console is not None else Console(file=sys.stdout, highlight=False, soft_wrap=True)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        use = dry_run(self.trainer, self.memory or memory_of(self.trainer.accelerator.device))
        if state.is_world_process_zero:
            self.console.print(f"dry run: {use.size}, {use.seconds:.1f} s: {use}", markup=False)


def dry_run(trainer: "MInTRLTrainer", memory: DeviceMemory | ProcessMemory) -> MemoryUse:
    """Run the largest micro-batch through every phase of the run and the optimizer. Every process takes part.

    Args:
        trainer ([`MInTRLTrainer`]): Its model and optimizer are prepared for training.
        memory ([`DeviceMemory`] or [`ProcessMemory`]): What is measured.

    Returns:
        [`MemoryUse`]: Of the process that is closest to its limit.

    Raises:
        MemoryLimitError: Memory ran out, or less than a tenth is left. The message says what to change.
        NumericsError: The optimizer changed weights although gradients and learning rate were 0.
    """
    try:
        with _nothing_changed(trainer):
            use = _measure(trainer, memory)
    except (RuntimeError, MemoryError) as error:
        if not _ran_out(error):
            raise
        raise MemoryLimitError(_message(trainer, None, "memory ran out")) from error
    use = max(gather_object([use]), key=lambda use: use.peak / (use.room or sys.maxsize))
    if not use.fits:
        raise MemoryLimitError(_message(trainer, use, str(use)))
    return use


def _ran_out(error: Exception) -> bool:
    """Whether an exception says that there is no memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return type(error) is RuntimeError and "DefaultCPUAllocator" in str(error)


def _message(trainer: "MInTRLTrainer", use: MemoryUse | None, what: str) -> str:
    args = trainer.args
    knobs = Knobs(
        rows=args.per_device_train_batch_size,
        rows_per_update=args.per_device_train_batch_size * args.gradient_accumulation_steps,
        prompt_tokens=args.max_prompt_length,
        completion_tokens=args.max_completion_length,
        gradient_checkpointing=bool(args.gradient_checkpointing),
        adapter=isinstance(trainer.accelerator.unwrap_model(trainer.model), PeftModel),
        sharded=trainer.is_fsdp_enabled,
    )
    size = f"{knobs.rows} x ({knobs.prompt_tokens:,} + {knobs.completion_tokens:,}) tokens"
    changes = "".join(f"\n  {number}. {change}" for number, change in enumerate(what_to_change(knobs, use), start=1))
    return (
        f"an update at full length ({size}) does not fit: {what}. No weight was changed and no rollout was made. An "
        f"update may take {LIMIT_SHARE:.0%} of the memory there is. What to change, the first one first:{changes}"
    )


def _measure(trainer: "MInTRLTrainer", memory: DeviceMemory | ProcessMemory) -> MemoryUse:
    args, model = trainer.args, trainer.model_wrapped
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)  # accelerate wraps the real one
    started = time.perf_counter()
    begins = not optimizer.state  # after a checkpoint was loaded the state is there, and is not to be touched
    for weight in trained:  # held all through, as from the second micro-batch of an update on
        weight.grad = torch.zeros_like(weight)
    if begins:
        optimizer.step()
    memory.reset()
    held = memory.held()
    for batch in _batches(trainer):
        with trainer.compute_loss_context_manager():
            loss = trainer.compute_loss(model, batch)
        trainer.accelerator.backward(loss)
        del loss
    if begins:
        for weight in trained:
            weight.grad.zero_()
        optimizer.step()
    return MemoryUse(
        rows=args.per_device_train_batch_size,
        prompt_tokens=args.max_prompt_length,
        completion_tokens=args.max_completion_length,
        place=memory.name,
        weights=tensor_bytes([*model.parameters(), *model.buffers()]),
        gradients=tensor_bytes(weight.grad for weight in trained),
        optimizer=tensor_bytes(_tensors(optimizer.state.values())),
        held=held,
        peak=memory.peak(),
        reserved=memory.reserved(),
        room=memory.room(),
        seconds=time.perf_counter() - started,
    )


def _tensors(states: Any) -> Iterator[Tensor]:
    """Tensors of an optimizer's state, nested ones too."""
    for value in states:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, dict):
            yield from _tensors(value.values())


def _batches(trainer: "MInTRLTrainer") -> list[dict[str, Tensor]]:
    """The largest micro-batch, once for each phase of the run: B rows, P prompt and C completion columns."""
    args, device = trainer.args, trainer.accelerator.device
    rows, prompt, width = args.per_device_train_batch_size, args.max_prompt_length, args.max_completion_length
    words = trainer.accelerator.unwrap_model(trainer.model).get_input_embeddings().num_embeddings
    own = torch.Generator().manual_seed(args.seed)
    ids = torch.randint(words, (rows, prompt + width), generator=own).to(device)  # (B, P+C)
    batch = {
        "prompt_ids": ids[:, :prompt],
        "prompt_mask": torch.ones_like(ids[:, :prompt]),
        "completion_ids": ids[:, prompt:],
        "completion_mask": torch.ones_like(ids[:, prompt:]),
        "advantages": torch.ones(rows, device=device),  # (B,)
        "num_items_in_batch": torch.tensor(rows * width * trainer.accelerator.num_processes, device=device),
    } | trainer.lean.row_keys(rows)
    if args.updates_per_batch > 1:
        batch["old_per_token_logps"] = torch.full((rows, width), -1.0, device=device)  # (B, C)
    policy_authored = torch.ones(rows, width, dtype=torch.bool, device=device)  # (B, C)
    policy_authored[:, : args.correction_tokens] = False
    regression = batch | {
        trl_seams.POLICY_AUTHORED: policy_authored,
        trl_seams.INTERVENTION_LOGPS: torch.full((rows, width), torch.nan, device=device),  # (B, C)
        trl_seams.SCORED: torch.ones(rows, dtype=torch.bool, device=device),
        trl_seams.IS_CONTROL: torch.zeros(rows, dtype=torch.bool, device=device),
    }
    if trainer.beta != 0.0:
        batch["ref_per_token_logps"] = torch.full((rows, width), -1.0, device=device)  # (B, C)
    phases = {trainer.schedule.phase(trainer.state.global_step), trainer.schedule.phase(trainer.state.max_steps - 1)}
    return [{Phase.INTERVENTION: regression, Phase.ON_POLICY: batch}[phase] for phase in Phase if phase in phases]


@contextmanager
def _nothing_changed(trainer: "MInTRLTrainer") -> Iterator[None]:
    """Learning rate 0 inside; puts back whatever an update touches, also where it fails.

    Raises:
        NumericsError: Weights are not what they were.
    """
    accelerator, model = trainer.accelerator, trainer.model_wrapped
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    groups = [dict(group) for group in optimizer.param_groups]
    begins, training, weights = not optimizer.state, model.training, bit_sums(trained)
    devices = [accelerator.device] if accelerator.device.type == "cuda" else []
    for group in optimizer.param_groups:
        group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], Tensor) else 0.0
    try:
        with torch.random.fork_rng(devices=devices), trl_seams.update_apart(trainer):
            model.train()
            yield
    finally:
        for group, values in zip(optimizer.param_groups, groups, strict=True):
            group.clear()
            group.update(values)
        if begins:
            optimizer.state.clear()
        model.zero_grad(set_to_none=True)
        model.train(training)
        if devices:
            torch.cuda.empty_cache()
    if bit_sums(trained) != weights:
        raise NumericsError(
            f"the optimizer ({type(optimizer).__name__}) changes weights although gradients and learning rate are 0, "
            "so an update cannot be tried without consequences. Start again without dry_run_worst_case, or with "
            "another `optim`."
        )
