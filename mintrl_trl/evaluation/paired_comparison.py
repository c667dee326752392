"""Two models on the same problems, as a comparison of the `evaluate` library.

`evaluate.load(metric_path("paired_pass_at_k"), module_type="comparison")`, or `PairedPassAtK()` directly. Owns the
wrapping only; the test is `intervals.compare_means`.
"""

import datasets
import evaluate

# Absolute, because `evaluate.load` runs a copy of this file.
from mintrl_trl.evaluation.intervals import LEVEL, compare_means
from mintrl_trl.evaluation.metric import CITATION, scores_of

_DESCRIPTION = "The difference in Pass@k of two models on the same problems, with interval and sign-flip p-value."
_INPUTS = """\
Args:
    predictions1 (`list[list[float]]`): Rewards of the first model's responses to each problem.
    predictions2 (`list[list[float]]`): Those of the second, to the same problems in the same order.
    k (`int`, *optional*, defaults to 1): At most the fewest responses to a problem.
    level (`float`, *optional*, defaults to 0.95): Of the interval, in (0, 1).

Returns:
    `dict[str, float]`: `difference`, second minus first, `low` and `high`, and the two-sided `p_value`.
"""


class PairedPassAtK(evaluate.Comparison):
    """The second model's Pass@k minus the first's.

    Examples:

    ```python
    >>> first, second = [[0.0], [0.0], [1.0], [0.0]], [[1.0], [1.0], [1.0], [1.0]]
    >>> result = PairedPassAtK().compute(predictions1=first, predictions2=second)
    >>> result["difference"], result["p_value"]
    (0.75, 0.25)

    ```
    """

    def _info(self) -> evaluate.ComparisonInfo:
        rewards = datasets.Sequence(datasets.Value("float64"))
        return evaluate.ComparisonInfo(
            module_type="comparison",
            description=_DESCRIPTION,
            citation=CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions1": rewards, "predictions2": rewards}),
        )

    def _compute(
        self,
        predictions1: list[list[float]],
        predictions2: list[list[float]],
        k: int = 1,
        level: float = LEVEL,
    ) -> dict[str, float]:
        compared = compare_means(scores_of(predictions1, k), scores_of(predictions2, k), level=level)
        difference = compared.difference
        return {
            "difference": difference.value,
            "low": difference.low,
            "high": difference.high,
            "p_value": compared.p_value,
        }
