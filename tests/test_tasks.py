"""Tasks: the rows, reward, judge and evaluation problems that a recipe's words stand for."""

import json
from itertools import islice

import pytest
from datasets import Dataset

from mintrl_trl import ConfigError, DataError, MInTRLConfig, Problem, Revise, TokenText
from mintrl_trl.data.chains import World, base_model_path, chains_reward, encode
from mintrl_trl.judges.exact import ChainsJudge
from mintrl_trl.judges.local import LikelihoodJudge
from mintrl_trl.judges.public_tests import PublicTestsJudge
from mintrl_trl.recipe import PolicyArguments, Recipe, RecipeArguments
from mintrl_trl.rewards.math import math_reward
from mintrl_trl.rollouts.loop import BackgroundLoop
from mintrl_trl.tasks import build_task

SETTINGS = {
    "prompts_per_update": 2,
    "num_control": 2,
    "num_intervened": 2,
    "max_steps": 3,
    "chunk_tokens": 16,
    "correction_tokens": 1,
    "max_completion_length": 52,
    "use_cpu": True,
}
MATH = {"problem": "What is 1+1?", "answer": "2", "solution": "1+1=2"}


def chains(*, model=None, settings=None, **arguments) -> Recipe:
    config = MInTRLConfig("runs/x", **SETTINGS | {"judge": "exact"} | (settings or {}))
    return Recipe(RecipeArguments(**{"task": "chains"} | arguments), config, PolicyArguments(model_name_or_path=model))


def from_file(path, *, model="any/model", task="math", settings=None, **arguments) -> Recipe:
    config = MInTRLConfig("runs/x", **SETTINGS | {"judge": "self"} | (settings or {}))
    arguments = RecipeArguments(task=task, dataset=str(path), **arguments)
    return Recipe(arguments, config, PolicyArguments(model_name_or_path=model))


def write_rows(path, *rows) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# The small world


def test_chains_draw_as_many_fresh_rows_as_the_run_has_prompts():
    task = build_task(chains(settings={"seed": 5}))
    assert isinstance(task.rows, Dataset)
    assert task.rows.to_list() == list(islice(World.load().training_rows(5), 6))
    assert [row["misconceived"] > 0 for row in task.rows] == [False, True] * 3
    assert task.rows.to_list() != build_task(chains(settings={"seed": 6})).rows.to_list()


def test_chains_bring_their_own_model_and_reward():
    task = build_task(chains())
    assert task.model == str(base_model_path())
    assert task.reward is chains_reward
    assert build_task(chains(model="runs/earlier")).model == "runs/earlier"


@pytest.mark.parametrize(("problems", "easy", "hard"), [(0, 0, 0), (1, 1, 0), (4, 2, 2), (5, 3, 2)])
def test_evaluation_is_half_easy_half_hard(problems, easy, hard):
    task = build_task(chains(eval_problems=problems))
    subsets = [task.subset(row) for row in task.evaluation]
    assert subsets == ["easy"] * easy + ["hard"] * hard


def test_evaluation_problems_do_not_depend_on_the_seed():
    first, second = (build_task(chains(eval_problems=6, settings={"seed": seed})) for seed in (0, 1))
    assert first.evaluation == second.evaluation
    assert not {row["prompt"] for row in first.evaluation} & set(first.rows["prompt"])


@pytest.mark.parametrize("error_rate", [0.0, 0.25])
def test_the_exact_judge_knows_the_world(error_rate):
    judge = build_task(chains(judge_error_rate=error_rate)).judge
    assert isinstance(judge, ChainsJudge)
    assert judge.error_rate == error_rate
    assert judge.world == World.load()


class ScriptedBase:
    """Base weights that find every token likely but the last one."""

    has_base, base_version, end_ids, max_positions = True, "base", frozenset({2}), None

    def __init__(self):
        self.prefixes = []

    async def score_all(self, prefix_ids, continuations, *, weights):
        self.prefixes.append((tuple(prefix_ids), weights))
        return [(-0.1,) * (len(ids) - 1) + (-5.0,) for ids in continuations]


@pytest.mark.parametrize(("threshold", "rejects"), [(None, True), (-4.0, True), (-6.0, False)])
def test_the_self_judge_is_made_from_the_generator_and_reads_the_reference_first(threshold, rejects):
    settings = {"judge": "self", "judge_likelihood_threshold": threshold}
    make = build_task(chains(settings=settings)).judge
    generator = ScriptedBase()
    judge = make(generator)
    assert isinstance(judge, LikelihoodJudge)
    assert judge.threshold == (threshold or World.load().privileged_threshold)

    steps = [TokenText("8B7\n\n", encode("8B7\n\n")), TokenText("0C0", encode("0C0"))]
    problem = Problem("8B7C0D5E3F1G9H2I4?", privileged_context="8B7\n\n0C0")
    loop = BackgroundLoop()
    verdict = loop.run(judge.review(problem, steps, 0, seed=0))
    loop.close()
    assert isinstance(verdict, Revise) is rejects
    assert not rejects or verdict.step == 1
    ((prefix, weights),) = generator.prefixes
    assert prefix == (1, *encode("8B7\n\n0C0|8B7C0D5E3F1G9H2I4?"))
    assert weights == "base"


def test_without_interventions_no_judge_is_made():
    task = build_task(chains(settings={"judge": None, "num_intervened": 0, "intervention_updates": 0}))
    assert task.judge is None


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (
            lambda: chains(settings={"judge": None}),
            "`judge` is None. Allowed: exact, self or local for `task: chains`. Fix: set",
        ),
        (
            lambda: chains(settings={"judge": "llm", "judge_base_url": "http://localhost:8001/v1"}),
            "`judge` is 'llm'. Allowed: exact, self or local for `task: chains`. Fix: set `judge: exact`",
        ),
        (
            lambda: chains(settings={"max_steps": -1}),
            "`max_steps` is -1. Allowed: at least 1: the small world draws problems without end. Fix: set",
        ),
        (
            lambda: chains(settings={"judge": "self"}, judge_error_rate=0.1),
            "`judge_error_rate` is 0.1. Allowed: 0 for `judge: self`. Fix: remove `judge_error_rate`",
        ),
        (
            lambda: chains(settings={"judge": "self", "judge_keep_bias": -1.0}),
            "`judge_keep_bias` is -1.0. Allowed: 0 for `task: chains`, whose self-judge gives no replies. Fix: set",
        ),
    ],
    ids=["no judge", "judge on a server", "epochs", "error rate of a self-judge", "bias of a self-judge"],
)
def test_settings_that_do_not_go_with_chains(recipe, message):
    with pytest.raises(ConfigError) as caught:
        build_task(recipe())
    assert message in str(caught.value)


# Rows from a file


def test_math_rows_from_a_file(tmp_path):
    path = write_rows(tmp_path / "rows.jsonl", MATH, {"problem": "What is 2+2?", "answer": "4"}, MATH | {"id": "third"})
    task = build_task(from_file(path))
    assert (task.model, task.reward, task.judge) == ("any/model", math_reward, None)
    assert (task.evaluation, task.subset({})) == ((), None)
    assert task.rows["id"][:] == ["rows/1", "rows/2", "third"]
    assert task.rows["answer"][:] == ["2", "4", "2"]
    assert task.rows["privileged_context"][:] == ["1+1=2", None, "1+1=2"]
    (message,) = task.rows[0]["prompt"]
    assert message["role"] == "user"
    assert message["content"].startswith("What is 1+1?")
    assert task.rows[0]["question"] == "What is 1+1?"


def test_only_so_many_rows_are_read(tmp_path):
    path = write_rows(tmp_path / "rows.jsonl", MATH, MATH, {"problem": "wrong, but never read"})
    assert len(build_task(from_file(path, dataset_limit=2)).rows) == 2


def test_a_row_without_its_answer_is_named(tmp_path):
    path = write_rows(tmp_path / "rows.jsonl", MATH, {"problem": "What is 2+2?"})
    with pytest.raises(DataError) as caught:
        build_task(from_file(path))
    assert str(caught.value).startswith(f"{path}:2: `answer` is None. Allowed: text that is not empty.")


def test_code_rows_from_a_file(tmp_path):
    tests = [{"type": "assert", "code": "assert double(2) == 4"}]
    row = {"prompt": "Double a number.", "entry_point": "double", "compare": "assert", "tests": tests}
    task = build_task(from_file(write_rows(tmp_path / "rows.jsonl", row), task="code"))
    assert (task.reward.__name__, task.judge) == ("code_reward", None)
    assert task.rows["entry_point"][:] == ["double"]
    assert task.rows[0]["tests"][0]["code"] == tests[0]["code"]


def test_the_exact_judge_of_code_knows_the_public_examples(tmp_path):
    tests = [{"type": "assert", "code": f"assert double({n}) == {2 * n}"} for n in (2, 3)]
    row = {"prompt": "Double a number.", "entry_point": "double", "compare": "assert", "tests": tests}
    path = write_rows(tmp_path / "rows.jsonl", row)
    task = build_task(from_file(path, task="code", settings={"judge": "exact"}))
    assert isinstance(task.judge, PublicTestsJudge)
    assert task.judge.has_example(task.rows[0]["question"])
    without = {"judge": "exact", "num_intervened": 0, "intervention_updates": 0}
    assert build_task(from_file(path, task="code", settings=without)).judge is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"model": None},
            "`model_name_or_path` is None. Allowed: a hub id or a folder. Fix: set `model_name_or_path: ",
        ),
        (
            {"settings": {"judge": "exact"}},
            "`judge` is 'exact'. Allowed: llm or self for `task: math`. Fix: set `judge: ",
        ),
    ],
    ids=["no model", "exact judge"],
)
def test_settings_that_do_not_go_with_a_file(tmp_path, arguments, message):
    with pytest.raises(ConfigError) as caught:
        build_task(from_file(write_rows(tmp_path / "rows.jsonl", MATH), **arguments))
    assert message in str(caught.value)


def test_a_model_that_was_not_made_yet_says_how_to_make_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"models/SmolLM2.*get_smollm2\.py"):
        build_task(from_file(write_rows(tmp_path / "rows.jsonl", MATH), model="models/SmolLM2-135M-Instruct"))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError) as caught:
        build_task(from_file(tmp_path / "none.jsonl"))
    assert "none.jsonl" in str(caught.value)
    assert "correct the path" in str(caught.value)


def test_bad_rows_are_refused_unless_they_may_be_dropped(tmp_path, caplog):
    bad_gold = {"problem": "What is a third?", "answer": r"\frac{1"}
    path = write_rows(tmp_path / "rows.jsonl", MATH, bad_gold, {"problem": "What is 2+2?"}, MATH | {"id": "last"})
    with pytest.raises(DataError) as caught:
        build_task(from_file(path))
    assert str(caught.value).startswith(f"{path}:3: `answer` is None.")
    assert "or set `drop_bad_rows: true`; `mintrl check-data` lists all such rows" in str(caught.value)

    assert build_task(from_file(path, drop_bad_rows=True)).rows["id"][:] == ["rows/1", "last"]
    unreadable, golds = (record.getMessage() for record in caplog.records)
    assert unreadable.startswith(f"Left out 1 rows of {path} that cannot be used. The first: {path}:3: `answer`")
    assert golds.startswith(f"Left out 1 of 3 rows of {path} whose gold answers do not equal themselves. ")
    assert golds.endswith(r"The first: rows/2: '\\frac{1' (unclosed)")


def test_a_gold_that_does_not_equal_itself_is_refused(tmp_path):
    path = write_rows(tmp_path / "rows.jsonl", MATH, {"problem": "What is a third?", "answer": r"\frac{1"})
    with pytest.raises(DataError, match=r"1 of 2 rows \(number 1\).*drop_bad_rows"):
        build_task(from_file(path))


def test_a_data_set_of_bad_rows_alone(tmp_path):
    path = write_rows(tmp_path / "rows.jsonl", {"problem": "What is a third?", "answer": r"\frac{1"})
    with pytest.raises(ConfigError, match=r"`dataset` is .*at least one has an answer that equals itself"):
        build_task(from_file(path, drop_bad_rows=True))


def test_tests_that_ask_nothing_are_refused_unless_they_may_be_dropped(tmp_path, caplog):
    row = {"prompt": "Double a number.", "entry_point": "double", "compare": "assert"}
    good, bad = ([{"type": "assert", "code": f"{word}double(2) == 4"}] for word in ("assert ", ""))
    path = write_rows(tmp_path / "rows.jsonl", row | {"tests": bad}, row | {"tests": good, "id": "good"})
    with pytest.raises(DataError, match=r"1 of 2 rows \(number 0\): `tests` is .*drop_bad_rows"):
        build_task(from_file(path, task="code"))
    assert build_task(from_file(path, task="code", drop_bad_rows=True)).rows["id"][:] == ["good"]
    assert any("Left out 1 of 2 rows" in record.getMessage() for record in caplog.records)
    path = write_rows(tmp_path / "bad.jsonl", row | {"tests": bad})
    with pytest.raises(ConfigError, match=r"`dataset` is .*tests that a program that does nothing does not pass"):
        build_task(from_file(path, task="code", drop_bad_rows=True))


def test_good_rows_are_kept_without_a_word(tmp_path, caplog):
    path = write_rows(tmp_path / "rows.jsonl", MATH, MATH | {"id": "second"})
    assert len(build_task(from_file(path, drop_bad_rows=True)).rows) == 2
    assert not caplog.records
