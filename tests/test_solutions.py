"""The right solution's probability in the small world: one forward against token by token, and the summary by hand."""

import math
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from mintrl_trl.analysis.figures import draw_figures, read_sources
from mintrl_trl.analysis.runs import read_groups, read_run
from mintrl_trl.analysis.solutions import (
    Likelihoods,
    Solution,
    SupportTable,
    measure_support,
    small_world_problems,
    solution_logps,
    summarize,
)
from mintrl_trl.data.chains import EOS, EOS_ID, TOKENS, World, base_model_path, chains_reward
from mintrl_trl.errors import DataError
from tests.analyzed_runs import GRPO_SETTINGS, SETTINGS, write_run

CHAINS = {"task": "chains", "eval_problems": 6, "model_name_or_path": None}


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(base_model_path(), dtype=torch.float32).eval()


@pytest.fixture
def problems(tmp_path):
    return small_world_problems(read_run(write_run(tmp_path / "run", recipe=CHAINS)))


def test_problems_are_those_of_the_evaluation_and_their_solutions_are_right(problems):
    rows = World.load().evaluation_rows(3, 3)
    tokenizer = AutoTokenizer.from_pretrained(base_model_path())
    assert [problem.question for problem in problems] == [row["prompt"] for row in rows]
    assert [problem.subset for problem in problems] == ["easy"] * 3 + ["hard"] * 3
    for problem, row in zip(problems, rows, strict=True):
        assert list(problem.prompt_ids) == tokenizer(row["prompt"])["input_ids"]
        text = tokenizer.decode(problem.ids, skip_special_tokens=True)
        assert problem.ids[-1] == EOS_ID
        assert chains_reward([""], [text], [row["answer"]], [problem.ids]) == [1.0]
        written = [TOKENS[problem.ids[at]] for at in problem.decisive]
        lines, results = row["privileged_context"].split("\n\n")[:-1], row["answer"][1::2]
        assert written == [*(line[0] for line in lines[1:]), *results, EOS], "the start value is a copy"


def test_one_forward_gives_what_token_by_token_gives(model, problems):
    (logps,) = solution_logps(model, problems[:1])
    ids = list(problems[0].prompt_ids)
    for token, logp in zip(problems[0].ids, logps, strict=True):
        with torch.no_grad():
            expected = model(torch.tensor([ids])).logits[0, -1].double().log_softmax(-1)[token].item()
        assert logp == pytest.approx(expected, abs=1e-5)
        ids.append(token)
    assert solution_logps(model, problems)[0] == pytest.approx(logps, abs=1e-5), "a row does not depend on its batch"


def test_the_base_model_solves_easy_problems_and_no_hard_one(tmp_path):
    run = write_run(tmp_path / "run", SETTINGS, {1: {"off_policy_share": 0.1}}, recipe=CHAINS)
    for path in base_model_path().iterdir():
        shutil.copy(path, run)
    other = write_run(tmp_path / "maths", GRPO_SETTINGS)
    named = []
    table = measure_support(read_groups([str(run), str(other)]), on_model=named.append)
    assert named == ["chains_base", "run"]
    assert table.corrections == 4
    assert table.after[0].token_logps == table.base.token_logps, "the run left the base model"
    assert all(string < own for string, own in zip(table.base.string_logps, table.base.logps, strict=True))
    summaries = {(one.group, one.subset): one for one in summarize(table)}
    assert list(summaries) == [("Base", "easy"), ("MInTRL-Const", "easy"), ("Base", "hard"), ("MInTRL-Const", "hard")]
    assert summaries["Base", "easy"].solved == summaries["Base", "easy"].visible == 3
    assert summaries["Base", "hard"].solved == 0
    assert summaries["Base", "hard"].smallest_nu < 0.01
    assert all(math.exp(one) > 0.9 for one in table.with_corrections()), "four corrections are enough for each problem"
    assert all(0 <= needed <= 2 for needed in table.needed())


def test_runs_of_other_tasks_and_of_unlike_bases(tmp_path):
    assert measure_support(read_groups([str(write_run(tmp_path / "maths"))])) is None
    runs = []
    for name, base in (("a", "models/one"), ("b", "models/two")):
        runs.append(write_run(tmp_path / name, recipe=CHAINS | {"model_name_or_path": base}))
        (runs[-1] / "model.safetensors").touch()
    with pytest.raises(DataError, match="one base model"):
        measure_support(read_groups(map(str, runs)))
    (runs[0] / "config.json").write_text("{}")
    with pytest.raises(DataError, match="can be loaded"):
        measure_support(read_groups([str(runs[0])]))


def test_a_single_easy_problem_is_drawn_too(tmp_path):
    run = write_run(tmp_path / "run", recipe=CHAINS | {"eval_problems": 1})
    shutil.copytree(base_model_path(), run, dirs_exist_ok=True)
    (drawn,) = draw_figures(read_sources([str(run)]), tmp_path / "out", ["2"])
    assert "1 of 1 easy problems solved" in drawn.note


@pytest.mark.parametrize(("damage", "message"), [("cut", "header"), ("nan", "finite")])
def test_a_damaged_model_is_named(tmp_path, damage, message):
    run = write_run(tmp_path / "run", recipe=CHAINS)
    shutil.copytree(base_model_path(), run, dirs_exist_ok=True)
    tensors = load_file(run / "model.safetensors")
    if damage == "nan":
        save_file(
            {name: value * math.nan for name, value in tensors.items()}, run / "model.safetensors", {"format": "pt"}
        )
    else:
        (run / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(DataError, match=message):
        measure_support(read_groups([str(run)]))


def test_the_summary_by_hand():
    problems = tuple(Solution(name, "hard", (1,), (2, 3, 4), (0, 2)) for name in "abc")

    def likelihoods(name, *chances):
        logps = tuple(tuple(map(math.log, pair)) for pair in chances)
        return Likelihoods(name, name, "", logps, tuple(math.fsum(own) + math.log(0.5) for own in logps))

    table = SupportTable(
        problems,
        base=likelihoods("Base", (0.001, 0.5), (0.1, 0.09), (0.9, 0.9)),
        after=(
            likelihoods("Ours", (0.8, 0.9), (0.8, 0.7), (0.9, 0.9)),
            likelihoods("Ours", (0.8, 0.5), (0.1, 0.01), (0.9, 0.9)),
        ),
        corrections=1,
        budget=100,
    )
    base, ours = summarize(table)
    assert (base.solved, base.solved_beyond, base.visible, base.furthest) == (1, 0, 1, pytest.approx(0.81))
    assert (ours.solved, ours.solved_beyond, ours.visible) == (2.0, 1.0, 2.5)
    assert ours.furthest == pytest.approx(0.0005)
    assert (base.smallest_nu, ours.smallest_nu) == (pytest.approx(0.001), pytest.approx(0.01))
    assert ours.mean == pytest.approx((0.72 + 0.56 + 0.81 + 0.4 + 0.001 + 0.81) / 6)
    assert ours.mean_string == pytest.approx(ours.mean / 2)
    assert table.needed() == (1, 1, 0)
    assert math.exp(table.with_corrections()[0]) == pytest.approx(1 - 0.999 * 0.5)
