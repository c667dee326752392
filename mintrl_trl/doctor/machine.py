"""The machine behind a run: its device, the arithmetic of its batches, its disk.

Reads; reserves nothing. Sizes are estimates from the model's shape, in bytes of 2**30 to a GiB, and lean to the large.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..config import MInTRLConfig
from ..errors import ConfigError, MInTRLError
from ..recipe import Recipe
from ..resume import check_output_folder
from .findings import Finding, note, ok, problem, refused

if TYPE_CHECKING:
    from .policy import Policy

_GIB = 2**30
_MASTER_BYTES, _ADAM_BYTES, _THIN_BYTES = 4, 8, 2  # of one parameter, in a checkpoint
_SYNCED_VERSIONS = 3  # two are kept while a third is written
_SPARE = 1.1


def examine_device(args: MInTRLConfig) -> Iterator[Finding]:
    """Where training would run, and in which numbers."""
    numbers = compute_dtype(args)
    if args.use_cpu:
        slow = note("device", f"CPU, {numbers}", "set `dtype: float32` and `bf16: false`: faster on a CPU")
        yield ok("device", f"CPU, {numbers}") if numbers == "float32" else slow
    elif torch.cuda.is_available():
        yield ok("device", f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}, {numbers}")
    else:
        yield note("device", "no GPU here: the run would train on the CPU", "run this where it will train")


def trains_here(args: MInTRLConfig) -> bool:
    """Whether this machine is such as the run is meant for: one with a GPU, unless the recipe says CPU."""
    return args.use_cpu or torch.cuda.is_available()


def compute_dtype(args: MInTRLConfig) -> str:
    """The numbers that the trainer's forward pass would compute in on this machine."""
    if args.bf16 or args.fp16:
        return "bfloat16" if args.bf16 else "float16"
    return str((args.model_init_kwargs or {}).get("dtype") or "float32").removeprefix("torch.")


def examine_batch(args: MInTRLConfig, num_processes: int) -> Iterator[Finding]:
    """Whether the rollouts of an update can be spread over the processes."""
    try:
        plan = args.batch_plan(num_processes)
    except ConfigError as error:
        yield refused("batch", error)
        return
    rows = args.prompts_per_update * plan.num_generations
    yield ok(
        "batch",
        f"{args.prompts_per_update} prompts x ({args.num_control} control + {args.num_intervened} intervened) = {rows} "
        f"rollouts = {num_processes} processes x {plan.per_device_train_batch_size} rows x "
        f"{plan.gradient_accumulation_steps} passes",
    )
    intervened = min(args.intervention_updates, args.max_steps) if args.max_steps > 0 else args.intervention_updates
    total = f"{args.max_steps} updates" if args.max_steps > 0 else f"{args.num_train_epochs:g} epochs"
    if args.intervention_updates and args.num_intervened and 0 < args.max_steps <= args.intervention_updates:
        yield note("phases", f"interventions in all of {total}; GRPO never begins")
    else:
        yield ok("phases", f"{total}, interventions in the first {intervened}, then GRPO")


def examine_disk(recipe: Recipe, policy: "Policy | None") -> Iterator[Finding]:
    """Whether the output folder may be used, and what will be written there fits."""
    args = recipe.config
    try:
        check_output_folder(args)
    except MInTRLError as error:
        yield refused("output folder", error)
    if policy is None or policy.parameters is None:
        return
    need, free = disk_need(recipe, policy), shutil.disk_usage(_standing(Path(args.output_dir))).free
    text = f"about {need / _GIB:.1f} GiB for checkpoints and weights on their way, {free / _GIB:.1f} GiB free"
    if need > free:
        fix = "name a larger disk with `output_dir`, lower `resumable_checkpoints`, or set `save_total_limit`"
        yield problem("disk", f"{args.output_dir}: {text}", fix)
    else:
        yield ok("disk", text)


def disk_need(recipe: Recipe, policy: "Policy") -> float:
    """Bytes that a run writes, at most: its checkpoints, and the weights that servers read."""
    args, model = recipe.config, policy.parameters
    trained = policy.adapter_parameters(recipe.policy) if recipe.policy.use_peft else model
    need = 0.0
    if args.save_strategy == "steps" and args.max_steps > 0:
        step = args.save_steps if args.save_steps >= 1 else args.save_steps * args.max_steps
        saves = max(1, int(args.max_steps // step))
        saves = min(saves, args.save_total_limit or saves)
        whole = min(saves, args.resumable_checkpoints + 1)  # the next one is written before one is thinned
        need += whole * trained * (_MASTER_BYTES + _ADAM_BYTES) + (saves - whole) * trained * _THIN_BYTES
    if args.generation == "vllm" and args.weight_sync != "nccl":
        need += _SYNCED_VERSIONS * trained * _MASTER_BYTES
    need += trained * _MASTER_BYTES  # the model at the end
    return need * _SPARE


def _standing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return folder
