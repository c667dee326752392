"""The small world's teacher: what it learns from, and that training it twice gives the same weights."""

import json
import random
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from mintrl_trl.data import chains
from mintrl_trl.data.chains import Chain, World

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import train_chains_teacher

    yield train_chains_teacher
    for name in ("train_chains_teacher", "train_chains_base"):
        sys.modules.pop(name, None)


def test_wrong_values_are_gone_on_from_and_not_learned(script):
    world, rows = World.load(), 50
    ids, learned = script.training_batch(world, random.Random(0), rows)
    assert ids.shape == (rows, 1 + len(Chain(0, (0,) * 8).question) + chains.SOLUTION_TOKENS)
    wrong = 0
    for row, mask in zip(ids.tolist(), learned.tolist(), strict=True):
        assert (row[0], row[-1]) == (chains.BOS_ID, chains.EOS_ID)
        text = "".join(chains.TOKENS[i] for i in row[1:-1])
        question, solution = text[:18], text[18:]
        chain = Chain.parse(question)
        values = [int(line[0]) for line in solution.split(chains.BLANK)[:9]]
        assert solution == chains.solution_text(chain, values)
        slips = [n for n in range(1, 9) if values[n] != world.result(values[n - 1], chain.operands[n - 1])]
        assert [place for place, kept in enumerate(mask) if not kept] == [4 * n for n in slips]
        wrong += len(slips)
    assert 0.05 < wrong / (8 * rows) < 0.15


@pytest.mark.slow
def test_training_it_twice_gives_the_same_weights(script, tmp_path):
    for name in ("a", "b"):
        script.main(["--output", str(tmp_path / name), "--updates", "2", "--problems", "4"])
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b")]
    assert weights[0] == weights[1]
    described = json.loads((tmp_path / "a" / "teacher.json").read_text())
    base = AutoModelForCausalLM.from_pretrained(chains.base_model_path()).num_parameters()
    assert described["parameters"] > 4 * base
