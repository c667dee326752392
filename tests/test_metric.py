"""Metrics through the `evaluate` library, built directly and loaded from their files."""

import math
import re
from pathlib import Path

import evaluate
import pytest

from mintrl_trl.errors import ConfigError
from mintrl_trl.evaluation.intervals import mean_interval
from mintrl_trl.evaluation.math_metric import MathPassAtK
from mintrl_trl.evaluation.metric import PassAtK, metric_path
from mintrl_trl.evaluation.paired_comparison import PairedPassAtK

REWARDS = [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.5, 1.0, 1.0, 1.0]]


@pytest.fixture(params=["direct", "loaded"])
def metric(request, tmp_path):
    if request.param == "direct":
        return PassAtK(cache_dir=str(tmp_path))
    return evaluate.load(metric_path(), cache_dir=str(tmp_path))


def test_worked_numbers(metric):
    scores = metric.compute(predictions=REWARDS, ks=[1, 2, 4])
    assert scores == pytest.approx({"pass@1": 1 / 3, "pass@2": 0.5, "pass@4": 2 / 3})


def test_batches_add_up_and_problems_may_have_unlike_numbers_of_responses(metric):
    metric.add_batch(predictions=[[1.0, 0.0]])
    metric.add(predictions=[1.0, 1.0, 1.0, 0.0])
    assert metric.compute() == {"pass@1": 0.625}


def test_k_beyond_the_responses_is_an_error(metric):
    with pytest.raises(ConfigError, match="1 to n = 4"):
        metric.compute(predictions=REWARDS, ks=[5])


def test_a_level_gives_intervals(metric):
    scores = metric.compute(predictions=REWARDS * 10, level=0.95)
    expected = mean_interval([0.25, 0.0, 0.75] * 10)
    assert scores == pytest.approx({"pass@1": 1 / 3, "pass@1/low": expected.low, "pass@1/high": expected.high})
    assert 0 < scores["pass@1/low"] < 1 / 3 < scores["pass@1/high"] < 1


@pytest.mark.parametrize("loaded", [False, True], ids=["direct", "loaded"])
def test_texts_against_gold_answers(loaded, tmp_path):
    metric = (
        evaluate.load(metric_path("math_pass_at_k"), cache_dir=str(tmp_path))
        if loaded
        else MathPassAtK(cache_dir=str(tmp_path))
    )
    texts = [[r"\boxed{\frac{2}{4}}", r"\boxed{2}"], ["nothing", r"\boxed{}"]]
    scores = metric.compute(predictions=texts, references=["0.5", "1"], ks=[1, 2], level=0.9)
    assert {name: scores[name] for name in ("pass@1", "pass@2", "no_answer")} == {
        "pass@1": 0.25,
        "pass@2": 0.5,
        "no_answer": 0.5,
    }
    assert scores["pass@2/low"] <= 0.5 <= scores["pass@2/high"]


@pytest.mark.parametrize("loaded", [False, True], ids=["direct", "loaded"])
def test_two_models_on_the_same_problems(loaded, tmp_path):
    comparison = (
        evaluate.load(metric_path("paired_pass_at_k"), module_type="comparison", cache_dir=str(tmp_path))
        if loaded
        else PairedPassAtK(cache_dir=str(tmp_path))
    )
    first = [[1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]
    second = [[1.0, 1.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    result = comparison.compute(predictions1=first, predictions2=second)
    # Three times 0.5 more, once equal: all three flips but two of eight fall short of 1.5.
    assert (result["difference"], result["p_value"]) == (0.375, 0.25)
    assert 0 <= result["low"] <= 0.375 <= result["high"]
    assert comparison.compute(predictions1=first, predictions2=second, k=2)["difference"] == 0.5
    with pytest.raises(ConfigError, match="`k`"):
        comparison.compute(predictions1=first, predictions2=second, k=3)


def test_an_unknown_metric_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"pass_at_k \| math_pass_at_k \| paired_pass_at_k"):
        metric_path("accuracy")


def test_the_page_shows_what_comes_out():
    page = (Path(__file__).parents[1] / "docs" / "evaluation.md").read_text()
    (snippet,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, object] = {}
    exec(snippet, names)
    shown = re.findall(r"^(\S.*?)  # ([\d.]+)$", snippet, re.MULTILINE)
    assert len(shown) == 2
    for expression, value in shown:
        assert eval(expression, names) == float(value)
    assert "Pass@k" in names["metric"].description  # loaded from its file


def test_what_is_no_reward_is_not_solved_and_nothing_is_no_score():
    rewards = [[None, math.nan], [math.inf, 1.0]]
    assert PassAtK().compute(predictions=rewards, ks=[1, 2]) == {"pass@1": 0.25, "pass@2": 0.5}
    with pytest.raises(ConfigError, match="at least one problem"):
        PassAtK().compute(predictions=[])
    with pytest.raises(ConfigError, match="at least one problem"):
        MathPassAtK().compute(predictions=[], references=[])
