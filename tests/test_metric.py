"""Pass@k through the `evaluate` library, built directly and loaded from its file."""

import evaluate
import pytest

from mintrl_trl.errors import ConfigError
from mintrl_trl.evaluation.metric import PassAtK, metric_path

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
