"""Checkpoint folders: what counts as whole, what is found, and that thinning and deleting never leave a half one."""

import json
from types import SimpleNamespace

import pytest
import torch
import torch.distributed.checkpoint
from safetensors.torch import load_file, save_file

from mintrl_trl import checkpoints
from mintrl_trl.checkpoints import (
    find_checkpoint,
    last_good,
    list_checkpoints,
    make_room,
    read_checkpoint,
    share_weights,
    write_mark,
)
from mintrl_trl.errors import CheckpointError, ConfigError
from mintrl_trl.export import cast_in_place
from mintrl_trl.resume import check_output_folder

WEIGHT = torch.tensor([[1.0, 1 / 3], [-2.0, 1e-3]])
WHOLE = ["config.json", "model.safetensors", "optimizer.pt", "rng_state.pth", "scheduler.pt", "trainer_state.json"]
THIN = ["config.json", "model.safetensors", "trainer_state.json"]


def make_checkpoint(folder, update, *, mark=True, resumable=True):
    path = folder / f"checkpoint-{update}"
    path.mkdir(parents=True)
    save_file({"w": WEIGHT, "steps": torch.tensor([update])}, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text('{"dtype": "float32"}')
    for name in WHOLE[2:]:
        (path / name).write_text(name)
    if mark:
        write_mark(path, update, resumable=resumable)
    return path


def names(path):
    return sorted(file.name for file in path.iterdir() if file.name != checkpoints.MARK)


def room(folder, **settings):
    make_room(folder, **{"resumable": 2, "limit": None, "protected": (), "cast": cast_in_place} | settings)


def test_all_but_the_last_keep_bfloat16_weights_alone(tmp_path):
    for update in (5, 10, 50, 100):
        make_checkpoint(tmp_path, update)
    (tmp_path / "checkpoint-notes").mkdir()
    room(tmp_path)
    assert [checkpoint.update for checkpoint in list_checkpoints(tmp_path)] == [5, 10, 50, 100]
    assert [checkpoint.problem is None for checkpoint in list_checkpoints(tmp_path)] == [False, False, True, True]
    for update in (5, 10):
        path = tmp_path / f"checkpoint-{update}"
        assert names(path) == THIN
        tensors = load_file(path / "model.safetensors")
        assert tensors["w"].dtype == torch.bfloat16
        assert torch.equal(tensors["w"], WEIGHT.bfloat16())
        assert tensors["steps"].dtype == torch.int64
        assert json.loads((path / "config.json").read_text()) == {"dtype": "bfloat16"}
        assert read_checkpoint(path).mark["thinned"]
    for update in (50, 100):
        assert names(tmp_path / f"checkpoint-{update}") == WHOLE
        assert torch.equal(load_file(tmp_path / f"checkpoint-{update}" / "model.safetensors")["w"], WEIGHT)


def test_the_limit_deletes_old_ones_but_not_protected_ones(tmp_path):
    paths = [make_checkpoint(tmp_path, update) for update in (1, 2, 3, 4)]
    (tmp_path / ".deleting-checkpoint-0").mkdir()
    room(tmp_path, limit=2, protected=[paths[0]])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-1", "checkpoint-3", "checkpoint-4"]
    assert names(paths[0]) == WHOLE


def test_half_ones_are_neither_counted_nor_touched(tmp_path):
    for update in (1, 2):
        make_checkpoint(tmp_path, update)
    half = make_checkpoint(tmp_path, 3, mark=False)
    room(tmp_path, limit=2)
    assert [read_checkpoint(tmp_path / f"checkpoint-{u}").problem is None for u in (1, 2)] == [True, True]
    assert names(half) == WHOLE
    assert last_good(tmp_path).update == 2


def test_weights_that_cannot_be_made_plain_stay_as_they_are(tmp_path):
    for update in (1, 2):
        path = make_checkpoint(tmp_path, update, mark=False)
        (path / "model.safetensors").unlink()
        (path / "global_step1").mkdir()
        write_mark(path, update, resumable=True)
    room(tmp_path, resumable=1)
    assert last_good(tmp_path).update == 2
    assert read_checkpoint(tmp_path / "checkpoint-1").problem is None


def make_sharded(folder, update):
    """A checkpoint whose weights are FSDP's shards."""
    path = make_checkpoint(folder, update, mark=False)
    (path / "model.safetensors").unlink()
    torch.distributed.checkpoint.save({"model": {"w": WEIGHT}}, checkpoint_id=path / checkpoints.SHARDS, no_dist=True)
    write_mark(path, update, resumable=True)
    return path


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # shards of one process are what is wanted
@pytest.mark.parametrize("left", [".gather-x/model.safetensors", "plain/model.safetensors"])
def test_files_that_are_not_the_checkpoints_are_not_taken_for_its_weights(tmp_path, left):
    """What a kill left of gathering may be half; what a user put there is not the checkpoint's. The shards are."""
    path = make_sharded(tmp_path, 1)
    make_checkpoint(tmp_path, 2)
    (path / left).parent.mkdir()
    (path / left).write_bytes(b"half")
    room(tmp_path, resumable=1)
    assert torch.equal(load_file(path / "model.safetensors")["w"], WEIGHT.bfloat16())
    assert not (path / checkpoints.SHARDS).exists() and not list(path.glob(".gather-*"))
    assert read_checkpoint(path).mark["thinned"]


class Killed(BaseException):
    pass


def kill_at(monkeypatch, count):
    """Let the process end at the `count`-th change of the disk from now on; returns how many there were."""
    changes = []

    def counted(function):
        def call(*args, **kwargs):
            changes.append(function)
            if len(changes) == count:
                raise Killed
            return function(*args, **kwargs)

        return call

    for owner, name in (
        (checkpoints.os, "fsync"),
        (checkpoints.Path, "replace"),
        (checkpoints.Path, "rename"),
        (checkpoints.Path, "unlink"),
        (checkpoints.shutil, "rmtree"),
    ):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
    return changes


def test_a_kill_at_any_moment_of_thinning_leaves_whole_or_thinned_and_is_made_good_later(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        make_checkpoint(tmp_path / "count", 1)
        make_checkpoint(tmp_path / "count", 2)
        changes = kill_at(patch, -1)
        room(tmp_path / "count", resumable=1)
    assert len(changes) > 15
    for count in range(1, len(changes) + 1):
        folder = tmp_path / str(count)
        path = make_checkpoint(folder, 1)
        make_checkpoint(folder, 2)
        with monkeypatch.context() as patch:
            kill_at(patch, count)
            with pytest.raises(Killed):
                room(folder, resumable=1)
        found = read_checkpoint(path)
        if found.problem is None:
            assert set(names(path)) >= set(WHOLE)
            assert torch.equal(load_file(path / "model.safetensors")["w"], WEIGHT)
        weight = load_file(path / "model.safetensors")["w"]
        assert torch.equal(weight.bfloat16(), WEIGHT.bfloat16())
        assert last_good(folder).update == 2
        room(folder, resumable=1)
        assert names(path) == THIN
        assert read_checkpoint(path).mark["thinned"]


def test_the_last_good_one_is_found(tmp_path):
    assert find_checkpoint(None, tmp_path) is None
    assert find_checkpoint("false", tmp_path) is None
    for update in (9, 10):
        make_checkpoint(tmp_path, update)
    make_checkpoint(tmp_path, 11, mark=False)
    for resume in (True, "true", "True", "last"):
        assert find_checkpoint(resume, tmp_path).path == tmp_path / "checkpoint-10"
    assert find_checkpoint(str(tmp_path / "checkpoint-9"), tmp_path).update == 9


def test_no_checkpoint_is_no_fresh_start(tmp_path):
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(CheckpointError, match=r"no checkpoint that a run can go on from\. Start anew"):
            find_checkpoint(True, folder)
    make_checkpoint(tmp_path, 3, mark=False)
    with pytest.raises(CheckpointError, match=r"checkpoint-3 has no completion mark .*stopped while it saved"):
        find_checkpoint("last", tmp_path)


def shorten(path):
    (path / "optimizer.pt").write_text("opt")


def lose(path):
    (path / "rng_state.pth").unlink()


def unmark(path):
    (path / "complete.json").unlink()


def tear_mark(path):
    (path / "complete.json").write_text('{"update": 8, "fil')


def thin(path):
    checkpoints.thin(read_checkpoint(path), cast_in_place)


def remove(path):
    checkpoints.delete(path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove, "does not exist"),
        (unmark, "has no completion mark"),
        (tear_mark, "has no completion mark"),
        (lose, "lacks rng_state.pth, which its completion mark lists"),
        (shorten, "holds optimizer.pt with 3 bytes; its completion mark says 12"),
        (thin, "keeps the weights alone"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_cannot_be_gone_on_from_is_an_error_that_names_the_last_good_one(tmp_path, damage, message):
    path = make_checkpoint(tmp_path, 8)
    damage(path)
    with pytest.raises(CheckpointError, match=message) as error:
        find_checkpoint(str(path), tmp_path)
    assert str(error.value).endswith("holds none that a run can go on from: start anew without resume_from_checkpoint.")
    make_checkpoint(tmp_path, 4)
    with pytest.raises(CheckpointError, match=message) as error:
        find_checkpoint(str(path), tmp_path)
    assert str(error.value).endswith(f"The last one that a run can go on from is {tmp_path / 'checkpoint-4'}.")
    assert find_checkpoint(True, tmp_path).update == 4


def test_a_checkpoint_of_the_weights_alone_is_marked_so(tmp_path):
    path = make_checkpoint(tmp_path, 2, resumable=False)
    assert "keeps the weights alone" in read_checkpoint(path).problem


def test_nobody_is_told_to_go_on_with_a_run_that_has_all_its_updates(tmp_path):
    checkpoint = tmp_path / "checkpoint-2"
    checkpoint.mkdir()
    (checkpoint / "model.safetensors").write_bytes(b"weights")
    write_mark(checkpoint, 2, resumable=True)
    new = {"output_dir": tmp_path, "resume_from_checkpoint": None, "set_aside_older_run": False}
    for max_steps, told in ((2, "has all 2 updates"), (3, "resume_from_checkpoint="), (-1, "resume_from_checkpoint=")):
        with pytest.raises(ConfigError) as error:
            check_output_folder(SimpleNamespace(max_steps=max_steps, **new))
        assert told in error.value.fix
        assert "set_aside_older_run=true" in error.value.fix


def test_who_may_read_the_configuration_may_read_the_weights(tmp_path):
    path = make_checkpoint(tmp_path, 2)
    (path / "config.json").chmod(0o640)
    (path / "model.safetensors").chmod(0o600)
    share_weights(path)
    assert (path / "model.safetensors").stat().st_mode & 0o777 == 0o640
    (path / "config.json").chmod(0o604)
    cast_in_place(path)
    modes = {name: (path / name).stat().st_mode & 0o777 for name in ("config.json", "model.safetensors")}
    assert len(set(modes.values())) == 1
    (path / "config.json").unlink()
    (path / "model.safetensors").chmod(0o600)
    share_weights(path)
    assert (path / "model.safetensors").stat().st_mode & 0o777 == 0o600
