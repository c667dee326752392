"""Every mistake in a config is refused before anything loads, in words that say what to write."""

import ast
import dataclasses
import re
import time

import pytest

from mintrl_trl.config import MInTRLConfig, check_keys
from mintrl_trl.config_checks import CHOICES, HIDDEN, RANGES, TEXT
from mintrl_trl.config_combinations import UNCUT_SAMPLING
from mintrl_trl.errors import ConfigError
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
    for key, value in (("hf_token", 1234), ("correction_token", "hf_abc"), ("password", 1234), ("judge_api_key", "4")):
        with pytest.raises(ConfigError, match=f"`{key}` is '<hidden>'"):
            check_keys({key: value}, MInTRLConfig)


@pytest.mark.parametrize("value", [4, "4"])
def test_a_misspelt_number_is_no_secret(value):
    with pytest.raises(ConfigError, match=rf"`correction_token` is {value!r}.*did you mean `correction_tokens`"):
        check_keys({"correction_token": value}, MInTRLConfig)


def test_known_keys_of_any_class_pass():
    @dataclasses.dataclass
    class RecipeSettings:
        task: str = "math"

    check_keys({"kappa": -0.2, "task": "code", "learning_rate": 1e-6}, MInTRLConfig, RecipeSettings)
    with pytest.raises(ConfigError, match=r"the name of a setting .*remove `zzz`"):
        check_keys({"zzz": 1}, MInTRLConfig, RecipeSettings)
