"""Pass@k as a metric of the `evaluate` library: `evaluate.load(metric_path())`, or `PassAtK()` directly.

Owns the wrapping only; the formula is `pass_at_k`'s. It reads rewards that are there already and samples nothing.
"""

from statistics import fmean

import datasets
import evaluate

# Absolute, because `evaluate.load` runs a copy of this file.
from mintrl_trl.evaluation.pass_at_k import SOLVED_ABOVE, pass_at_k

_DESCRIPTION = "Unbiased Pass@k from n >= k rewards per problem, averaged over problems."
_CITATION = """\
@article{chen2021evaluating,
    title = {Evaluating Large Language Models Trained on Code},
    author = {Chen, Mark and others},
    journal = {arXiv preprint arXiv:2107.03374},
    year = {2021}
}"""
_INPUTS = """\
Args:
    predictions (`list[list[float]]`): Rewards of each problem's responses; above 0.5 counts as solved.
    ks (`list[int]`, *optional*, defaults to `[1]`): Values of k, each at most the fewest responses of a problem.

Returns:
    `dict[str, float]`: `pass@k` for each k.
"""


def metric_path() -> str:
    """What `evaluate.load` takes. Loads offline."""
    return __file__


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
            description=_DESCRIPTION, citation=_CITATION, inputs_description=_INPUTS, features=features
        )

    def _compute(self, predictions: list[list[float]], ks: tuple[int, ...] = (1,)) -> dict[str, float]:
        counts = [(len(rewards), sum(reward > SOLVED_ABOVE for reward in rewards)) for rewards in predictions]
        return {f"pass@{k}": fmean(pass_at_k(n, c, k) for n, c in counts) for k in ks}
