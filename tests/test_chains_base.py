"""The shipped base model: what it can do, what it believes, and the script that made it."""

import importlib.util
import math
import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mintrl_trl.data import chains
from mintrl_trl.data.chains import EOS_ID, World
from mintrl_trl.rollouts.rollout import Problem

SCRIPT = Path(__file__).parents[1] / "scripts" / "train_chains_base.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("train_chains_base", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(chains.base_model_path())


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(chains.base_model_path())


@pytest.fixture(scope="module")
def world():
    return World.load()


def test_folder_loads_as_float32_with_end_and_pad(model, tokenizer):
    assert model.dtype is torch.float32
    assert model.num_parameters() == 133_120
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == EOS_ID
    assert model.generation_config.pad_token_id == tokenizer.pad_token_id == 0
    assert tokenizer.get_vocab() == {token: i for i, token in enumerate(chains.TOKENS)}
    text = "8B7\n\n0C0\n\n"
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text
    assert tokenizer("8", add_special_tokens=False)["input_ids"] == [13]


def test_base_model_is_good_at_easy_chains_and_helpless_at_hard_ones(script, model, world):
    rows = world.evaluation_rows(num_easy=20, num_hard=20)
    easy_once, easy_ever = script.pass_rates(model, rows[:20])
    assert easy_once >= 75
    assert easy_ever >= 95
    assert script.pass_rates(model, rows[20:])[1] <= 15
    assert script.pass_rates(model, rows[20:], privileged=True)[0] >= 90


def test_threshold_separates_right_steps_from_wrong_ones(script, model, world):
    right, wrong = script.step_scores(model, world, num_rows=60, seed=11)
    assert len(right) > 200
    assert len(wrong) > 30
    assert (right > world.privileged_threshold).float().mean() >= 0.99
    assert (wrong < world.privileged_threshold).float().mean() >= 0.99


def test_script_writes_text_as_the_tokenizer_reads_it(script, tokenizer, world):
    chain = chains.draw_chain(random.Random(0))
    solution = world.continuation(chain, "")
    problem = Problem(chain.question, privileged_context=solution)
    row = script.training_ids(world, random.Random(0), privileged=True, rows=1)[0].tolist()
    assert row == tokenizer(chains.privileged_prompt(problem) + solution + chains.EOS)["input_ids"]
    assert script.decode(row[-chains.SOLUTION_TOKENS :]) == solution


def test_simulated_solutions_hold_beliefs(script, world):
    rng = random.Random(0)
    rows = [row for row in world.evaluation_rows(num_easy=0, num_hard=40) if row["misconceived"] == 1]
    drawn = [chains.Chain.parse(row["prompt"]) for row in rows]
    assert not any(script.simulate(world, chain, rng) == world.continuation(chain, "") for chain in drawn)
    easy = [chains.Chain.parse(row["prompt"]) for row in world.evaluation_rows(num_easy=200, num_hard=0)]
    right = sum(script.simulate(world, chain, rng) == world.continuation(chain, "") for chain in easy) / len(easy)
    assert right == pytest.approx(0.99**8, abs=0.08)


def test_calibration_by_hand(script):
    # Every threshold from -5.9 to -1.1 makes no mistake; the middle one of these 49 is -3.5.
    assert script.calibrate(torch.tensor([-1.05, -0.2]), torch.tensor([-5.95, -9.0])) == pytest.approx(-3.5)
    assert script.calibrate(torch.tensor([]), torch.tensor([-1.0])) is None


def test_script_makes_a_loadable_folder_and_repeats_itself(script, tmp_path):
    for name in "ab":
        script.main(["--output", str(tmp_path / name), "--updates", "2", "--problems", "2", "--world-seed", "5"])
    first, second = (AutoModelForCausalLM.from_pretrained(tmp_path / name).state_dict() for name in "ab")
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert all(math.isfinite(tensor.sum().item()) for tensor in first.values())
    assert World.load(tmp_path / "a") == World.from_seed(5)
    assert len(AutoTokenizer.from_pretrained(tmp_path / "a")) == len(chains.TOKENS)
