"""Figures: what is in the picture is in the table, each figure says why it is missing, and the command writes both."""

import csv
import shutil

import pytest
from matplotlib import cbook
from matplotlib.figure import Figure

from mintrl_trl.analysis.figures import FIGURES, Options, draw_figures, read_sources
from mintrl_trl.analysis.style import looks, spelled
from mintrl_trl.cli import main
from mintrl_trl.data.chains import base_model_path
from mintrl_trl.errors import ConfigError
from tests.analyzed_runs import GRPO_SETTINGS, SETTINGS, write_run
from tests.test_keywords import write_rollouts
from tests.test_recipes_run import SHORT, flags, run_program


def training_lines(intervened: bool) -> dict:
    lines = {}
    for update in range(1, 5):
        lines[update] = {
            "rewards/control": update / 10,
            "lengths/control": 50.0,
            "entropy/sample": 0.1,
            "step/seconds": 30.0,
        }
        if intervened and update <= 2:
            lines[update] |= {
                "rewards/intervened": 0.9,
                "reward_gap": 0.9 - update / 10,
                "off_policy_share": 0.02,
                "intervention/nll": 6.0 / update,
            }
    return lines


@pytest.fixture
def runs(tmp_path):
    """Const with two seeds, Proxy, GRPO: everything that the figures need, the small world's model too."""
    found = []
    for name, settings in (
        ("const0", SETTINGS),
        ("const1", SETTINGS | {"seed": 1}),
        ("proxy", SETTINGS | {"anchor": "proxy"}),
        ("grpo", GRPO_SETTINGS),
    ):
        lines, solved = training_lines(name != "grpo"), {0: (3, 0), 4: (4, 3 if name != "grpo" else 1)}
        recipe = {"task": "chains" if name == "const0" else "math", "eval_problems": 4}
        folder = write_run(tmp_path / name, settings, lines, solved, recipe)
        if name == "const0":
            for path in base_model_path().iterdir():
                shutil.copy(path, folder)
        found.append(folder)
    settings = [str(folder) if folder.name != "const0" else f"MInTRL-Const={folder}" for folder in found]
    settings[1] = f"MInTRL-Const={found[1]}"
    write_rollouts(found[3], ["use it"], update=4)
    write_rollouts(found[2], ["wait"], update=4)
    return settings


@pytest.fixture
def drawn(monkeypatch):
    """Figures by the stem of their file, which stays empty: rendering all of them takes seconds."""
    figures = {}

    def keep(self, path, **kwargs):
        figures[path.stem] = self
        path.touch()

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


def rows_of(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_figure_has_its_picture_and_its_table(runs, tmp_path, drawn):
    results = draw_figures(read_sources(runs), tmp_path / "out")
    assert [one.figure for one in results] == list(FIGURES)
    for one in results:
        assert one.files, one.note
        picture, table = one.files[:2]
        assert picture.stem == table.stem in drawn
        assert rows_of(table)
    rewards = rows_of(tmp_path / "out" / "figure_3_training.csv")
    of_const = [row for row in rewards if row["group"] == "MInTRL-Const" and row["quantity"] == "training reward"]
    panel = drawn["figure_3_training"].axes[0]
    line = next(line for line in panel.get_lines() if line.get_label() == "MInTRL-Const")
    assert line.get_ydata().tolist() == [float(row["smoothed"]) for row in of_const] == [0.1, 0.2, 0.3, 0.4]
    assert [row["runs"] for row in of_const] == ["2"] * 4
    assert [text.get_text() for text in panel.texts] == ["interventions end"]
    labels = [text.get_text() for text in drawn["figure_3_training"].legends[0].get_texts()]
    assert labels == ["GRPO", "MInTRL-Proxy", "MInTRL-Const"], "one legend for all panels"


def test_wall_clock_is_drawn_in_minutes(runs, tmp_path, drawn):
    draw_figures(read_sources(runs), tmp_path, ["10"])
    training, evaluation = drawn["figure_10_wall_clock"].axes
    assert training.get_lines()[0].get_xdata().tolist() == [0.5, 1.0, 1.5, 2.0]
    assert max(line.get_xdata()[-1] for line in evaluation.get_lines()) == 2.0


def test_support_has_a_dot_for_every_problem_and_run(runs, tmp_path, drawn):
    (result,) = draw_figures(read_sources(runs), tmp_path, ["2"])
    strips, scatter = drawn["figure_2_support"].axes
    assert [label.get_text() for label in strips.get_yticklabels()] == [
        "Base",
        "Base with 4 corrections",
        "MInTRL-Const",
    ]
    assert [len(dots.get_offsets()) for dots in strips.collections] == [2, 2, 2]
    assert scatter.get_ylabel() == ""
    table = rows_of(result.files[1])
    assert len(table) == 4
    assert [float(row["log_before"]) for row in table] == [float(row["log_after"]) for row in table]
    assert result.note.startswith("Base: 0 of 2 hard problems solved")


def test_intensity_labels_reviews_and_tokens(runs, tmp_path, drawn):
    (result,) = draw_figures(read_sources(runs), tmp_path, ["6"], Options(subset="hard"))
    texts = [text.get_text() for text in drawn["figure_6_intensity"].axes[0].texts]
    assert texts == ["4 x 1", "4 x 1"]
    assert [float(row["gain"]) for row in rows_of(result.files[1])] == [0.5, 0.5]


def test_what_is_missing_is_said(tmp_path):
    write_run(tmp_path / "run")
    results = draw_figures(read_sources([str(tmp_path / "run")]), tmp_path / "out")
    assert [one.files for one in results] == [()] * len(FIGURES)
    assert all(one.note for one in results)
    assert not (tmp_path / "out").exists(), "nothing is written where nothing can be drawn"


@pytest.mark.parametrize(
    ("figures", "options", "field"), [(["7"], Options(), "figures"), (["2"], Options(budget=1), "budget")]
)
def test_unknown_figures_and_budgets_are_refused(tmp_path, figures, options, field):
    write_run(tmp_path)
    with pytest.raises(ConfigError) as caught:
        draw_figures(read_sources([str(tmp_path)]), tmp_path, figures, options)
    assert caught.value.field == field


def test_a_figure_goes_into_a_folder(runs, tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match="a folder that can be made"):
            draw_figures(read_sources(runs), place)


@pytest.mark.parametrize("name", ["x_$^{ y$", "a$b$", "_private", "$"])
def test_names_are_shown_as_they_are(name):
    shown = spelled(name)
    assert not shown.startswith("_"), "a legend leaves such names out"
    assert not cbook.is_math_text(shown)
    assert shown.replace(r"\$", "$").strip() == name


def test_a_picture_takes_any_name(tmp_path):
    folders = [write_run(tmp_path / str(n), SETTINGS, {1: {"rewards/control": 0.5}}) for n in range(2)]
    sources = read_sources([f"{name}={folder}" for name, folder in zip(("x_$^{ y$", "_"), folders, strict=True)])
    (drawn,) = draw_figures(sources, tmp_path / "out", ["3"])
    assert drawn.files[0].exists()


def test_groups_of_one_method_share_its_colour_and_differ_in_dashes():
    look = looks([("GRPO", "GRPO"), ("a", "MInTRL-Const"), ("b", "MInTRL-Const"), ("a", "MInTRL-Const")])
    assert look["a"].colour == look["b"].colour != look["GRPO"].colour
    assert look["a"].dashes != look["b"].dashes
    assert look["a"].marker != look["b"].marker


def test_the_command_lists_what_it_wrote(runs, tmp_path, capsys):
    assert main(["analyze", *runs, "--output", str(tmp_path / "out"), "--figures", "3", "5"]) == 0
    out = capsys.readouterr().out
    assert "figure 3: training reward: GRPO 0.1 to 0.4" in out
    for name in ("figure_3_training.png", "figure_5_keywords.png"):
        assert str(tmp_path / "out" / name) in out
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")
    assert "2 figures" in out.splitlines()[-1]


def test_mistakes_have_the_words_of_the_command_line(runs, tmp_path, capsys):
    assert main(["analyze", runs[2], "--figures", "11"]) == 2
    assert "`--figures`" in capsys.readouterr().err
    assert main(["analyze", str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_of_the_small_world_has_all_figures_but_those_that_compare(tmp_path, capsys):
    done = run_program(tmp_path, "train_math.py", *flags(**SHORT))
    assert done.returncode == 0, done.stderr
    run, out = tmp_path / "runs" / "quickstart", tmp_path / "out"
    assert main(["analyze", str(run), "--output", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("5 figures")
    assert sorted(path.stem for path in out.glob("*.png")) == [
        "figure_10_wall_clock",
        "figure_2_support",
        "figure_3_training",
        "figure_4a_pass_at_k",
        "figure_4b_acquisition",
    ]
    quantities = {row["quantity"] for row in rows_of(out / "figure_3_training.csv")}
    assert quantities == {"training reward", "response length (tokens)", "entropy (nats per token)"}
    (summary,) = [
        row for row in rows_of(out / "figure_2_summary.csv") if row["group"] != "Base" and row["subset"] == "hard"
    ]
    assert (summary["group"], summary["problems"]) == ("MInTRL-Const", "2")
