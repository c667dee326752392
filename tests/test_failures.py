"""Runs that cannot go on: what they leave, what they say, and that nothing learned is lost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mintrl_trl import GenerationError, NoVerdict
from mintrl_trl.checkpoints import list_checkpoints
from mintrl_trl.errors import LOST, FailureLimitError, JudgeLostError, ServerLostError
from mintrl_trl.reporting.run_folder import RunFolder

from .histories import history
from .trainers import (
    AlwaysKeep,
    HashGenerator,
    assert_same_weights,
    make_trainer,
    parity_reward,
    weights,
)

SAVING = {"save_strategy": "steps", "save_steps": 50, "max_steps": 4, "intervention_updates": 2}
ROOT = Path(__file__).parents[1]


class FailsAt(HashGenerator):
    """Raises `error` instead of its n-th stream."""

    def __init__(self, stream: int, error: Exception):
        super().__init__()
        self.stream_number, self.error = stream, error

    async def stream(self, prefix_ids, max_tokens, seed):
        if len(self.requests) == self.stream_number:
            raise self.error
        async for token in super().stream(prefix_ids, max_tokens, seed):
            yield token

    def counters(self):
        return {"server/fault/gone": float(len(self.requests) == self.stream_number)}


class Silent(AlwaysKeep):
    """Gives no verdict from a review on."""

    def __init__(self, after: int, reason: str = "connection"):
        self.after, self.reason, self.reviews = after, reason, 0

    async def review(self, *args, **kwargs):
        self.reviews += 1
        if self.reviews > self.after:
            raise NoVerdict(self.reason)
        return await super().review(*args, **kwargs)


def streams_of(updates: int, folder, **options) -> int:
    """How many streams the first updates open."""
    trainer = make_trainer(folder, **options | {"max_steps": updates, "save_strategy": "no"})
    trainer.train()
    return len(trainer.policy.generator.requests)


def test_a_lost_server_costs_no_update(tmp_path):
    """The checkpoint that a failing run leaves is one that goes on bitwise like a run that never failed."""
    whole = make_trainer(tmp_path / "whole", **SAVING)
    whole.train()
    lost = ServerLostError("http://policy was not ready within 240 s")
    folder = tmp_path / "lost"
    generator = FailsAt(streams_of(3, tmp_path / "counted", **SAVING) + 2, lost)
    trainer = make_trainer(folder, generator=generator, **SAVING)
    with pytest.raises(ServerLostError) as caught:
        trainer.train()
    assert generator.open == 0
    path = folder / "checkpoint-3"
    assert caught.value.__notes__[-1] == f"All 3 updates are saved; go on with --resume_from_checkpoint {path}"
    assert [(found.update, found.problem) for found in list_checkpoints(folder)] == [(3, None)]
    assert list(RunFolder(folder).metrics())[-1]["server/fault/gone"] == 1
    resumed = make_trainer(folder, **SAVING)
    resumed.train(resume_from_checkpoint=True)
    assert_same_weights(weights(whole), weights(resumed))
    assert history(folder)["rollouts.jsonl"] == history(tmp_path / "whole")["rollouts.jsonl"]


def test_a_checkpoint_that_is_there_is_not_written_again(tmp_path):
    options = SAVING | {"save_steps": 2}
    generator = FailsAt(streams_of(2, tmp_path / "counted", **SAVING), GenerationError("NaN"))
    trainer = make_trainer(tmp_path, generator=generator, **options)
    written = []
    save = trainer._save_checkpoint
    trainer._save_checkpoint = lambda *args, **kwargs: (
        written.append(trainer.state.global_step),
        save(*args, **kwargs),
    )
    with pytest.raises(GenerationError) as caught:
        trainer.train()
    assert written == [2]
    assert "checkpoint-2" in caught.value.__notes__[-1]


@pytest.mark.parametrize(
    ("options", "stream"), [({}, 0), ({"save_strategy": "no"}, 20)], ids=["nothing learned", "no checkpoints wanted"]
)
def test_where_there_is_nothing_to_save_nothing_is_saved(tmp_path, options, stream):
    trainer = make_trainer(tmp_path, generator=FailsAt(stream, GenerationError("gone")), **SAVING | options)
    with pytest.raises(GenerationError) as caught:
        trainer.train()
    assert list_checkpoints(tmp_path) == []
    assert "resume_from_checkpoint" not in str(caught.value.__notes__)


def test_a_reward_that_breaks_costs_no_update_either(tmp_path):
    calls = []

    def reward(completions, completion_ids, **kwargs):
        calls.append(0)
        if len(calls) == 2:
            raise KeyError("tests")
        return parity_reward(completions, completion_ids)

    with pytest.raises(KeyError) as caught:
        make_trainer(tmp_path, reward=reward, **SAVING).train()
    assert "checkpoint-1" in caught.value.__notes__[-1]


def test_an_error_between_two_passes_saves_nothing(tmp_path):
    """Not all processes may know of it."""
    trainer = make_trainer(tmp_path, **SAVING)
    compute_loss = trainer.compute_loss

    def broken(*args, **kwargs):
        if trainer.state.global_step == 1:
            raise KeyError("loss")
        return compute_loss(*args, **kwargs)

    trainer.compute_loss = broken
    with pytest.raises(KeyError):
        trainer.train()
    assert list_checkpoints(tmp_path) == []


def test_what_goes_wrong_while_saving_does_not_hide_the_error(tmp_path):
    generator = FailsAt(20, ServerLostError("gone"))
    trainer = make_trainer(tmp_path, generator=generator, **SAVING)

    def full(*args, **kwargs):
        raise OSError("No space left on device")

    trainer._save_checkpoint = full
    with pytest.raises(ServerLostError, match="gone") as caught:
        trainer.train()
    assert caught.value.__notes__[-1] == "Saving a checkpoint failed, too: OSError: No space left on device"


@pytest.mark.parametrize(("reason", "error"), [("connection", JudgeLostError), ("unparsable", FailureLimitError)])
def test_a_judge_that_is_down_stops_the_run_at_the_limit(tmp_path, reason, error):
    trainer = make_trainer(tmp_path, judge=Silent(after=9, reason=reason), no_verdict_window=10, **SAVING)
    with pytest.raises(error, match="gave no verdict") as caught:
        trainer.train()
    assert type(caught.value) is error
    assert f"checkpoint-{trainer.state.global_step}" in caught.value.__notes__[-1]


def test_a_judge_that_was_lost_with_the_server_is_not_held_against_the_run_that_goes_on(tmp_path):
    """Its failures are counted in the line of the unfinished update; the window is that of the last finished one."""
    generator = FailsAt(streams_of(1, tmp_path / "counted", judge=AlwaysKeep(), **SAVING) + 6, ServerLostError("gone"))
    judge = Silent(after=0)
    trainer = make_trainer(tmp_path / "lost", generator=generator, judge=judge, no_verdict_limit=1.0, **SAVING)
    with pytest.raises(ServerLostError):
        trainer.train()
    (windows,) = json.loads((tmp_path / "lost" / "checkpoint-1" / "mintrl_state.json").read_text())["review_windows"]
    finished, unfinished = RunFolder(tmp_path / "lost").metrics()
    assert windows == ["connection"] * int(finished["judge/no_verdict/connection"])
    assert "unfinished" not in finished
    assert (unfinished["unfinished"], unfinished["update"]) == (1, 1)
    assert unfinished["judge/no_verdict/connection"] == judge.reviews - len(windows) > 0


def test_a_run_may_go_on_while_the_judge_is_down(tmp_path):
    judge = Silent(after=9)
    trainer = make_trainer(
        tmp_path, judge=judge, no_verdict_window=10, judge_failure="continue_on_policy", **SAVING | {"max_steps": 3}
    )
    trainer.train()
    assert trainer.state.global_step == 3
    lines = [line for line in RunFolder(tmp_path).metrics() if "loss" in line]
    assert sum(line["judge/paused"] for line in lines) == 1
    assert sum(line["judge/passed_over"] for line in lines) > 0
    assert sum(line.get("judge/no_verdict/connection", 0) for line in lines) == judge.reviews - 9


PROGRAM = """
import sys, train_math
from mintrl_trl import errors
def main(*args):
    error = errors.{error}("gone")
    error.add_note("go on with --resume_from_checkpoint here")
    raise error
train_math.main = main
train_math.run()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("error", "code"), [("ServerLostError", LOST), ("JudgeLostError", LOST), ("JudgeError", 1)])
def test_a_recipe_ends_with_an_exit_code_that_says_whether_to_start_it_again(error, code):
    program = PROGRAM.format(error=error)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT / "recipes", capture_output=True, text=True)
    assert done.returncode == code
    assert done.stderr.splitlines()[-2:] == [f"{error}: gone", "go on with --resume_from_checkpoint here"]


@pytest.mark.slow
@pytest.mark.timeout(130)
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_what_one_process_cannot_do_costs_no_update_of_two(tmp_path, kind):
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "tests.lost_rank"]
    done = subprocess.run(
        [sys.executable, *launch, str(tmp_path), kind],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    path = tmp_path / "lost" / "checkpoint-1"
    note = f"The one update is saved; go on with --resume_from_checkpoint {path}"
    assert first["raised"] == second["raised"] == ["the server is gone", note]
    assert_same_weights(first["whole"], first["again"])
