"""The table of TRL's options is complete, every row has a test, and what never acts is refused in words."""

import dataclasses
import inspect
import re
from pathlib import Path

import pytest
from datasets import Dataset
from transformers import TrainingArguments
from trl import GRPOConfig, GRPOTrainer

from mintrl_trl import ConfigError, MInTRLConfig, MInTRLTrainer
from mintrl_trl.trl_options import ACTS_WITH, REFUSED, SECOND_PHASE_ONLY
from tests import test_importance_correction, test_trl_options_loss, test_trl_options_models, test_trl_options_run
from tests.trainers import ROWS, HashGenerator, make_trainer, parity_reward
from tests.trl_options import SHOWN, shows

DOCUMENT = Path(__file__).parents[1] / "docs" / "trl_options.md"
FILES = (
    test_importance_correction,
    test_trl_options_loss,
    test_trl_options_models,
    test_trl_options_run,
)  # imported, so that SHOWN is full

# A value that the option could have, were it not refused.
VALUES = {
    "vllm_importance_sampling_correction": True,
    "vllm_importance_sampling_mode": "token_mask",
    "vllm_importance_sampling_clip_max": 2.0,
    "vllm_importance_sampling_clip_min": 0.1,
    "vllm_importance_sampling_cap": 2.0,
    "off_policy_mask_threshold": 0.5,
    "use_transformers_continuous_batching": True,
    "use_transformers_paged": True,
    "transformers_continuous_batching_config": {"num_blocks": 8},
    "cache_implementation": "static",
    "generation_kwargs": {"num_beams": 2},
    "ds3_gather_for_generation": False,
    "vllm_structured_outputs_regex": "[0-9]+",
    "vllm_model_impl": "transformers",
    "vllm_enable_sleep_mode": True,
    "vllm_gpu_memory_utilization": 0.9,
    "vllm_tensor_parallel_size": 2,
    "vllm_group_port": 51217,
    "max_tool_calling_iterations": 2,
    "auto_find_batch_size": True,
    "remove_unused_columns": True,
    "neftune_noise_alpha": 5.0,
    "train_sampling_strategy": "group_by_length",
    "label_smoothing_factor": 0.1,
    "data_seed": 1,
    "ignore_data_skip": True,
    "loss_type": "grpo",
    "importance_sampling_level": "sequence",
    "epsilon": 0.1,
    "epsilon_high": 0.28,
    "delta": 2.0,
    "beta": 0.01,
    "entropy_coef": 0.01,
    "use_adaptive_entropy": True,
    "top_entropy_quantile": 0.2,
    "scale_rewards": False,
    "multi_objective_aggregation": "normalize_then_sum",
    "sapo_temperature_neg": 2.0,
    "sapo_temperature_pos": 2.0,
    "vespo_k_pos": 1.0,
    "vespo_lambda_pos": 1.0,
    "vespo_k_neg": 1.0,
    "vespo_lambda_neg": 1.0,
    "use_bias_correction_kl": False,
    "sync_ref_model": True,
    "ref_model_mixup_alpha": 0.5,
    "ref_model_sync_steps": 64,
    "entropy_coef_min": 0.1,
    "entropy_coef_max": 0.5,
    "entropy_coef_delta": 0.1,
    "entropy_target": 1.0,
    "num_completions_to_print": 2,
    "log_unique_prompts": True,
    "log_completions_hub_repo": "me/rows",
    "vllm_mode": "colocate",
    "vllm_server_host": "10.0.0.1",
    "vllm_server_port": 9000,
    "vllm_server_timeout": 10.0,
    "vllm_max_model_length": 32768,
}


def documented() -> set[str]:
    """Options named in the first column of the document's tables."""
    rows = [line.split("|")[1] for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def of_trl() -> set[str]:
    """The fields that `GRPOConfig` adds to transformers' or gives another default, and the trainer's arguments."""
    theirs = {item.name for item in dataclasses.fields(TrainingArguments)}
    fields = {item.name for item in dataclasses.fields(GRPOConfig)} - theirs
    return fields | (set(inspect.signature(GRPOTrainer).parameters) - {"self"}) | {"remove_unused_columns"}


def test_the_document_names_every_option_of_trl_and_no_other():
    assert documented() - of_trl() <= {item.name for item in dataclasses.fields(TrainingArguments)} | {"dataloader_"}
    assert of_trl() <= documented()


def test_every_option_has_a_test():
    assert all(FILES)
    assert documented() - {"dataloader_"} <= SHOWN.keys()


@shows(*REFUSED)
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_refused_with_its_reason(name):
    neutral, why, fix = REFUSED[name]
    server = {"use_vllm": True} if "importance_sampling" in name else {}
    with pytest.raises(ConfigError) as caught:
        MInTRLConfig("runs/wrong", **{name: VALUES[name]}, **server)
    assert str(caught.value).startswith(f"`{name}` is ")
    assert why in str(caught.value) and fix in str(caught.value)
    MInTRLConfig("runs/right", **{name: neutral}, **server)


@pytest.mark.parametrize("name", SECOND_PHASE_ONLY)
def test_what_acts_in_phase_2_only_is_refused_without_one(name):
    with pytest.raises(ConfigError, match=rf"`{name}` is .*a run without phase 2 .*, because it acts in phase 2 only"):
        MInTRLConfig("runs/wrong", max_steps=200, **{name: VALUES[name]})
    MInTRLConfig("runs/right", max_steps=201, **{name: VALUES[name]})


@pytest.mark.parametrize("name", ACTS_WITH)
def test_what_acts_with_another_option_only_is_refused_without_it(name):
    switch, _, example = ACTS_WITH[name]
    off = {"loss_type": "vespo" if "sapo" in name else "sapo"} if switch == "loss_type" else {}
    with pytest.raises(ConfigError) as caught:
        MInTRLConfig("runs/wrong", **{name: VALUES[name]}, **off)
    assert str(caught.value).startswith(f"`{name}` is ")
    assert f"while {switch}=" in str(caught.value) and f"or set {switch}={example!r}" in str(caught.value)
    on = {} if switch == "beta" else {"beta": 0.1}
    on |= {"use_vllm": True} if switch == "phase2_importance_correction" else {}
    if name != "vllm_mode":
        MInTRLConfig("runs/right", **{name: VALUES[name], switch: example}, **on)


@shows("vllm_server_base_url", "vllm_mode", "vllm_max_model_length")
def test_a_servers_settings_may_stay_when_local_is_said():
    named = {"vllm_server_host": "10.0.0.1", "vllm_server_port": 9000, "vllm_max_model_length": 32768}
    assert MInTRLConfig("runs/right", generation="vllm", **named).server_urls == ("http://10.0.0.1:9000",)
    assert MInTRLConfig("runs/right", generation="local", vllm_mode="colocate", **named).server_urls == ()
    address = {"vllm_server_base_url": "http://10.0.0.1:9000"}
    assert MInTRLConfig("runs/right", use_vllm=True, **address).server_urls == ("http://10.0.0.1:9000",)
    with pytest.raises(ConfigError, match="18432"):
        MInTRLConfig("runs/wrong", use_vllm=True, vllm_max_model_length=100)


@shows("top_p", "top_k", "min_p", "repetition_penalty")
@pytest.mark.parametrize(("name", "value"), [("top_p", 0.9), ("top_k", 5), ("min_p", 0.1), ("repetition_penalty", 1.2)])
def test_cut_sampling_is_refused_unless_meant(name, value):
    with pytest.raises(ConfigError, match="whole distribution"):
        MInTRLConfig("runs/wrong", use_vllm=True, **{name: value})
    MInTRLConfig("runs/right", use_vllm=True, allow_cut_sampling=True, **{name: value})


@shows("num_generations", "generation_batch_size", "steps_per_generation", "num_generations_eval")
@pytest.mark.parametrize(
    ("name", "right"),
    [("num_generations", 16), ("generation_batch_size", 512), ("steps_per_generation", 512)],
)
def test_sizes_are_derived_and_another_one_is_refused(name, right):
    assert getattr(MInTRLConfig("runs/right"), name) == right
    MInTRLConfig("runs/right", **{name: right})
    with pytest.raises(ConfigError, match=f"`{name}` is {right // 2}. Allowed: unset, or {right}"):
        MInTRLConfig("runs/wrong", **{name: right // 2})


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        pytest.param({"scale_rewards": "prompt"}, "'group' .or true.", id="scale"),
        pytest.param({"reward_weights": 1.0}, "a list of finite numbers", id="weight"),
        pytest.param({"reward_weights": [float("nan")]}, "a list of finite numbers", id="weight that is no number"),
        pytest.param({"pad_to_multiple_of": 0}, "a whole number at least 1", id="padding to nothing"),
        pytest.param({"pad_to_multiple_of": "even"}, "a whole number at least 1", id="padding to a word"),
        pytest.param({"multi_objective_aggregation": "sum"}, "'sum_then_normalize' or", id="aggregation"),
        pytest.param({"ref_model_sync_steps": 0}, "a whole number at least 1", id="never synced"),
    ],
)
def test_values_that_trl_would_stumble_over_in_the_first_update_are_refused(settings, allowed):
    with pytest.raises(ConfigError, match=allowed):
        MInTRLConfig("runs/wrong", **settings)


@pytest.mark.parametrize("value", ["group", "batch", "none", True, False])
def test_every_way_to_scale_rewards_is_accepted(value):
    assert MInTRLConfig("runs/right", scale_rewards=value).scale_rewards in ("group", "batch", "none")


@shows("tools", "environment_factory", "rollout_func", "processing_class", "train_dataset", "args", "model")
@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("tools", [len]),
        ("environment_factory", object),
        ("rollout_func", parity_reward),
        ("processing_class", object()),
        ("train_dataset", {"train": Dataset.from_list(ROWS)}),
        ("args", GRPOConfig("runs/wrong", report_to="none", bf16=False, use_cpu=True)),
    ],
)
def test_arguments_of_trls_trainer_that_are_refused(argument, value):
    arguments = {"model": "no/such-model", "reward_funcs": parity_reward, "args": MInTRLConfig("runs/wrong")}
    arguments |= {"train_dataset": Dataset.from_list(ROWS), argument: value}
    with pytest.raises(ConfigError, match=f"`{argument}` is"):
        MInTRLTrainer(**arguments)


OTHER_WAYS = {
    "optim": "adafactor",
    "dataloader_num_workers": 1,
    "dataloader_prefetch_factor": 2,
    "torch_empty_cache_steps": 1,
}


@shows("optim", "torch_compile", "dataloader_num_workers", "torch_empty_cache_steps")
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(OTHER_WAYS, id="loader and optimizer"),
        pytest.param(
            {"torch_compile": True, "torch_compile_backend": "eager"},
            marks=[pytest.mark.slow, pytest.mark.filterwarnings("ignore")],  # compiling touches what warns
            id="compiled",
        ),
    ],
)
def test_options_of_transformers_that_keep_their_meaning(tmp_path, options):
    """Same rollouts and rewards in either phase, whatever makes the steps."""
    runs = []
    for name, more in (("plain", {}), ("other", options)):
        trainer = make_trainer(tmp_path / name, intervention_updates=1, **more)
        trainer.train()
        runs.append([line["reward"] for line in trainer.state.log_history[:2]])
    assert runs[0] == runs[1]
    assert type(trainer.optimizer.optimizer).__name__ == ("Adafactor" if "optim" in options else "AdamW")


@shows("use_liger_kernel")
@pytest.mark.filterwarnings("ignore:`use_liger_kernel=True` is deprecated:FutureWarning")
def test_liger_kernels_are_asked_for_before_any_rollout(tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.integrations.liger.is_liger_kernel_available", lambda: False)
    generator = HashGenerator()
    trainer = make_trainer(tmp_path, generator=generator, use_liger_kernel=True)
    with pytest.raises(ImportError, match="liger-kernel"):
        trainer.train()
    assert generator.requests == []
