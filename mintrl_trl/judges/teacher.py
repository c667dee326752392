"""A stronger model of the policy's vocabulary as judge, without a reference solution in view.

Owns the count of its calls and nothing of the model: a generator that serves its weights is passed in. Verdicts are the
likelihood of the steps under the model; corrections are sampled from it and come as ids with their log-probabilities,
so `anchor: judge` and a calibrated `kappa` mean what they mean for a language model. As it does not know the answer, it
may be wrong in both. Invariant: what it says depends on the question and on what is written, and on nothing else.
"""

import time
from collections.abc import Callable, Sequence

from ..rollouts.doors import Correction, Revise, Verdict
from ..rollouts.rollout import Problem
from .accounting import Account, Usage
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
        self.fingerprint, self.account = fingerprint, Account()

    @property
    def temperature(self) -> float:
        """Of the model's distribution, in verdicts and in corrections."""
        return getattr(self._generator, "temperature", 1.0)

    def settings(self) -> dict[str, float | str]:
        """What its verdicts depend on, besides the prompt."""
        return super().settings() | {"temperature": self.temperature, "weights": self.fingerprint}

    def counters(self) -> dict[str, float]:
        """Calls, tokens read and written, and seconds, by role, under the names that judges over HTTP use."""
        return super().counters() | self.account.counters()

    async def review(self, problem: Problem, steps: Sequence[str], first_new: int, *, seed: int) -> Verdict:
        """Keep, or revise at the first new step below the threshold; see [`LikelihoodJudge.review`]."""
        started, read = time.perf_counter(), sum(len(step.ids) for step in steps)
        verdict = await super().review(problem, steps, first_new, seed=seed)
        self._count("review", problem, read, 0, started)
        return verdict

    async def intervene(
        self, problem: Problem, accepted: str, verdict: Revise, max_tokens: int, *, seed: int
    ) -> Correction:
        """Continue `accepted` as the model would; see [`LikelihoodJudge.intervene`]."""
        started = time.perf_counter()
        correction = await super().intervene(problem, accepted, verdict, max_tokens, seed=seed)
        self._count("correction", problem, len(accepted.ids), len(correction.ids), started)
        return correction

    def _count(self, role: str, problem: Problem, read: int, written: int, started: float) -> None:
        read += len(self._render_context(problem))
        self.account.add(role, Usage(1, 0, read, written, time.perf_counter() - started))

    async def aclose(self) -> None:
        """End the model's generator."""
        close = getattr(self._generator, "close", None)
        if close is not None:
            close()
