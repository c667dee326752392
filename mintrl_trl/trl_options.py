"""TRL's and transformers' settings that cannot act in MInTRL, or act under a condition only: tables and their check.

The whole list, with what each option means in either phase, is `docs/trl_options.md`. It reads a config and raises
`ConfigError`; it changes nothing and loads nothing. Invariant: a setting that is accepted acts.
"""

import dataclasses
import math
from typing import Any

from .errors import ConfigError

_OWN_SERVER = "the vLLM server is a process of its own, with options of its own"

# Settings that cannot work here, whatever else is set: name -> (neutral value, why, what to do).
REFUSED = {
    "vllm_importance_sampling_correction": (
        False,
        "it would remove the gradient of every rollout that holds a correction",
        "leave vllm_importance_sampling_correction=False; phase2_importance_correction=True corrects phase 2 alone",
    ),
    "vllm_importance_sampling_cap": (
        None,
        "TRL gives it up",
        "remove vllm_importance_sampling_cap, and set vllm_importance_sampling_clip_max",
    ),
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
    "ds3_gather_for_generation": (
        True,
        "it is about TRL's own generation; under ZeRO-3 rollouts come from a vLLM server",
        "remove ds3_gather_for_generation",
    ),
    "vllm_structured_outputs_regex": (
        None,
        "the policy samples from its whole distribution",
        "remove vllm_structured_outputs_regex",
    ),
    "vllm_model_impl": ("vllm", _OWN_SERVER, "remove vllm_model_impl, and start the server with --model-impl"),
    "vllm_enable_sleep_mode": (
        False,
        _OWN_SERVER,
        "remove vllm_enable_sleep_mode, and start the server on GPUs of its own",
    ),
    "vllm_gpu_memory_utilization": (
        0.3,
        _OWN_SERVER,
        "remove vllm_gpu_memory_utilization, and start the server with --gpu-memory-utilization",
    ),
    "vllm_tensor_parallel_size": (
        1,
        _OWN_SERVER,
        "remove vllm_tensor_parallel_size, and start the server with --tensor-parallel-size",
    ),
    "vllm_group_port": (51216, "weights reach the server through files", "remove vllm_group_port"),
    "max_tool_calling_iterations": (None, "the policy calls no tools", "remove max_tool_calling_iterations"),
    # transformers'
    "auto_find_batch_size": (
        False,
        "a smaller batch would break prompt groups",
        "set auto_find_batch_size=False and per_device_train_batch_size=1",
    ),
    "ignore_data_skip": (
        False,
        "a run that goes on from a checkpoint would train on its first rows again",
        "remove ignore_data_skip",
    ),
    "remove_unused_columns": (
        False,
        "rewards and judges read the other columns",
        "leave remove_unused_columns=False",
    ),
    "neftune_noise_alpha": (
        None,
        "rollouts are sampled without noise, so training would be on another policy",
        "remove neftune_noise_alpha",
    ),
    "train_sampling_strategy": (
        "random",
        "prompts come in groups of rollouts, and lean_updates deals rows out by length",
        "remove train_sampling_strategy",
    ),
    "label_smoothing_factor": (0.0, "there are no labels", "remove label_smoothing_factor"),
    "data_seed": (None, "the order of the prompts follows `seed`", "remove data_seed, and set seed"),
}

# Settings that act in TRL's loss only, so in phase 2 only: name -> neutral value.
SECOND_PHASE_ONLY = {
    "loss_type": "dapo",
    "importance_sampling_level": "token",
    "epsilon": 0.2,
    "epsilon_high": None,
    "delta": 3.0,
    "beta": 0.0,
    "entropy_coef": 0.0,
    "use_adaptive_entropy": False,
    "top_entropy_quantile": 1.0,
    "scale_rewards": "group",
    "multi_objective_aggregation": "sum_then_normalize",
}

_CLIPPED = ("dapo", "grpo", "bnpo", "dr_grpo", "luspo")
_A_REFERENCE = ("beta", None, 0.001)
_ADAPTIVE = ("use_adaptive_entropy", (True,), True)
_SHOWN = ("log_completions", (True,), True)
_SERVED = ("generation", ("vllm",), "vllm")
_CORRECTED = ("phase2_importance_correction", (True,), True)

# Settings that act only with a certain value of another one:
# name -> (the other, its values with which this one acts; None: any but 0, one such value).
ACTS_WITH = {
    "epsilon": ("loss_type", _CLIPPED, "dapo"),
    "epsilon_high": ("loss_type", (*_CLIPPED, "cispo"), "dapo"),
    "delta": ("loss_type", _CLIPPED, "dapo"),
    "sapo_temperature_neg": ("loss_type", ("sapo",), "sapo"),
    "sapo_temperature_pos": ("loss_type", ("sapo",), "sapo"),
    "vespo_k_pos": ("loss_type", ("vespo",), "vespo"),
    "vespo_lambda_pos": ("loss_type", ("vespo",), "vespo"),
    "vespo_k_neg": ("loss_type", ("vespo",), "vespo"),
    "vespo_lambda_neg": ("loss_type", ("vespo",), "vespo"),
    "use_bias_correction_kl": _A_REFERENCE,
    "sync_ref_model": _A_REFERENCE,
    "ref_model_mixup_alpha": ("sync_ref_model", (True,), True),
    "ref_model_sync_steps": ("sync_ref_model", (True,), True),
    "entropy_coef_min": _ADAPTIVE,
    "entropy_coef_max": _ADAPTIVE,
    "entropy_coef_delta": _ADAPTIVE,
    "entropy_target": _ADAPTIVE,
    "num_completions_to_print": _SHOWN,
    "log_unique_prompts": _SHOWN,
    "log_completions_hub_repo": _SHOWN,
    "vllm_importance_sampling_mode": _CORRECTED,
    "vllm_importance_sampling_clip_max": _CORRECTED,
    "vllm_importance_sampling_clip_min": _CORRECTED,
    "vllm_mode": _SERVED,
    "vllm_server_host": _SERVED,
    "vllm_server_port": _SERVED,
    "vllm_server_timeout": _SERVED,
    "vllm_max_model_length": _SERVED,
}

_SCALES = ("group", "batch", "none", True, False)


def check_trl_options(config: Any, *, local_by_name: bool) -> None:
    """Refuse TRL's settings that would never act, or would fail only after rollouts were paid for.

    Args:
        config (`Any`): A config whose `generation` is resolved.
        local_by_name (`bool`): Whether the user asked for `generation="local"` by name; settings of a server are then
            left alone, so that one flag turns a recipe with a server into one without.

    Raises:
        ConfigError: Names the setting, its value, why it would not act, and a setting that works.
    """
    for name, (neutral, why, fix) in REFUSED.items():
        value = getattr(config, name, neutral)  # transformers' own come and go with its versions
        if value != neutral and value not in ({}, ""):
            raise ConfigError(name, value, f"{neutral!r}, because {why}", fix)
    _check_values(config)
    for name, (switch, working, example) in ACTS_WITH.items():
        value, neutral, set_to = getattr(config, name), _default(config, name), getattr(config, switch)
        acts = bool(set_to) if working is None else set_to in working
        if value == neutral or acts or (switch == "generation" and local_by_name):
            continue
        allowed = f"{neutral!r} while {switch}={set_to!r}, which leaves it without effect"
        raise ConfigError(name, value, allowed, f"remove {name}, or set {switch}={example!r}")
    if 0 < config.max_steps <= config.intervention_updates:
        for name, neutral in SECOND_PHASE_ONLY.items():
            value = getattr(config, name)
            if value not in (neutral, True if name == "scale_rewards" else neutral):
                allowed = (
                    f"{neutral!r} in a run without phase 2 (max_steps={config.max_steps}, intervention_updates="
                    f"{config.intervention_updates}), because it acts in phase 2 only"
                )
                raise ConfigError(name, value, allowed, f"remove {name}, or set intervention_updates below max_steps")


def _check_values(config: Any) -> None:
    """What TRL would find out in the middle of the first update, or by a loss that is no number."""
    if config.scale_rewards not in _SCALES:
        allowed = "'group' (or true), 'batch' or 'none' (or false)"
        raise ConfigError("scale_rewards", config.scale_rewards, allowed, "set scale_rewards='group'")
    weights = config.reward_weights
    if weights is not None and not (
        isinstance(weights, list | tuple)
        and all(isinstance(weight, int | float) and math.isfinite(weight) for weight in weights)
    ):
        allowed = "a list of finite numbers, one for each reward function, or unset"
        raise ConfigError("reward_weights", weights, allowed, "set reward_weights=[1.0]")
    multiple = config.pad_to_multiple_of
    is_number = isinstance(multiple, int) and not isinstance(multiple, bool)
    if multiple not in (None, "auto", "none", "null") and not (
        (is_number and multiple >= 1) or (isinstance(multiple, str) and multiple.isdecimal() and int(multiple) >= 1)
    ):
        allowed = "a whole number at least 1, 'auto' or unset"
        raise ConfigError("pad_to_multiple_of", multiple, allowed, "remove pad_to_multiple_of")
    if config.delta is not None and config.delta <= 1 + config.epsilon:
        raise ConfigError("delta", config.delta, f"above 1 + epsilon = {1 + config.epsilon}, or unset", "set delta=3.0")


def _default(config: Any, name: str) -> Any:
    return next(item.default for item in dataclasses.fields(config) if item.name == name)
