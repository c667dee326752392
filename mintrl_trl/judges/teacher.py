"""A stronger model of the policy's vocabulary as judge, without a reference solution in view.

Owns nothing of the model: a generator that serves its weights is passed in, and ended with the judge. Verdicts are the
likelihood of the steps under the model; corrections are sampled from it and come as ids with their log-probabilities,
so `anchor: judge` and a calibrated `kappa` mean what they mean for a language model. As it does not know the answer, it
may be wrong in both. Invariant: what it says depends on the question and on what is written, and on nothing else.
"""

from collections.abc import Callable, Sequence

from ..rollouts.rollout import Problem
from .local import BaseModel, LikelihoodJudge

THRESHOLD = -3.0  # nats: a step that the model would write in one case of twenty


class TeacherJudge(LikelihoodJudge):
    """Rejects the first new step that a stronger model would hardly have written, and goes on in that model's words.

    Args:
        generator ([`BaseModel`]): Serves the stronger model as its base weights. `aclose` closes it.
        render_prompt (`Callable[[Problem], Sequence[int]]`): The prompt under which the model solves the problem.
        threshold (`float`, *optional*, defaults to `THRESHOLD`): In nats, below 0: the log-probability of a step,
            summed over its tokens, below which it is rejected.
        fingerprint (`str`, *optional*): Of the model's weights, so that a run does not go on with another teacher.

    Raises:
        ConfigError: A generator without base weights, or a threshold that is not below 0.
    """

    def __init__(
        self,
        generator: BaseModel,
        render_prompt: Callable[[Problem], Sequence[int]],
        *,
        threshold: float = THRESHOLD,
        fingerprint: str = "",
    ):
        super().__init__(generator, render_prompt, threshold=threshold)
        self.fingerprint = fingerprint

    def settings(self) -> dict[str, float | str]:
        """What its verdicts depend on, besides the prompt."""
        return super().settings() | {"weights": self.fingerprint}

    async def aclose(self) -> None:
        """End the model's generator."""
        close = getattr(self._generator, "close", None)
        if close is not None:
            close()
