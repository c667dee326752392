"""Every mistake is refused before anything loads, in words that say what to write; what a good config holds."""

import ast
import copy
import dataclasses
import json
import pickle
import re
import time

import pytest
import yaml
from trl import TrlParser

from mintrl_trl.batch_plan import DERIVED_SIZES
from mintrl_trl.config import MInTRLConfig, check_keys
from mintrl_trl.config_checks import CHOICES, HIDDEN, RANGES, TEXT
from mintrl_trl.config_combinations import UNCUT_SAMPLING
from mintrl_trl.errors import ConfigError
from mintrl_trl.objective.loss import Anchor, RegressionSettings
from mintrl_trl.rollouts.schedule import InterventionBudget, Schedule
from mintrl_trl.trl_options import ACTS_WITH, REFUSED, SECOND_PHASE_ONLY

SERVER = {"use_vllm": True, "vllm_server_base_url": "http://localhost:8000"}
JUDGE = {"judge_base_url": "http://localhost:8001/v1"}


def wrong(name, settings, allowed, fix, *, field=None, shown=None):
    """One wrong config: what the message says is allowed, and the fix. The first setting is the wrong one."""
    first = next(iter(settings))
    shown = repr(settings[first]) if shown is None else shown
    return pytest.param(settings, field or first, shown, allowed, fix, id=name)


WRONG = [
    # numbers out of range, and of the wrong type
    wrong("kappa with the wrong sign", {"kappa": 0.2}, "below 0, in nats per token", "did you mean kappa=-0.2"),
    wrong("kappa zero", {"kappa": 0.0}, "below 0", "set kappa=-0.2"),
    wrong("kappa as text", {"kappa": "abc"}, "a finite number below 0", "set kappa=-0.2"),
    wrong("kappa not a number", {"kappa": float("nan")}, "a finite number below 0", "set kappa=-0.2"),
    wrong("beta2 infinite", {"beta2": float("inf")}, "a finite number above 0", "set beta2=0.001"),
    wrong("beta2 as quoted number", {"beta2": "1e-3"}, "a finite number above 0", "write 0.001 without quotes"),
    wrong("beta1 zero", {"beta1": 0.0}, "above 0, or unset", "remove beta1"),
    wrong("loss_scale negative", {"loss_scale": -1.0}, "above 0, or unset", "remove loss_scale"),
    wrong("no control rollouts", {"num_control": 0}, "at least 1, because the baseline", "set num_control=8"),
    wrong("group of one", {"num_intervened": 0, "num_control": 1}, "at least 2", "num_control=2"),
    wrong("negative intervened", {"num_intervened": -1}, "a whole number at least 0", "set num_intervened=8"),
    wrong("empty chunk", {"chunk_tokens": 0}, "a whole number at least 1", "set chunk_tokens=512"),
    wrong("fractional chunk", {"chunk_tokens": 12.5}, "a whole number at least 1", "did you mean chunk_tokens=12"),
    wrong("chunk as quoted number", {"chunk_tokens": "128"}, "a whole number", "write 128 without quotes"),
    wrong("reviews as truth value", {"max_reviews": True}, "a whole number at least 0", "set max_reviews=4"),
    wrong("negative reviews", {"max_reviews": -1}, "at least 0", "set max_reviews=4"),
    wrong("truth value as text", {"overlap_reviews": "yes"}, "true or false", "set overlap_reviews=True"),
    wrong("truth value as number", {"enable_thinking": 1}, "true or false", "set enable_thinking=False"),
    wrong("unset where a number belongs", {"chunk_tokens": None}, "a whole number at least 1", "set chunk_tokens=512"),
    wrong("share above one", {"no_verdict_limit": 20.0}, "at least 0 and at most 1", "set no_verdict_limit=0.2"),
    wrong("negative unscored share", {"unscored_limit": -0.1}, "at least 0 and at most 1", "set unscored_limit=0.2"),
    wrong("no time for the judge", {"judge_timeout_seconds": 0.0}, "above 0 seconds", "set judge_timeout_seconds=120"),
    wrong("no rollout may run", {"max_concurrent_rollouts": 0}, "at least 1", "set max_concurrent_rollouts=512"),
    wrong("temperature zero", {"temperature": 0.0}, "above 0", "set temperature=1.0"),
    wrong("learning rate as text", {"learning_rate": "1e-6"}, "a finite number", "write 1e-06 without quotes"),
    wrong("no steps", {"max_steps": 0}, "at least 1, or -1 to go by epochs", "set max_steps=500"),
    # closed sets
    wrong("anchor misspelt", {"anchor": "constant"}, "'const' or 'proxy' or 'judge'", "did you mean anchor='const'"),
    wrong("anchor of no kind", {"anchor": 3}, "'const' or 'proxy' or 'judge'", "set anchor='const'"),
    wrong("baseline unknown", {"baseline": "mean"}, "'control' or 'pooled'", "set baseline='control'"),
    wrong("generation unknown", {"generation": "VLLM"}, "'local' or 'vllm'", "did you mean generation='vllm'"),
    wrong("domain unknown", {"judge_domain": "maths"}, "'math' or 'code'", "did you mean judge_domain='math'"),
    wrong("weight sync unknown", {"weight_sync": "ipc"}, "'lora' or 'checkpoint' or 'nccl'", "set weight_sync='auto'"),
    wrong("loss unknown", {"loss_type": "dr-grpo"}, "'dr_grpo'", "did you mean loss_type='dr_grpo'"),
    # combinations
    wrong("correction longer than the response", {"correction_tokens": 64, "max_completion_length": 32},
          "at most max_completion_length=32", "set correction_tokens=32"),
    wrong("phase switch in a batch", {"intervention_updates": 200, "updates_per_generation": 3, "save_strategy": "no"},
          "a multiple of 3", "set intervention_updates=198 or intervention_updates=201"),
    wrong("checkpoint inside a generated batch", {"save_steps": 50, "updates_per_generation": 2, "num_iterations": 2},
          "a multiple of 4", "set save_steps=48 or save_steps=52"),
    wrong("last checkpoint inside a generated batch", {"max_steps": 501, "updates_per_generation": 2},
          "a multiple of 2", "set max_steps=500 or max_steps=502"),
    wrong("entropy bonus that never acts", {"entropy_coef": 0.01, "max_steps": 200},
          "a run without phase 2 (max_steps=200, intervention_updates=200)", "intervention_updates below max_steps"),
    wrong("dual clip inside the clip", {"delta": 1.1}, "above 1 + epsilon = 1.2", "set delta=3.0"),
    wrong("reference model that is not there", {"sync_ref_model": True}, "False while beta=0.0", "set beta=0.001"),
    wrong("thinking against the template's arguments",
          {"enable_thinking": False, "chat_template_kwargs": {"enable_thinking": True}},
          "the same as in chat_template_kwargs, which says True", "set enable_thinking=True"),
    # sampling
    wrong("nucleus sampling", {"top_p": 0.9}, "1.0, because the loss uses", "allow_cut_sampling=True on purpose"),
    wrong("top-k sampling", {"top_k": 20}, "0, because the loss uses", "remove top_k"),
    wrong("min-p sampling", {"min_p": 0.05}, "None, because the loss uses", "remove min_p"),
    wrong("repetition penalty", {"repetition_penalty": 1.1}, "1.0, because the loss uses", "remove repetition_penalty"),
    wrong("cut sampling in process", {"top_p": 0.9, "allow_cut_sampling": True},
          "1.0 with generation='local'", "set use_vllm=True"),
    # TRL settings that cannot work
    wrong("importance correction", {"vllm_importance_sampling_correction": True, **SERVER},
          "remove the gradient of every rollout", "leave vllm_importance_sampling_correction=False"),
    wrong("off-policy mask", {"off_policy_mask_threshold": 0.5}, "off-policy tokens", "remove off_policy_mask"),
    wrong("another engine", {"use_transformers_continuous_batching": True}, "no seed", "generation='local'"),
    wrong("hidden sampling settings", {"generation_kwargs": {"top_p": 0.9}}, "whole distribution", "set temperature"),
    wrong("tools", {"max_tool_calling_iterations": 3}, "calls no tools", "remove max_tool_calling_iterations"),
    wrong("shrinking batches", {"auto_find_batch_size": True}, "prompt groups", "per_device_train_batch_size=1"),
    wrong("rows anew", {"ignore_data_skip": True}, "train on its first rows again", "remove ignore_data"),
    wrong("dropped columns", {"remove_unused_columns": True}, "read the other columns", "remove_unused_columns=False"),
    wrong("bf16 without a GPU", {"bf16": True}, "no GPU here supports it", "remove bf16"),
    # servers
    wrong("colocated engine", {"vllm_mode": "colocate", "use_vllm": True}, "'server', because", "vllm_mode='server'"),
    wrong("generation against use_vllm", {"generation": "local", **SERVER}, "'vllm' with use_vllm", "remove use_vllm"),
    wrong("a server for nothing", {"vllm_server_base_url": "http://localhost:8000"},
          "unset without use_vllm=True", "set use_vllm=True"),
    wrong("from GPU to GPU without a GPU", {"weight_sync": "nccl", "use_cpu": True, **SERVER},
          "'auto', 'checkpoint' or 'lora' with use_cpu=True", "set weight_sync='auto'"),
    wrong("a folder for what writes no files", {"weight_sync_dir": "/shared", "weight_sync": "nccl", **SERVER},
          "unset with weight_sync='nccl'", "remove weight_sync_dir"),
    wrong("server without scheme", {"vllm_server_base_url": "localhost:8000", "use_vllm": True},
          "an http or https address", "set vllm_server_base_url='http://localhost:8000'"),
    wrong("server port", {"vllm_server_base_url": "http://localhost:80000", "use_vllm": True},
          "an http or https address", "'http://localhost:8000'"),
    wrong("server too short", {"vllm_max_model_length": 16384, **SERVER},
          "max_prompt_length=2048 + max_completion_length=16384 = 18432", "--max-model-len 18432"),
    # judges
    wrong("judge without a server", {"judge": "llm"}, "an address with judge='llm'", "set judge_base_url=",
          field="judge_base_url", shown="None"),
    wrong("judge at no address", {"judge_base_url": "http://"}, "an http or https address", "http://localhost:8001/v1"),
    wrong("judge at a spaced address", {"judge_base_url": "http://a b/v1"}, "an http or https address", "8001/v1"),
    wrong("self-judge with a server", {"judge": "self", **JUDGE}, "unset with judge='self'", "set judge='llm'",
          field="judge_base_url", shown="'http://localhost:8001/v1'"),
    wrong("anchor that the judge cannot give", {"anchor": "judge", "judge_shares_tokenizer": False, **JUDGE},
          "text comes without log-probabilities", "set anchor='const'", shown="'judge'", field="anchor"),
    wrong("threshold of another judge", {"judge_likelihood_threshold": -2.0, **JUDGE},
          "unset with judge='llm'", "set judge='self'"),
    wrong("threshold above zero", {"judge_likelihood_threshold": 2.0, "judge": "self"},
          "below 0, in nats, or unset", "did you mean judge_likelihood_threshold=-2.0"),
    wrong("key in place of its variable", {"judge_api_key_env": "sk-proj-123"},
          "the name of an environment variable", "put the key in that variable", shown=repr(HIDDEN)),
    wrong("keep bias without a self-judge", {"judge_keep_bias": -2.0},
          "0.0 unless judge='self'", "remove judge_keep_bias"),
    wrong("key in the address", {"judge_base_url": "https://user:secret@host/v1"},
          "without user and password", "name the variable that holds the key", shown=repr(HIDDEN)),
    # TRL's batch sizes against ours
    wrong("group size", {"num_generations": 8}, "16 = num_control=8 + num_intervened=8", "set num_control and"),
    wrong("accumulation", {"gradient_accumulation_steps": 7}, "unset, or 512 = prompts_per_update=32 x (8 + 8)",
          "remove gradient_accumulation_steps and set prompts_per_update"),
    wrong("no accumulation", {"gradient_accumulation_steps": 0}, "unset, or 512", "set prompts_per_update"),
    wrong("steps per generation", {"steps_per_generation": 8}, "unset, or 512", "set updates_per_generation"),
    wrong("generation batch", {"generation_batch_size": 64}, "unset, or 512", "prompts_per_update and updates_per_gen"),
    wrong("rows of a forward pass", {"per_device_train_batch_size": 3},
          "32 prompts x 16 rollouts (8 control + 8 intervened) = 512 rows", "per_device_train_batch_size=2 or prompts",
          field="prompts_per_update", shown="32"),
    wrong("evaluation groups", {"num_generations_eval": 16, "eval_strategy": "steps"},
          "a divisor of 1 processes x per_device_eval_batch_size=8 = 8", "set num_generations_eval=8"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "field", "shown", "allowed", "fix"), WRONG)
def test_wrong_config_is_refused_with_field_value_allowed_and_fix(settings, field, shown, allowed, fix):
    with pytest.raises(ConfigError) as caught:
        MInTRLConfig("runs/wrong", **settings)
    message = str(caught.value)
    assert message.startswith(f"`{field}` is {shown}. Allowed: ")
    named_allowed, named_fix = message.split(". Allowed: ", 1)[1].split(". Fix: ", 1)
    assert allowed in named_allowed
    assert fix in named_fix
    assert "sk-proj" not in message and "secret" not in message


@pytest.mark.parametrize(("settings", "field", "shown", "allowed", "fix"), WRONG)
def test_fix_works_as_written(settings, field, shown, allowed, fix):
    with pytest.raises(ConfigError) as caught:
        MInTRLConfig("runs/wrong", **settings)
    first = caught.value.fix.split(", ")[0].split(" or ")[0]
    changes = {name: ast.literal_eval(value) for name, value in re.findall(r"(\w+)=('[^']*'|[\w.-]+)", first)}
    if first.startswith("remove "):
        assert first.split()[1] in settings
        settings = {name: value for name, value in settings.items() if name != first.split()[1]}
    elif first.startswith("write "):
        changes = {field: ast.literal_eval(first.split()[1])}
    else:
        assert changes
    MInTRLConfig("runs/right", **settings | changes)


def test_wrong_configs_are_refused_fast():
    started = time.perf_counter()
    for case in WRONG:
        with pytest.raises(ConfigError):
            MInTRLConfig("runs/wrong", **case.values[0])
    assert time.perf_counter() - started < 0.02 * len(WRONG)


@pytest.mark.parametrize(
    ("processes", "settings", "fixes"),
    [
        pytest.param(
            7, {"per_device_train_batch_size": 1}, [{"prompts_per_update": 28}, {"prompts_per_update": 35}], id="7 of 1"
        ),
        pytest.param(3, {}, [{"prompts_per_update": 30}, {"prompts_per_update": 33}], id="3 devices"),
    ],
)
def test_rows_that_do_not_divide_over_processes(monkeypatch, processes, settings, fixes):
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    with pytest.raises(ConfigError) as caught:
        MInTRLConfig("runs/wrong", **settings)
    message = str(caught.value)
    assert "32 prompts x 16 rollouts (8 control + 8 intervened) = 512 rows per update" in message
    assert f"{processes} processes x 1 rows = {processes}" in message
    assert caught.value.fix == "set " + " or ".join(f"{name}={value}" for fix in fixes for name, value in fix.items())


def test_tables_name_real_fields():
    names = {item.name for item in dataclasses.fields(MInTRLConfig)}
    for table in (RANGES, CHOICES, TEXT, REFUSED, SECOND_PHASE_ONLY, ACTS_WITH, UNCUT_SAMPLING):
        assert set(table) <= names
    defaults = {item.name: item.default for item in dataclasses.fields(MInTRLConfig)}
    for name, neutral in {
        **SECOND_PHASE_ONLY,
        **UNCUT_SAMPLING,
        **{name: row[0] for name, row in REFUSED.items()},
    }.items():
        assert defaults[name] == neutral


@pytest.mark.parametrize(
    ("key", "near"),
    [("correction_tokns", "correction_tokens"), ("prompts_per_updates", "prompts_per_update"), ("Kappa", "kappa")],
)
def test_misspelt_key_is_refused_with_the_nearest_name(key, near):
    with pytest.raises(ConfigError, match=rf"`{key}` is 64.*a setting.*did you mean `{near}`"):
        check_keys({"kappa": -0.2, key: 64}, MInTRLConfig)


@pytest.mark.parametrize(
    ("key", "text", "fix"),
    [
        ("kappa", "abc", "set kappa=-0.2, the default"),
        ("chunk_tokens", "12.5", "set chunk_tokens=512"),
        ("beta1", "", "remove"),
    ],
)
def test_text_that_is_no_number_is_refused_before_it_is_parsed(key, text, fix):
    with pytest.raises(ConfigError, match=rf"`{key}` is '{text}'. Allowed: a .* number.*{fix}"):
        check_keys({key: text}, MInTRLConfig)
    check_keys({key: "1", "learning_rate": "1e-6", "anchor": "proxy", "beta1": None, "use_cpu": "No"}, MInTRLConfig)


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("max_steps", None, "a whole number"),
        ("max_steps", [3], "a whole number"),
        ("use_cpu", "maybe", "true or false"),
        ("use_cpu", 1, "true or false"),
        ("kappa", True, "a finite number below 0"),
    ],
)
def test_a_value_of_another_type_is_refused_before_it_is_parsed(key, value, allowed):
    with pytest.raises(ConfigError, match=rf"`{key}` is .*Allowed: {allowed}"):
        check_keys({key: value}, MInTRLConfig)


def test_unknown_key_never_shows_a_secret():
    with pytest.raises(ConfigError) as caught:
        check_keys({"judge_api_key": "sk-proj-123"}, MInTRLConfig)
    assert "sk-proj" not in str(caught.value)
    assert "did you mean `judge_api_key_env`" in str(caught.value)


def test_known_keys_of_any_class_pass():
    @dataclasses.dataclass
    class RecipeSettings:
        task: str = "math"

    check_keys({"kappa": -0.2, "task": "code", "learning_rate": 1e-6}, MInTRLConfig, RecipeSettings)
    with pytest.raises(ConfigError, match=r"the name of a setting .*remove `zzz`"):
        check_keys({"zzz": 1}, MInTRLConfig, RecipeSettings)


# --- What a good config holds


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
