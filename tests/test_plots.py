"""Learning curves: a PNG comes out, its panels follow what was logged, and the numbers drawn are the numbers logged."""

import math

import pytest
from matplotlib.figure import Figure

from mintrl_trl.errors import DataError
from mintrl_trl.reporting.plots import _pass_series, _series, _smooth, learning_curves
from mintrl_trl.reporting.run_folder import RunFolder


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were saved."""
    figures, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, path: (figures.append(self), save(self, path))[1])
    return figures


def write_run(folder: RunFolder, updates: int = 40, switch: int = 24) -> None:
    for update in range(1, updates + 1):
        line = {"rewards/control": 0.4 + update / 100, "loss": 0.1}
        if update <= switch:
            line |= {"rewards/intervened": 0.98, "off_policy_share": 0.03 - update / 2000}
        folder.append_metrics(update, line)
        if update % 20 == 0:
            folder.append_metrics(
                update,
                {
                    "eval/pass@1": 0.5,
                    "eval/pass@16": 0.8,
                    "eval/easy/pass@16": 1.0,
                    "eval/hard/pass@1": 0.2,
                    "eval/hard/pass@16": update / 40,
                },
            )


def test_all_panels_of_a_whole_run(tmp_path, drawn):
    folder = RunFolder(tmp_path)
    write_run(folder)
    path = learning_curves(folder)
    assert path == tmp_path / "learning_curves.png"
    assert path.read_bytes().startswith(b"\x89PNG")
    rewards, passes, share = drawn[0].axes
    assert [text.get_text() for text in rewards.get_legend().get_texts()] == ["control", "intervened"]
    assert passes.get_title() == "Pass@16, policy alone"
    curves = {line.get_label(): list(zip(*line.get_data(), strict=True)) for line in passes.get_lines()}
    assert curves["easy"] == [(20, 1.0), (40, 1.0)]
    assert curves["hard"] == [(20, 0.5), (40, 1.0)]
    assert share.get_title().startswith("Off-policy share")
    assert [text.get_text() for text in share.texts] == ["GRPO"]


def test_a_single_update_is_seen(tmp_path, drawn):
    folder = RunFolder(tmp_path)
    folder.append_metrics(1, {"rewards/control": 0.5, "rewards/intervened": 0.75})
    learning_curves(folder)
    assert {line.get_marker() for line in drawn[0].axes[0].lines} == {"o"}


@pytest.mark.parametrize(
    ("metrics", "titles"),
    [
        ({"rewards/control": 0.5}, ["Reward in training"]),
        ({"eval/pass@8": 0.5}, ["Pass@8, policy alone"]),
        ({"off_policy_share": 0.02}, ["Off-policy share, intervened rollouts"]),
        ({"eval/a/pass@8": 0.5, "eval/b/pass@4": 0.5}, ["Pass@k, policy alone"]),
    ],
    ids=["rewards", "whole", "share", "unlike-k"],
)
def test_only_what_was_logged_is_drawn(tmp_path, drawn, metrics, titles):
    folder = RunFolder(tmp_path / "run")
    folder.append_metrics(1, metrics)
    output = tmp_path / "curves.png"
    assert learning_curves(tmp_path / "run", output) == output
    assert [axes.get_title() for axes in drawn[0].axes] == titles
    assert not drawn[0].axes[0].texts, "a run of one phase has no switch"


def test_a_run_without_numbers_is_an_error_that_names_the_file(tmp_path):
    with pytest.raises(DataError, match=r"metrics\.jsonl"):
        learning_curves(tmp_path)
    RunFolder(tmp_path).append_metrics(1, {"loss": 0.5})
    with pytest.raises(DataError, match="train first"):
        learning_curves(tmp_path)


def test_series_keeps_the_last_value_of_an_update_and_drops_the_unknown():
    lines = [{"update": u, "x": x} for u, x in [(1, 0.1), (2, None), (3, math.inf), (2, 0.2), (1, 0.3), (4, "text")]]
    assert _series([*lines, {"update": 9}], "x") == [(1, 0.3), (2, 0.2)]


def test_largest_k_is_drawn_and_the_whole_gives_way_to_its_subsets():
    lines = [{"update": 0, "eval/pass@1": 0.1, "eval/pass@16": 0.4, "eval/hard/pass@1": 0.0, "eval/hard/pass@16": 0.2}]
    assert _pass_series(lines) == {"hard": (16, [(0, 0.2)])}
    assert _pass_series([{"update": 0, "eval/pass@2": 0.1}]) == {"all": (2, [(0, 0.1)])}


def test_smoothing_looks_back_only():
    assert _smooth([(1, 0.0), (2, 1.0)]) == [(1, 0.0), (2, 1.0)]
    smooth = _smooth([(u, float(u >= 20)) for u in range(40)])
    assert smooth[19] == (19, 0.0)
    assert smooth[20] == (20, 0.5)
    assert smooth[21] == (21, 1.0)
