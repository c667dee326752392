"""Pass@k of texts against gold answers, as a metric of the `evaluate` library.

`evaluate.load(metric_path("math_pass_at_k"))`, or `MathPassAtK()` directly. Owns the wrapping only: texts are
read and compared by `rewards.math`, as in training. Invariant: a response is solved here if `math_reward` rewards it,
and only then.
"""

import datasets
import evaluate

# Absolute, because `evaluate.load` runs a copy of this file.
from mintrl_trl.evaluation.metric import CITATION, named_scores
from mintrl_trl.evaluation.scoring import NO_ANSWER, call_reward
from mintrl_trl.rewards.math import math_reward

_DESCRIPTION = "Unbiased Pass@k of responses to maths problems, whose last box is compared with the gold answer."
_INPUTS = """\
Args:
    predictions (`list[list[str]]`): The responses to each problem, with the answer in the last `\\boxed{}`.
    references (`list[str]`): The problems' gold answers, short, LaTeX without `$`.
    ks (`list[int]`, *optional*, defaults to `[1]`): Values of k, each at most the fewest responses to a problem.
    level (`float`, *optional*): In (0, 1): also give the ends of the interval at this level over the draw of problems.

Returns:
    `dict[str, float]`: `pass@k` for each k; with `level` also `pass@k/low` and `pass@k/high`; `no_answer`, the share of
    responses without an answer.
"""


class MathPassAtK(evaluate.Metric):
    r"""Unbiased Pass@k of texts.

    Examples:

    ```python
    >>> answers = [[r"So \boxed{0.5}.", "I do not know."], [r"\boxed{3}", r"\boxed{x = 3}"]]
    >>> MathPassAtK().compute(predictions=answers, references=[r"\frac{1}{2}", "3"], ks=[1, 2])
    {'pass@1': 0.75, 'pass@2': 1.0, 'no_answer': 0.25}

    ```
    """

    def _info(self) -> evaluate.MetricInfo:
        texts = datasets.Value("string")
        features = datasets.Features({"predictions": datasets.Sequence(texts), "references": texts})
        return evaluate.MetricInfo(
            description=_DESCRIPTION, citation=CITATION, inputs_description=_INPUTS, features=features
        )

    def _compute(
        self,
        predictions: list[list[str]],
        references: list[str],
        ks: tuple[int, ...] = (1,),
        level: float | None = None,
    ) -> dict[str, float]:
        pairs = [(text, gold) for texts, gold in zip(predictions, references, strict=True) for text in texts]
        rewarded = call_reward(
            math_reward,
            prompts=[""] * len(pairs),
            texts=[text for text, _ in pairs],
            completion_ids=[()] * len(pairs),
            columns={"answer": [gold for _, gold in pairs]},
        )
        values = iter(rewarded)
        rewards = [[next(values).reward for _ in texts] for texts in predictions]
        named = named_scores(rewards, tuple(ks), level)  # which refuses nothing at all
        return named | {"no_answer": sum(one.why in NO_ANSWER for one in rewarded) / len(rewarded)}
