"""What a good config holds: derived sizes, round trips, the settings of the core."""

import copy
import dataclasses
import json
import pickle

import pytest
import yaml
from trl import TrlParser

from mintrl_trl.batch_plan import DERIVED_SIZES
from mintrl_trl.config import MInTRLConfig
from mintrl_trl.objective.loss import Anchor, RegressionSettings
from mintrl_trl.rollouts.schedule import InterventionBudget, Schedule

SERVER = {"use_vllm": True, "vllm_server_base_url": "http://localhost:8000"}


def test_the_documented_call_holds_the_papers_values_and_hands_trl_no_client():
    args = MInTRLConfig("runs/demo", anchor="const", kappa=-0.2, **SERVER)
    assert (args.generation, args.use_vllm, args.server_urls) == ("vllm", False, ("http://localhost:8000",))
    assert (args.prompts_per_update, args.num_control, args.num_intervened) == (32, 8, 8)
    assert (args.chunk_tokens, args.max_reviews, args.correction_tokens) == (512, 4, 64)
    assert (args.max_prompt_length, args.max_completion_length) == (2048, 16384)
    assert (args.beta1, args.beta2, args.intervention_updates, args.max_steps) == (None, 1e-3, 200, 500)
    assert (args.learning_rate, args.lr_scheduler_type, args.weight_decay, args.delta) == (1e-6, "constant", 0.01, 3.0)
    assert (args.loss_type, args.beta, args.num_iterations, args.temperature) == ("dapo", 0.0, 1, 1.0)
    assert args.vllm_importance_sampling_correction is False
    assert args.chat_template_kwargs == {"enable_thinking": False}
    assert args.report_to == []
    assert args.bf16 is False  # no GPU here


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        pytest.param({}, (1, 512, 16, 512, 512, 8), id="paper"),
        pytest.param({"max_completion_length": 2048}, (8, 64, 16, 64, 512, 8), id="short responses"),
        pytest.param({"gradient_accumulation_steps": 32}, (16, 32, 16, 32, 512, 8), id="accumulation given"),
        pytest.param({"per_device_train_batch_size": 4}, (4, 128, 16, 128, 512, 8), id="rows given"),
        pytest.param(
            {"updates_per_generation": 2, "prompts_per_update": 3, "num_control": 2, "num_intervened": 1},
            (1, 9, 3, 18, 18, 2),
            id="two updates per generation",
        ),
        pytest.param({"num_intervened": 0}, (1, 256, 8, 256, 256, 8), id="control rollouts only"),
        pytest.param(
            {"num_generations": 16, "steps_per_generation": 512, "generation_batch_size": 512},
            (1, 512, 16, 512, 512, 8),
            id="agreeing sizes",
        ),
    ],
)
def test_batch_sizes_follow_from_ours(settings, sizes):
    args = MInTRLConfig("runs/demo", **settings)
    assert tuple(getattr(args, name) for name in DERIVED_SIZES) == sizes
    # What TRL itself demands of these numbers:
    assert args.generation_batch_size == args.per_device_train_batch_size * args.steps_per_generation
    assert args.generation_batch_size % args.num_generations == 0


def test_a_copy_with_other_settings_is_worked_out_again():
    args = MInTRLConfig("runs/demo", **SERVER)
    other = dataclasses.replace(args, prompts_per_update=8, num_control=4, num_intervened=4, enable_thinking=True)
    assert tuple(getattr(other, name) for name in DERIVED_SIZES) == (1, 64, 8, 64, 64, 8)
    assert other.chat_template_kwargs == {"enable_thinking": True}
    assert other.generation == "vllm"


def rebuilt_from_yaml(args):
    return MInTRLConfig(**yaml.safe_load(yaml.safe_dump(args.to_dict())))


@pytest.mark.parametrize(
    "again",
    [
        pytest.param(lambda args: MInTRLConfig(**dataclasses.asdict(args)), id="asdict"),
        pytest.param(dataclasses.replace, id="replace"),
        pytest.param(lambda args: MInTRLConfig(**json.loads(args.to_json_string())), id="json"),
        pytest.param(rebuilt_from_yaml, id="yaml"),
        pytest.param(lambda args: pickle.loads(pickle.dumps(args)), id="pickle"),
        pytest.param(copy.deepcopy, id="deepcopy"),
    ],
)
def test_round_trips_keep_every_setting(again):
    args = MInTRLConfig(
        "runs/demo", judge_base_url="http://localhost:8001/v1", chat_template_kwargs={"tone": "dry"}, **SERVER
    )
    assert again(args).to_dict() == args.to_dict()
    assert again(args).judge == "llm"


def test_command_line_and_yaml_reach_every_kind_of_setting(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("kappa: -0.1\nlearning_rate: 1e-5\nbeta1: 0.5\nchunk_tokens: 128\nenable_thinking: true\n")
    flags = ["--output_dir", "runs/demo", "--chunk_tokens", "256", "--no_overlap_reviews", "--show_progress", "false"]
    flags += ["--use_vllm", "--vllm_server_base_url", "http://localhost:8000"]
    flags += ["--chat_template_kwargs", '{"tone": "dry"}']
    (args,) = TrlParser(MInTRLConfig).parse_args_and_config(["--config", str(recipe), *flags])
    assert (args.kappa, args.learning_rate, args.beta1, args.chunk_tokens) == (-0.1, 1e-5, 0.5, 256)
    assert (args.overlap_reviews, args.show_progress, args.generation) == (False, False, "vllm")
    assert args.chat_template_kwargs == {"tone": "dry", "enable_thinking": True}
    assert args.num_generations == 16


def test_help_of_our_settings_is_complete_and_printable():
    ours = set(MInTRLConfig.__annotations__)
    for item in dataclasses.fields(MInTRLConfig):
        if item.name in ours:
            assert item.metadata["help"].endswith("."), item.name
    assert "--correction_tokens" in TrlParser(MInTRLConfig).format_help()


def test_settings_of_the_core():
    args = MInTRLConfig("runs/demo", anchor="proxy", loss_scale=2.0, chunk_tokens=128, seed=7, no_verdict_limit=0.5)
    assert args.schedule() == Schedule(8, 8, 200)
    assert args.budget() == InterventionBudget(128, 4, 64, 16384, True)
    assert args.regression_settings() == RegressionSettings(1e-3, Anchor.PROXY, -0.2, 2.0)
    training, evaluation = args.sampler_settings(), args.sampler_settings(evaluation=True)
    assert (training.budget, training.run_seed, training.no_verdict_limit) == (args.budget(), 7, 0.5)
    assert evaluation.budget.max_reviews == 0
    assert evaluation.run_seed not in (7, MInTRLConfig("runs/demo").sampler_settings(evaluation=True).run_seed)


def test_cut_sampling_by_name_and_server_addresses():
    args = MInTRLConfig("runs/demo", top_p=0.9, allow_cut_sampling=True, use_vllm=True, vllm_server_port=9000)
    assert args.server_urls == ("http://0.0.0.0:9000",)
    assert MInTRLConfig("runs/demo", generation="local", vllm_server_base_url="http://a:1").server_urls == ()


@pytest.mark.parametrize("checkpointing", [True, False])
def test_either_name_of_gradient_checkpointing_works(checkpointing):
    known = {item.name for item in dataclasses.fields(MInTRLConfig)}  # the second name came with transformers 5.2x
    for name in {"gradient_checkpointing", "activation_checkpointing"} & known:
        args = MInTRLConfig("runs/demo", **{name: checkpointing})
        assert args.gradient_checkpointing is checkpointing


def test_no_key_is_ever_held(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-proj-123")
    args = MInTRLConfig("runs/demo", judge_base_url="http://localhost:8001/v1")
    for text in (repr(args), str(vars(args)), args.to_json_string()):
        assert "sk-proj" not in text
