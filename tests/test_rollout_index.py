"""The index of a run's rollouts: it finds what the file holds, keeps up with it, and never believes itself."""

import json
import random
import sqlite3
from dataclasses import replace

import pytest

from mintrl_trl.errors import DataError
from mintrl_trl.reporting import rollout_index
from mintrl_trl.reporting.rollout_index import NAME, RolloutFilter, RolloutIndex
from mintrl_trl.reporting.run_folder import RunFolder
from mintrl_trl.rollouts.rollout import Decision, Role

from .samples import corrected_record

GROUP = 4  # two controls, two intervened


def record(update, row, reward, *, prompt="7+5?", decision=Decision.REVISE):
    """A rollout of a group of four; the second half may be intervened in."""
    sample = corrected_record()
    intervened = row % GROUP >= GROUP // 2
    reviews = tuple(
        replace(review, review=replace(review.review, decision=decision if index == 0 else review.review.decision))
        for index, review in enumerate(sample.reviews)
    )
    return replace(
        sample,
        update=update,
        row=row,
        group=row // GROUP,
        role=Role.INTERVENED if intervened else Role.CONTROL,
        reviews=reviews if intervened else (),
        reward=reward,
        prompt=prompt,
    )


def group(update, number, rewards, **changes):
    return [record(update, number * GROUP + position, reward, **changes) for position, reward in enumerate(rewards)]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "mintrl"


@pytest.fixture
def run(tmp_path, cache):
    folder = RunFolder(tmp_path / "run")
    folder.append_rollouts(group(1, 0, [0, 0, 1, 0]) + group(1, 1, [1, 1, 0, 1], prompt="Größe?"))
    folder.append_rollouts(
        group(2, 0, [1, 0, 1, 0]) + group(2, 1, [None, 0, None, 1], decision=Decision.NO_VERDICT, prompt='"ids": [3')
    )
    return folder


def found(index, **wanted):
    return [(entry.update, entry.row) for entry in index.find(RolloutFilter(**wanted))]


def test_every_filter_finds_what_it_says(run):
    with RolloutIndex(run.path) as index:
        assert len(index) == 16
        assert index.updates() == [1, 2]
        assert found(index, update=2) == [(2, row) for row in range(8)]
        assert found(index, rescued=True) == [(1, 2), (2, 7)]
        assert found(index, derailed=True) == [(1, 6)]
        assert found(index, revised=True) == [(1, 2), (1, 3), (1, 6), (1, 7), (2, 2), (2, 3)]
        assert found(index, no_verdict=True) == [(2, 6), (2, 7)]
        assert found(index, prompt="GRÖSSE", role=Role.CONTROL) == [(1, 4), (1, 5)]
        assert found(index, prompt='"ids": [', rescued=True) == [(2, 7)]
        assert found(index, update=3) == []
        assert index.count(RolloutFilter(role=Role.INTERVENED)) == 8
        assert [entry.row for entry in index.find(limit=3)] == [0, 1, 2]


def test_an_entry_has_the_numbers_of_its_rollout_and_leads_to_it(run):
    with RolloutIndex(run.path) as index:
        entries = list(index.find())
        assert [index.read(entry) for entry in entries] == list(run.rollouts())
        seventh = entries[6]
    assert (seventh.number, seventh.update, seventh.row, seventh.group) == (7, 1, 6, 1)
    assert (seventh.role, seventh.reward, seventh.advantage, seventh.seconds) == (Role.INTERVENED, 0.0, 0.75, 1.5)
    assert (seventh.tokens, seventh.judge_tokens) == (10, 3)
    assert (seventh.reviews, seventh.revisions, seventh.interventions, seventh.no_verdicts) == (2, 1, 1, 0)
    assert entries[12].reward is None


def test_what_was_appended_is_read_and_nothing_twice(run, monkeypatch):
    RolloutIndex(run.path).close()
    read = []
    monkeypatch.setattr(
        rollout_index,
        "indexed_line",
        lambda raw, where, own=rollout_index.indexed_line: read.append(where) or own(raw, where),
    )
    RolloutIndex(run.path).close()
    assert not read
    run.append_rollouts(group(3, 0, [0, 0, 0, 1]))
    with RolloutIndex(run.path) as index:
        assert len(index) == 20
        assert found(index, update=3, rescued=True) == [(3, 3)]
    assert [where.rpartition(" ")[2] for where in read] == ["17", "18", "19", "20"]


def test_a_group_whose_lines_come_in_parts_is_decided_when_it_is_whole(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(rollout_index, "_BATCH", 3)  # a group is read in two batches
    folder = RunFolder(tmp_path / "run")
    lines = group(1, 0, [1, 0, 1, 1]) + group(1, 1, [0, 0, 1, 0])
    lines = [lines[2], lines[0], lines[3], lines[1], *lines[4:]]
    folder.append_rollouts(lines[:2])
    with RolloutIndex(folder.path) as index:
        assert found(index, rescued=True) == []
    folder.append_rollouts(lines[2:])
    with RolloutIndex(folder.path) as index:
        assert found(index, rescued=True) == [(1, 6)]
        assert found(index, derailed=True) == []


def test_progress_is_told_in_bytes_up_to_the_end(run, monkeypatch):
    monkeypatch.setattr(rollout_index, "_BATCH", 5)
    told = []
    RolloutIndex(run.path, lambda done, total: told.append((done, total))).close()
    size = (run.path / "rollouts.jsonl").stat().st_size
    assert len(told) == 4
    assert told == sorted(told)
    assert told[-1] == (size, size)


def test_another_history_is_read_anew(run):
    RolloutIndex(run.path).close()
    run.rewind(1)
    run.append_rollouts(group(2, 0, [0, 0, 1, 1]) + group(2, 1, [0, 0, 1, 1]) + group(3, 0, [1, 1, 1, 1]))
    with RolloutIndex(run.path) as index:
        assert found(index, update=2, rescued=True) == [(2, 2), (2, 3), (2, 6), (2, 7)]
        assert [index.read(entry) for entry in index.find()] == list(run.rollouts())


def test_torn_lines_are_skipped_and_a_line_that_is_being_written_waits(run, caplog):
    path = run.path / "rollouts.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"update": 3, "ro\n' + whole[:300])
    with RolloutIndex(run.path) as index:
        assert len(index) == 16
    assert "1 lines up to line 17 are not whole" in caplog.text
    path.write_bytes(path.read_bytes() + whole[300:])
    with RolloutIndex(run.path) as index:
        assert len(index) == 32
        assert index.read(list(index.find())[16]) == next(run.rollouts())


@pytest.mark.parametrize("obstacle", ["folder", "text", "other form"])
def test_without_a_place_beside_the_file_it_lies_in_the_cache(run, cache, obstacle):
    beside = run.path / NAME
    if obstacle == "folder":
        beside.mkdir()
    elif obstacle == "text":
        beside.write_text("no table at all, but long enough to be taken for one" * 50)
    else:
        with sqlite3.connect(beside) as table:
            table.execute("CREATE TABLE covered (x)")
        table.close()
    with RolloutIndex(run.path) as index:
        assert len(index) == 16
    assert bool(list(cache.glob("*.index"))) == (obstacle != "other form")  # which is made anew in its place


def test_without_any_place_it_lies_in_memory(run, cache):
    (run.path / NAME).mkdir()
    cache.parent.write_text("")  # no folder
    with RolloutIndex(run.path) as index:
        assert found(index, rescued=True) == [(1, 2), (2, 7)]


def test_without_a_home_the_table_beside_the_file_serves(run, monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(rollout_index.Path, "home", homeless)
    with RolloutIndex(run.path) as index:
        assert len(index) == 16
    (run.path / NAME).unlink()
    (run.path / NAME).mkdir()
    with RolloutIndex(run.path) as index:
        assert len(index) == 16


def test_half_a_character_in_a_prompt_is_no_obstacle(run):
    run.append_rollouts(group(3, 0, [0, 0, 0, 1], prompt="half \ud83d of one"))
    with RolloutIndex(run.path) as index:
        assert found(index, prompt="half \ud83d") == [(3, row) for row in range(GROUP)]
        assert index.read(list(index.find())[-1]).prompt == "half \ud83d of one"


def test_a_finished_index_serves_where_nothing_may_be_written(run):
    RolloutIndex(run.path).close()
    holder = sqlite3.connect(run.path / NAME, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")  # no one else can write now
    with RolloutIndex(run.path) as index:
        assert len(index) == 16
    holder.close()


@pytest.mark.parametrize(
    "line",
    [
        {"update": 1},
        {"update": 1, "role": "boss"},
        [1],
        {**corrected_record().to_json(), "spans": []},
        {**corrected_record().to_json(), "row": float("inf")},
    ],
    ids=["missing", "role", "list", "no-tokens", "infinite"],
)
def test_a_line_that_is_no_rollout_is_an_error_that_says_where(run, line):
    with open(run.path / "rollouts.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")
    with pytest.raises(DataError, match=r"rollouts\.jsonl, line 17"):
        RolloutIndex(run.path)


def test_a_folder_without_rollouts_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"rollouts\.jsonl"):
        RolloutIndex(tmp_path)


def test_outcomes_agree_with_a_plain_reading_of_random_groups(tmp_path, cache):
    rng = random.Random(0)
    folder = RunFolder(tmp_path / "run")
    wanted = {"rescued": [], "derailed": []}
    for update in range(1, 40):
        rewards = [rng.choice([None, -1.0, 0.0, 0.5, 1.0]) for _ in range(GROUP)]
        folder.append_rollouts(group(update, 0, rewards))
        controls = [reward > 0 for reward in rewards[:2] if reward is not None]
        for row in (2, 3):
            if rewards[row] is None or not controls:
                continue
            if rewards[row] > 0 and not any(controls):
                wanted["rescued"].append((update, row))
            if rewards[row] <= 0 and all(controls):
                wanted["derailed"].append((update, row))
    with RolloutIndex(folder.path) as index:
        assert wanted == {name: found(index, **{name: True}) for name in wanted}
