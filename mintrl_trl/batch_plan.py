"""TRL's batch sizes, worked out from ours: prompts per update, group size, number of processes.

Pure arithmetic on whole numbers; it knows no config object and no trainer. Invariant: the rows of one update, and
those of one generated batch, are whole prompt groups, spread evenly over processes and micro-batches.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

from .errors import ConfigError

# A derived micro-batch holds at most this many rows and this many padded tokens (one row is always allowed).
MAX_DERIVED_ROWS = 8
MAX_DERIVED_TOKENS = 32_768

# TRL's settings that follow from ours.
DERIVED_SIZES = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "num_generations",
    "steps_per_generation",
    "generation_batch_size",
    "num_generations_eval",
)


class Derived(int):
    """A whole number that the config worked out itself, so that a copy with other settings works it out again."""


@dataclass(frozen=True)
class BatchPlan:
    """How the rows of one update and of one generated batch are spread.

    Args:
        per_device_train_batch_size (`int`): Rows of one micro-batch of one process.
        gradient_accumulation_steps (`int`): Micro-batches of one process per update.
        num_generations (`int`): G, rollouts per prompt.
        steps_per_generation (`int`): Micro-batches of one process per generated batch.
        generation_batch_size (`int`): Rollouts of one generated batch, over all processes.
        num_generations_eval (`int`): Rollouts per prompt of an evaluation.
    """

    per_device_train_batch_size: int
    gradient_accumulation_steps: int
    num_generations: int
    steps_per_generation: int
    generation_batch_size: int
    num_generations_eval: int


def plan_batches(
    *,
    prompts_per_update: int,
    num_control: int,
    num_intervened: int,
    updates_per_generation: int,
    num_processes: int,
    tokens_per_row: int,
    eval_rows_per_device: int,
    evaluates: bool,
    given: Mapping[str, int | None],
) -> BatchPlan:
    """Spread the rows of an update over processes and micro-batches.

    Args:
        prompts_per_update (`int`): Prompts of one update, at least 1.
        num_control (`int`): Control rollouts per prompt.
        num_intervened (`int`): Intervened rollouts per prompt.
        updates_per_generation (`int`): Updates that one generated batch serves, at least 1.
        num_processes (`int`): Training processes.
        tokens_per_row (`int`): Longest prompt and response together; bounds a derived micro-batch.
        eval_rows_per_device (`int`): Rows of one evaluation batch of one process.
        evaluates (`bool`): Whether the run evaluates on TRL's own schedule.
        given (`Mapping[str, int | None]`):
            The names of `DERIVED_SIZES`, with what the user set. Without `per_device_train_batch_size` it follows from
            `gradient_accumulation_steps`, or else is the largest that divides evenly, up to 8 rows and 32,768 tokens.
            Without `num_generations_eval` it is the largest up to the group size that fits an evaluation batch.

    Returns:
        `BatchPlan`: The sizes TRL needs; those that were given are unchanged.

    Raises:
        ConfigError: The rows do not divide evenly (the message shows the arithmetic and two settings that work), or a
            given size contradicts our settings.
    """
    group = num_control + num_intervened
    rows = prompts_per_update * group
    eval_rows = eval_rows_per_device * num_processes
    if group < 2:
        fix = "set num_intervened=8, or num_control=2 for control rollouts only"
        raise ConfigError("num_intervened", num_intervened, "num_control + num_intervened is at least 2", fix)
    per_device = given["per_device_train_batch_size"] or _rows_per_device(
        rows, num_processes, tokens_per_row, given["gradient_accumulation_steps"]
    )
    per_step = per_device * num_processes
    if rows % per_step:
        raise _uneven(prompts_per_update, num_control, num_intervened, num_processes, per_device)
    accumulation = rows // per_step
    plan = BatchPlan(
        per_device_train_batch_size=per_device,
        gradient_accumulation_steps=accumulation,
        num_generations=group,
        steps_per_generation=accumulation * updates_per_generation,
        generation_batch_size=rows * updates_per_generation,
        num_generations_eval=given["num_generations_eval"] or _largest_divisor(eval_rows, group),
    )

    update = f"prompts_per_update={prompts_per_update} x ({num_control} + {num_intervened}) rollouts"
    split = f"{update} / ({num_processes} processes x per_device_train_batch_size={per_device})"
    batch = f"updates_per_generation={updates_per_generation}"
    reasons = {
        "gradient_accumulation_steps": (split, "prompts_per_update"),
        "num_generations": (
            f"num_control={num_control} + num_intervened={num_intervened}",
            "num_control and num_intervened",
        ),
        "steps_per_generation": (f"{split} x {batch}", "updates_per_generation"),
        "generation_batch_size": (f"{update} x {batch}", "prompts_per_update and updates_per_generation"),
    }
    for name, (sum_of, ours) in reasons.items():
        expected = getattr(plan, name)
        if given[name] is not None and given[name] != expected:
            raise ConfigError(name, given[name], f"unset, or {expected} = {sum_of}", f"remove {name} and set {ours}")
    if evaluates and eval_rows % plan.num_generations_eval:
        fitting = _largest_divisor(eval_rows, plan.num_generations_eval)
        raise ConfigError(
            "num_generations_eval",
            plan.num_generations_eval,
            f"a divisor of {num_processes} processes x per_device_eval_batch_size={eval_rows_per_device} = {eval_rows}",
            f"set num_generations_eval={fitting}, or per_device_eval_batch_size={plan.num_generations_eval}",
        )
    return plan


def _rows_per_device(rows: int, processes: int, tokens_per_row: int, accumulation: int | None) -> int:
    if accumulation and rows % (processes * accumulation) == 0:
        return rows // (processes * accumulation)
    share, rest = divmod(rows, processes)
    if rest:
        return 1  # nothing divides evenly; the caller says so
    return _largest_divisor(share, max(1, min(MAX_DERIVED_ROWS, MAX_DERIVED_TOKENS // tokens_per_row)))


def _largest_divisor(number: int, limit: int) -> int:
    return max(size for size in range(1, limit + 1) if number % size == 0)


def _uneven(prompts: int, control: int, intervened: int, processes: int, per_device: int) -> ConfigError:
    group, per_step = control + intervened, processes * per_device
    rows = prompts * group
    unit = per_step // gcd(per_step, group)  # the prompts must come in multiples of this
    below = prompts // unit * unit
    fixes = [f"prompts_per_update={count}" for count in (below, below + unit, below + 2 * unit) if count > 0]
    if rows % processes == 0:
        fixes.insert(0, f"per_device_train_batch_size={_largest_divisor(rows // processes, per_device)}")
    return ConfigError(
        "prompts_per_update",
        prompts,
        f"a multiple of {unit} here, because {prompts} prompts x {group} rollouts ({control} control + {intervened} "
        f"intervened) = {rows} rows per update must divide into {processes} processes x {per_device} rows = {per_step}",
        f"set {fixes[0]} or {fixes[1]}",
    )
