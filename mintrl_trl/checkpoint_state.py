"""What a run is, as far as its results depend on it: written beside each checkpoint, compared before going on.

It describes and compares; it decides nothing and touches no file. Invariant: a setting is taken to decide results
unless `FREE_SETTINGS` names it, so one that nobody thought of is compared.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset
from torch import Tensor

from .reporting.run_folder import jsonable, versions

if TYPE_CHECKING:
    from .trainer import MInTRLTrainer

# May differ between a run and its continuation: they change neither rollouts nor weights. Names, or beginnings (`*`).
FREE_SETTINGS = (
    # where files go, what is shown, logged and uploaded
    "output_dir",
    "logging_*",
    "log_*",
    "show_progress",
    "stall_seconds",
    "disable_tqdm",
    "report_to",
    "run_name",
    "project",
    "trackio_*",
    "num_completions_to_print",
    "push_to_hub",
    "hub_*",
    "skip_memory_metrics",
    "include_num_input_tokens_seen",
    "debug",
    # checkpoints, and how a run is started
    "save_*",
    "enable_jit_checkpoint",
    "load_best_model_at_end",
    "metric_for_best_model",
    "greater_is_better",
    "resumable_checkpoints",
    "resume_from_checkpoint",
    "restore_callback_states_from_checkpoint",
    "allow_changed_resume",
    "set_aside_older_run",
    "dry_run_worst_case",
    "do_*",
    "local_rank",
    "ddp_timeout",
    # evaluation
    "eval_*",
    "per_device_eval_batch_size",
    "num_generations_eval",
    "prediction_loss_only",
    "include_for_metrics",
    "batch_eval_metrics",
    "*_full_eval",
    # speed and servers
    "dataloader_num_workers",
    "dataloader_p*",
    "dataloader_multiprocessing_context",
    "torch_empty_cache_steps",
    "overlap_reviews",
    "entropy_sample",
    "local_max_batch",
    "max_concurrent_*",
    "weight_sync*",
    "vllm_server_*",
    "judge_base_url",
    "judge_api_key_env",
    "judge_timeout_seconds",
    "judge_max_retries",
    "judge_price_*",
    "judge_budget_*",
    "review_timeout_seconds",
    # when a run gives up
    "no_verdict_*",
    "unscored_limit",
    "mismatch_limit",
    "judge_failure",
    # how long it is, where the learning rate does not depend on it; see `decisive_settings`
    "max_steps",
    "num_train_epochs",
)
_LENGTHS = ("max_steps", "num_train_epochs")
_LENGTH_FREE_SCHEDULES = ("constant", "constant_with_warmup")


def describe_run(trainer: "MInTRLTrainer") -> dict[str, Any]:
    """What the results of a run depend on, as plain JSON values; secrets are left out.

    Returns:
        `dict[str, Any]`: `settings`, `judge`, `data`, `policy`, `rewards` and `processes`, each with its `hash`.
    """
    parts = {
        "settings": decisive_settings(trainer.args),
        "judge": describe_judge(trainer.judge),
        "data": fingerprint(trainer.train_dataset),
        "policy": _describe_policy(trainer),
        "rewards": {"functions": list(trainer.reward_func_names)},
        "processes": {"number": trainer.accelerator.num_processes},
    }
    return {name: part | {"hash": _hash(part)} for name, part in parts.items()}


def settings_part(values: Mapping[str, Any]) -> dict[str, Any]:
    """Named values as a further part of [`describe_run`], with its `hash`."""
    part = jsonable(values)
    return part | {"hash": _hash(part)}


def run_state(trainer: "MInTRLTrainer", by_process: list[tuple[list[str | None], Any]]) -> dict[str, Any]:
    """Content of a checkpoint's `mintrl_state.json`.

    Args:
        trainer ([`MInTRLTrainer`]): Whose run it is.
        by_process (`list`): For each process, the outcomes of its latest reviews, and what its judge has spent.
    """
    update = trainer.state.global_step
    return {
        "update": update,
        "phase": trainer.schedule.phase(update).value,
        "seed": trainer.args.seed,
        "run": trainer.run_description,
        "review_windows": [window for window, _ in by_process],
        "judge_spent": [spent for _, spent in by_process],
        "carried": trainer.carried,
        "versions": versions(),
    }


def changes(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two descriptions, one line each: `settings.seed: was 42, is 43`.

    Names that only one of the two knows are passed over: another version of a package may have added them.
    """
    found = []
    for part in was.keys() & now.keys():
        if was[part] == now[part]:
            continue
        old, new = dict(_flat(was[part], part)), dict(_flat(now[part], part))
        differing = [
            f"{name}: was {json.dumps(old[name])}, is {json.dumps(new[name])}"
            for name in sorted(old.keys() & new.keys())
            if old[name] != new[name] and not name.endswith(".hash")
        ]
        if not differing and part == "judge":  # settings that come and go with the class
            differing = [f"judge: was {json.dumps(was[part])}, is {json.dumps(now[part])}"]
        found += differing
    return sorted(found)


def decisive_settings(args: Any) -> dict[str, Any]:
    """The settings that rollouts and weights depend on, by name."""
    free = [name for name in FREE_SETTINGS if name not in _LENGTHS]
    if str(jsonable(args.lr_scheduler_type)) in _LENGTH_FREE_SCHEDULES:
        free += _LENGTHS
    values = jsonable(args)
    return {name: values[name] for name in sorted(values) if not any(_matches(name, pattern) for pattern in free)}


def describe_judge(judge: Any) -> dict[str, Any]:
    """A judge by its class and what it says about itself.

    Its `settings()` if it has that method, else the plain fields of a dataclass; and the name of its model. Other
    attributes are not looked at: they may be counters.
    """
    if judge is None:
        return {"class": None}
    kind = type(judge)
    described: dict[str, Any] = {"class": f"{kind.__module__}.{kind.__qualname__}"}
    if callable(getattr(judge, "settings", None)):
        described |= jsonable(judge.settings())
    elif dataclasses.is_dataclass(judge):
        values = {field.name: getattr(judge, field.name) for field in dataclasses.fields(judge)}
        described |= {
            name: jsonable(value, name) for name, value in values.items() if isinstance(value, bool | int | float | str)
        }
    if isinstance(model := getattr(judge, "model", None), str):
        described["model"] = model
    return described


def describe_data(rows: Dataset) -> dict[str, Any]:
    """The part `data` of [`describe_run`], with its `hash`."""
    part = fingerprint(rows)
    return part | {"hash": _hash(part)}


def fingerprint(rows: Dataset) -> dict[str, Any]:
    """Number of training rows, and a hash over them, in order: rewards and judges may read any column."""
    digest = hashlib.blake2b(digest_size=16)
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True, default=str).encode())
        digest.update(b"\n")
    return {"rows": len(rows), "content": digest.hexdigest()}


def _describe_policy(trainer: "MInTRLTrainer") -> dict[str, Any]:
    """The kind of model, its adapter, and what of its initial weights matters; not where either was loaded from."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    described = {"type": model.config.model_type, "dtype": str(model.dtype), "parameters": parameters}
    adapters = getattr(model, "peft_config", {})
    places = ("base_model_name_or_path", "revision", "auto_mapping", "inference_mode", "peft_version")
    for name, config in adapters.items():
        values = {key: value for key, value in config.to_dict().items() if key not in places}
        described[f"adapter {name}"] = jsonable(values)
    if frozen := _frozen(model, adapters):  # which no checkpoint of an adapter holds
        described["frozen_weights"] = _hash(bit_sums(frozen))
    elif trainer.args.beta != 0 or trainer.args.judge == "self":  # the reference, the judge: as the run began
        described["initial_weights"] = _hash(bit_sums(list(model.parameters())))
    return described


def _frozen(model: torch.nn.Module, adapters: Mapping[str, Any]) -> list[Tensor]:
    """Weights that are not trained, adapters apart."""
    return [
        weight
        for name, weight in model.named_parameters()
        if not weight.requires_grad and not weight.is_meta and not any(f".{adapter}." in name for adapter in adapters)
    ]


def bit_sums(weights: Iterable[Tensor]) -> list[int]:
    """A number for each tensor that changes with its bits; needs no second copy of them."""
    sums = []
    for weight in weights:
        local = (weight.to_local() if hasattr(weight, "to_local") else weight).detach()
        whole = _WHOLE[local.element_size()]
        sums.append(local.contiguous().view(whole).sum(dtype=torch.int64))
    return torch.stack(sums).tolist() if sums else []


_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _flat(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        yield name, value
        return
    for key, item in value.items():
        yield from _flat(item, f"{name}.{key}")


def _matches(name: str, pattern: str) -> bool:
    if pattern.startswith("*"):
        return name.endswith(pattern[1:])
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def _hash(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).hexdigest()
