"""The reproduction: what is one run, what is kept of it, and verdicts by their rules, on numbers made up here."""

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from rich.console import Console

from benchmarks.reproduction.cells import Arm, Cell, Experiment, distinct, settings
from benchmarks.reproduction.claim_list import CLAIMS
from benchmarks.reproduction.claims import (
    Status,
    above_base,
    alike,
    all_of,
    falls,
    higher,
    higher_at_cost,
    not_above_base,
    not_testable,
    peaks,
    peaks_within,
    ratio_within,
    within,
)
from benchmarks.reproduction.experiments import EXPERIMENTS
from benchmarks.reproduction.page import write_page
from benchmarks.reproduction.quick import quick_experiments
from benchmarks.reproduction.runner import Processes, execute, execute_all, expected_minutes
from benchmarks.reproduction.scores import Results, Score, margin, margin_of_best, matched, read
from benchmarks.reproduction.summary import (
    MAX_BYTES,
    JudgeWork,
    _curves,
    helper_prompt_tokens,
    judge_work,
    read_summaries,
    teacher_reading,
    write_summary,
)
from mintrl_trl.config_ablations import AblationConfig
from mintrl_trl.config_checks import check_keys
from mintrl_trl.recipe import PolicyArguments, RecipeArguments, parse_recipe

CONST, GRPO = Arm("Const", "quickstart"), Arm("GRPO", "chains_grpo", settings(max_steps=300), at=150)
EXPERIMENT = Experiment("table", "A table", "What is asked.", (GRPO, CONST), (0, 1))


def summary_of(arm: Arm, seed: int, hard: dict[int, float], **changes) -> dict:
    """A summary with Pass@1 of hard problems by update; 10,000 tokens and 2 seconds an update."""
    cell = arm.cell(seed)
    return {
        "key": cell.key,
        "label": arm.name,
        "recipe": arm.recipe,
        "overrides": dict(arm.overrides),
        "seed": seed,
        "updates": cell.updates,
        "minutes": 2.0,
        "commit": "0123456789abcdef",
        "machine": {"processor": "a processor", "cores": 2, "torch": "2"},
        "evaluations": [
            {
                "update": update,
                "pass": {name: {"1": value, "16": min(1.0, 2 * value)} for name in ("all", "easy", "hard")},
                "tokens/sampled": 6000 * update,
                "tokens/teacher": 4000 * update,
                "seconds": 2.0 * update,
            }
            for update, value in hard.items()
        ],
        "curves": {"rewards/control": [[75, 0.4], [150, 0.6]], "intervention/nll": [[30, 6.0], [90, 2.0]]},
        "totals": {"tokens/policy": 900000.0, "judge/read": 600000.0, "step/seconds": 300.0},
    } | changes


def results(const=(0.8, 0.82), grpo=(0.1, 0.12), **changes) -> Results:
    summaries = [summary_of(CONST, seed, {0: 0.01, 150: value}, **changes) for seed, value in enumerate(const)]
    summaries += [summary_of(GRPO, seed, {0: 0.01, 150: value, 300: 0.2}) for seed, value in enumerate(grpo)]
    return Results([EXPERIMENT], {summary["key"]: summary for summary in summaries})


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


# Scores


def test_margin_by_hand():
    left, right = Score((0.80, 0.84)), Score((0.10, 0.16))  # standard errors 0.02 and 0.03; 1.72 degrees of freedom
    assert margin(left, right) == pytest.approx(6.314 * (0.02**2 + 0.03**2) ** 0.5)
    three = Score((0.5, 0.6, 0.7))  # standard error 0.1 / sqrt(3); with its like 4 degrees of freedom
    assert margin(three, three) == pytest.approx(2.132 * 0.1 * (2 / 3) ** 0.5)
    assert margin(Score((0.5, 0.5)), Score((0.4, 0.4))) == pytest.approx(0.01 * 1.812)


def test_metrics_are_read_where_they_were_asked_for():
    summary = summary_of(GRPO, 0, {0: 0.01, 150: 0.1, 300: 0.2})
    assert read(summary, "hard@1") == 0.2
    assert read(summary, "hard@1", 150) == 0.1
    assert read(summary, "hard@1", 100) is None
    assert read(summary, "rewards/control:first") == 0.4
    assert read(summary, "rewards/control:last") == 0.6
    assert read(summary, "entropy/sample:last") is None
    assert read(summary, "step/seconds") == 300.0


def test_first_evaluation_that_has_cost_as_much():
    long = summary_of(GRPO, 0, {0: 0.0, 100: 0.1, 200: 0.2, 300: 0.3})
    short = summary_of(CONST, 0, {0: 0.0, 150: 0.8})
    assert matched(long, short, "seconds")["update"] == 200
    short["evaluations"][-1]["tokens/teacher"] += 1_000_000  # 2.5 million tokens in all
    assert matched(long, short, "tokens")["update"] == 300
    short["evaluations"][-1]["tokens/teacher"] += 1_000_000
    assert matched(long, short, "tokens") is None


# Rules


@pytest.mark.parametrize(
    ("const", "grpo", "status"),
    [
        pytest.param((0.8, 0.82), (0.1, 0.12), "reproduced", id="higher"),
        pytest.param((0.1, 0.12), (0.8, 0.82), "not reproduced", id="lower"),
        pytest.param((0.5, 0.8), (0.4, 0.6), "not reproduced", id="within the spread"),
        pytest.param((0.99, 1.0), (0.98, 0.99), "not testable here", id="ceiling"),
        pytest.param((0.01, 0.0), (0.02, 0.0), "not testable here", id="floor"),
        pytest.param((), (0.1, 0.2), "not run", id="missing"),
    ],
)
def test_higher(const, grpo, status):
    verdict = higher(["table/Const"], ["table/GRPO"], "hard@1")(results(const, grpo))
    assert verdict.status.value == status


@pytest.mark.parametrize(
    ("const", "grpo", "status"),
    [
        pytest.param((0.50, 0.51), (0.50, 0.50), "reproduced", id="near"),
        pytest.param((0.40, 0.60), (0.45, 0.50), "not testable here", id="too far apart to say"),
        pytest.param((0.60, 0.61), (0.50, 0.50), "not reproduced", id="different"),
    ],
)
def test_noise_makes_nothing_alike(const, grpo, status):
    assert alike("table/Const", "table/GRPO", "hard@1")(results(const, grpo)).status.value == status


@pytest.mark.parametrize(
    ("const", "status"),
    [((0.01, 0.02), "reproduced"), ((0.05, 0.60), "not testable here"), ((0.5, 0.51), "not reproduced")],
    ids=str,
)
def test_noise_is_no_proof_that_nothing_was_gained(const, status):
    assert not_above_base(["table/Const"], "hard@1")(results(const)).status.value == status


RULES_OF_ONE = (
    higher(["table/Const"], ["table/GRPO"], "hard@1"),
    above_base(["table/Const"], "hard@1"),
    not_above_base(["table/Const"], "hard@1"),
    falls(["table/Const"], "intervention/nll"),
    within(["table/Const"], "hard@1", 0.0, 1.0),
    higher_at_cost(["table/Const"], "table/GRPO", "hard@1", "seconds"),
    ratio_within("table/Const", "table/GRPO", "step/seconds", 0.9, 1.1),
)


@pytest.mark.parametrize("rule", RULES_OF_ONE)
def test_no_verdict_before_all_seeds_are_there(rule):
    assert rule(results()).status is not Status.NOT_RUN
    assert rule(results(const=(0.8,))).status is Status.NOT_RUN


def test_one_seed_each_says_nothing_of_a_number_without_a_scale():
    assert margin(Score((0.5,)), Score((0.1,)), 0.0) == float("inf")


def test_the_best_of_many_has_to_be_better_by_more():
    best, other = Score((0.52, 0.56)), Score((0.50, 0.50))
    # pooled over four: (0.0008 + 3 x 0) / 4 = 0.0002, an error of 0.0141; 3.747 is the 99 % quantile
    among = [best, other, Score((0.4, 0.4)), Score((0.3, 0.3))]
    assert margin_of_best(best, other, among) == pytest.approx(3.747 * 0.0002**0.5)
    assert margin_of_best(other, other, [other]) == pytest.approx(0.01 * 2.764)


def test_verdict_names_the_numbers_behind_it():
    verdict = higher(["table/Const"], ["table/GRPO"], "hard@1")(results())
    assert verdict.numbers == "Const 81.0 ± 1.4 %, GRPO 11.0 ± 1.4 %"


@pytest.mark.parametrize(
    ("rule", "status"),
    [
        (alike("table/Const", "table/GRPO", "hard@1"), "not reproduced"),
        (alike("table/Const", "table/Const", "hard@1"), "reproduced"),
        (above_base(["table/Const", "table/GRPO"], "hard@1"), "reproduced"),
        (not_above_base(["table/Const"], "hard@1"), "not reproduced"),
        (falls(["table/Const"], "intervention/nll"), "reproduced"),
        (falls(["table/Const"], "rewards/control"), "not reproduced"),
        (falls(["table/Const"], "entropy/sample"), "not run"),
        (within(["table/GRPO"], "hard@1", 0.0, 0.3), "reproduced"),
        (within(["table/GRPO"], "hard@1", 0.0, 0.1), "not reproduced"),
        (higher_at_cost(["table/Const"], "table/GRPO", "hard@1", "seconds"), "reproduced"),
        (higher_at_cost(["table/GRPO"], "table/Const", "hard@1", "tokens"), "not testable here"),
        (ratio_within("table/GRPO", "table/Const", "step/seconds", 0.9, 1.1), "reproduced"),
        (ratio_within("table/GRPO", "table/Const", "step/seconds", 2.5, 3.45), "not reproduced"),
    ],
)
def test_other_rules(rule, status):
    assert rule(results()).status.value == status


@pytest.mark.parametrize(
    ("metrics", "const", "status"),
    [
        pytest.param(("hard@1", "hard@16"), (0.8, 0.82), "reproduced", id="both"),
        pytest.param(("hard@1", "hard@16"), (0.1, 0.12), "not reproduced", id="neither"),
        pytest.param(("hard@1", "all@8"), (0.8, 0.82), "not run", id="one is missing"),
    ],
)
def test_all_of(metrics, const, status):
    rule = all_of({metric: higher(["table/Const"], ["table/GRPO"], metric) for metric in metrics})
    assert rule(results(const)).status.value == status


def test_what_cannot_be_decided_does_not_stand_in_the_way():
    decided, open_ = alike("table/Const", "table/Const", "hard@1"), not_testable("no way to tell")
    verdict = all_of({"one": decided, "other": open_})(results())
    assert verdict.status is Status.REPRODUCED
    assert verdict.numbers.endswith("other: no way to tell")
    assert all_of({"other": open_})(results()).status is Status.NOT_TESTABLE


@pytest.mark.parametrize(
    ("most", "status"), [(0.3, "reproduced"), (0.9, "not reproduced"), (0.6, "not reproduced")], ids=str
)
def test_peak_lies_below_the_largest_share(most, status):
    arms = [Arm("none", "quickstart", settings(max_reviews=0)), Arm("some", "quickstart"), Arm("most", "chains_grpo")]
    passes, shares = {"none": 0.2, "some": 0.6, "most": most}, {"some": 0.02, "most": 0.5}
    summaries = [
        summary_of(arm, 0, {150: passes[arm.name]}, totals={"mean/off_policy_share": shares.get(arm.name, 0.0)})
        for arm in arms
    ]
    found = Results([Experiment("figure", "", "", tuple(arms), (0,))], {s["key"]: s for s in summaries})
    assert peaks(["figure/some", "figure/most"], "figure/none", "all@1")(found).status.value == status
    arms = ["figure/some", "figure/most"], "figure/none", "all@1"
    where = [peaks_within(*arms, low, high)(found).status.value for low, high in ((0.01, 0.04), (0.1, 0.4))]
    assert where == (["reproduced", "not reproduced"] if status == "reproduced" else ["not testable here"] * 2)


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
