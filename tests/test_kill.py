"""Runs that are killed go on as if nothing had happened: bitwise the weights, and the same lines apart from times."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mintrl_trl.checkpoints import list_checkpoints
from tests.histories import history
from tests.killed import MOMENTS
from tests.trainers import assert_same_weights

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    done = subprocess.run(
        [sys.executable, "-m", "tests.killed", str(folder)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=220,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_run_ends_as_one_that_never_stopped(runs, moment):
    whole, resumed = torch.load(runs / "whole.pt"), torch.load(runs / f"{moment}.pt")
    assert resumed["from"] == str(runs / moment / f"checkpoint-{MOMENTS[moment]}")
    assert_same_weights(whole["weights"], resumed["weights"])
    assert history(runs / moment) == history(runs / "whole")
    left = [(found.update, found.problem is None, found.mark["thinned"]) for found in list_checkpoints(runs / moment)]
    assert left == [(1, False, True), (2, False, True), (3, False, True), (4, True, False)]


def test_the_runs_hold_corrections_and_move_weights(runs):
    lines = history(runs / "whole")
    assert any(span["author"] == "intervention" for line in lines["rollouts.jsonl"] for span in line["spans"])
    assert {line["update"] for line in lines["rollouts.jsonl"]} == {1, 2, 3, 4}
    moved = [line["grad_norm"] > 0 for line in lines["metrics.jsonl"][:4]]
    assert moved[0] and any(moved[2:]), moved
