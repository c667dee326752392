"""Checks of settings against each other, after each has been checked by itself.

It reads a config and raises `ConfigError`; it changes nothing and loads nothing. Invariant: a setting that would be
ignored, or would quietly turn MInTRL into something else, is refused with the reason.
"""

import math
import os
from importlib.util import find_spec
from typing import Any

import torch

from .config_judge import WIRE_SETTINGS
from .errors import ConfigError
from .trl_options import check_trl_options

UNCUT_SAMPLING = {"top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}


def resolve_generation(config: Any) -> str:
    """Where policy tokens come from, by `generation` and TRL's `use_vllm`: `"local"` or `"vllm"`.

    Raises:
        ConfigError: The two contradict each other, TRL's colocated mode is asked for, or a server is named for nothing.
    """
    if config.use_vllm and config.generation == "local":
        raise ConfigError(
            "generation", "local", "'vllm' with use_vllm=True, or unset", "set generation='vllm', or remove use_vllm"
        )
    generation = config.generation or ("vllm" if config.use_vllm else "local")
    if generation == "vllm" and config.vllm_mode != "server":
        why = "'server', because rollouts are streamed, stopped one by one and shared with the judge over HTTP"
        raise ConfigError("vllm_mode", config.vllm_mode, why, "set vllm_mode='server' and start `vllm serve`")
    if config.generation is None and generation == "local" and config.vllm_server_base_url is not None:
        fix = "set use_vllm=True, or say generation='local'"
        raise ConfigError("vllm_server_base_url", config.vllm_server_base_url, "unset without use_vllm=True", fix)
    return generation


def check_combinations(config: Any, *, local_by_name: bool) -> None:
    """Check settings against each other, once `generation` and `judge` are resolved.

    Args:
        config (`Any`): The config.
        local_by_name (`bool`): Whether the user wrote `generation="local"`.

    Raises:
        ConfigError: Two settings contradict each other, or one would never act, or would do harm.
    """
    check_trl_options(config, local_by_name=local_by_name)
    _check_importance_correction(config, local_by_name)
    _check_sampling(config)
    _check_lengths(config)
    _check_phases(config)
    _check_judge(config)
    _check_weight_sync(config)


def check_launch(config: Any, *, has_generator: bool = False) -> None:
    """Check settings against how the processes were launched, before a model loads.

    Args:
        config (`MInTRLConfig`): The settings.
        has_generator (`bool`, *optional*, defaults to `False`): Whether a generator object makes the rollouts, in place
            of `generation`.

    Raises:
        ConfigError: The local generator would need the whole model, and the launch shards it; or the optimizer's state
            is out of reach.
    """
    sharded = sharded_by(config)
    if sharded is not None and config.generation == "local" and not has_generator:
        allowed = f"'vllm' under {sharded}, because no process holds the whole model"
        fix = "set use_vllm=True and start `vllm serve`, or launch with recipes/accelerate/ddp.yaml"
        raise ConfigError("generation", "local", allowed, fix)
    if config.reset_optimizer_at_switch and _uses_deepspeed(config):
        allowed = "false under DeepSpeed, which keeps the optimizer's state to itself"
        fix = "remove reset_optimizer_at_switch, or launch with recipes/accelerate/fsdp2.yaml"
        raise ConfigError("reset_optimizer_at_switch", True, allowed, fix)
    if config.dry_run_worst_case and _uses_deepspeed(config):
        allowed = "false under DeepSpeed, whose backward pass takes the optimizer's step with it"
        fix = "remove dry_run_worst_case, or launch with recipes/accelerate/fsdp2.yaml"
        raise ConfigError("dry_run_worst_case", True, allowed, fix)


def check_weight_sync(way: str, *, is_adapter: bool) -> None:
    """Check how weights reach a server against what is trained, once that is known.

    Raises:
        ConfigError: An adapter would travel as full weights, or full weights as an adapter.
    """
    if way != "auto" and (way == "lora") != is_adapter:
        model = "an adapter" if is_adapter else "full weights"
        allowed = f"{'lora' if is_adapter else 'checkpoint, nccl'} or auto for a model that trains {model}"
        raise ConfigError("weight_sync", way, allowed, "set weight_sync='auto'")


def check_trackers(config: Any) -> None:
    """Refuse a tracker that is not installed, which would be found out once the model is loaded.

    Raises:
        ConfigError: Names the tracker and how to install it.
    """
    packages = {"wandb": ("wandb",), "trackio": ("trackio",), "tensorboard": ("tensorboard", "tensorboardX")}
    for name in config.report_to:
        if name in packages and not any(find_spec(package) for package in packages[name]):
            allowed = "trackers that are installed; the run folder needs none"
            raise ConfigError("report_to", name, allowed, f"run `pip install {name}`, or remove it")


def check_device(config: Any) -> None:
    """Check settings against the machine that is to train, before a model loads.

    Raises:
        ConfigError: Weights are to go from GPU to GPU, and there is none.
    """
    if config.weight_sync == "nccl" and config.generation == "vllm" and not torch.cuda.is_available():
        allowed = "'auto', 'checkpoint' or 'lora' on a machine without CUDA"
        raise ConfigError("weight_sync", "nccl", allowed, "set weight_sync='auto'")


def _check_weight_sync(config: Any) -> None:
    if config.weight_sync != "nccl":
        return
    if config.use_cpu:
        allowed = "'auto', 'checkpoint' or 'lora' with use_cpu=True: NCCL goes from GPU to GPU"
        raise ConfigError("weight_sync", "nccl", allowed, "set weight_sync='auto'")
    if config.weight_sync_dir is not None:
        allowed = "unset with weight_sync='nccl', which writes no files"
        raise ConfigError("weight_sync_dir", config.weight_sync_dir, allowed, "remove weight_sync_dir")


def sharded_by(config: Any) -> str | None:
    """What spreads the parameters of one model over processes; `None` where each process holds all of them."""
    if config.fsdp or _is_set("ACCELERATE_USE_FSDP"):
        return "FSDP"
    if not _uses_deepspeed(config):
        return None
    plugin = getattr(config, "deepspeed_plugin", None)  # upstream's, with the stage from wherever it was set
    stage = os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", 2) if plugin is None else plugin.zero_stage
    return "DeepSpeed ZeRO-3" if int(stage) == 3 else None


def _uses_deepspeed(config: Any) -> bool:
    return bool(config.deepspeed) or _is_set("ACCELERATE_USE_DEEPSPEED")


def _is_set(variable: str) -> bool:
    """Whether the launcher of accelerate switched something on for its processes."""
    return os.environ.get(variable, "false").lower() in ("true", "1", "yes", "on")


def _check_sampling(config: Any) -> None:
    for name, neutral in UNCUT_SAMPLING.items():
        value = getattr(config, name)
        if value is None or value == neutral:
            continue
        if not config.allow_cut_sampling:
            allowed = f"{neutral!r}, because the loss uses the log-probabilities of the whole distribution"
            fix = f"remove {name}, or, with a vLLM server, set allow_cut_sampling=True on purpose"
            raise ConfigError(name, value, allowed, fix)
        if config.generation == "local":
            allowed = f"{neutral!r} with generation='local', which samples from the whole distribution"
            raise ConfigError(name, value, allowed, f"remove {name}, or set use_vllm=True")


def _check_lengths(config: Any) -> None:
    prompt, completion = config.max_prompt_length, config.max_completion_length
    if config.needs_judge and config.correction_tokens > completion:
        allowed = f"at most max_completion_length={completion}"
        raise ConfigError("correction_tokens", config.correction_tokens, allowed, f"set correction_tokens={completion}")
    room, needed = config.vllm_max_model_length, prompt + completion
    if config.generation == "vllm" and room is not None and room < needed:
        allowed = f"at least max_prompt_length={prompt} + max_completion_length={completion} = {needed}"
        fix = f"set vllm_max_model_length={needed} and start the server with --max-model-len {needed}"
        raise ConfigError("vllm_max_model_length", room, allowed, fix)


def _check_phases(config: Any) -> None:
    if config.max_steps < 1 and config.max_steps != -1:
        raise ConfigError("max_steps", config.max_steps, "at least 1, or -1 to go by epochs", "set max_steps=500")
    per_batch = config.updates_per_batch
    ends = ["intervention_updates", *(("save_steps", "max_steps") if config.save_strategy == "steps" else ())]
    if config.save_strategy == "best" and config.eval_strategy == "steps" and config.eval_steps is not None:
        ends.append("eval_steps")
    for name in ends:  # a run saves after its last update, too
        value = getattr(config, name)
        if value != -1 and value % per_batch:
            below = math.floor(value / per_batch) * per_batch
            near = [f"{name}={number}" for number in (below, below + per_batch) if number or name == ends[0]]
            allowed = (
                f"a multiple of {per_batch} = updates_per_generation={config.updates_per_generation} x num_iterations="
                f"{config.num_iterations}, so that no generated batch is split"
            )
            raise ConfigError(name, value, allowed, f"set {' or '.join(near)}")


def _check_importance_correction(config: Any, local_by_name: bool) -> None:
    name, mode = "phase2_importance_correction", config.vllm_importance_sampling_mode
    if not config.phase2_importance_correction:
        return
    if config.generation != "vllm" and not local_by_name:
        allowed = "false with generation='local', where the model in training samples by itself"
        raise ConfigError(name, True, allowed, f"remove {name}, or set generation='vllm'")
    if 0 < config.max_steps <= config.intervention_updates:
        allowed = (
            f"false in a run without phase 2 (max_steps={config.max_steps}, intervention_updates="
            f"{config.intervention_updates})"
        )
        raise ConfigError(name, True, allowed, f"remove {name}, or set intervention_updates below max_steps")
    if config.loss_type == "vespo" and mode.startswith("sequence"):
        allowed = "'token_truncate' or 'token_mask' with loss_type='vespo'"
        raise ConfigError("vllm_importance_sampling_mode", mode, allowed, "remove vllm_importance_sampling_mode")
    low, high = config.vllm_importance_sampling_clip_min, config.vllm_importance_sampling_clip_max
    if low is None and high is None:
        allowed = "above 0 where vllm_importance_sampling_clip_min is unset, too"
        raise ConfigError("vllm_importance_sampling_clip_max", None, allowed, "remove it; it is 3.0 then")
    if low is not None and high is not None and low >= high:
        allowed = f"below vllm_importance_sampling_clip_max={high}"
        raise ConfigError("vllm_importance_sampling_clip_min", low, allowed, "remove vllm_importance_sampling_clip_min")


def _check_judge(config: Any) -> None:
    served_self = config.judge == "self" and config.generation == "vllm"
    over_http = config.judge == "llm" or served_self
    if config.judge == "local" and config.judge_model is None:
        fix = "set judge_model='models/chains_teacher', or the folder of another model"
        raise ConfigError("judge_model", None, "a folder with judge='local'", fix)
    if config.judge == "llm" and config.judge_base_url is None:
        fix = "set judge_base_url='http://localhost:8001/v1'"
        raise ConfigError("judge_base_url", None, "an address with judge='llm'", fix)
    if config.judge is not None and not over_http and config.judge_base_url is not None:
        allowed = f"unset with judge={config.judge!r}, which asks no server"
        raise ConfigError("judge_base_url", config.judge_base_url, allowed, "remove judge_base_url, or set judge='llm'")
    if served_self and config.judge_base_url is None and config.weight_sync not in ("auto", "lora"):
        allowed = (
            f"the address of a second server with the initial model, with judge='self' and weight_sync="
            f"{config.weight_sync!r}: new weights take the place of the initial ones on the policy's server"
        )
        fix = "start one and set judge_base_url='http://localhost:8001/v1', or train an adapter with weight_sync='lora'"
        raise ConfigError("judge_base_url", None, allowed, fix)
    if config.judge == "llm" and config.anchor == "judge" and config.judge_shares_tokenizer is False:
        allowed = "'const' or 'proxy' with judge_shares_tokenizer=False: text comes without log-probabilities"
        raise ConfigError("anchor", "judge", allowed, "set anchor='const'")
    if over_http and config.anchor == "judge" and config.judge_temperature != 1:
        allowed = "1.0 with anchor='judge', whose log-probabilities are those of temperature 1"
        raise ConfigError("judge_temperature", config.judge_temperature, allowed, "remove judge_temperature")
    if served_self and config.judge_shares_tokenizer is False:
        allowed = "unset with judge='self', whose tokenizer is the policy's own"
        raise ConfigError("judge_shares_tokenizer", False, allowed, "remove judge_shares_tokenizer")
    for name in WIRE_SETTINGS:
        if config.judge is not None and not over_http and getattr(config, name) is not None:
            allowed = f"unset with judge={config.judge!r}, which asks no server"
            raise ConfigError(name, getattr(config, name), allowed, f"remove {name}")
    limit, whole = config.judge_timeout_seconds, config.review_timeout_seconds
    if over_http and limit > whole:
        allowed = f"at most review_timeout_seconds={whole:g}, in which a review has to end, repeated requests included"
        raise ConfigError("judge_timeout_seconds", limit, allowed, f"set review_timeout_seconds={3 * limit:g}")
    prices = (config.judge_price_per_million_input, config.judge_price_per_million_output)
    if config.judge_budget_cost is not None and None in prices:
        allowed = "unset without judge_price_per_million_input and judge_price_per_million_output"
        raise ConfigError("judge_budget_cost", config.judge_budget_cost, allowed, "set both prices")
    threshold, in_process = config.judge_likelihood_threshold, config.judge == "self" and not served_self
    if config.judge_keep_bias != 0 and (not in_process or threshold is not None):
        allowed = "0.0 unless judge='self', generation='local' and judge_likelihood_threshold is unset"
        fix = "remove judge_keep_bias"
        if served_self:
            allowed = "0.0 with use_vllm: it works with the in-process generator (generation='local') only"
            fix += ", or set judge_keep_bias=0 on the command line"
        raise ConfigError("judge_keep_bias", config.judge_keep_bias, allowed, fix)
    if threshold is not None and not in_process and config.judge != "local":
        allowed = f"unset with judge={config.judge!r} and generation={config.generation!r}"
        fix = "remove judge_likelihood_threshold, or set judge='self' with generation='local'"
        raise ConfigError("judge_likelihood_threshold", threshold, allowed, fix)
