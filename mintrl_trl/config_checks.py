"""Checks of one setting at a time: its name, its type, its range, its closed set of values.

It reads settings and raises `ConfigError`; it changes nothing, derives nothing and imports no model library.
Invariant: every message names the field, the value, the values allowed and a setting that works, and no message
repeats a value that may be a secret.
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
from .wire import server_of

HIDDEN = "<hidden>"  # shown instead of a value that may be a secret
TRUTH_VALUES = ("yes", "true", "t", "y", "1", "no", "false", "f", "n", "0")  # as transformers' parser reads them


@dataclass(frozen=True)
class Range:
    """The numbers that a field may hold. A bound belongs to the range, unless it is marked open."""

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


AT_LEAST_0, AT_LEAST_1 = Range(low=0), Range(low=1)
POSITIVE, NEGATIVE = Range(low=0, open_low=True), Range(high=0, open_high=True)
SHARE, POSITIVE_SHARE = Range(low=0, high=1), Range(low=0, high=1, open_low=True)

RANGES = {
    "prompts_per_update": AT_LEAST_1,
    "num_control": AT_LEAST_1,
    "num_intervened": AT_LEAST_0,
    "updates_per_generation": AT_LEAST_1,
    "intervention_updates": AT_LEAST_0,
    "chunk_tokens": AT_LEAST_1,
    "max_reviews": AT_LEAST_0,
    "correction_tokens": AT_LEAST_1,
    "kappa": NEGATIVE,
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
    "review_timeout_seconds": POSITIVE,
    "judge_max_retries": AT_LEAST_0,
    "judge_likelihood_threshold": NEGATIVE,
    "judge_price_per_million_input": AT_LEAST_0,
    "judge_price_per_million_output": AT_LEAST_0,
    "judge_budget_tokens": AT_LEAST_1,
    "judge_budget_cost": POSITIVE,
    "no_verdict_limit": SHARE,
    "no_verdict_window": AT_LEAST_1,
    "unscored_limit": SHARE,
    "mismatch_limit": POSITIVE,
    "stall_seconds": POSITIVE,
    "hub_card_examples": AT_LEAST_0,
    "entropy_sample": AT_LEAST_0,
    "resumable_checkpoints": AT_LEAST_1,
    # TRL's and transformers' own, which they check late or not at all
    "temperature": POSITIVE,
    "top_p": POSITIVE_SHARE,
    "top_k": AT_LEAST_0,
    "min_p": SHARE,
    "repetition_penalty": POSITIVE,
    "learning_rate": AT_LEAST_0,
    "weight_decay": AT_LEAST_0,
    "num_iterations": AT_LEAST_1,
    "beta": AT_LEAST_0,
    "epsilon": POSITIVE,
    "epsilon_high": POSITIVE,
    "sapo_temperature_neg": POSITIVE,
    "sapo_temperature_pos": POSITIVE,
    "ref_model_mixup_alpha": SHARE,
    "ref_model_sync_steps": AT_LEAST_1,
    "top_entropy_quantile": SHARE,
    "save_steps": POSITIVE,
    "per_device_train_batch_size": AT_LEAST_1,
    "per_device_eval_batch_size": AT_LEAST_1,
    "num_generations_eval": AT_LEAST_1,
    "vllm_importance_sampling_clip_max": POSITIVE,
    "vllm_importance_sampling_clip_min": AT_LEAST_0,
    "vllm_server_timeout": POSITIVE,
    "vllm_server_port": Range(low=1, high=65535),
}

CHOICES = {
    "anchor": ("const", "proxy", "judge"),
    "baseline": ("control", "pooled"),
    "generation": ("local", "vllm"),
    "weight_sync": ("auto", "lora", "checkpoint", "nccl"),
    "judge": ("llm", "self", "exact", "local"),
    "judge_variant": ("none", "placebo", "random_cut"),
    "judge_domain": ("math", "code"),
    "judge_failure": ("stop", "continue_on_policy"),
    "loss_type": ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"),
    "importance_sampling_level": ("token", "sequence"),
    "vllm_importance_sampling_mode": ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"),
    "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
}

# Fields that hold text and nothing else. Upstream also takes paths, enums and truth values in most of its own.
TEXT = {*CHOICES, "judge_model", "judge_base_url", "judge_api_key_env", "weight_sync_dir", "vllm_server_base_url"}

# Why a range is what it is, and the address to show as an example, where the name does not say it.
UNITS = {
    "num_control": ", because the baseline is made of the control rollouts' rewards",
    "kappa": ", in nats per token",
    "judge_likelihood_threshold": ", in nats",
    "judge_timeout_seconds": " seconds",
}
ADDRESSES = {"judge_base_url": "http://localhost:8001/v1", "vllm_server_base_url": "http://localhost:8000"}


def check_fields(config: Any) -> None:
    """Check each plain field (whole number, number, truth value, text) of a config by itself.

    Args:
        config (`Any`): An instance of a dataclass with the fields of `RANGES` and `CHOICES`.

    Raises:
        ConfigError: A value of the wrong type, a number that is not finite or out of range, an unknown choice, an
            address that is none, or a key where the name of a variable belongs.
    """
    for name, (kind, optional) in _plain_fields(type(config)).items():
        value = getattr(config, name)
        if value is None and optional:
            continue
        if not _fits(value, kind) or (name in RANGES and value not in RANGES[name]):
            raise ConfigError(name, value, _allowed(name, kind, optional), _number_fix(type(config), name, kind, value))
        if name in CHOICES and value not in CHOICES[name]:
            near = difflib.get_close_matches(value.lower(), CHOICES[name], 1, 0.4)
            fix = f"did you mean {name}={near[0]!r}" if near else f"set {name}={CHOICES[name][0]!r}"
            raise ConfigError(name, value, _listed(CHOICES[name]), fix)
    for name, example in ADDRESSES.items():
        given = getattr(config, name)
        several = addresses(given or "") if name == "vllm_server_base_url" else (given,)
        for address in several if given is not None else ():
            _check_address(name, address, example)
        if given is not None and len(set(map(server_of, several))) < len(several):
            raise ConfigError(name, given, "each address once", "remove the repeated ones")
    variable = config.judge_api_key_env
    if variable is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
        allowed = "the name of an environment variable: letters, digits and _"
        raise ConfigError(
            "judge_api_key_env",
            HIDDEN,
            allowed,
            "set judge_api_key_env='OPENAI_API_KEY' and put the key in that variable",
        )


def check_keys(mapping: Mapping[str, Any], *config_classes: type) -> None:
    """Refuse what a recipe gets wrong before it is parsed: unknown keys, and values of another type.

    Args:
        mapping (`Mapping[str, Any]`): Keys and values as read from a recipe or a command line. Numbers and truth values
            may be written as text.
        config_classes (`type`): Dataclasses whose fields are the known settings.

    Raises:
        ConfigError: An unknown key, with the nearest known one; or something else where a number or a truth value
            belongs.
    """
    owners = {item.name: owner for owner in config_classes for item in dataclasses.fields(owner) if item.init}
    for key, value in mapping.items():
        if key not in owners:
            near = difflib.get_close_matches(str(key), sorted(owners), 1, 0.6)
            fix = f"did you mean `{near[0]}`; if not, remove `{key}`" if near else f"remove `{key}`"
            secret = re.search(r"key|token$|secret|password", str(key), re.IGNORECASE)
            if near and secret:  # a number for a setting that takes one is none
                kind, _ = _plain_fields(owners[near[0]]).get(near[0], (str, True))
                secret = kind is str or not (_reads_as(kind, value) if isinstance(value, str) else _fits(value, kind))
            raise ConfigError(str(key), HIDDEN if secret else value, "the name of a setting (--help lists them)", fix)
        kind, optional = _plain_fields(owners[key]).get(key, (str, True))
        if kind is str or (value is None and optional):
            continue
        if not (_reads_as(kind, value) if isinstance(value, str) else _fits(value, kind)):
            allowed = _allowed(key, kind, optional)
            raise ConfigError(key, value, allowed, _number_fix(owners[key], key, kind, value))


def _reads_as(kind: type, text: str) -> bool:
    if kind is bool:
        return text.lower() in TRUTH_VALUES
    try:
        kind(text)
    except ValueError:
        return False
    return True


@cache
def _plain_fields(config_class: type) -> dict[str, tuple[type, bool]]:
    """Fields of one plain type: name -> (type, whether None is allowed)."""
    hints = typing.get_type_hints(config_class)  # not `field.type`, which HfArgumentParser rewrites
    plain: dict[str, tuple[type, bool]] = {}
    for item in dataclasses.fields(config_class):
        hint = hints[item.name]
        members = set(typing.get_args(hint)) if typing.get_origin(hint) in (typing.Union, types.UnionType) else {hint}
        kinds = members - {type(None)}
        if len(kinds) == 1 and (kinds <= {bool, int, float} or item.name in TEXT):
            plain[item.name] = (kinds.pop(), type(None) in members)
    return plain


def _fits(value: Any, kind: type) -> bool:
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    if kind is float:
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(value, kind)


def addresses(text: str) -> tuple[str, ...]:
    """The addresses in a setting that may hold several.

    >>> addresses("http://a:8000/, http://b:8000")
    ('http://a:8000', 'http://b:8000')
    """
    return tuple(address.strip().rstrip("/") for address in text.split(","))


def _check_address(name: str, address: str, example: str) -> None:
    allowed = f"an http or https address such as {example}"
    if "@" in address:
        fix = f"set {name}={example!r}, and name the variable that holds the key in judge_api_key_env"
        raise ConfigError(name, HIDDEN, f"{allowed}, without user and password", fix)
    try:
        parts = urlsplit(address)
        well_formed = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        well_formed = False
    if not well_formed or re.search(r"\s", address):
        guess = f"http://{address}" if re.fullmatch(r"[\w.-]+(:\d{1,5})?(/\S*)?", address) else example
        raise ConfigError(name, address, allowed, f"set {name}={guess!r}")


def _allowed(name: str, kind: type, optional: bool) -> str:
    words = {bool: "true or false", int: "a whole number", float: "a finite number", str: "text"}[kind]
    if name in CHOICES:
        words = _listed(CHOICES[name])
    bounds = f" {RANGES[name]}" if name in RANGES else ""
    return f"{words}{bounds}{UNITS.get(name, '')}{', or unset' if optional else ''}"


def _number_fix(config_class: type, name: str, kind: type, value: Any) -> str:
    """The nearest setting that works: the number meant by a text, the other sign, a whole number; else the default."""
    guess: Any = None
    if isinstance(value, str) and kind in (int, float) and _reads_as(kind, value):
        guess = kind(value)
        if _fits(guess, kind) and guess in RANGES.get(name, Range()):
            return f"write {guess} without quotes, and with a point (1.0e-6) before an exponent"
    elif isinstance(value, float) and kind is int and math.isfinite(value):
        guess = round(value)
    elif not isinstance(value, bool) and isinstance(value, int | float) and RANGES.get(name) is NEGATIVE:
        guess = -value
    if guess is not None and _fits(guess, kind) and guess in RANGES.get(name, Range()):
        return f"did you mean {name}={guess}"
    default = config_class.__dataclass_fields__[name].default
    return f"remove {name}" if default in (None, dataclasses.MISSING) else f"set {name}={default!r}, the default"


def _listed(choices: tuple[str, ...]) -> str:
    return " or ".join(repr(choice) for choice in choices)
