"""Two processes and one server: each asks for its own rows, one carries the weights, and both learn as one would."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from . import ranks
from .fake_vllm import FakeVLLM, events
from .tiny import tiny_model, tiny_tokenizer
from .trainers import assert_same_weights

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
END, SIZE = 2, 47


def draw(body: dict) -> list[dict]:
    """A response of at most nine tokens that depends on the request's seed and prompt alone."""
    mixed = body["seed"] ^ sum(body["prompt"])
    ids = [3 + (mixed >> shift) % (SIZE - 3) for shift in range(mixed % 9)] + [END]
    cut = ids[: body["max_tokens"]]
    return events(body["prompt"], cut, finish="stop" if cut[-1] == END else "length")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def launch(folder: Path, server: FakeVLLM, processes: int) -> list[dict]:
    """Train on so many processes, a single one being this one; gives what each of them saw."""
    if processes == 1:
        ranks.run(folder, server.url)
    else:
        done = subprocess.run(
            [sys.executable, "-m", "tests.ranks", str(folder), server.url, str(processes), str(free_port())],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return [torch.load(folder / f"rank-{rank}-of-{processes}.pt") for rank in range(processes)]


@pytest.mark.timeout(120)
def test_two_processes_train_as_one_would(tmp_path):
    tiny_model().save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    seen = {}
    for processes in (1, 2):
        with FakeVLLM(str(tmp_path / "model")) as server:
            server.script = draw
            parts = launch(tmp_path, server, processes)
        assert all(part["own_client"] and not part["trls_client"] for part in parts)
        assert len(server.bodies("/collective_rpc")) == 2, "one sync for each update, by one process"
        rollouts = {}
        for number, part in enumerate(parts):
            rows = {row for _, row in part["rollouts"]}
            assert rows == set(range(number * 8 // processes, (number + 1) * 8 // processes)), "its own rows alone"
            rollouts |= part["rollouts"]
        assert [rollouts[update, row][0] for update in (0, 1) for row in range(4)] == (
            ["control"] * 2 + ["intervened"] * 2
        ) * 2
        seen[processes] = (parts, rollouts)
    (one,), (first, second) = seen[1][0], seen[2][0]
    assert seen[1][1] == seen[2][1], "the same rollouts, row for row"
    assert_same_weights(first["weights"], second["weights"])
    assert_same_weights(one["weights"], first["weights"], rtol=1e-4, atol=1e-6)
    start = dict(tiny_model().named_parameters())
    assert any(not torch.equal(start[name], after) for name, after in first["weights"].items())
