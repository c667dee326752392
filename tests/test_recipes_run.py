"""Recipes as programs: one run from start to end, the others in this process, and what a mistake looks like."""

import json
import math
import os
import re
import runpy
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from mintrl_trl.data.chains import base_model_path
from mintrl_trl.errors import CheckpointError, ConfigError
from mintrl_trl.reporting.run_folder import RunFolder
from mintrl_trl.rollouts.rollout import Author, Role
from tests.tiny import tiny_model, tiny_tokenizer

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "recipes"
# Two updates, one in each phase, of 2 prompts x (8 + 8) rollouts.
SHORT = {
    "max_steps": 2,
    "intervention_updates": 1,
    "prompts_per_update": 2,
    "per_device_train_batch_size": 32,
    "eval_problems": 4,
}


def flags(**settings) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def run_program(folder: Path, program: str, *arguments: str) -> subprocess.CompletedProcess:
    """Run a recipe as a user does, from another folder."""
    return subprocess.run(
        [sys.executable, str(RECIPES / program), *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=55,
    )


def test_the_quickstart_from_start_to_end(tmp_path):
    done = run_program(tmp_path, "train_math.py", *flags(**SHORT))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    number = r"[01]\.\d{3}"
    assert re.fullmatch(rf"RESULT pass@1 {number} -> {number} pass@16 {number} -> {number}", lines[-1])
    updates = [line for line in lines if line.startswith("update ")]
    assert updates[0].startswith("update 1/2 interventions · reward ")
    assert updates[1].startswith("update 2/2 on-policy · reward ")
    assert done.stderr == ""

    output = tmp_path / "runs" / "quickstart"
    assert json.loads((output / "settings.json").read_text())["num_intervened"] == 8
    assert json.loads((output / "versions.json").read_text())["packages"]["trl"].startswith("1.16")
    assert (output / "learning_curves.png").read_bytes().startswith(b"\x89PNG")
    assert AutoModelForCausalLM.from_pretrained(output).num_parameters() > 100_000
    folder = RunFolder(output)
    scores = {line["update"]: line["eval/hard/pass@16"] for line in folder.metrics() if "eval/hard/pass@16" in line}
    assert list(scores) == [0, 2]
    records = list(folder.rollouts())
    assert len(records) == 2 * 32
    foreign = [any(span.author is Author.INTERVENTION for span in record.spans) for record in records]
    assert any(foreign[:32]) and not any(foreign[32:])
    assert {record.role for record in records[32:]} == {Role.CONTROL}


def test_a_mistake_is_one_line_on_standard_error(tmp_path):
    done = run_program(tmp_path, "train_code.py", "--max_step", "3")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        "ConfigError: `max_step` is '3'. Allowed: the name of a setting (--help lists them). "
        "Fix: did you mean `max_steps`; if not, remove `max_step`.\n"
    )
    assert not list(tmp_path.iterdir())


def run_here(monkeypatch, capsys, folder: Path, recipe: str, **settings) -> list[str]:
    """Run `train_math.py` in this process; returns the lines on standard output."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["train_math.py", "--config", str(RECIPES / recipe), *flags(**settings)])
    runpy.run_path(str(RECIPES / "train_math.py"))["main"]()
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("recipe", "settings", "revises"),
    [
        ("chains_grpo", {"intervention_updates": 0}, False),
        ("chains_proxy", {}, True),
        ("chains_self_judge", {}, True),
        ("chains_self_judge", {"max_reviews": 0}, False),
        ("chains_hard_const", {"judge_value_error_rate": 0.5, "judge_terse": True, "correction_tokens": 8}, True),
        ("chains_hard_proxy", {"judge_variant": "placebo", "reward": "random"}, True),
    ],
    ids=["GRPO", "Proxy", "self-judge", "self-judge without reviews", "hard, bad judge", "hard, placebo"],
)
def test_the_other_recipes_of_the_small_world(tmp_path, monkeypatch, capsys, recipe, settings, revises):
    lines = run_here(monkeypatch, capsys, tmp_path, f"{recipe}.yaml", **SHORT | {"eval_samples": 2} | settings)
    assert lines[-1].startswith("RESULT pass@1 ")
    folder = RunFolder(Path("runs") / recipe)
    assert any(line.get("judge/revise_rate") for line in folder.metrics()) is revises


def test_a_model_as_judge_gives_its_log_probabilities(tmp_path, monkeypatch, capsys):
    """The base model stands in for a teacher; it doubts whatever it is not quite sure of."""
    judge = {"judge_model": base_model_path(), "judge_likelihood_threshold": -0.01, "anchor": "judge"}
    run_here(monkeypatch, capsys, tmp_path, "chains_teacher_judge.yaml", **SHORT | {"eval_problems": 0} | judge)
    first = next(iter(RunFolder(Path("runs") / "chains_teacher_judge").metrics()))
    assert first["judge/review/calls"] > 0 and first["judge/correction/calls"] > 0
    assert first["tokens/intervention"] == first["tokens/intervention_with_logps"] > 0
    assert math.isfinite(first["intervention/kl"])


MATH_ROWS = [{"problem": f"what is {i}+1?", "answer": str(i + 1), "solution": f"{i}+1={i + 1}"} for i in range(8)]
CODE_ROWS = [
    {
        "prompt": f"add {i} to a number.",
        "entry_point": "add",
        "compare": "assert",
        "tests": [{"type": "assert", "group": "base", "code": f"assert add({j}) == {i + j}"} for j in range(2)],
        "reference_solution": f"def add(x):\n    return x + {i}",
    }
    for i in range(8)
]


@pytest.mark.parametrize(
    ("recipe", "rows", "why"),
    [("gsm8k_smollm2", MATH_ROWS, {"no_box"}), ("mbpp_smollm2", CODE_ROWS, {"no_code", "syntax"})],
    ids=["math", "code"],
)
def test_adapters_that_judge_themselves(tmp_path, monkeypatch, capsys, recipe, rows, why):
    """Recipes for a real model, on one of a few thousand weights."""
    model = tiny_model()
    model.config.max_position_embeddings = 16_384  # a prompt of the judge is thousands of characters
    model.save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = dict(
        dataset="rows.jsonl",
        model_name_or_path="model",
        lora_r=2,
        max_steps=2,
        intervention_updates=1,
        chunk_tokens=12,
        correction_tokens=4,
        max_completion_length=32,
    )
    run = partial(run_here, monkeypatch, capsys, tmp_path, f"{recipe}.yaml")
    lines = run(**settings)
    assert lines[0].startswith("update 1/2 interventions · reward 0.00 · intervened 0.00")
    assert lines[-1].startswith("learning curves: ")  # nothing was evaluated, so there is no result
    folder = RunFolder(Path("runs") / recipe)
    records = list(folder.rollouts())
    assert {record.row_id for record in records} <= {f"rows/{number}" for number in range(1, 9)}
    assert {record.reward_why for record in records} <= why
    assert all(record.reviews for record in records if record.role is Role.INTERVENED and record.update == 1)
    assert json.loads((folder.path / "adapter_config.json").read_text())["r"] == 2
    monkeypatch.setattr("mintrl_trl.tasks.build_task", lambda recipe: pytest.fail("rows were read"))
    with pytest.raises(ConfigError, match="metrics, rollouts or checkpoints of another run"):
        run(**settings)
    with pytest.raises(CheckpointError, match="checkpoint-7 does not exist"):
        run(**settings, resume_from_checkpoint="checkpoint-7")
