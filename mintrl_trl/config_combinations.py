"""Checks of settings against each other, after each has been checked by itself.

It reads a config and raises `ConfigError`; it changes nothing and loads nothing. Invariant: a setting that would be
ignored, or would quietly turn MInTRL into something else, is refused with the reason.
"""

import math
from typing import Any

from .errors import ConfigError

# Settings of TRL that cannot work here, whatever else is set: name -> (neutral value, why, what to do).
REFUSED = {
    "vllm_importance_sampling_correction": (
        False,
        "it would remove the gradient of every rollout that holds a correction",
        "leave vllm_importance_sampling_correction=False",
    ),
    "vllm_importance_sampling_cap": (None, "importance correction stays off", "remove vllm_importance_sampling_cap"),
    "off_policy_mask_threshold": (
        None,
        "it would drop the off-policy tokens that phase 1 learns from, and phase 2 is on-policy",
        "remove off_policy_mask_threshold",
    ),
    "use_transformers_continuous_batching": (
        False,
        "that engine takes no seed per request",
        "remove use_transformers_continuous_batching, as generation='local' batches continuously too",
    ),
    "use_transformers_paged": (False, "that engine takes no seed per request", "remove use_transformers_paged"),
    "transformers_continuous_batching_config": (
        None,
        "that engine is not used",
        "remove transformers_continuous_batching_config, and set local_max_batch",
    ),
    "cache_implementation": (None, "the local generator keeps its own cache", "remove cache_implementation"),
    "generation_kwargs": (
        None,
        "the policy samples from its whole distribution, at `temperature`",
        "remove generation_kwargs, and set temperature by its own name",
    ),
    "vllm_structured_outputs_regex": (
        None,
        "the policy samples from its whole distribution",
        "remove vllm_structured_outputs_regex",
    ),
    "max_tool_calling_iterations": (None, "the policy calls no tools", "remove max_tool_calling_iterations"),
    "auto_find_batch_size": (
        False,
        "a smaller batch would break prompt groups",
        "set auto_find_batch_size=False and per_device_train_batch_size=1",
    ),
    "remove_unused_columns": (
        False,
        "rewards and judges read the other columns",
        "leave remove_unused_columns=False",
    ),
}

# Settings that act in TRL's loss only, so in phase 2 only: name -> neutral value.
SECOND_PHASE_ONLY = {
    "beta": 0.0,
    "epsilon_high": None,
    "entropy_coef": 0.0,
    "use_adaptive_entropy": False,
    "top_entropy_quantile": 1.0,
}

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


def check_combinations(config: Any) -> None:
    """Check settings against each other, once `generation` and `judge` are resolved.

    Raises:
        ConfigError: Two settings contradict each other, or one would never act, or would do harm.
    """
    for name, (neutral, why, fix) in REFUSED.items():
        value = getattr(config, name)
        if value != neutral and value not in ({}, ""):
            raise ConfigError(name, value, f"{neutral!r}, because {why}", fix)
    _check_sampling(config)
    _check_lengths(config)
    _check_phases(config)
    _check_judge(config)
    if config.delta is not None and config.delta <= 1 + config.epsilon:
        raise ConfigError("delta", config.delta, f"above 1 + epsilon = {1 + config.epsilon}, or unset", "set delta=3.0")
    if config.sync_ref_model and config.beta == 0:
        allowed = "false while beta=0.0, because there is no reference model"
        raise ConfigError("sync_ref_model", True, allowed, "remove sync_ref_model, or set beta=0.001")


def _check_sampling(config: Any) -> None:
    for name, neutral in UNCUT_SAMPLING.items():
        value = getattr(config, name)
        if value is None or value == neutral:
            continue
        if not config.allow_cut_sampling:
            allowed = f"{neutral!r}, because the loss uses the log-probabilities of the whole distribution"
            raise ConfigError(name, value, allowed, f"remove {name}, or set allow_cut_sampling=True on purpose")
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
    if 0 < config.max_steps <= config.intervention_updates:
        for name, neutral in SECOND_PHASE_ONLY.items():
            value = getattr(config, name)
            if value != neutral:
                allowed = (
                    f"{neutral!r} in a run without phase 2 (max_steps={config.max_steps}, intervention_updates="
                    f"{config.intervention_updates}), because it acts in phase 2 only"
                )
                raise ConfigError(name, value, allowed, f"remove {name}, or set intervention_updates below max_steps")


def _check_judge(config: Any) -> None:
    if config.judge == "llm" and config.judge_base_url is None:
        fix = "set judge_base_url='http://localhost:8001/v1'"
        raise ConfigError("judge_base_url", None, "an address with judge='llm'", fix)
    if config.judge in ("self", "exact") and config.judge_base_url is not None:
        allowed = f"unset with judge={config.judge!r}, which asks no server"
        raise ConfigError("judge_base_url", config.judge_base_url, allowed, "remove judge_base_url, or set judge='llm'")
    if config.judge == "llm" and config.anchor == "judge":
        allowed = "'const' or 'proxy' with judge='llm', which answers in text without log-probabilities"
        raise ConfigError("anchor", "judge", allowed, "set anchor='const'")
    threshold = config.judge_likelihood_threshold
    if config.judge_keep_bias != 0 and (config.judge != "self" or threshold is not None):
        allowed = "0.0 unless judge='self' and judge_likelihood_threshold is unset"
        raise ConfigError("judge_keep_bias", config.judge_keep_bias, allowed, "remove judge_keep_bias")
    if threshold is not None and config.judge != "self":
        allowed = f"unset with judge={config.judge!r}"
        fix = "remove judge_likelihood_threshold, or set judge='self'"
        raise ConfigError("judge_likelihood_threshold", threshold, allowed, fix)
