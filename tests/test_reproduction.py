"""The reproduction: what is one run, how it is run, what is kept of it, and the page made from that."""

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from rich.console import Console

from benchmarks.reproduction.cells import Arm, Cell, digest, distinct, settings
from benchmarks.reproduction.claim_list import CLAIMS
from benchmarks.reproduction.claims import Claim, Status, Verdict
from benchmarks.reproduction.experiments import EXPERIMENTS
from benchmarks.reproduction.page import write_page
from benchmarks.reproduction.quick import quick_experiments
from benchmarks.reproduction.runner import Processes, execute, execute_all, expected_minutes
from benchmarks.reproduction.scores import Results, read
from benchmarks.reproduction.summary import (
    MAX_BYTES,
    JudgeWork,
    _curves,
    helper_prompt_tokens,
    judge_work,
    read_summaries,
    teacher_reading,
    with_other_models,
    write_summary,
)
from mintrl_trl.config_ablations import AblationConfig
from mintrl_trl.config_checks import check_keys
from mintrl_trl.recipe import PolicyArguments, RecipeArguments, parse_recipe
from tests.reproduced import CONST, EXPERIMENT, GRPO, results, summary_of

# Cells


def test_key_is_that_of_the_settings_wherever_they_are_written():
    as_written = Cell("quickstart", (), 0, "one")
    repeated = Cell("quickstart", settings(max_reviews=4, correction_tokens=1), 0, "two")
    assert as_written.key == repeated.key
    assert len(distinct([as_written, repeated])) == 1
    others = [
        Cell("quickstart", (), 1, ""),
        Cell("quickstart", settings(kappa=-1.0), 0, ""),
        Cell("chains_grpo", (), 0, ""),
    ]
    assert len({cell.key for cell in [as_written, *others]}) == 4


def test_key_is_of_the_base_model_too(monkeypatch):
    before = CONST.cell(0).key
    monkeypatch.setattr("benchmarks.reproduction.cells.digest", lambda folder: "another base model")
    assert CONST.cell(0).key != before


def test_summaries_with_another_teacher_are_found_and_named(tmp_path, monkeypatch):
    model = tmp_path / "models" / "teacher"
    model.mkdir(parents=True)
    (model / "model.safetensors").write_bytes(b"weights")
    monkeypatch.setattr("benchmarks.reproduction.summary.RECIPES", tmp_path / "recipes")
    made_with = [{"models": {"models/teacher": found}} for found in (digest(model), "of another machine")]
    summaries = dict(zip(("same", "other"), made_with, strict=True)) | {"none": {"models": {}}, "gone": {}}
    assert with_other_models(summaries) == {"other"}
    kept = {s["key"]: s | m for s, m in zip(results()._summaries.values(), made_with, strict=False)}
    text = write_page([EXPERIMENT], kept, tmp_path, quick=False).read_text(encoding="utf-8")
    assert f"models/teacher with hash {digest(model)} in 1 runs" in text
    assert "**Not all runs had the same teacher.**" in text


def test_key_does_not_depend_on_where_files_go():
    assert Cell("quickstart", settings(save_strategy="steps"), 0, "").key == Cell("quickstart", (), 0, "").key


def test_folder_name_is_readable(tmp_path):
    cell = Cell("quickstart", settings(kappa=-1.0), 3, "kappa -1, (harder)")
    assert cell.folder_name == f"kappa-1-harder-seed3-{cell.key[:6]}"
    command = cell.command(tmp_path)
    assert command[0].endswith("train_math.py")
    assert command[2:] == ["--kappa=-1.0", "--seed=3", f"--output_dir={tmp_path}"]


ARMS = {f"{e.name}/{arm.name}": arm for e in (*EXPERIMENTS, *quick_experiments()) for arm in e.arms}


def test_every_arm_sets_what_recipes_know():
    classes = (RecipeArguments, AblationConfig, PolicyArguments)
    for arm in ARMS.values():
        check_keys(arm.cell(0).resolved(), *classes)
        assert arm.at is None or arm.at % arm.cell(0).resolved()["eval_every"] == 0


@pytest.mark.slow
def test_every_arm_is_a_command_line_that_recipes_accept(tmp_path):
    cells = distinct(arm.cell(0) for arm in ARMS.values())
    assert len(cells) > 50
    for cell in cells:
        _, config, *flags = cell.command(tmp_path)
        assert parse_recipe([config, *flags], default=tmp_path).config.max_steps == cell.updates, cell.label


def test_every_claim_names_arms_that_exist():
    class Asked(Results):
        def arm(self, name):
            assert name in self._arms, name
            return super().arm(name)

        def summaries(self, name):
            assert name in self._arms, name
            return super().summaries(name)

    empty = Asked(EXPERIMENTS, {})
    statuses = {claim.rule(empty).status for claim in CLAIMS}
    assert statuses == {Status.NOT_RUN, Status.NOT_TESTABLE}


def test_names_of_arms_are_unique():
    for experiment in (*EXPERIMENTS, *quick_experiments()):
        assert len({arm.name for arm in experiment.arms}) == len(experiment.arms)


# Summaries, and the page


def test_summary_is_written_whole_under_its_key(tmp_path):
    summary = summary_of(CONST, 0, {0: 0.0, 150: 0.8})
    path = write_summary(summary, tmp_path)
    assert path.name == f"{CONST.cell(0).key}.json"
    assert read_summaries(tmp_path) == {summary["key"]: summary}
    with pytest.raises(ValueError, match="bytes"):
        write_summary(summary | {"curves": {"a": [[1, 0.1]] * MAX_BYTES}}, tmp_path)
    assert read_summaries(tmp_path) == {summary["key"]: summary}


def test_tokens_of_a_judge_that_is_a_model_by_hand(tmp_path):
    keep = {"chunk_start": 0, "chunk_tokens": 16, "kept_tokens": 16, "correction_tokens": 0}
    revise = {"chunk_start": 16, "chunk_tokens": 16, "kept_tokens": 4, "correction_tokens": 1}
    record = {"update": 3, "prompt": "8B7?", "reviews": [keep, revise]}  # one token begins the prompt
    (tmp_path / "rollouts.jsonl").write_text(
        json.dumps(record) + "\n" + json.dumps(record | {"reviews": []}) + "\n", encoding="utf-8"
    )
    # five tokens of prompt: 5 + 16, then 5 + 32, then 5 + 20
    assert judge_work(tmp_path / "rollouts.jsonl", 5) == {3: JudgeWork(2, 1, read=21 + 37 + 25, written=1)}
    assert judge_work(tmp_path / "none.jsonl", 5) == {}


def test_whoever_reads_a_solution_is_charged_for_it():
    question, solution = 19, 52 - 1  # tokens; a solution of a judge has no end
    for recipe in ("quickstart", "chains_opd", "chains_teacher_judge"):
        assert helper_prompt_tokens(Cell(recipe, (), 0, "")) == question
    for recipe in ("chains_opsd", "chains_self_judge"):
        assert helper_prompt_tokens(Cell(recipe, (), 0, "")) > question + solution
    read = teacher_reading({"tokens/policy": 6000.0}, Cell("chains_opd", (), 0, ""), question)
    assert read == {"positions/teacher": 6000 + 128 * 19}
    assert teacher_reading({"update": 0}, Cell("chains_opd", (), 0, ""), question) == {}


def test_ends_of_curves_are_the_same_updates_in_runs_of_any_length():
    for updates in (150, 200, 400):
        lines = [{"update": update, "grad_norm": float(update)} for update in range(1, updates + 1)]
        curve = read({"curves": _curves(lines)}, "grad_norm:last", 150)
        assert curve == pytest.approx((121 + 150) / 2), updates  # a fifth of 150
    assert max(map(len, _curves(lines).values())) <= 40


def test_minutes_are_measured_or_taken_from_runs_of_the_same_recipe():
    summary = summary_of(CONST, 0, {150: 0.8})
    cells = [CONST.cell(0), Arm("short", "quickstart", settings(max_steps=75)).cell(0), GRPO.cell(0)]
    minutes = expected_minutes(cells, {summary["key"]: summary})
    assert [minutes[cell.key] for cell in cells[:2]] == [2.0, 1.0]
    assert minutes[cells[2].key] == pytest.approx((25 + 300 * 0.5) / 60)


def test_page_has_verdicts_tables_and_where_numbers_come_from(tmp_path):
    summaries = results()._summaries
    page = write_page([EXPERIMENT], summaries, tmp_path, quick=False).read_text(encoding="utf-8")
    assert "4 of 4 runs are there, 0.1 hours" in page
    assert (
        "| GRPO | 11.0 ± 1.4 % | 22.0 ± 2.8 % | 11.0 ± 1.4 % | 22.0 ± 2.8 % | 11.0 ± 1.4 % | - | 150 | 5,000 | 1.0 |"
        in page
    )
    assert "| base model | 1.0 % |" in page
    assert "| A table | 4 | 0, 1 | 0123456789 | 8 | a processor, 2 cores, torch 2 |" in page
    assert page.count("**not run**") + page.count("**not testable here**") == len(CLAIMS)


def test_page_says_which_updates_scores_are_of(tmp_path):
    head = write_page([EXPERIMENT], {}, tmp_path, quick=False).read_text(encoding="utf-8").partition("\n## ")[0]
    assert "the policy after a run's last update" in head
    assert "the paper's Tables 1, 2\nand 4 report the best one" in head


def test_page_counts_verdicts_by_their_place_in_the_paper(tmp_path, monkeypatch):
    sources = ("Figure 10", "Table 1", "question", "Figure 4a", "Table 1, harder world", "Section 2.2", "Figure 4b")
    statuses = [Status.REPRODUCED, Status.NOT_REPRODUCED, *(Status.REPRODUCED,) * 5]
    claims = [
        Claim(source, "A claim.", lambda results, status=status: Verdict(status, "1 %"), "a rule")
        for source, status in zip(sources, statuses, strict=True)
    ]
    monkeypatch.setattr("benchmarks.reproduction.page.CLAIMS", claims)
    text = write_page([EXPERIMENT], {}, tmp_path, quick=False).read_text(encoding="utf-8")
    counted = text.partition("## What reproduces, and what does not\n\n")[2].split("\n\n")[1]
    assert counted.splitlines() == [
        "| claims of | reproduced | not reproduced |",
        "| --- | ---: | ---: |",
        "| Table 1 | 1 | 1 |",
        "| Figure 4 | 2 | - |",
        "| Figure 10 | 1 | - |",
        "| Section 2.2 | 1 | - |",
        "| a reader's questions | 1 | - |",
    ]


@pytest.mark.slow
def test_page_has_every_kind_of_figure(tmp_path):
    summaries = {}
    experiments = [experiment for experiment in EXPERIMENTS if experiment.name in ("table1", "figure6", "bonus")]
    for experiment in experiments:
        for cell, arm in ((arm.cell(seed), arm) for seed in experiment.seeds for arm in experiment.arms):
            if cell.key not in summaries:
                totals = {"mean/off_policy_share": 0.02, "step/seconds": 100.0}
                evaluated = {0: 0.01, 150: 0.5, 300: 0.6}
                summaries[cell.key] = summary_of(arm, cell.seed, evaluated, totals=totals)
    page = write_page(experiments, summaries, tmp_path, quick=False).read_text(encoding="utf-8")
    figures = sorted(path.name for path in (tmp_path / "reproduction").glob("*.png"))
    names = ["bonus_points", "figure6_intensity", "table1_dynamics", "table1_learning"]
    assert figures == [f"{name}.png" for name in names]
    assert all(f"](reproduction/{name})" in page for name in figures)


def test_page_names_runs_that_failed(tmp_path):
    page = write_page([EXPERIMENT], {}, tmp_path, quick=False, failed=[CONST.cell(1)]).read_text(encoding="utf-8")
    assert "**1 runs failed and are missing below:** Const, seed 1." in page


# Processes


def test_failed_cell_keeps_its_log_and_stops_no_other(tmp_path, monkeypatch, capsys):
    def run(self, command, log):
        log.write_text("what went wrong")
        return 1

    monkeypatch.setattr(Processes, "run", run)
    cells = [CONST.cell(0), CONST.cell(1)]
    minutes = dict.fromkeys((cell.key for cell in cells), 1.0)
    failed = execute_all(cells, tmp_path, tmp_path / "summaries", 1, minutes, Console(width=200))
    assert failed == cells or failed == cells[::-1]
    assert "exit code 1:\nwhat went wrong" in capsys.readouterr().out


def test_after_an_interruption_nothing_is_started(tmp_path):
    processes = Processes()
    processes.stop()
    assert processes.run(["/bin/false"], tmp_path / "log.txt") == -1


def test_interruption_ends_what_runs(tmp_path):
    processes = Processes()
    with ThreadPoolExecutor(1) as pool:
        code = pool.submit(processes.run, ["sleep", "50"], tmp_path / "log.txt")
        while not processes.running:
            time.sleep(0.01)
        processes.stop()
        assert code.result(timeout=20) == -signal.SIGTERM
    assert not processes.running


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_cell_trains_and_leaves_a_summary_that_is_not_made_twice(tmp_path):
    tiny = settings(
        max_steps=4, intervention_updates=2, eval_problems=4, eval_samples=2, eval_every=2, prompts_per_update=2
    )
    cell = Cell("quickstart", tiny + settings(per_device_train_batch_size=32), 0, "tiny")
    summary = execute(cell, tmp_path / "runs", tmp_path / "summaries", Processes())
    assert read_summaries(tmp_path / "summaries") == {cell.key: summary}
    assert [line["update"] for line in summary["evaluations"]] == [0, 2, 4]
    assert summary["evaluations"][-1]["tokens/sampled"] >= 4 * 32 * 50
    assert summary["totals"]["judge/read"] > summary["totals"]["judge/reviews"] * 19
    assert set(summary["curves"]) >= {"rewards/control", "rewards/intervened", "entropy/sample", "step/seconds"}
    assert len(json.dumps(summary)) < MAX_BYTES / 2
