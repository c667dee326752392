"""What a recipe says at its end: the result line above all, which scripts read."""

import io
import re
import time
from dataclasses import replace

import pytest
from rich.console import Console

from mintrl_trl.checkpoints import write_mark
from mintrl_trl.evaluation import EvalResult, ProblemResult
from mintrl_trl.reporting.run_folder import RunFolder
from mintrl_trl.rollouts.rollout import Decision, Role
from mintrl_trl.summary import Stopwatch, corrected_rollout, interruption, print_summary
from tests.samples import corrected_record


def problem(solved: int, subset: str | None = None, samples: int = 16) -> ProblemResult:
    return ProblemResult(samples=samples, solved=solved, unscored=0, truncated=0, tokens=52 * samples, subset=subset)


def result(*problems: ProblemResult) -> EvalResult:
    return EvalResult(problems)


BEFORE = result(*[problem(16, "easy")] * 8, problem(1, "hard"), *[problem(0, "hard")] * 7)  # hard: 1/128, 1/8
AFTER = result(*[problem(16, "easy")] * 8, *[problem(8, "hard")] * 8)  # hard: 1/2, 1


def summary(output_dir, results, **console) -> list[str]:
    stopwatch = Stopwatch()
    stopwatch.wall_seconds, stopwatch.cpu_seconds = 61.4, 120.6
    stream = io.StringIO()
    print_summary(output_dir, stopwatch, results, Console(file=stream, width=100, highlight=False, **console))
    return stream.getvalue().splitlines()


@pytest.fixture
def folder(tmp_path):
    """A run of two updates whose second rollout was corrected."""
    folder = RunFolder(tmp_path / "run")
    folder.append_metrics(1, {"rewards/control": 0.5, "rewards/intervened": 0.75})
    folder.append_metrics(2, {"rewards/control": 0.5})
    folder.append_rollouts([uncorrected(row=0), corrected_record(row=1)])
    return folder


def uncorrected(**changes):
    record = corrected_record()
    kept = tuple(r for r in record.reviews if r.review.decision is Decision.KEEP)
    assert len(kept) == 1
    return replace(record, reviews=kept, **changes)


# The result line


def test_the_result_line_is_exactly_this(folder):
    lines = summary(folder.path, {0: BEFORE, 75: BEFORE, 150: AFTER})
    assert lines[-1] == "RESULT pass@1 0.008 -> 0.500 pass@16 0.125 -> 1.000"


def test_without_hard_problems_it_is_about_all(folder):
    before, after = result(problem(0), problem(4)), result(problem(8), problem(16))
    assert summary(folder.path, {0: before, 9: after})[-1] == "RESULT pass@1 0.125 -> 0.750 pass@16 0.500 -> 1.000"


def test_one_sample_per_problem_gives_one_score(folder):
    before, after = result(problem(0, samples=1)), result(problem(1, samples=1))
    assert summary(folder.path, {0: before, 9: after})[-1] == "RESULT pass@1 0.000 -> 1.000"


def test_one_evaluation_is_before_and_after(folder):
    assert summary(folder.path, {5: AFTER})[-1] == "RESULT pass@1 0.500 -> 0.500 pass@16 1.000 -> 1.000"


def test_a_narrow_terminal_does_not_break_the_result_line(folder):
    stream = io.StringIO()
    with Stopwatch() as stopwatch:
        pass
    print_summary(folder.path, stopwatch, {0: BEFORE, 150: AFTER}, Console(file=stream, width=20))
    assert stream.getvalue().splitlines()[-1] == "RESULT pass@1 0.008 -> 0.500 pass@16 0.125 -> 1.000"


def test_without_evaluation_there_is_no_result_line(folder):
    lines = summary(folder.path, {})
    assert not any("RESULT" in line or "pass@" in line for line in lines)
    assert lines[-2] == f"look closer: mintrl report {folder.path}, mintrl show {folder.path} --rescued"
    assert lines[-1] == f"learning curves: {folder.path / 'learning_curves.png'}"


# The rest


def test_everything_in_its_order(folder):
    text = "\n".join(summary(folder.path, {0: BEFORE, 150: AFTER}))
    order = [
        "a correction ({+the judge's+}, [-cut-], in brackets: why)",
        "7+5=[-13;-] [step 2: 7+5 is 12] {+12;+}ok",
        "the policy alone, without any judge",
        "wall 61 s, CPU 121 s",
        f"model and run folder: {folder.path}",
        f"look closer: mintrl report {folder.path}",
        f"learning curves: {folder.path / 'learning_curves.png'}",
        "RESULT",
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert (folder.path / "learning_curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_has_a_row_for_each_subset_and_the_whole(folder):
    lines = summary(folder.path, {0: BEFORE, 75: AFTER, 150: AFTER})
    rows = [re.split(r"\s*│\s*", line.strip("│ ")) for line in lines if line.startswith("│")]
    assert rows == [
        ["easy", "100.0%", "100.0%", "100.0%", "100.0%"],
        ["hard", "0.8%", "50.0%", "12.5%", "100.0%"],
        ["all", "50.4%", "75.0%", "56.2%", "100.0%"],
    ]
    header = [[title.strip() for title in line.strip("┃ ").split("┃")] for line in lines if line.startswith("┃")]
    assert header[0][-4:] == ["pass@1", "pass@1", "pass@16", "pass@16"]
    assert header[1][-4:] == ["before", "after 150 updates", "before", "after 150 updates"]


def test_an_interrupted_run_says_how_to_go_on(tmp_path):
    assert "no checkpoint was saved" in interruption(tmp_path)
    for update in (50, 100):
        (tmp_path / f"checkpoint-{update}").mkdir()
        write_mark(tmp_path / f"checkpoint-{update}", update, resumable=True)
    (tmp_path / "checkpoint-150").mkdir()  # half
    assert interruption(tmp_path).endswith(f"--resume_from_checkpoint {tmp_path / 'checkpoint-100'}")


def test_colours_need_no_marks(folder):
    lines = summary(folder.path, {}, force_terminal=True, color_system="standard")
    text = "\n".join(lines)
    assert "green: the judge's, struck through: cut, in brackets: why" in text
    assert "{+" not in text


def test_a_run_without_numbers_says_so_and_ends_well(tmp_path):
    lines = summary(tmp_path / "empty", {})
    assert lines[0] == "wall 61 s, CPU 121 s"
    assert lines[-1].startswith("no learning curves: ")
    assert not (tmp_path / "empty").exists()


def test_folder_names_are_not_markup(tmp_path):
    folder = RunFolder(tmp_path / "[bold]run[/nonsense]")
    folder.append_metrics(1, {"rewards/control": 0.5})
    assert f"model and run folder: {folder.path}" in summary(folder.path, {})


# Which rollout is shown


@pytest.mark.parametrize(
    ("records", "shown"),
    [
        ([], None),
        ([uncorrected(row=0)], None),
        ([corrected_record(row=0, reward=0.0), corrected_record(row=1), corrected_record(row=2)], 1),
        ([uncorrected(row=0), corrected_record(row=1, reward=0.0), corrected_record(row=2, reward=0.0)], 1),
        ([corrected_record(row=0, reward=None), uncorrected(row=1)], 0),
    ],
    ids=["none", "none corrected", "first rewarded", "first corrected", "no reward"],
)
def test_the_first_corrected_and_rewarded_rollout_is_shown(tmp_path, records, shown):
    folder = RunFolder(tmp_path)
    folder.append_rollouts(records)
    record = corrected_rollout(folder)
    assert (record.row if record else None) == shown


@pytest.mark.parametrize(("control", "tag"), [(0.0, True), (1.0, False), (None, False)])
def test_the_rollout_that_is_shown_says_whether_it_was_rescued(tmp_path, control, tag):
    folder = RunFolder(tmp_path)
    folder.append_rollouts(
        [
            corrected_record(update=1, row=0, group=0),
            replace(uncorrected(), update=1, row=1, group=0, role=Role.CONTROL, reward=control),
            replace(uncorrected(), update=1, row=2, group=1, role=Role.CONTROL, reward=0.0),
        ]
    )
    facts = next(line for line in summary(folder.path, {}) if line.startswith("update 1"))
    assert ("intervened · rescued ·" in facts) == tag


def test_stopwatch_measures_both_clocks():
    with Stopwatch() as stopwatch:
        time.sleep(0.05)
        until = time.process_time() + 0.05
        while time.process_time() < until:
            pass
    assert stopwatch.wall_seconds > 0.09
    assert 0.03 < stopwatch.cpu_seconds <= stopwatch.wall_seconds + 0.1
