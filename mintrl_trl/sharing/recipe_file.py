"""The recipe of a run as a YAML file: what differs from the defaults, ready for `--config`.

It reads a run folder's files and writes text. Invariant: read back by the recipe parser, it gives the settings of the
run, apart from places of this machine and what is shown, saved and uploaded.
"""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ..analysis.runs import last_written
from ..batch_plan import DERIVED_SIZES
from ..config_ablations import AblationConfig
from ..errors import DataError
from ..recipe import PolicyArguments, RecipeArguments
from ..reporting.run_folder import HIDDEN

# Not of the recipe: places, what is shown, saved and uploaded, how a run is started; and what is worked out again.
_LEFT_OUT = re.compile(
    r"output_dir|run_name|project|trackio_.*|report_to|hub_.*|push_to_hub|log_.*|logging_dir|disable_tqdm|show_progress"
    r"|resume_from_checkpoint|allow_changed_resume|set_aside_older_run|local_rank|ddp_.*|use_vllm|debug"
    r"|weight_sync_dir|activation_checkpointing|bf16|deepspeed|fsdp.*|accelerator_config|parallelism_config"
)
_WORKED_OUT = {*DERIVED_SIZES} - {"per_device_train_batch_size"}  # the one that a recipe may choose
_LOADING = ("revision", "attn_implementation", "dtype")


def recipe_yaml(settings: Mapping[str, Any], recipe: Mapping[str, Any]) -> str:
    """Write a recipe.

    Args:
        settings (`Mapping[str, Any]`): The run folder's `settings.json`.
        recipe (`Mapping[str, Any]`): Its `recipe.json`.

    Returns:
        `str`: YAML, in the order of the fields.
    """
    settings, values = _as_given(settings), {}
    for kind, found in ((RecipeArguments, recipe), (PolicyArguments, recipe), (AblationConfig, settings)):
        for field in dataclasses.fields(kind):
            name = field.name
            if name not in found or name in values or _LEFT_OUT.fullmatch(name) or name in _WORKED_OUT:
                continue
            if found[name] not in (_default(field), HIDDEN):
                values[name] = found[name]
    return yaml.safe_dump(values, sort_keys=False, width=110)


def run_settings(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """A run folder's settings, and what the recipe adds, as they stand last; empty where there are none."""
    found = []
    for stem in ("settings", "recipe"):
        try:
            found.append(last_written(folder, stem) or {})
        except DataError:  # not JSON: then there is no recipe to write, and the rest of a run can be pushed
            found.append({})
    return found[0], found[1]


def _as_given(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without what a config makes of one that was left alone."""
    values = dict(settings)
    template, loading = dict(values.get("chat_template_kwargs") or {}), dict(values.get("model_init_kwargs") or {})
    template.pop("enable_thinking", None)  # a setting of its own
    for name in _LOADING:  # settings of the recipe
        loading.pop(name, None)
    values |= {"chat_template_kwargs": template or None, "model_init_kwargs": loading or None}
    if values.get("pad_to_multiple_of") is None:  # TRL's "auto", where there is nothing to gain
        values.pop("pad_to_multiple_of", None)
    return values


def _default(field: dataclasses.Field) -> Any:
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
