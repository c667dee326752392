"""Two processes do what one would, under DDP and FSDP2: same rollouts, advantages, losses and weights; one that fails
stops both."""

import os
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from mintrl_trl.checkpoints import list_checkpoints
from mintrl_trl.export import export_checkpoint

from . import ranks
from .fake_vllm import FakeVLLM, events
from .histories import history
from .tiny import tiny_model, tiny_tokenizer
from .trainers import assert_same_weights
from .weight_receiver import Receiver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[1]
END, SIZE = 2, 47
SAME = {"rtol": 1e-4, "atol": 1e-5}  # of weights that moved by 1e-3 to 1e-1


def draw(body: dict) -> list[dict]:
    """A response of at most nine tokens that depends on the request's seed and prompt alone."""
    mixed = body["seed"] ^ sum(body["prompt"])
    ids = [3 + (mixed >> shift) % (SIZE - 3) for shift in range(mixed % 9)] + [END]
    cut = ids[: body["max_tokens"]]
    return events(body["prompt"], cut, finish="stop" if cut[-1] == END else "length")


def free_ports(number: int) -> int:
    """The first of so many free ports in a row."""
    while True:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            first = listener.getsockname()[1]
        if first + number <= 65_536:
            return first


@dataclass
class Runs:
    """What two processes saw in each scenario, and, on demand, one."""

    folder: Path
    server: FakeVLLM
    saw: dict[str, list[dict]] = field(default_factory=dict)
    one: dict[str, dict] = field(default_factory=dict)

    @cached_property
    def two(self) -> dict[str, list[dict]]:
        """By kind: what each process saw."""
        done = subprocess.run(
            [sys.executable, "-m", "tests.ranks", str(self.folder), self.server.url, str(free_ports(len(ranks.KINDS)))],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=220,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return {
            kind: [torch.load(self.folder / f"{kind}-{rank}.pt") for rank in range(ranks.PROCESSES)]
            for kind in ranks.KINDS
        }

    def of_two(self, kind: str, scenario: str) -> list[dict]:
        parts = self.two[kind]
        for part in parts:
            for name, what in part.items():
                assert not isinstance(what, str), f"{kind}, {name}: {what}"
        return [part[scenario] for part in parts]

    def of_one(self, scenario: str) -> dict:
        if scenario not in self.one:
            self.one[scenario] = ranks.one_process(scenario, self.folder, self.server.url)
        return self.one[scenario]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    tiny_model().save_pretrained(folder / "model")
    tiny_model(tied=False).save_pretrained(folder / "untied")
    for name in ("model", "untied"):
        tiny_tokenizer().save_pretrained(folder / name)
    with Receiver(str(folder / "model")) as server:
        server.script = draw
        server._join = server._update = lambda body: {}  # what is sent lies in files
        yield Runs(folder, server)


def both(parts: list[dict], key: str) -> list[torch.Tensor]:
    """A tensor of each batch, the rows of the second process after those of the first."""
    return [torch.cat(pair) for pair in zip(*(part[key] for part in parts), strict=True)]


COMPARED = {"loss", "grad_norm", "reward", "log_ratio", "lengths/control", "num_tokens", "mismatch/kl"}
EVERY = [
    pytest.param(kind, name, id=f"{kind}-{name}")
    for kind, names in ranks.KINDS.items()
    for name in names
    if name not in ("faults", "resumed", "thinned", "mixed_precision")
]


@pytest.mark.parametrize(("kind", "scenario"), EVERY)
def test_two_processes_make_the_rollouts_and_advantages_of_one(runs, kind, scenario):
    one, parts = runs.of_one(scenario), runs.of_two(kind, scenario)
    assert [part["sharded"] for part in parts] == [kind == "fsdp2"] * 2 and not one["sharded"]
    assert not any(part["trls_client"] for part in parts)
    first, second = (part["rollouts"] for part in parts)
    assert not first.keys() & second.keys(), "its own rows alone"
    rows = {row for purpose, _, row in one["rollouts"] if purpose == "training"}
    assert {row for purpose, _, row in first if purpose == "training"} == set(range(len(rows) // 2))
    assert first | second == one["rollouts"], "the same ones, row for row"
    for ours, theirs in zip(both(parts, "advantages"), one["advantages"], strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(("kind", "scenario"), EVERY)
def test_two_processes_learn_what_one_would(runs, kind, scenario):
    one, (first, second) = runs.of_one(scenario), runs.of_two(kind, scenario)
    layout = {"entropy", "tokens/without_gradient"} if scenario == "exact" else set()  # where one is TRL's, one ours
    assert [line.keys() - layout for line in first["log"]] == [line.keys() - layout for line in one["log"]]
    assert [line.keys() for line in first["log"]] == [line.keys() for line in second["log"]]
    for ours, theirs in zip(first["log"], one["log"], strict=True):
        for name in COMPARED & ours.keys():
            assert ours[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-6), name
    exactly = {"rtol": 0, "atol": 1e-10}  # where weights moved by 1e-2
    assert_same_weights(one["weights"], first["weights"], **exactly if scenario == "exact" else SAME)
    if kind == "ddp":
        assert_same_weights(first["weights"], second["weights"])
    start = tiny_model(tied=scenario != "reference_model").to(next(iter(one["weights"].values())).dtype).state_dict()
    assert any(name not in start or not torch.equal(start[name], after) for name, after in first["weights"].items())


@pytest.mark.parametrize("kind", ranks.KINDS)
def test_passes_in_bfloat16_differ_by_its_rounding(runs, kind):
    one, (first, _) = runs.of_one("mixed_precision"), runs.of_two(kind, "mixed_precision")
    assert {weight.dtype for weight in first["weights"].values()} == {torch.float32}
    for ours, theirs in zip(first["log"], one["log"], strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=2e-2)


@pytest.mark.parametrize("kind", ranks.KINDS)
def test_a_group_lies_on_both_processes(runs, kind):
    parts = runs.of_two(kind, "groups")
    rows = [{row for _, update, row in part["rollouts"] if update == 0} for part in parts]
    assert rows == [set(range(6)), set(range(6, 12))]  # of groups of 4
    controls = both(parts, "controls")[0]
    assert controls.tolist() == [True, True, False, False] * 3


@pytest.mark.parametrize("kind", ranks.KINDS)
def test_a_process_may_have_no_intervened_row(runs, kind):
    first, second = runs.of_two(kind, "one_sided")
    for part, role in ((first, "control"), (second, "intervened")):
        assert {written[0] for (_, update, _), written in part["rollouts"].items() if update == 0} == {role}
    assert first["log"][0]["off_policy_share"] == second["log"][0]["off_policy_share"] > 0


@pytest.mark.parametrize("kind", ranks.KINDS)
def test_a_run_goes_on_from_a_checkpoint_as_if_nothing_had_happened(runs, kind):
    """Here between two epochs, in phase 1, with the optimizer's state of both processes."""
    for part in runs.of_two(kind, "resumed"):
        whole, again = part["whole"], part["again"]
        assert again["rollouts"] == {key: value for key, value in whole["rollouts"].items() if key[1] >= 2}
        assert [line["loss"] for line in again["log"]] == [line["loss"] for line in whole["log"]]
        assert_same_weights(whole["weights"], again["weights"])


@pytest.mark.parametrize("kind", ranks.KINDS)
def test_a_checkpoint_of_two_processes_becomes_a_plain_model(runs, kind, tmp_path):
    weights = runs.of_two(kind, "resumed")[0]["again"]["weights"]
    last = runs.folder / f"{kind}-resumed" / "checkpoint-4"
    assert (last / "pytorch_model_fsdp_0").is_dir() == (kind == "fsdp2")
    out = export_checkpoint(last, tmp_path / "model", dtype="float32")
    model = AutoModelForCausalLM.from_pretrained(out, dtype="float32")
    assert_same_weights(model.state_dict(), weights)


@pytest.mark.parametrize("kind", ranks.KINDS)
def test_older_checkpoints_of_two_processes_keep_their_weights_alone(runs, kind, tmp_path):
    """An adapter's, after a run that stopped within an update: thinned or not, they become plain adapters."""
    parts, folder = runs.of_two(kind, "thinned"), runs.folder / f"{kind}-thinned" / "stopped"
    whole, again = parts[0]["whole"]["weights"], parts[0]["again"]["weights"]
    assert_same_weights(whole, again)
    assert history(folder) == history(folder.with_name("whole"))
    assert all("checkpoint-1 keeps the weights alone" in part["refused"] for part in parts)
    assert [found.update for found in list_checkpoints(folder) if found.problem is None] == [4]
    names = {path.name for path in (folder / "checkpoint-1").iterdir()}
    assert not names & {"optimizer.pt", "optimizer_0", "pytorch_model_fsdp_0", "scheduler.pt", "rng_state_1.pth"}
    for number in (1, 4):
        out = export_checkpoint(folder / f"checkpoint-{number}", tmp_path / str(number), dtype="float32")
        saved = load_file(out / "adapter_model.safetensors")
        assert len(saved) == 8
        same = [torch.equal(value, again[name.replace(".weight", ".default.weight")]) for name, value in saved.items()]
        assert all(same) if number == 4 else not any(same)


@pytest.mark.parametrize("kind", ranks.KINDS)
def test_the_model_is_saved_whole(runs, kind):
    weights = runs.of_two(kind, "groups")[0]["weights"]
    saved = load_file(runs.folder / f"{kind}-groups" / "model.safetensors")
    assert_same_weights(saved, {name: weight for name, weight in weights.items() if name != "lm_head.weight"})  # tied


@pytest.mark.parametrize("kind", ranks.KINDS)
@pytest.mark.parametrize(
    ("scenario", "route", "path", "file"),
    [
        ("served", "/collective_rpc", lambda body: body["kwargs"]["weights_path"], "model.safetensors"),
        ("served_adapter", "/v1/load_lora_adapter", lambda body: body["lora_path"], "adapter_model.safetensors"),
    ],
    ids=["full weights", "adapter"],
)
def test_one_process_carries_the_weights_to_the_server(runs, kind, scenario, route, path, file):
    """They are whole: as many, and the same, as one process alone sends."""
    assert all(part["generator"] == "VLLMGenerator" for part in runs.of_two(kind, scenario))
    runs.of_one(scenario)
    folders = [Path(path(body)) for body in runs.server.bodies(route)]
    synced = {
        who: [folder for folder in folders if runs.folder / f"{who}-{scenario}" in folder.parents]
        for who in (kind, "one")
    }
    for who in synced:
        assert [folder.name.rpartition("-v-")[2] for folder in synced[who]] == ["update-0", "update-1"]
    for ours, theirs in zip(synced[kind], synced["one"], strict=True):
        assert_same_weights(load_file(theirs / file), load_file(ours / file), **SAME)


@pytest.mark.parametrize("kind", ranks.KINDS)
def test_one_process_sends_the_weights_by_name(runs, kind):
    runs.of_two(kind, "served_nccl")
    runs.of_one("served_nccl")
    for update in (0, 1):
        ours, theirs = (
            torch.load(runs.folder / f"{who}-served_nccl.sent" / f"sent-{update}.pt") for who in (kind, "one")
        )
        assert list(ours) == list(theirs)
        assert_same_weights(theirs, ours, **SAME)


ERRORS = {
    "judge": ("JudgeError: no such model",) * 2,
    "probe": ("JudgeError: no such server",) * 2,
    "no verdict": ("FailureLimitError: 100% of the last 2 reviews gave no verdict",) * 2,
    "generator": ("GenerationError: the engine is gone",) * 2,
    "reward": ("ValueError: no such answer", "PeerError: process 0 stopped with ValueError: no such answer"),
    "loss": ("NumericsError: the loss of update 1 is nan; no weight was changed",) * 2,
    "disk": ("OSError: [Errno 28] No space", "PeerError: process 0 stopped with OSError: [Errno 28] No space"),
}


@pytest.mark.parametrize("kind", ranks.KINDS)
def test_what_stops_one_process_stops_both(runs, kind):
    first, second = runs.of_two(kind, "faults")
    assert set(first) == set(second) == (set(ERRORS) if kind == "ddp" else {"judge", "reward", "loss"})
    for fault, raised in first.items():
        for text, expected in zip((raised, second[fault]), ERRORS[fault], strict=True):
            assert text.startswith(expected), fault
    left = runs.folder / f"{kind}-faults" / "loss" / "weights-before-1"
    assert f"The weights before it are in {left}; `mintrl replay {left.parent} --step 1`" in first["loss"]
    assert_same_weights(AutoModelForCausalLM.from_pretrained(left).state_dict(), tiny_model().state_dict())
