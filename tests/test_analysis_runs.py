"""Reading runs: which method a folder holds, which runs make a group, and what they are called."""

import json
import math

import pytest

from mintrl_trl.analysis.runs import read_groups, read_run
from mintrl_trl.errors import DataError
from tests.analyzed_runs import GRPO_SETTINGS, SETTINGS, write_run


@pytest.mark.parametrize(
    ("settings", "recipe", "method"),
    [
        (SETTINGS, {}, "MInTRL-Const"),
        (SETTINGS | {"anchor": "proxy"}, {"method": "mintrl"}, "MInTRL-Proxy"),
        (SETTINGS | {"anchor": "judge"}, {}, "MInTRL-Judge"),
        (GRPO_SETTINGS, {}, "GRPO"),
        (GRPO_SETTINGS, {"method": "sft_grpo"}, "SFT+GRPO"),
        (GRPO_SETTINGS, {"method": "opd"}, "OPD"),
        (SETTINGS, {"method": "mentor"}, "MENTOR"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_method_follows_from_the_settings(tmp_path, settings, recipe, method):
    assert read_run(write_run(tmp_path, settings, recipe=recipe)).method == method


def test_runs_that_differ_by_their_seed_alone_are_one_group(tmp_path):
    for seed in (0, 1):
        write_run(
            tmp_path / f"const{seed}", SETTINGS | {"seed": seed, "output_dir": f"runs/{seed}", "eval_steps": seed}
        )
    write_run(tmp_path / "grpo", GRPO_SETTINGS)
    groups = read_groups([str(tmp_path / name) for name in ("const0", "grpo", "const1")])
    assert [group.name for group in groups] == ["GRPO", "MInTRL-Const"], "in the order of the paper's table"
    assert [run.folder.name for run in groups[1].runs] == ["const0", "const1"]


def test_groups_of_one_method_are_told_apart_by_what_differs(tmp_path):
    write_run(tmp_path / "a", SETTINGS | {"max_reviews": 1})
    write_run(tmp_path / "b", SETTINGS)
    write_run(tmp_path / "old", {name: value for name, value in SETTINGS.items() if name != "learning_rate"})
    groups = read_groups([str(tmp_path / name) for name in ("a", "b", "old")])
    assert {group.name: len(group.runs) for group in groups} == {
        "MInTRL-Const, max_reviews 1": 1,
        "MInTRL-Const, max_reviews 4": 2,
    }, "a setting that an older run lacks does not split a group"


def test_a_whole_number_is_the_same_however_it_is_written(tmp_path):
    folders = [write_run(tmp_path / str(beta), SETTINGS | {"beta": beta}) for beta in (0, 0.0)]
    (group,) = read_groups(map(str, folders))
    assert len(group.runs) == 2


def test_a_given_name_is_no_method_that_is_there_too(tmp_path):
    one, other = write_run(tmp_path / "one", SETTINGS), write_run(tmp_path / "other", GRPO_SETTINGS)
    with pytest.raises(DataError, match="a name of its own for each group"):
        read_groups([f"GRPO={one}", str(other)])


def test_a_name_on_the_command_line_makes_the_group(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b=c", GRPO_SETTINGS)
    write_run(tmp_path / "d", SETTINGS | {"max_reviews": 2})
    groups = read_groups([f"ours={tmp_path / 'a'}", str(tmp_path / "b=c"), f"ours={tmp_path / 'd'}"])
    assert [(group.name, group.method, len(group.runs)) for group in groups] == [
        ("GRPO", "GRPO", 1),
        ("ours", "MInTRL-Const", 2),
    ]


def test_the_settings_are_those_that_a_resumed_run_wrote_last(tmp_path):
    write_run(tmp_path)
    (tmp_path / "settings-2.json").write_text(json.dumps(SETTINGS | {"anchor": "proxy"}))
    assert read_run(tmp_path).method == "MInTRL-Proxy"


def test_a_series_is_of_the_first_name_that_was_logged(tmp_path):
    run = read_run(write_run(tmp_path, lines={2: {"b": 2.0}, 1: {"b": math.nan, "c": 5.0}, 3: {"b": True, "c": 1.0}}))
    assert run.series("a", "b", "c") == [(2, 2.0), (3, 1.0)]
    assert run.series("c") == [(1, 5.0), (3, 1.0)]
    assert run.series("a") == []
    assert run.num_updates == 3


@pytest.mark.parametrize(("intervened", "switch"), [(4, 2), (2, None)], ids=["two-phases", "one-phase"])
def test_the_switch_is_where_interventions_end(tmp_path, intervened, switch):
    lines = {update: {"rewards/intervened": 1.0} for update in range(1, intervened + 1)}
    assert read_run(write_run(tmp_path, lines=lines)).switch == switch


def test_evaluations_are_read_back_in_order(tmp_path):
    run = read_run(write_run(tmp_path, solved={4: (4, 2), 0: (3, 0)}))
    assert list(run.evaluations) == [0, 4]
    assert run.evaluations[4].pass_at(1, "hard") == 0.5


@pytest.mark.parametrize("broken", ["missing", "empty", "torn"])
def test_a_folder_without_a_run_is_named(tmp_path, broken):
    if broken != "missing":
        write_run(tmp_path)
        name = "metrics.jsonl" if broken == "empty" else "settings.json"
        (tmp_path / name).write_text("" if broken == "empty" else '{"anchor":')
    with pytest.raises(DataError, match=tmp_path.name):
        read_run(tmp_path)


def test_a_run_given_twice_and_no_run_are_refused(tmp_path):
    write_run(tmp_path)
    with pytest.raises(DataError, match="given twice"):
        read_groups([str(tmp_path), f"x={tmp_path}/."])
    with pytest.raises(DataError, match="at least one run"):
        read_groups([])


def test_counts_that_are_none_name_the_file(tmp_path):
    run = read_run(write_run(tmp_path))
    (tmp_path / "evaluations.jsonl").write_text('{"update": 1, "problems": [{"samples": 4}]}\n')
    with pytest.raises(DataError, match=r"evaluations\.jsonl"):
        _ = run.evaluations
