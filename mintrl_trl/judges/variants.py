"""Judges that do half of what another judge does: what of an intervention helps, the cut, its place or its text?

Each wraps any judge and asks it all that it would be asked anyway; what the wrapped judge counts, spends or has to be
told passes through. They sample from no model. Invariant: a chunk that the wrapped judge keeps is kept.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..rollouts.doors import Correction, Judge, Revise, Verdict
from ..rollouts.rollout import Problem


class _Variant:
    """A judge around a judge. What it does not have itself it has from `judge`."""

    def __init__(self, judge: Judge):
        self.judge = judge

    def __getattr__(self, name: str) -> Any:
        if name == "judge":  # not there yet while a copy is made
            raise AttributeError(name)
        return getattr(self.judge, name)

    @property
    def spent(self) -> tuple[int, float]:
        """What the wrapped judge has spent, where it counts."""
        return self.judge.spent

    @spent.setter
    def spent(self, spent: tuple[int, float]) -> None:
        self.judge.spent = spent

    def settings(self) -> dict[str, Any]:
        """The wrapped judge's class and settings."""
        own = getattr(self.judge, "settings", dict)()
        return {"of": type(self.judge).__qualname__} | own

    async def intervene(
        self, problem: Problem, accepted: str, verdict: Revise, max_tokens: int, *, seed: int
    ) -> Correction:
        """The wrapped judge's correction."""
        return await self.judge.intervene(problem, accepted, verdict, max_tokens, seed=seed)


class PlaceboJudge(_Variant):
    """Cuts where the wrapped judge cuts and writes nothing: the policy goes on from there with new noise.

    What is learned with it comes from a second try at the right place, and not from the judge's words. No token of such
    a rollout is the judge's, so its off-policy share is 0.

    Args:
        judge (`Judge`): Whom to ask for verdicts. Its `intervene` is never called.
    """

    async def review(self, problem: Problem, steps: Sequence[str], first_new: int, *, seed: int) -> Verdict:
        """The wrapped judge's verdict, without a correction."""
        verdict = await self.judge.review(problem, steps, first_new, seed=seed)
        return replace(verdict, resample=True) if isinstance(verdict, Revise) else verdict


class RandomCutJudge(_Variant):
    """Cuts as often as the wrapped judge, at a new step drawn at random, and lets that judge write from there.

    What is learned with it comes from foreign words in between, and not from their being where the mistake is.

    Args:
        judge (`Judge`): Whom to ask whether to cut, and for corrections.
    """

    async def review(self, problem: Problem, steps: Sequence[str], first_new: int, *, seed: int) -> Verdict:
        """Revise at a uniformly drawn new step wherever the wrapped judge revises; the reason is that judge's."""
        verdict = await self.judge.review(problem, steps, first_new, seed=seed)
        if not isinstance(verdict, Revise):  # Keep, or what the sampler will refuse
            return verdict
        draw = random.Random(f"random cut {seed}").random()  # apart from what the wrapped judge draws from its seed
        return replace(verdict, step=first_new + int(draw * (len(steps) - first_new)))
