"""Evaluations as the analysis reads them: names, domain averages, responses."""

import pytest

from mintrl_trl.analysis.figures import draw_figures, read_sources
from mintrl_trl.analysis.keyword_shifts import keyword_shifts, responses_of
from mintrl_trl.analysis.passes import domain_curves, domain_panels
from mintrl_trl.analysis.stored import is_evaluation, read_evaluations
from mintrl_trl.errors import DataError
from mintrl_trl.evaluation.samples import Sample, SampleFolder, Score
from tests.analyzed_runs import write_run


def write_evaluation(folder, label, benchmark, solved, texts=("wait", "use it"), domain="math", subsets=None):
    """An evaluation of two samples of each problem, of which so many are right; texts go round."""
    ids = [f"{benchmark}-{number}" for number in range(len(solved))]
    stored = SampleFolder(folder / benchmark)
    model = {"label": label, "run": "", "update": None}
    stored.begin(
        {"benchmark": benchmark, "domain": domain, "model": model, "ids": ids, "subsets": subsets or {}, "samples": 2}
    )
    for number, (name, right) in enumerate(zip(ids, solved, strict=True)):
        for sample in range(2):
            text = texts[(2 * number + sample) % len(texts)]
            stored.append(Sample(name, sample, (1, 2), text, "end"))
            stored.append_scores([Score(name, sample, float(sample < right))])
    return folder


@pytest.fixture
def evaluations(tmp_path):
    write_evaluation(tmp_path / "a", "models/a", "aime", (0, 2))
    write_evaluation(tmp_path / "a", "models/a", "gsm8k", (1, 1, 1, 1))
    write_evaluation(tmp_path / "b", "models/b", "aime", (1, 2), texts=("wait",))
    return tmp_path


def test_a_domain_is_averaged_over_its_benchmarks_and_not_over_problems(evaluations):
    (curve,) = domain_curves(read_evaluations([f"MInTRL-Const={evaluations / 'a'}"]), "math")
    # aime: 1/2 at both k; gsm8k: 1/2 at k=1, 1 at k=2
    assert [(point.x, point.value) for point in curve.points] == [(1.0, 0.5), (2.0, 0.75)]
    assert all(point.low <= point.value <= point.high for point in curve.points)
    assert curve.quantity == "Pass@k, math (aime, gsm8k)"
    assert domain_curves(read_evaluations([str(evaluations)]), "code") == []


def test_models_are_compared_on_what_all_of_them_have(evaluations):
    models = read_evaluations([f"MInTRL-Const={evaluations / 'a'}", f"GRPO={evaluations / 'b'}"])
    curves = domain_curves(models, "math")
    assert [curve.group for curve in curves] == ["GRPO", "MInTRL-Const"]
    assert [[point.value for point in curve.points] for curve in curves] == [[0.75, 1.0], [0.5, 0.5]]
    assert {curve.quantity for curve in curves} == {"Pass@k, math (aime)"}


def test_unlike_problems_are_not_compared(evaluations):
    write_evaluation(evaluations / "c", "c", "aime", (1, 2, 0))
    sources = read_sources([f"GRPO={evaluations / 'b'}", str(evaluations / "c")])
    drawn = draw_figures(sources, evaluations / "out", ["4a", "5"])
    assert [one.files for one in drawn] == [(), ()]
    assert all("c/aime: `problems` is" in one.note for one in drawn)


def test_the_small_world_has_a_panel_for_each_subset(tmp_path):
    subsets = {"chains-0": "easy", "chains-1": "hard"}
    write_evaluation(tmp_path / "a", "a", "chains", (2, 1), domain="chains", subsets=subsets)
    write_evaluation(tmp_path / "a", "a", "aime", (1,))
    models = read_evaluations([str(tmp_path / "a")])
    assert domain_panels(models) == [("math", None), ("chains", "easy"), ("chains", "hard")]
    (curve,) = domain_curves(models, "chains", "hard")
    assert (curve.quantity, [point.value for point in curve.points]) == ("Pass@k, hard", [0.5, 1.0])


def test_a_folder_of_several_models_has_their_labels(evaluations):
    assert [model.name for model in read_evaluations([str(evaluations)])] == ["models/a", "models/b"]
    assert is_evaluation(evaluations / "a" / "aime")
    assert not is_evaluation(evaluations / "nowhere")
    with pytest.raises(DataError, match="models/a, models/b"):
        read_evaluations([f"ours={evaluations}"])
    with pytest.raises(DataError, match="a name of its own"):
        read_evaluations([f"x={evaluations / 'a'}", f"x={evaluations / 'b'}"])


def test_keywords_are_counted_on_all_samples(evaluations):
    models = read_evaluations([f"GRPO={evaluations / 'b'}", f"ours={evaluations / 'a'}"])
    write_evaluation(evaluations / "c", "c", "chains", (1,), domain="chains")
    models += read_evaluations([str(evaluations / "c")])
    baseline, shifts = keyword_shifts(responses_of((), models))
    assert baseline == "GRPO"
    found = {shift.keyword: shift for shift in shifts if shift.group == "ours"}
    assert (found["wait"].shift, found["use"].shift, found["use"].responses) == (-0.5, 0.5, 4), (
        "on aime, which both have"
    )
    assert not [shift for shift in shifts if shift.group == "c"], "the small world has no words"


def test_evaluations_and_runs_stand_on_one_command_line(evaluations, tmp_path):
    sources = read_sources([str(evaluations / "a"), str(evaluations / "b")])
    assert (sources.groups, [model.name for model in sources.models]) == ((), ["models/a", "models/b"])
    drawn = {one.figure: one for one in draw_figures(sources, tmp_path / "out", ["3", "4a", "5"])}
    assert not drawn["3"].files
    assert drawn["4a"].files[0].read_bytes().startswith(b"\x89PNG")
    assert drawn["5"].note.startswith("nothing to compare with")
    with pytest.raises(DataError, match="at least one run"):
        read_sources([])


def test_a_run_that_holds_its_evaluations_is_still_a_run(tmp_path):
    write_evaluation(write_run(tmp_path / "run") / "a", "a", "aime", (1,))
    sources = read_sources([str(tmp_path / "run")])
    assert (len(sources.groups), sources.models) == (1, ())


def test_an_evaluation_that_is_not_complete_is_named(evaluations):
    (evaluations / "a" / "aime" / "scores.jsonl").write_text("")
    (model,) = read_evaluations([str(evaluations / "a")])
    with pytest.raises(DataError, match="aime"):
        _ = model.results
