"""The one place, beside the trainer's overrides, that names TRL's private methods, batch keys and attributes.

It turns `Rollout`s into TRL's lists, adds our tensors to TRL's batch dict, and runs TRL's own forward. It holds no
formula and no state. Every fact it leans on is an assertion in `tests/test_trl_contract.py`, so that a TRL upgrade
fails there first, with a readable name.

Letters: N rollouts of all processes, B of this process, P prompt and C completion columns, G group size.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import gather
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from transformers.core_model_loading import revert_weight_conversion
from trl import GRPOTrainer
from trl.import_utils import TRLExperimentalWarning
from trl.trainer.utils import get_peak_flops

from .rollouts.rollout import Author, Rollout
from .versions import check_versions

check_versions()

# TRL 1.16 uses names that transformers renamed: nothing that a user can act on.
warnings.filterwarnings("ignore", message=".*gradient_checkpointing.*is deprecated", category=FutureWarning)

# Our keys in TRL's batch dict. All are tensors with B as first dimension: TRL shuffles and splits the dict's tensors
# together, so whatever must follow a row has to be one of them. The first one marks a regression batch.
POLICY_AUTHORED = "policy_authored"
IS_CONTROL = "is_control"
SCORED = "scored"
INTERVENTION_LOGPS = "intervention_logps"
SAMPLED_LOGPS = "sampled_logps"  # (B, C) under whoever sampled a token of the policy, NaN where unknown
ROW = "row"  # (B,) place in the generated batch of all processes
LIVE = "live"  # (B,) bool, false for rows that were cut short because they have no gradient
ENTROPY_SAMPLE = "entropy_sample"  # (B,) bool, rows that the entropy is measured on


@dataclass(frozen=True)
class WeightTransfer:
    """The trainer's side of vLLM's weight transfer over NCCL, as TRL's `WeightTransferClient` picks it by version.

    Args:
        get_ip (`Callable[[], str]`): This machine's address.
        get_open_port (`Callable[[], int]`): A free port.
        packs_by_group (`bool`): Whether `packed` is said when a group is formed; otherwise with each update.
        open_group (`Callable`): `init_info` -> the group, once all workers have come.
        send (`Callable`): (name, tensor) pairs and a group -> `None`, once all is sent.
    """

    get_ip: Callable[[], str]
    get_open_port: Callable[[], int]
    packs_by_group: bool
    open_group: Callable[[dict[str, Any]], Any]
    send: Callable[[Iterator[tuple[str, Tensor]], Any], None]


@dataclass(frozen=True)
class Forward:
    """What TRL's fused forward gives for one micro-batch.

    Args:
        logps (`Tensor`): (B, C) float32 log-probability of each completion token at the sampling temperature.
        entropies (`Tensor`): (B, C) Shannon entropy in nats of the distribution each token was drawn from.
        aux_loss (`Tensor`, *optional*): Load-balancing loss of a mixture-of-experts model.
    """

    logps: Tensor
    entropies: Tensor
    aux_loss: Tensor | None


def completion_lists(
    rollouts: Sequence[Rollout], *, corrected: bool = False
) -> tuple[list[list[int]], list[list[float]] | None]:
    """What TRL's generation hook returns: completion ids, and, where TRL corrects for it, how likely they were.

    Args:
        rollouts (`Sequence[Rollout]`): In TRL's row order.
        corrected (`bool`, *optional*, defaults to `False`): Whether TRL weights tokens by importance, its only use for
            sampling log-probabilities. It takes NaN for a weight of 1.
    """
    ids = [list(rollout.ids) for rollout in rollouts]
    if not corrected:
        return ids, None
    unknown = (torch.nan,)
    return ids, [[logp for s in rollout.spans for logp in s.logps or unknown * len(s)] for rollout in rollouts]


def authorship_tensors(rollouts: Sequence[Rollout], width: int, device: torch.device) -> dict[str, Tensor]:
    """Spans as tensors of TRL's batch dict.

    Args:
        rollouts (`Sequence[Rollout]`): B rollouts, in TRL's row order.
        width (`int`): C, the padded completion width TRL chose.
        device (`torch.device`): Where the batch lives.

    Returns:
        `dict[str, Tensor]`: `policy_authored` (B, C) bool, true where the policy wrote the token and on padding;
        `intervention_logps` (B, C) float32, NaN where the author is the policy or gave no log-probability.
    """
    policy_authored = torch.ones(len(rollouts), width, dtype=torch.bool)  # (B, C)
    logps = torch.full((len(rollouts), width), torch.nan)  # (B, C)
    for row, rollout in enumerate(rollouts):
        start = 0
        for span in rollout.spans:
            if span.author is Author.INTERVENTION:
                policy_authored[row, start : start + len(span)] = False
                if span.logps is not None:
                    logps[row, start : start + len(span)] = torch.tensor(span.logps)
            start += len(span)
    return {POLICY_AUTHORED: policy_authored.to(device), INTERVENTION_LOGPS: logps.to(device)}


def sampled_logps(rollouts: Sequence[Rollout], completion_ids: Tensor) -> dict[str, Tensor]:
    """What the sampler said about the policy's tokens, as a tensor of TRL's batch dict.

    Args:
        rollouts (`Sequence[Rollout]`): B rollouts, in TRL's row order.
        completion_ids (`Tensor`): (B, C), for its width and device.

    Returns:
        `dict[str, Tensor]`: `sampled_logps` (B, C) float32, NaN where the policy is not the author, where the sampler
        gave no log-probability, and on padding.
    """
    logps = torch.full(completion_ids.shape, torch.nan)  # (B, C)
    for row, rollout in enumerate(rollouts):
        start = 0
        for span in rollout.spans:
            if span.author is Author.POLICY and span.logps is not None:
                logps[row, start : start + len(span)] = torch.tensor(span.logps)
            start += len(span)
    return {SAMPLED_LOGPS: logps.to(completion_ids.device)}


def is_regression_batch(inputs: dict[str, Any]) -> bool:
    """Whether a micro-batch belongs to the intervention phase. The phase travels with the batch, as a key."""
    return POLICY_AUTHORED in inputs


def total_rewards(rewards_per_func: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum over reward functions, as TRL forms it: (N, F) -> (N,); NaN where no function gave a reward."""
    total = (rewards_per_func * weights.to(rewards_per_func.device)).nansum(dim=1)
    return total.masked_fill(torch.isnan(rewards_per_func).all(dim=1), torch.nan)


def gather_no_rewards(trainer: GRPOTrainer, rows: int) -> None:
    """Take part in the one collective call of TRL's rewards, which comes last, where scoring failed before it."""
    gather(torch.full((rows, len(trainer.reward_funcs)), torch.nan, device=trainer.accelerator.device))


def replace_logged_advantages(trainer: GRPOTrainer, advantages: Tensor) -> None:
    """Put our advantages (N,) in place of TRL's z-scored ones in the completions table of this batch."""
    logged = trainer._logs["advantages"]
    for _ in range(min(len(advantages), len(logged))):
        logged.pop()
    logged.extend(advantages.tolist())


def pending_reward_reasons(trainer: GRPOTrainer, rows: int) -> list[str | None]:
    """What this process's reward functions logged as the column `why` for the batch being scored, joined by row."""
    logged = trainer._pending_extra_logs.get("why", [])  # one function's rows after the other's
    if len(logged) % rows:
        return [None] * rows
    return ["; ".join(str(why) for why in logged[row::rows] if why) or None for row in range(rows)]


def add_metrics(trainer: GRPOTrainer, metrics: dict[str, float], mode: str = "train") -> None:
    """Hand numbers, already reduced over processes, to TRL's metric store."""
    for name, value in metrics.items():
        trainer._metrics[mode][name].append(value)


def drop_metric(trainer: GRPOTrainer, name: str, mode: str = "train") -> None:
    """Take a number of TRL's own out of its metric store."""
    trainer._metrics[mode].pop(name, None)


def name_eval_metrics(trainer: GRPOTrainer, prefix: str) -> None:
    """Give what one of several evaluation sets measured its name: `eval_easy` makes `reward` `easy_reward`.

    TRL puts `eval_` before them all, so that the sets would overwrite each other.
    """
    name = prefix.removeprefix("eval_")
    if name != prefix:
        metrics = trainer._metrics["eval"]
        renamed = {f"{name}_{key}": values for key, values in metrics.items()}
        metrics.clear()
        metrics.update(renamed)


def forward(trainer: GRPOTrainer, model: torch.nn.Module, inputs: dict[str, Tensor]) -> Forward:
    """TRL's forward with its fused LM head: no logits tensor is ever made."""
    input_ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)  # (B, P+C)
    attention_mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)  # (B, P+C)
    logps, entropies, aux_loss = trainer._get_per_token_logps_and_entropies(
        model,
        input_ids,
        attention_mask,
        inputs["completion_ids"].size(1),
        compute_entropy=True,
        compute_aux_loss=trainer.aux_loss_enabled,
    )
    return Forward(logps, entropies, aux_loss)


def loss_terms(inputs: dict[str, Any], logps: Tensor) -> dict[str, Tensor | None]:
    """What the losses of phase 1 are made of, by the names of their arguments: (B, C) each.

    Args:
        inputs (`dict`): A micro-batch of the intervention phase.
        logps (`Tensor`): (B, C) of its forward.
    """
    return {
        "logps": logps,
        "old_logps": inputs.get("old_per_token_logps"),
        "response_mask": inputs["completion_mask"].bool(),
        "policy_authored": inputs[POLICY_AUTHORED],
        "intervention_logps": inputs[INTERVENTION_LOGPS],
    }


def token_mean_denominator(trainer: GRPOTrainer, inputs: dict[str, Any]) -> Tensor:
    """() response tokens that TRL's token mean (`loss_type="dapo"`) divides a micro-batch's sum by, in training."""
    tokens = inputs["num_items_in_batch"].clamp(min=1.0) / trainer.accelerator.num_processes
    return tokens * trainer.current_gradient_accumulation_steps / trainer.args.steps_per_generation


def replace_micro_batches(
    trainer: GRPOTrainer, change: Callable[[list[dict[str, Tensor]]], list[dict[str, Tensor]]]
) -> dict[str, Tensor]:
    """Put `change(micro-batches)` in place of those that TRL split its newest generated batch into.

    Returns:
        `dict[str, Tensor]`: The one whose turn it is.
    """
    trainer._buffered_inputs = change(trainer._buffered_inputs)
    return trainer._buffered_inputs[trainer._step % len(trainer._buffered_inputs)]


def forget_generated_batch(trainer: GRPOTrainer) -> None:
    """Let the next micro-batch be the first of a new generated batch. TRL counts on over calls of `train`."""
    trainer._step, trainer._buffered_inputs = 0, None
    trainer._metrics["train"].clear()
    # A run that stopped between two micro-batches left this off, and accelerate's optimizer then takes no step: not
    # even the empty one with which torch makes room for the state of a sharded optimizer that is loaded.
    trainer.accelerator.gradient_state._set_sync_gradients(True)


def whole_weights(trainer: GRPOTrainer, *, trained_only: bool = False) -> dict[str, Tensor]:
    """The model's weights by name, gathered from all processes; under FSDP the first one alone has them.

    Called on every process. Of tied weights there is one: gathered, they are copies that no one would know for tied.

    Args:
        trainer (`GRPOTrainer`): Whose model.
        trained_only (`bool`, *optional*, defaults to `False`): Whether frozen weights may be left out, so that FSDP2
            gathers an adapter and not its base model.
    """
    accelerator, model = trainer.accelerator, trainer.model_wrapped
    if trained_only and accelerator.is_fsdp2:
        options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)
        return get_model_state_dict(model, options=options)
    weights = accelerator.get_state_dict(model)
    tied = getattr(accelerator.unwrap_model(trainer.model), "all_tied_weights_keys", {})
    return {name: weight for name, weight in weights.items() if name not in tied}


def checkpoint_weights(trainer: GRPOTrainer, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """`whole_weights` under the names and in the shapes that `save_pretrained` would write, which servers know."""
    return dict(revert_weight_conversion(trainer.accelerator.unwrap_model(trainer.model), weights))


def weight_transfer() -> WeightTransfer | None:
    """What sends weights from GPU to GPU; `None` where vLLM is not installed.

    Not TRL's client itself: it joins the sending thread without a limit, and sees what failed there only once the
    server's call has timed out.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TRLExperimentalWarning)
        from trl.experimental.async_grpo import weight_transfer as upstream
    if not hasattr(upstream, "get_ip"):
        return None
    if upstream._HAS_STATEFUL_TRAINER_ENGINE:

        def send(pairs: Iterator[tuple[str, Tensor]], group: Any) -> None:
            upstream.packed_nccl_broadcast_producer(
                iterator=pairs, group=group, src=0, post_iter_func=lambda pair: pair[1]
            )

        return WeightTransfer(upstream.get_ip, upstream.get_open_port, True, upstream.open_trainer_endpoint, send)
    engine = upstream.NCCLWeightTransferEngine

    def send_by_engine(pairs: Iterator[tuple[str, Tensor]], group: Any) -> None:
        how = upstream.NCCLTrainerSendWeightsArgs(group=group, packed=True)
        engine.trainer_send_weights(iterator=pairs, trainer_args=how)

    return WeightTransfer(upstream.get_ip, upstream.get_open_port, False, engine.trainer_init, send_by_engine)


def save_gathered(trainer: GRPOTrainer, folder: str) -> None:
    """Save what FSDP keeps in shards as one model; upstream writes nothing then. Called on every process."""
    plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None)
    if plugin is None or "SHARDED_STATE_DICT" not in str(plugin.state_dict_type):
        return
    state_dict = whole_weights(trainer)
    if trainer.args.should_save:
        trainer._save(folder, state_dict=state_dict)


@contextmanager
def update_apart(trainer: GRPOTrainer) -> Iterator[None]:
    """An update beside the run, of which TRL's metrics and controllers learn nothing: every micro-batch is its last."""
    names = ("current_gradient_accumulation_steps", "entropy_coef", "_last_world_entropy", "_entropy_window_stats")
    kept = {name: getattr(trainer, name) for name in names if hasattr(trainer, name)}
    metrics = {name: list(values) for name, values in trainer._metrics["train"].items()}
    gradients = trainer.accelerator.gradient_state
    syncs = gradients.sync_gradients
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    gradients._set_sync_gradients(True)
    try:
        yield
    finally:
        gradients._set_sync_gradients(syncs)
        trainer._metrics["train"].clear()
        trainer._metrics["train"].update(metrics)
        for name, value in kept.items():
            setattr(trainer, name, value)


def clear_optimizer_state(optimizer: torch.optim.Optimizer) -> None:
    """Forget the optimizer's moments; parameters, learning rate and schedule stay."""
    inner = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps the real one
    inner.state.clear()


@contextmanager
def without_reference(trainer: GRPOTrainer) -> Iterator[None]:
    """While a batch of phase 1 is made: TRL runs no reference model, whose log-probabilities phase 1 has no use for."""
    beta, trainer.beta = trainer.beta, 0.0
    try:
        yield
    finally:
        trainer.beta = beta


@contextmanager
def importance_correction(trainer: GRPOTrainer, on: bool) -> Iterator[None]:
    """While TRL makes or uses a batch: whether it weights tokens by importance. It does so for rollouts of a server."""
    names = ("use_vllm", "vllm_importance_sampling_correction")
    kept = {name: getattr(trainer, name) for name in names}
    try:
        for name in names:
            setattr(trainer, name, on)
        yield
    finally:
        for name, value in kept.items():
            setattr(trainer, name, value)


def is_corrected_batch(inputs: dict[str, Any]) -> bool:
    """Whether the tokens of a micro-batch have weights of importance. They travel with it."""
    return "importance_sampling_ratio" in inputs


def _cast_to_weight(module: torch.nn.Linear, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (inputs[0].to(module.weight.dtype), *inputs[1:])


def peak_flops(device_name: str, dtype: torch.dtype) -> float | None:
    """TRL's table of dense operations per second by device; `None` where it has none."""
    return get_peak_flops(device_name, str(dtype).removeprefix("torch."))


def unfused_copy(model: torch.nn.Module) -> torch.nn.Module:
    """A frozen copy of the weights in evaluation mode.

    TRL patches `forward` on the instance, closing over the original module; the copy drops the patch, so that it
    runs its own weights.
    """
    import copy

    frozen = copy.deepcopy(model)
    for module in frozen.modules():
        patched = module.__dict__.pop("forward", None) is not None
        if patched and isinstance(module, torch.nn.Linear):  # the head under cast_lm_head_to_fp32
            module.register_forward_pre_hook(_cast_to_weight)
    return frozen.requires_grad_(False).eval()
