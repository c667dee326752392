"""No tensor of tokens x vocabulary is ever made, at the size of a real run."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "long_update.py"
TOKENS, PROMPT_TOKENS, WORDS = 16_384, 512, 151_936
TILE = 4_096 * 32_768  # tokens x words that TRL's fused head projects at once


def program():
    spec = importlib.util.spec_from_file_location("long_update", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_response_of_16384_tokens_with_a_vocabulary_of_151936_words():
    """The largest tensor is a tile of the head, a nineteenth of all logits; memory stays well below theirs."""
    command = [sys.executable, str(PROGRAM), "--cases", "intervention", "--tokens", str(TOKENS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=880)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    elements = int(re.search(r"largest tensor ([\d,]+) elements", done.stdout)[1].replace(",", ""))
    assert f"a row of {PROMPT_TOKENS + TOKENS:,} tokens" in done.stdout
    assert elements == TILE
    assert 18 * TILE < (PROMPT_TOKENS + TOKENS) * WORDS < 20 * TILE
    peak, logits = map(float, re.search(r"PEAK ([\d.]+) of ([\d.]+) GiB", done.stdout).groups())
    assert peak < 0.6 * logits


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", ["intervention", "intervention+checkpointing", "on-policy", "on-policy+checkpointing"])
def test_neither_phase_makes_the_logits_of_a_row(case):
    seen = program().measure(case, tokens=64)
    row = PROMPT_TOKENS + 64
    assert seen["phase"] == case.partition("+")[0]
    assert seen["row"] == row
    assert seen["elements"] < row * WORDS / 4
