"""Recipes: what wins, what is refused and how, and that hostile files are harmless."""

import os
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mintrl_trl import ConfigError
from mintrl_trl.recipe import MAX_YAML_BYTES, Recipe, RecipeArguments, parse_recipe, read_yaml

RECIPES = Path(__file__).parents[1] / "recipes"
QUICKSTART = RECIPES / "quickstart.yaml"
CHAINS = "task: chains\njudge: exact\nuse_cpu: true\n"


def recipe_of(tmp_path, text: str, *flags: str) -> Recipe:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return parse_recipe(["--config", str(path), *flags], default=QUICKSTART)


def refusal(tmp_path, text: str, *flags: str) -> str:
    """The message, which is one short line."""
    with pytest.raises(ConfigError) as caught:
        recipe_of(tmp_path, text, *flags)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 700
    return message


# What wins


def test_no_arguments_means_the_default_recipe_and_a_folder_named_after_it():
    recipe = parse_recipe([], default=QUICKSTART)
    assert recipe.arguments.task == "chains"
    assert (recipe.config.judge, recipe.config.max_steps) == ("exact", 150)
    assert recipe.config.output_dir == "runs/quickstart"


def test_arguments_come_from_the_process_by_default(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train_math.py", "--seed", "7"])
    assert parse_recipe(default=QUICKSTART).config.seed == 7


@pytest.mark.parametrize("joined", [True, False], ids=["--config=FILE", "--config FILE"])
def test_the_file_is_named_by_a_flag_anywhere(tmp_path, joined):
    path = tmp_path / "mine.yaml"
    path.write_text(CHAINS + "seed: 3\n")
    config = [f"--config={path}"] if joined else ["--config", str(path)]
    for argv in ([*config, "--max_steps", "5"], ["--max_steps", "5", *config]):
        recipe = parse_recipe(argv, default=QUICKSTART)
        assert (recipe.config.seed, recipe.config.max_steps) == (3, 5)
        assert recipe.config.output_dir == "runs/mine"


def test_flags_win_over_the_file_and_the_file_over_what_the_program_fixes(tmp_path):
    text = CHAINS + "kappa: -0.1\noutput_dir: runs/from-file\neval_problems: 8\nlora_r: 4\n"
    recipe = recipe_of(tmp_path, text, "--kappa=-0.3", "--eval_problems", "2", "--lora-r", "2")
    assert (recipe.config.kappa, recipe.arguments.eval_problems, recipe.policy.lora_r) == (-0.3, 2, 2)
    assert recipe.config.output_dir == "runs/from-file"
    assert recipe_of(tmp_path, text, "--output_dir", "runs/from-flag").config.output_dir == "runs/from-flag"

    path = tmp_path / "no_task.yaml"
    path.write_text("dataset: rows.jsonl\nuse_cpu: true\n")
    argv = ["--config", str(path)]
    assert parse_recipe(argv, default=QUICKSTART).arguments.task == "math"
    assert parse_recipe(argv, default=QUICKSTART, task="code").arguments.task == "code"
    assert parse_recipe(["--task", "math", *argv], default=QUICKSTART, task="code").arguments.task == "math"
    assert parse_recipe([], default=QUICKSTART, task="code").arguments.task == "chains"


def test_numbers_are_numbers_in_every_spelling(tmp_path):
    text = CHAINS + "learning_rate: 1e-6\nbeta2: 1.0e-3\nkappa: '-0.25'\nmax_steps: 12\nweight_decay: 0\n"
    config = recipe_of(tmp_path, text, "--loss_scale", "1e1").config
    assert (config.learning_rate, config.beta2, config.kappa, config.max_steps) == (1e-6, 1e-3, -0.25, 12)
    assert (config.weight_decay, config.loss_scale) == (0, 10.0)


@pytest.mark.parametrize(
    ("line", "flags", "value"),
    [
        ("", [], True),
        ("", ["--no_overlap_reviews"], False),
        ("", ["--no-overlap-reviews"], False),
        ("", ["--overlap_reviews", "false"], False),
        ("overlap_reviews: false", [], False),
        ("overlap_reviews: 'no'", [], False),
        ("overlap_reviews: false", ["--overlap_reviews"], True),
    ],
)
def test_truth_values(tmp_path, line, flags, value):
    assert recipe_of(tmp_path, CHAINS + line, *flags).config.overlap_reviews is value


def test_lists_from_file_and_flags(tmp_path):
    text = CHAINS + "use_peft: true\nlora_target_modules: [q_proj, v_proj]\n"
    assert recipe_of(tmp_path, text).policy.lora_target_modules == ["q_proj", "v_proj"]
    flags = ["--lora_target_modules", "k_proj", "o_proj", "--seed", "1"]
    recipe = recipe_of(tmp_path, text, *flags)
    assert recipe.policy.lora_target_modules == ["k_proj", "o_proj"]
    assert recipe.config.seed == 1
    assert recipe_of(tmp_path, text, "--lora_target_modules", "k_proj").policy.lora_target_modules == "k_proj"


@pytest.mark.parametrize(
    "flags",
    [
        ["--judge_extra_body", "{thinking: {type: disabled}}"],
        ["--judge-extra-body={thinking: {type: disabled}}"],
        ["--judge_extra_body", '{"thinking": {"type": "disabled"}}'],
    ],
)
def test_a_mapping_on_the_command_line_is_yaml_or_json(tmp_path, flags):
    text = CHAINS.replace("judge: exact", "judge: llm") + "judge_base_url: http://localhost:1/v1\n"
    assert recipe_of(tmp_path, text, *flags).config.judge_extra_body == {"thinking": {"type": "disabled"}}
    assert recipe_of(tmp_path, text, "--judge_extra_body", '{"top_k": 1e3}').config.judge_extra_body == {"top_k": 1000}
    wrong = refusal(tmp_path, text, "--judge_extra_body", "{thinking: {type")
    assert wrong.startswith("`judge_extra_body` is '{thinking: {type'. Allowed: a mapping (")


def test_help_shows_the_defaults_of_settings_and_not_of_the_recipe_that_is_run_without_one(capsys):
    with pytest.raises(SystemExit):
        parse_recipe(["--help"], default=QUICKSTART)
    text = " ".join(capsys.readouterr().out.split())
    assert "--judge {llm,self,exact,local}" in text and "--weight_sync {auto,lora,checkpoint,nccl}" in text
    assert "In tokens, at least 1. (default: 16384)" in text  # max_completion_length


def test_unset_values_are_null(tmp_path):
    assert recipe_of(tmp_path, CHAINS + "delta: null\nmodel_name_or_path:\n").config.delta is None
    assert "`seed` is None. Allowed: a whole number. Fix: set seed=42" in refusal(tmp_path, CHAINS + "seed: null")


def test_the_policy_is_loaded_as_the_recipe_says(tmp_path):
    config = recipe_of(tmp_path, CHAINS).config
    assert config.model_init_kwargs == {"revision": "main", "attn_implementation": None, "dtype": "float32"}
    text = CHAINS + "dtype: bfloat16\nattn_implementation: eager\nmodel_revision: v2\n"
    assert recipe_of(tmp_path, text).config.model_init_kwargs == {
        "revision": "v2",
        "attn_implementation": "eager",
        "dtype": "bfloat16",
    }
    flags = ["--model_init_kwargs", '{"dtype": "float16", "use_kernels": false}']
    kwargs = recipe_of(tmp_path, text, *flags).config.model_init_kwargs
    assert (kwargs["dtype"], kwargs["use_kernels"], kwargs["revision"]) == ("float16", False, "v2")


def test_adapters_have_no_dropout_unless_asked_for(tmp_path):
    assert recipe_of(tmp_path, CHAINS).policy.lora_dropout == 0.0
    assert recipe_of(tmp_path, CHAINS, "--lora_dropout", "0.1").policy.lora_dropout == 0.1  # the trainer refuses it


def test_a_file_beside_the_program_adds_no_flags(tmp_path, monkeypatch):
    (tmp_path / "train.args").write_text("--seed 999")
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "train.py")])
    assert parse_recipe(default=QUICKSTART).config.seed == 0


def test_help_lists_every_kind_of_setting(capsys):
    with pytest.raises(SystemExit) as caught:
        parse_recipe(["--help"], default=QUICKSTART)
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for flag in ("--task", "--eval_every", "--correction_tokens", "--lora_r", "--no_overlap_reviews"):
        assert flag in text


# What is refused


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("correction_tokns: 64", "`correction_tokns` is 64. Allowed: the name of a setting (--help lists them). "
         "Fix: did you mean `correction_tokens`"),
        ("evaluate_every: 5", "did you mean `eval_every`"),
        ("lora_alfa: 8", "did you mean `lora_alpha`"),
        ("env: {HF_TOKEN: x}", "`env` is {'HF_TOKEN': 'x'}. Allowed: the name of a setting"),
        ("judge_api_key: sk-123", "`judge_api_key` is '<hidden>'"),
        ("anchor: proxi", "Allowed: 'const' or 'proxy' or 'judge'. Fix: did you mean anchor='proxy'"),
        ("max_steps: 1.5", "`max_steps` is 1.5. Allowed: a whole number. Fix: did you mean max_steps=2"),
        ("max_steps: many", "`max_steps` is 'many'. Allowed: a whole number"),
        ("max_steps: [3]", "`max_steps` is [3]. Allowed: a whole number"),
        ("lora_r: {a: 1}", "`lora_r` is {'a': 1}. Allowed: a whole number. Fix: set lora_r=16"),
        ("kappa: 0.2", "Allowed: a finite number below 0, in nats per token. Fix: did you mean kappa=-0.2"),
        (f"prompts: {'x' * 5000}", f"`prompts` is '{'x' * 116}.... Allowed: the name of a setting"),
        ("learning_rate: .nan", "`learning_rate` is nan. Allowed: a finite number at least 0"),
        ("use_peft: perhaps", "`use_peft` is 'perhaps'. Allowed: true or false"),
        ("dtype: int8", "`dtype` is 'int8'. Allowed: 'auto' or 'bfloat16' or 'float16' or 'float32'. Fix: set"),
        ("save_strategy: no", "`save_strategy` is False. Allowed: 'no' or 'steps' or 'epoch' or 'best'. Fix: did you "
         'mean `save_strategy: "no"`'),
        ("output_dir: 2024", "`output_dir` is 2024. Allowed: text. Fix: write it in quotes: `output_dir: \"2024\"`"),
        ("lr_scheduler_type: steady", "(steady is not a valid SchedulerType"),
        ("eval_samples: 0", "`eval_samples` is 0. Allowed: a whole number of at least 1. Fix: set `eval_samples: 1`"),
        ("eval_every: -1", "`eval_every` is -1. Allowed: a whole number of at least 0"),
        ("judge_error_rate: 1.5", "`judge_error_rate` is 1.5. Allowed: a number from 0 to 1"),
        ("dataset: rows.jsonl", "`dataset` is 'rows.jsonl'. Allowed: nothing for `task: chains`. Fix: remove"),
        ("dataset_limit: 5", "`dataset_limit` is 5. Allowed: nothing for `task: chains`. Fix: set `max_steps`"),
        ("drop_bad_rows: true", "`drop_bad_rows` is True. Allowed: false for `task: chains`. Fix: remove"),
        ('drop_bad_rows: "maybe"', "`drop_bad_rows` is 'maybe'. Allowed: true or false."),
    ],
)  # fmt: skip
def test_a_wrong_line_is_refused_in_one_message(tmp_path, line, message):
    assert message in refusal(tmp_path, CHAINS + line)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max_step", "3"], "`max_step` is '3'. Allowed: the name of a setting (--help lists them). "
         "Fix: did you mean `max_steps`"),
        (["--max-step=3"], "did you mean `max_steps`"),
        (["--no_overlap_review"], "did you mean `overlap_reviews`"),
        (["--judge_api_key", "sk-123"], "`judge_api_key` is '<hidden>'"),
        (["--chunk_tokens", "few"], "`chunk_tokens` is 'few'. Allowed: a whole number at least 1. Fix: set"),
        (["--chunk_tokens"], "`chunk_tokens` is None. Allowed: a value after --chunk_tokens"),
        (["--chunk_tokens", "4", "5"], "`chunk_tokens` is '5'. Allowed: one value after --chunk_tokens. Fix: remove"),
        (["--no_overlap_reviews", "x"], "`overlap_reviews` is 'x'. Allowed: nothing after --no_overlap_reviews"),
        (["--use_cpu", "maybe"], "`use_cpu` is 'maybe'. Allowed: true or false"),
        (["--dtype", "bfloat"], "Fix: did you mean `dtype: \"bfloat16\"`"),
        (["--reward_weights", "1.0", "x"], "invalid float value: 'x'"),
        (["--config"], "`config` is None. Allowed: a YAML file"),
    ],
)  # fmt: skip
def test_a_wrong_flag_is_refused_in_one_message(tmp_path, flags, message):
    assert message in refusal(tmp_path, CHAINS, *flags)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["chains.yaml"],
            "`command line` is 'chains.yaml'. Allowed: flags and their values. Fix: write --config chains",
        ),
        (["3"], "`command line` is '3'. Allowed: flags and their values. Fix: remove '3'"),
        (["-x"], "remove '-x'"),
        (["--config", "no-such.yaml"], "`config` is 'no-such.yaml'. Allowed: a readable YAML file (No such file"),
        (["--config", str(RECIPES)], "a readable YAML file (Is a directory)"),
    ],
)
def test_a_wrong_command_line_is_refused(argv, message):
    with pytest.raises(ConfigError) as caught:
        parse_recipe(argv, default=QUICKSTART)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "maths"}, "`task` is 'maths'. Allowed: one of math, code, chains"),
        ({"task": "math"}, "`dataset` is None. Allowed: a JSONL file or a hub id"),
        ({"task": "math", "dataset": "x", "eval_problems": 8}, "`eval_problems` is 8. Allowed: 0 for `task: math`"),
        (
            {"task": "code", "dataset": "x", "judge_error_rate": 0.1},
            "`judge_error_rate` is 0.1. Allowed: 0 for `task: c",
        ),
        ({"task": "math", "dataset": "x", "dataset_limit": 0}, "`dataset_limit` is 0. Allowed: a whole number of at "),
        ({"task": "chains", "eval_problems": True}, "`eval_problems` is True. Allowed: a whole number of at least 0"),
        ({"task": "chains", "eval_samples": None}, "`eval_samples` is None. Allowed: a whole number of at least 1"),
        ({"task": "chains", "judge_error_rate": True}, "`judge_error_rate` is True. Allowed: a number from 0 to 1"),
    ],
)
def test_wrong_arguments_of_a_recipe(arguments, message):
    with pytest.raises(ConfigError) as caught:
        RecipeArguments(**arguments)
    assert message in str(caught.value)


# Hostile files

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + last] * 9)}]\n" for last, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("content", "allowed"),
    [
        (b"seed: !!python/object/apply:os.mkdir [hacked]", "anchors, aliases and tags are not read"),
        (b"!!python/object/new:os.system [mkdir hacked]", "anchors, aliases and tags are not read"),
        (b"seed: !!timestamp x", "anchors, aliases and tags are not read"),
        (b"seed: &a [*a]", "anchors, aliases and tags are not read"),
        (BOMB.encode() + b"max_steps: *i", "anchors, aliases and tags are not read"),
        (b"seed: " + b"[" * 50_000, "valid YAML (maximum recursion depth"),
        (b"seed: " + b"{a: " * 10_000, "valid YAML (maximum recursion depth"),
        (b"seed: 2024-13-45", "month must be in 1..12"),
        (b"seed: " + b"9" * 5_000, "4300 digits"),
        (b"seed: " + b":".join([b"1"] * 2_000) + b".5", "valid YAML (int too large"),
        (b"seed: 1\nseed: 2", "`seed` is there twice"),
        (b"seed: \xff\xfe", "can't decode byte"),
        (b"seed: \x00", "special characters are not allowed"),
        (b"seed: [1", "expected ',' or ']'"),
        (b"? [1, 2]\n: 3", "unhashable key"),
        (b"- seed", "a mapping of setting names to values"),
        (b"1: 2", "a mapping of setting names to values"),
        (b"just text", "a mapping of setting names to values"),
        (b"# " + b"x" * MAX_YAML_BYTES, "a YAML file of at most 100,000 bytes"),
    ],
)
def test_a_hostile_file_is_refused_fast_and_does_nothing(tmp_path, monkeypatch, content, allowed):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "hostile.yaml"
    path.write_bytes(content)
    started = time.perf_counter()
    with pytest.raises(ConfigError) as caught:
        read_yaml(path)
    assert time.perf_counter() - started < 5
    message = str(caught.value)
    assert message.startswith(f"`config` is {str(path)!r}. Allowed: ")
    assert allowed in message
    assert "\n" not in message
    assert len(message) < 600
    assert [file.name for file in tmp_path.iterdir()] == ["hostile.yaml"]


def test_endless_files_are_not_read_to_their_end():
    with pytest.raises(ConfigError, match="at most 100,000 bytes"):
        read_yaml(Path("/dev/zero"))


def test_the_environment_stays_as_it_is(tmp_path):
    before = dict(os.environ)
    refusal(tmp_path, CHAINS + "env: {MINTRL_TEST: 'yes'}")
    recipe_of(tmp_path, CHAINS)
    assert dict(os.environ) == before


def test_an_empty_file_sets_nothing(tmp_path):
    path = tmp_path / "empty.yaml"
    path.write_text("# nothing yet\n")
    assert read_yaml(path) == {}


@given(st.text(max_size=60))
def test_any_text_is_a_mapping_or_a_config_error(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        values = read_yaml(path)
    except ConfigError as error:
        assert error.field == "config"
    else:
        assert all(isinstance(key, str) for key in values)


# Methods


def test_method_without_interventions_needs_no_word_about_them(tmp_path):
    text = "task: chains\nmax_steps: 300\nmethod: grpo\nuse_cpu: true\n"
    recipe = recipe_of(tmp_path, text)
    assert recipe.config.intervention_updates == 0
    assert not recipe.config.needs_judge
    assert recipe_of(tmp_path, text, "--method", "mintrl", "--judge", "exact").config.intervention_updates == 200


def test_method_and_its_settings_must_agree(tmp_path):
    assert "one of mintrl, grpo" in refusal(tmp_path, CHAINS, "--method", "gpro")
    message = refusal(tmp_path, "task: chains\nuse_cpu: true\n", "--method", "grpo", "--intervention_updates", "2")
    assert "0 for `method: grpo`" in message
