"""Going on from a checkpoint: what else belongs to a run, and that a folder is one run's at a time."""

import subprocess
import sys

import pytest
from peft import LoraConfig

from mintrl_trl import ConfigError
from mintrl_trl.checkpoints import STATE
from mintrl_trl.errors import CheckpointError
from mintrl_trl.reporting.folder_lock import NAME, FolderLock
from tests.histories import history
from tests.test_resume import SAVING, interrupted
from tests.tiny import tiny_model
from tests.trainers import ROWS, assert_same_weights, make_trainer, weights

pytestmark = pytest.mark.slow


def test_lines_that_average_over_updates_are_the_same_too(tmp_path):
    """A line ends with each checkpoint, so that none averages over updates from before and after one."""
    options = SAVING | {"logging_steps": 3, "save_steps": 2, "max_steps": 6}
    whole = make_trainer(tmp_path / "whole", **options)
    whole.train()
    interrupted(tmp_path / "stopped", 3, **options)
    trainer = make_trainer(tmp_path / "stopped", **options)
    trainer.train(resume_from_checkpoint=True)
    assert history(tmp_path / "stopped") == history(tmp_path / "whole")
    lines = history(tmp_path / "whole")["metrics.jsonl"]
    assert [line["update"] for line in lines] == [2, 3, 4, 6, 6]  # the last is the summary


@pytest.mark.parametrize("kind", ["base of an adapter", "reference", "neither"])
def test_other_weights_to_begin_with_are_refused_where_they_matter(tmp_path, kind):
    for seed in (0, 5):
        tiny_model(seed=seed).save_pretrained(tmp_path / f"model-{seed}")

    def options(seed):
        lora = LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"])
        kwargs = {"peft_config": lora} if kind == "base of an adapter" else {}
        beta = 0.1 if kind == "reference" else 0.0
        return SAVING | {"model": str(tmp_path / f"model-{seed}"), "beta": beta, "trainer_kwargs": kwargs}

    interrupted(tmp_path / "run", 3, **options(0))
    other = make_trainer(tmp_path / "run", **options(5))
    if kind == "neither":
        other.train(resume_from_checkpoint=True)
        return
    name = "initial" if kind == "reference" else "frozen"
    with pytest.raises(CheckpointError, match=f"policy.{name}_weights: was "):
        other.train(resume_from_checkpoint=True)
    make_trainer(tmp_path / "run", **options(0)).train(resume_from_checkpoint=True)


def test_a_run_goes_on_from_what_was_abandoned_in_a_folder_that_is_set_aside(tmp_path):
    options = SAVING | {"resumable_checkpoints": 9}
    whole = make_trainer(tmp_path, **options)
    whole.train()
    make_trainer(tmp_path, **options).train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    trainer = make_trainer(tmp_path, set_aside_older_run=True, **options)
    trainer.train(resume_from_checkpoint=str(tmp_path / "abandoned-1" / "checkpoint-3"))
    assert trainer.resumed_from == str(tmp_path / "previous-1" / "abandoned-1" / "checkpoint-3")
    assert_same_weights(weights(whole), weights(trainer))


@pytest.mark.parametrize("stop", [3, 4])
def test_a_longer_run_may_have_further_rows_at_the_end(tmp_path, stop):
    """The next rows of problems that are drawn one after the other; in any other order it would be another run."""
    rows = [{"prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(12)]
    longer = SAVING | {"max_steps": 6, "rows": rows, "shuffle_dataset": False}
    whole = make_trainer(tmp_path / "whole", **longer)
    whole.train()
    shorter = longer | {"max_steps": 4, "rows": rows[:8]}
    if stop == 4:
        make_trainer(tmp_path / "run", **shorter).train()
    else:
        interrupted(tmp_path / "run", stop, **shorter)
    with pytest.raises(CheckpointError, match=r"data\.content: was "):
        make_trainer(tmp_path / "run", **longer | {"rows": rows[::-1]}).train(resume_from_checkpoint=True)
    trainer = make_trainer(tmp_path / "run", **longer)
    trainer.train(resume_from_checkpoint=True)
    assert_same_weights(weights(whole), weights(trainer))


def test_further_rows_are_other_data_where_rows_are_shuffled(tmp_path):
    interrupted(tmp_path, 3, rows=ROWS[:6], **SAVING)
    with pytest.raises(CheckpointError, match=r"data\.rows: was 6, is 8"):
        make_trainer(tmp_path, rows=ROWS, **SAVING).train(resume_from_checkpoint=True)


def test_a_state_that_cannot_be_read_is_an_error_of_ours(tmp_path):
    interrupted(tmp_path, 3, **SAVING)
    state = tmp_path / "checkpoint-2" / STATE
    state.write_bytes(bytes(state.stat().st_size))
    with pytest.raises(CheckpointError, match=f"checkpoint-2 holds no {STATE} that can be read"):
        make_trainer(tmp_path, **SAVING).train(resume_from_checkpoint=True)


HOLD = """
import sys, pathlib
from mintrl_trl.reporting.folder_lock import FolderLock
assert FolderLock(pathlib.Path(sys.argv[1])).take() is None
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("flags", [{}, {"set_aside_older_run": True}, {"resume_from_checkpoint": "last"}], ids=str)
def test_two_runs_do_not_write_to_one_folder_at_once(tmp_path, flags):
    if flags:
        interrupted(tmp_path, 3, **SAVING)
    before = sorted(path.name for path in tmp_path.iterdir())
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdin=-1, stdout=-1, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=f"no other run is writing to now, as process {holder.pid} on "):
            make_trainer(tmp_path, **SAVING, **flags).train()
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*before, NAME])
    finally:
        holder.kill()
        holder.communicate()
    make_trainer(tmp_path, **SAVING, **flags).train()  # a killed run does not bar its folder
    assert not (tmp_path / NAME).exists()


def test_the_lock_is_given_back_and_taken_again(tmp_path):
    lock = FolderLock(tmp_path / "new")
    for _ in range(2):
        assert lock.take() is None
        assert lock.take() is None
        lock.release()
        lock.release()
    assert not list((tmp_path / "new").iterdir())
