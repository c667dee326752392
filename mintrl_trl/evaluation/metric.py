"""Pass@k as a metric of the `evaluate` library: `evaluate.load(metric_path("pass_at_k"))`, or `PassAtK()` directly.

Owns the wrapping only; formula and intervals are those of `pass_at_k` and `intervals`. It reads rewards that are there
already and samples nothing. Its siblings are `math_metric` (from texts) and `paired_comparison` (two models); all load
offline.
"""

import math
from pathlib import Path
from statistics import fmean

import datasets
import evaluate

# Absolute, because `evaluate.load` runs a copy of this file.
from mintrl_trl.errors import ConfigError
from mintrl_trl.evaluation.intervals import mean_interval
from mintrl_trl.evaluation.pass_at_k import SOLVED_ABOVE, pass_at_k

FILES = {"pass_at_k": "metric.py", "math_pass_at_k": "math_metric.py", "paired_pass_at_k": "paired_comparison.py"}
CITATION = """\
@article{chen2021evaluating,
    title = {Evaluating Large Language Models Trained on Code},
    author = {Chen, Mark and others},
    journal = {arXiv preprint arXiv:2107.03374},
    year = {2021}
}"""
_DESCRIPTION = "Unbiased Pass@k from n >= k rewards per problem, averaged over problems, with a confidence interval."
_INPUTS = """\
Args:
    predictions (`list[list[float]]`): Rewards of each problem's responses; above 0.5 counts as solved, `None` and what
        is not finite do not.
    ks (`list[int]`, *optional*, defaults to `[1]`): Values of k, each at most the fewest responses of a problem.
    level (`float`, *optional*): In (0, 1): also give the ends of the interval at this level over the draw of problems.

Returns:
    `dict[str, float]`: `pass@k` for each k; with `level` also `pass@k/low` and `pass@k/high`.
"""


def metric_path(name: str = "pass_at_k") -> str:
    """What `evaluate.load` takes. Loads offline.

    Args:
        name (`str`, *optional*, defaults to `"pass_at_k"`): `pass_at_k` from rewards, `math_pass_at_k` from texts and
            gold answers, `paired_pass_at_k` of two models on the same problems (a comparison).

    Raises:
        ConfigError: An unknown name.
    """
    if name not in FILES:
        raise ConfigError("name", name, " | ".join(FILES), "name one of them")
    return str(Path(__file__).with_name(FILES[name]))


def scores_of(rewards: list[list[float | None]], k: int) -> list[float]:
    """Each problem's unbiased Pass@k from the rewards of its responses.

    Raises:
        ConfigError: No problem, or one with fewer than `k` responses.
    """
    if not rewards:
        raise ConfigError("predictions", rewards, "the responses to at least one problem", "pass some")
    return [pass_at_k(len(own), sum(map(_solved, own)), k) for own in rewards]


def named_scores(rewards: list[list[float]], ks: tuple[int, ...], level: float | None) -> dict[str, float]:
    """`pass@k` by name, with the ends of its interval where a level is given."""
    named = {}
    for k in ks:
        scores = scores_of(rewards, k)
        named[f"pass@{k}"] = fmean(scores)
        if level is not None:
            interval = mean_interval(scores, level=level)
            named |= {f"pass@{k}/low": interval.low, f"pass@{k}/high": interval.high}
    return named


def _solved(reward: float | None) -> bool:
    return reward is not None and math.isfinite(reward) and reward > SOLVED_ABOVE


class PassAtK(evaluate.Metric):
    """Unbiased Pass@k.

    Examples:

    ```python
    >>> PassAtK().compute(predictions=[[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]], ks=[1, 2])
    {'pass@1': 0.125, 'pass@2': 0.25}

    ```
    """

    def _info(self) -> evaluate.MetricInfo:
        features = datasets.Features({"predictions": datasets.Sequence(datasets.Value("float64"))})
        return evaluate.MetricInfo(
            description=_DESCRIPTION, citation=CITATION, inputs_description=_INPUTS, features=features
        )

    def _compute(
        self, predictions: list[list[float]], ks: tuple[int, ...] = (1,), level: float | None = None
    ) -> dict[str, float]:
        return named_scores(predictions, tuple(ks), level)
