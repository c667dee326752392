"""The checks behind `MInTRLConfig`: types, ranges, choices, combinations, unknown keys.

It reads a config and raises `ConfigError`; it changes nothing, derives nothing and imports no model library.
Invariant: every message names the field, the value, the values allowed and a setting that works.
"""

import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from .errors import ConfigError

HIDDEN = "<hidden>"  # stands for a value that may be a secret


@dataclass(frozen=True)
class Range:
    """The numbers that a field may hold. Bounds are inclusive unless `open_low` says otherwise."""

    low: float | None = None
    high: float | None = None
    open_low: bool = False
    open_high: bool = False

    def __contains__(self, value: float) -> bool:
        above = self.low is None or (value > self.low if self.open_low else value >= self.low)
        below = self.high is None or (value < self.high if self.open_high else value <= self.high)
        return above and below

    def __str__(self) -> str:
        low = None if self.low is None else f"{'above' if self.open_low else 'at least'} {self.low}"
        high = None if self.high is None else f"{'below' if self.open_high else 'at most'} {self.high}"
        return " and ".join(bound for bound in (low, high) if bound)


POSITIVE, NEGATIVE, SHARE = Range(low=0, open_low=True), Range(high=0, open_high=True), Range(low=0, high=1)
AT_LEAST_0, AT_LEAST_1 = Range(low=0), Range(low=1)

RANGES = {
    "prompts_per_update": AT_LEAST_1,
    "num_intervened": AT_LEAST_0,
    "updates_per_generation": AT_LEAST_1,
    "intervention_updates": AT_LEAST_0,
    "chunk_tokens": AT_LEAST_1,
    "max_reviews": AT_LEAST_0,
    "correction_tokens": AT_LEAST_1,
    "beta1": POSITIVE,
    "beta2": POSITIVE,
    "loss_scale": POSITIVE,
    "max_prompt_length": AT_LEAST_1,
    "max_completion_length": AT_LEAST_1,
    "local_max_batch": AT_LEAST_1,
    "max_concurrent_rollouts": AT_LEAST_1,
    "max_concurrent_reviews": AT_LEAST_1,
    "judge_temperature": AT_LEAST_0,
    "judge_max_tokens": AT_LEAST_1,
    "judge_timeout_seconds": POSITIVE,
    "judge_max_retries": AT_LEAST_0,
    "judge_likelihood_threshold": NEGATIVE,
    "no_verdict_limit": SHARE,
    "no_verdict_window": AT_LEAST_1,
    "unscored_limit": SHARE,
    # TRL's and transformers' own, which they check late or not at all
    "temperature": POSITIVE,
    "top_p": Range(low=0, high=1, open_low=True),
    "top_k": AT_LEAST_0,
    "min_p": SHARE,
    "repetition_penalty": POSITIVE,
    "learning_rate": AT_LEAST_0,
    "weight_decay": AT_LEAST_0,
    "num_iterations": AT_LEAST_1,
    "beta": AT_LEAST_0,
    "epsilon": POSITIVE,
    "save_steps": POSITIVE,
    "top_entropy_quantile": SHARE,
    "per_device_train_batch_size": AT_LEAST_1,
    "per_device_eval_batch_size": AT_LEAST_1,
    "num_generations_eval": AT_LEAST_1,
    "vllm_server_timeout": POSITIVE,
    "vllm_server_port": Range(low=1, high=65535),
}

CHOICES = {
    "anchor": ("const", "proxy", "judge"),
    "baseline": ("control", "pooled"),
    "generation": ("local", "vllm"),
    "weight_sync": ("auto", "lora", "checkpoint"),
    "judge": ("llm", "self", "exact"),
    "judge_domain": ("math", "code"),
    "loss_type": ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"),
    "importance_sampling_level": ("token", "sequence"),
}

TEXT = {*CHOICES, "judge_model", "judge_base_url", "judge_api_key_env", "weight_sync_dir", "vllm_server_base_url"}

# Settings of TRL that cannot work here, whatever else is set: name -> (neutral value, why, what to do).
REFUSED = {
    "vllm_importance_sampling_correction": (
        False,
        "the correction would remove the gradient of every rollout that holds a judge's tokens",
        "leave vllm_importance_sampling_correction=False",
    ),
    "vllm_importance_sampling_cap": (None, "importance correction is off", "remove vllm_importance_sampling_cap"),
    "off_policy_mask_threshold": (
        None,
        "the mask would drop the off-policy tokens that phase 1 learns from",
        "remove off_policy_mask_threshold",
    ),
    "use_transformers_continuous_batching": (
        False,
        "rollouts need a seed per request, which that engine has not",
        "remove it; generation='local' batches continuously too",
    ),
    "use_transformers_paged": (False, "rollouts need a seed per request", "remove use_transformers_paged"),
    "transformers_continuous_batching_config": (None, "that engine is not used", "set local_max_batch instead"),
    "max_tool_calling_iterations": (None, "rollouts with tools are not supported", "remove it"),
    "vllm_structured_outputs_regex": (None, "the policy samples freely", "remove vllm_structured_outputs_regex"),
    "generation_kwargs": (None, "the policy samples at `temperature`, nothing else", "set temperature instead"),
    "cache_implementation": (None, "the local generator owns its cache", "remove cache_implementation"),
    "auto_find_batch_size": (
        False,
        "a smaller batch would break prompt groups",
        "set per_device_train_batch_size=1 instead",
    ),
    "remove_unused_columns": (
        False,
        "rewards and judge read the other columns",
        "leave remove_unused_columns=False",
    ),
}

# Settings that act only in TRL's loss, so only in phase 2: name -> neutral value.
SECOND_PHASE_ONLY = {
    "beta": 0.0,
    "entropy_coef": 0.0,
    "use_adaptive_entropy": False,
    "top_entropy_quantile": 1.0,
    "epsilon_high": None,
}

UNCUT_SAMPLING = {"top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}


# --- One field at a time


def check_types(config: Any) -> None:
    """Check that plain fields (whole number, number, truth value, text) hold what their annotation says.

    Raises:
        ConfigError: A value of another type, or a number that is not finite.
    """
    for name, (kind, optional) in _plain_fields(type(config)).items():
        value = getattr(config, name)
        if value is None and optional:
            continue
        fits = isinstance(value, kind if kind is not float else (int, float))
        if isinstance(value, bool) and kind is not bool:
            fits = False
        if not fits or (kind is float and not math.isfinite(value)):
            raise ConfigError(name, value, _allowed(name, kind, optional), _type_fix(config, name, kind, value))


def check_ranges(config: Any) -> None:
    """Check every field that has a range or a closed set of values, after `check_types`.

    Raises:
        ConfigError: A number outside its range, or an unknown choice.
    """
    if config.kappa >= 0:
        sign = f"did you mean kappa={-config.kappa}?" if config.kappa > 0 else "set kappa=-0.2"
        raise ConfigError("kappa", config.kappa, "a number below 0, in nats per token", sign)
    if config.num_control < 1:
        allowed = "at least 1: the baseline is made of the control rollouts' rewards"
        raise ConfigError("num_control", config.num_control, allowed, "set num_control=8")
    for name, bounds in RANGES.items():
        value = getattr(config, name)
        if value is not None and value not in bounds:
            raise ConfigError(name, value, str(bounds), _default_fix(config, name))
    for name, choices in CHOICES.items():
        value = getattr(config, name)
        if value is not None and value not in choices:
            near = difflib.get_close_matches(str(value).lower(), choices, 1, 0.4)
            fix = f"did you mean {name}={near[0]!r}?" if near else f"set {name}={choices[0]!r}"
            raise ConfigError(name, value, _listed(choices), fix)
    for name in ("judge_base_url", "vllm_server_base_url"):
        _check_url(name, getattr(config, name))
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", config.judge_api_key_env):
        allowed = "the name of an environment variable: letters, digits and _"
        raise ConfigError("judge_api_key_env", HIDDEN, allowed, "put the key in OPENAI_API_KEY and name that variable")


def _check_url(name: str, url: str | None) -> None:
    if url is None:
        return
    example = "http://localhost:8000" if name.startswith("vllm") else "http://localhost:8001/v1"
    allowed = f"an address like {example}"
    try:
        parts = urlsplit(url)
        well_formed = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        well_formed = False
    if well_formed and parts.username is None and parts.password is None and not re.search(r"\s", url):
        if name.startswith("vllm") and parts.path.rstrip("/").endswith("/v1"):
            raise ConfigError(name, url, "the server's root, without /v1", f"set {name}={url.rstrip('/')[:-3]!r}")
        return
    if "@" in url:
        raise ConfigError(name, HIDDEN, f"{allowed}, without user or password", "pass the key by judge_api_key_env")
    guess = f"http://{url}" if re.fullmatch(r"[\w.-]+(:\d+)?(/\S*)?", url) else example
    raise ConfigError(name, url, allowed, f"set {name}={guess!r}")


@cache
def _plain_fields(config_class: type) -> dict[str, tuple[type, bool]]:
    """Fields of one plain type: name -> (type, whether None is allowed)."""
    hints = typing.get_type_hints(config_class)  # not `field.type`, which HfArgumentParser rewrites
    plain: dict[str, tuple[type, bool]] = {}
    for item in dataclasses.fields(config_class):
        hint = hints[item.name]
        union = typing.get_origin(hint) in (typing.Union, types.UnionType)
        members = set(typing.get_args(hint)) if union else {hint}
        optional = type(None) in members
        members.discard(type(None))
        if len(members) == 1 and (kind := members.pop()) in (bool, int, float, str):
            if kind is not str or item.name in TEXT:  # upstream takes more than text in most others: paths, enums
                plain[item.name] = (kind, optional)
    return plain


def _allowed(name: str, kind: type, optional: bool) -> str:
    words = {bool: "true or false", int: "a whole number", float: "a finite number", str: "text"}[kind]
    bounds = _bounds(name)
    return f"{words}{f' {bounds}' if bounds else ''}{', or unset' if optional else ''}"


def _bounds(name: str) -> str:
    if name in CHOICES:
        return f"({_listed(CHOICES[name])})"
    return str({"kappa": NEGATIVE, "num_control": AT_LEAST_1}.get(name) or RANGES.get(name, ""))


def _type_fix(config: Any, name: str, kind: type, value: Any) -> str:
    if isinstance(value, str) and kind in (int, float):
        try:
            number = kind(value)
        except ValueError:
            return _default_fix(config, name)
        if math.isfinite(number):
            exponent = kind is float and "e" in value.lower()
            return f"write {number} without quotes" + (", as YAML reads 1e-6 as text and 1.0e-6 as a number" * exponent)
    if isinstance(value, float) and kind is int and math.isfinite(value):
        return f"set {name}={round(value)}"
    return _default_fix(config, name)


def _default_fix(config: Any, name: str) -> str:
    default = type(config).__dataclass_fields__[name].default
    return f"remove {name}" if default is None else f"set {name}={default!r}, the default"


def _listed(choices: tuple[str, ...]) -> str:
    return " or ".join(repr(choice) for choice in choices)


# --- Several fields together


def derive_generation(config: Any) -> str:
    """`"local"` or `"vllm"`, from `generation` and TRL's own `use_vllm`.

    Raises:
        ConfigError: The two contradict each other, TRL's colocated mode is asked for, or a server is named but not used.
    """
    if config.use_vllm and config.generation == "local":
        raise ConfigError("generation", "local", "'vllm' with use_vllm=True", "set one of them, not both")
    generation = config.generation or ("vllm" if config.use_vllm else "local")
    if generation == "vllm" and config.vllm_mode != "server":
        why = "'server': a colocated engine cannot stream, stop single rollouts or serve the judge"
        raise ConfigError("vllm_mode", config.vllm_mode, why, "set vllm_mode='server' and start `vllm serve`")
    if config.generation is None and generation == "local" and config.vllm_server_base_url is not None:
        allowed = "unset with local generation"
        raise ConfigError(
            "vllm_server_base_url", config.vllm_server_base_url, allowed, "add use_vllm=True, or set generation='local'"
        )
    return generation


def check_combinations(config: Any) -> None:
    """Check settings against each other, after `check_ranges` and `derive_generation`.

    Raises:
        ConfigError: Two settings contradict each other, or one would never act.
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
        raise ConfigError("delta", config.delta, f"above 1 + epsilon = {1 + config.epsilon}", "set delta=3.0")
    if config.sync_ref_model and config.beta == 0:
        raise ConfigError("sync_ref_model", True, "false while beta=0: there is no reference model", "remove it")


def _check_sampling(config: Any) -> None:
    for name, neutral in UNCUT_SAMPLING.items():
        value = getattr(config, name)
        if value is None or value == neutral:
            continue
        why = "because the loss takes the log-probabilities of the uncut distribution"
        if not config.allow_cut_sampling:
            raise ConfigError(name, value, f"{neutral!r}, {why}", f"remove {name}, or set allow_cut_sampling=True")
        if config.generation == "local":
            allowed = f"{neutral!r} with generation='local', which samples from the whole distribution"
            raise ConfigError(name, value, allowed, f"remove {name}, or set use_vllm=True")


def _check_lengths(config: Any) -> None:
    longest = config.max_completion_length
    if config.correction_tokens > longest:
        allowed = f"at most max_completion_length={longest}"
        raise ConfigError("correction_tokens", config.correction_tokens, allowed, f"set correction_tokens={longest}")
    room, needed = config.vllm_max_model_length, config.max_prompt_length + longest
    if config.generation == "vllm" and room is not None and room < needed:
        allowed = f"at least max_prompt_length={config.max_prompt_length} + max_completion_length={longest} = {needed}"
        fix = f"set vllm_max_model_length={needed} and start the server with --max-model-len {needed}"
        raise ConfigError("vllm_max_model_length", room, allowed, fix)


def _check_phases(config: Any) -> None:
    if config.max_steps != -1 and config.max_steps < 1:
        raise ConfigError("max_steps", config.max_steps, "at least 1, or -1 to go by epochs", "set max_steps=500")
    per_batch = config.updates_per_generation * config.num_iterations
    names = ("intervention_updates", "save_steps") if config.save_strategy == "steps" else ("intervention_updates",)
    for name in names:
        value = getattr(config, name)
        if value % per_batch:
            above = math.ceil(value / per_batch) * per_batch
            near = [number for number in (above - per_batch, above) if number > 0]
            allowed = (
                f"a multiple of updates_per_generation={config.updates_per_generation} x "
                f"num_iterations={config.num_iterations} = {per_batch}, so that no generated batch is split"
            )
            raise ConfigError(name, value, allowed, " or ".join(f"set {name}={number}" for number in near))
    if 0 < config.max_steps <= config.intervention_updates:
        for name, neutral in SECOND_PHASE_ONLY.items():
            value = getattr(config, name)
            if value != neutral:
                allowed = (
                    f"{neutral!r} in a run without a second phase (max_steps={config.max_steps}, intervention_updates="
                    f"{config.intervention_updates}): it acts in TRL's loss only"
                )
                raise ConfigError(name, value, allowed, f"remove {name}, or set intervention_updates below max_steps")


def _check_judge(config: Any) -> None:
    if config.judge == "llm" and config.judge_base_url is None:
        fix = "set judge_base_url='http://localhost:8001/v1'"
        raise ConfigError("judge_base_url", None, "an address when judge='llm'", fix)
    if config.judge in ("self", "exact") and config.judge_base_url is not None:
        allowed = f"unset with judge={config.judge!r}, which uses no server"
        raise ConfigError("judge_base_url", config.judge_base_url, allowed, "remove it, or set judge='llm'")
    if config.judge_likelihood_threshold is not None and config.judge != "self":
        allowed = f"unset unless judge='self' (judge is {config.judge!r})"
        value = config.judge_likelihood_threshold
        raise ConfigError("judge_likelihood_threshold", value, allowed, "set judge='self', or remove it")


# --- Unknown keys


def check_keys(mapping: Mapping[str, Any], *config_classes: type) -> None:
    """Refuse keys that are no setting of any of the classes, such as misspelt ones in a recipe.

    Args:
        mapping (`Mapping[str, Any]`): Keys and values as read from a recipe.
        config_classes (`type`): Dataclasses whose fields are the known settings.

    Raises:
        ConfigError: An unknown key; the message names the nearest known one.
    """
    known = {item.name for config_class in config_classes for item in dataclasses.fields(config_class) if item.init}
    for key, value in mapping.items():
        if key in known:
            continue
        near = difflib.get_close_matches(str(key), sorted(known), 1, 0.6)
        fix = f"did you mean `{near[0]}`? Else remove it" if near else f"remove `{key}`"
        shown = HIDDEN if re.search(r"key|token\b|secret|password", str(key), re.IGNORECASE) else value
        names = ", ".join(config_class.__name__ for config_class in config_classes)
        raise ConfigError(str(key), shown, f"a setting of {names}", fix)
