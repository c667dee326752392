"""Models side by side: averages by domain, paired differences, which checkpoint is chosen by which rule."""

import json
from io import StringIO

import pytest
from rich.console import Console

from mintrl_trl.errors import ConfigError
from mintrl_trl.evaluation import EvalResult, ProblemResult
from mintrl_trl.evaluation.intervals import holm, mean_interval
from mintrl_trl.evaluation.table import Evaluated, make_table, powers_up_to
from mintrl_trl.reporting.evaluation_table import print_table

DOMAINS = {"aime": "math", "hmmt": "math", "code": "code", "held-out": "math"}


def result(*solved: int, samples: int = 4, subsets: tuple[str | None, ...] = (), **counts: int) -> EvalResult:
    subsets = subsets or (None,) * len(solved)
    return EvalResult(
        tuple(
            ProblemResult(samples, one, counts.get("unscored", 0), 1, 40, subset, f"p{number}", 2)
            for number, (one, subset) in enumerate(zip(solved, subsets, strict=True))
        )
    )


def model(label: str, *results: EvalResult, run: str = "", update: int | None = None) -> Evaluated:
    return Evaluated(label, dict(zip(DOMAINS, results, strict=False)), run, update)


BASE = model("base", result(0, 2, 4), result(0, 0), result(1, 1, 1, 1))


def shown(table, width: int = 120) -> str:
    output = StringIO()
    print_table(table, Console(file=output, width=width, highlight=False))
    return output.getvalue()


def test_cells_hold_scores_and_rates():
    table = make_table([BASE], DOMAINS)
    cell = table.cells[0]
    assert (cell.model, cell.benchmark, cell.problems, cell.samples) == ("base", "aime", 3, 4)
    assert list(cell.pass_at) == [1, 2, 4]
    assert cell.pass_at[1] == mean_interval([0, 0.5, 1])
    assert cell.pass_at[2].value == pytest.approx((0 + 5 / 6 + 1) / 3)  # 1 - C(2, 2) / C(4, 2)
    assert (cell.length, cell.truncated, cell.no_answer, cell.unscored) == (10, 0.25, 0.5, 0)


def test_averages_weigh_benchmarks_alike_and_leave_out_what_is_held_out():
    table = make_table([model("m", result(0, 2, 4), result(2, 2), result(4), result(0))], DOMAINS)
    assert table.domains == {"math": ("aime", "hmmt"), "code": ("code",)}
    assert {(one.domain, one.benchmarks, one.pass_at[1].value) for one in table.averages} == {
        ("math", ("aime", "hmmt"), 0.5),
        ("code", ("code",), 1.0),
    }
    assert [cell.benchmark for cell in table.cells] == ["aime", "hmmt", "code", "held-out"]


def test_subsets_have_cells_of_their_own():
    table = make_table([Evaluated("m", {"chains": result(4, 0, subsets=("easy", "hard"))})], {"chains": "chains"})
    assert {cell.benchmark: cell.pass_at[1].value for cell in table.cells} == {
        "chains": 0.5,
        "chains/easy": 1,
        "chains/hard": 0,
    }


def test_differences_are_paired_with_the_first_and_corrected_together():
    better = model("better", result(4, 4, 4), result(4, 4), result(4, 4, 4, 4))
    table = make_table([BASE, BASE.__class__("same", BASE.results), better], DOMAINS)
    assert [(one.model, one.column) for one in table.differences] == [
        (name, column) for column in ("aime", "hmmt", "code", "math") for name in ("same", "better")
    ]
    on_code = [one for one in table.differences if one.column == "code"]
    assert [one.comparison.p_value for one in on_code] == [1.0, 0.125]  # four of four better: 2 / 2**4
    assert [one.corrected for one in on_code] == holm([1.0, 0.125]) == [1.0, 0.25]
    assert on_code[1].comparison.difference.value == 0.75
    assert all(one.against == "base" for one in table.differences)


def test_subsets_have_differences_of_their_own():
    first, second = (
        Evaluated(name, {"chains": one})
        for name, one in (
            ("first", result(4, 0, 0, subsets=("easy", "hard", "hard"))),
            ("second", result(4, 4, 4, subsets=("easy", "hard", "hard"))),
        )
    )
    table = make_table([first, second], {"chains": "chains"})
    found = {one.column: one.comparison.difference.value for one in table.differences}
    assert found == {"chains": pytest.approx(2 / 3), "chains/easy": 0.0, "chains/hard": 1.0}


def checkpoint(update: int, aime: int, hmmt: int, held_out: int) -> Evaluated:
    results = {"aime": result(aime), "hmmt": result(hmmt), "held-out": result(held_out)}
    return Evaluated(f"run/checkpoint-{update}", results, "run", update)


def test_three_rules_choose_a_checkpoint():
    checkpoints = [checkpoint(150, 1, 1, 2), checkpoint(50, 4, 2, 1), checkpoint(100, 2, 2, 2)]
    base = Evaluated("base", checkpoints[0].results)
    table = make_table([base, *checkpoints], DOMAINS)
    assert {one.rule: (one.model, one.average.value) for one in table.choices} == {
        "best average": ("run/checkpoint-50", 0.75),
        "final": ("run/checkpoint-150", 0.25),
        "held-out": ("run/checkpoint-100", 0.5),  # as good as 150 there, and earlier
    }
    text = shown(table)
    assert (
        "run, math: best average (chosen on the test sets, as the paper's main tables are): run/checkpoint-50" in text
    )
    assert "best on held-out problems: run/checkpoint-100" in text


def test_models_of_unlike_problems_are_not_compared():
    other = model("other", result(0, 2, 4, samples=8), result(0, 0), result(1, 1, 1, 1))
    with pytest.raises(ConfigError, match="number of samples that base has on aime"):
        make_table([BASE, other], DOMAINS)
    with pytest.raises(ConfigError, match="results on aime, hmmt, code"):
        make_table([BASE, model("other", result(0, 2, 4))], DOMAINS)
    with pytest.raises(ConfigError, match="at least one model"):
        make_table([], DOMAINS)


def test_a_label_stands_for_one_model():
    with pytest.raises(ConfigError, match="each model once"):
        make_table([BASE, model("x", *BASE.results.values()), BASE], DOMAINS)


def test_other_problems_are_refused_and_other_settings_are_said():
    results = {"aime": result(0, 4)}

    def evaluated(label, prompts="1f", **sampling):
        return Evaluated(label, results, conditions={"aime": {"prompts": prompts, "sampling": {"seed": 0} | sampling}})

    with pytest.raises(ConfigError, match="the problems and the number of samples that first has on aime"):
        make_table([evaluated("first"), evaluated("second", prompts="2e")], DOMAINS)
    table = make_table([evaluated("first"), evaluated("second", top_p=0.9), evaluated("third")], DOMAINS)
    note = "aime: sampled under unlike settings: top_p (null for first, 0.9 for second)"
    assert table.notes == (note,)
    assert f"Note: {note}" in shown(table)


def test_what_is_printed_has_an_interval_with_every_score():
    better = model("be[b]\x1b[31mtter", result(4, 4, 4), result(4, 4), result(4, 4, 4, 4))
    text = shown(make_table([BASE, better], DOMAINS))
    assert "math: Pass@1 in %, with 95 % intervals over problems" in text
    assert "be[b]\\x1b[31mtter" in text, "labels are neither markup nor control"
    code = mean_interval([0.25] * 4)
    assert f"25.0 [{100 * code.low:.1f}, {100 * code.high:.1f}]" in text
    assert "+75.0 [" in text
    assert "50.0%" in text


def test_names_and_scores_stay_whole_on_eighty_columns():
    names = ("livecodebench", "humaneval_plus", "mbpp_plus")
    labels = ("Qwen3-1.7B", "code_qwen3_1.7b/checkpoint-250")
    results = {name: result(5, 15, 35, 64, samples=64) for name in names}
    table = make_table([Evaluated(label, results) for label in labels], dict.fromkeys(names, "code"))
    text = shown(table, width=80)
    words = text.split()
    assert {*names, *labels, "average", "truncated", "Pass@64"} <= set(words)
    assert "\n  code_qwen3_1.7b/ " in text and "\n  checkpoint-250 " in text, "of Pass@k, below the benchmark"
    scores = mean_interval([one / 64 for one in (5, 15, 35, 64)])
    assert f"{100 * scores.low:.1f}-{100 * scores.high:.1f}" in words
    assert f"{100 * scores.low:.1f}," not in text
    assert f"[{100 * scores.low:.1f}, {100 * scores.high:.1f}]" in shown(table, width=140)


def test_the_table_as_json():
    table = make_table([BASE], DOMAINS)
    read = json.loads(table.as_json())
    assert read["cells"][0]["pass_at"]["1"]["value"] == 0.5
    assert read["averages"][0]["benchmarks"] == ["aime", "hmmt"]


@pytest.mark.parametrize(
    ("samples", "ks"), [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (6, (1, 2, 4, 6)), (32, (1, 2, 4, 8, 16, 32))]
)
def test_values_of_k(samples, ks):
    assert powers_up_to(samples) == ks
