"""Evaluation during training on maths and code: its settings, the rows they name, and the room a server needs."""

import json
from pathlib import Path

import pytest

from mintrl_trl.errors import ConfigError, DataError
from mintrl_trl.recipe import RecipeArguments, parse_recipe
from mintrl_trl.serving import Machine, server_commands
from mintrl_trl.tasks import build_task

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "recipes" / "math_qwen3_1.7b.yaml"


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for name, count in (("aime_2025", 3), ("gsm8k_test", 2)):
        lines = [{"id": f"{name}/{i}", "problem": f"{i} + {i} = ?", "answer": str(2 * i)} for i in range(count)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "own.jsonl").write_text('{"problem": "What is 1+1?", "answer": "2"}\n')
    test = {"type": "assert", "code": "assert f(1) == 2"}
    row = {"prompt": "Add one.", "entry_point": "f", "tests": [test], "compare": "assert"}
    (tmp_path / "code.jsonl").write_text(json.dumps(row) + "\n")
    return folder


def recipe(data, *flags: str):
    words = ["--config", str(RECIPE), "--dataset", str(data.parent / "own.jsonl"), "--eval_data", str(data)]
    return parse_recipe([*words, *flags], default=RECIPE)


def test_benchmarks_and_rows_of_ones_own_are_subsets(data):
    flags = ["--eval_benchmarks", "aime_2025", "gsm8k", "--eval_dataset", str(data.parent / "own.jsonl")]
    task = build_task(recipe(data, *flags, "--eval_limit", "2"))
    assert [task.subset(row) for row in task.evaluation] == ["aime_2025"] * 2 + ["gsm8k"] * 2 + ["own"]
    assert task.evaluation[0]["prompt"][0]["content"].startswith("0 + 0 = ?\n\nPlease reason")
    assert len({frozenset(row) for row in task.evaluation}) == 1
    assert task.evaluation_reward is task.reward


def test_a_recipe_file_may_list_benchmarks(data, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(f"{RECIPE.read_text()}\neval_benchmarks: [aime_2025]\neval_data: {data}\neval_every: 50\n")
    task = build_task(parse_recipe(["--config", str(path), "--dataset", str(data.parent / "own.jsonl")], default=path))
    assert len(task.evaluation) == 3


def test_without_any_nothing_is_evaluated(data):
    words = ["--config", str(RECIPE), "--dataset", str(data.parent / "own.jsonl")]
    assert build_task(parse_recipe(words, default=RECIPE)).evaluation == ()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--eval_benchmarks", "nonsense"], "`eval_benchmarks` is 'nonsense'"),
        (["--eval_benchmarks", "hmmt_feb_2025"], r"`eval_benchmarks` is 'hmmt_feb_2025'.*hmmt_feb_2025\.jsonl"),
        (["--eval_dataset", "none.jsonl"], "`eval_dataset` is 'none.jsonl'"),
        (["--eval_dataset", "CODE"], "`eval_benchmarks` is 'code .code.'. Allowed: benchmarks and rows of math"),
    ],
)
def test_what_cannot_be_evaluated_on(data, flags, message):
    flags = [str(data.parent / "code.jsonl") if flag == "CODE" else flag for flag in flags]
    with pytest.raises((ConfigError, DataError), match=message):
        build_task(recipe(data, *flags))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eval_limit": 0}, "`eval_limit` is 0"),
        ({"eval_max_completion_length": True}, "`eval_max_completion_length` is True"),
        ({"eval_data": "here"}, "`eval_data` is 'here'. Allowed: nothing where nothing is evaluated on"),
        ({"task": "chains", "dataset": None, "eval_benchmarks": ["gsm8k"]}, "nothing for `task: chains`"),
        ({"task": "chains", "dataset": None, "eval_dataset": "x.jsonl"}, "nothing for `task: chains`"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(ConfigError, match=message):
        RecipeArguments(**{"dataset": "rows.jsonl"} | settings)


def test_a_length_of_its_own_is_for_every_task():
    assert RecipeArguments(task="chains", eval_max_completion_length=60).eval_max_completion_length == 60


@pytest.mark.parametrize(("length", "room"), [(None, 0), ("100", 0), ("32768", 32768)])
def test_the_policys_server_has_room_for_longer_evaluations(data, length, room):
    plain = recipe(data, "--eval_benchmarks", "gsm8k")
    flags = [] if length is None else ["--eval_max_completion_length", length]
    varied = recipe(data, "--eval_benchmarks", "gsm8k", *flags)
    lengths = []
    for one in (plain, varied):
        (command,) = server_commands(one, "policy", Machine("gpu", 1))[:1]
        lengths.append(int(command.words[command.words.index("--max-model-len") + 1]))
    assert lengths[1] == max(lengths[0], plain.config.max_prompt_length + room if room else 0)
