"""Rollouts that begin as others did, and a judge that is heard and not followed.

Owns two doors around others: `Beginnings` hands out given tokens before the policy goes on, `ShadowJudge` lets a judge
review and changes nothing. Together they review a finished response without sampling a token. Invariant: what is given
comes back id by id, whatever the judge says.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

from ..rollouts.doors import Correction, Judge, PolicyGenerator, Revise, SampledToken, Verdict
from ..rollouts.rollout import Problem


class Beginning(NamedTuple):
    """How a response begins: the length of its prompt, and its first ids."""

    prompt_tokens: int
    ids: tuple[int, ...]


class Beginnings:
    """A policy whose responses begin with given ids; implements [`PolicyGenerator`].

    Args:
        generator ([`PolicyGenerator`]): Who goes on.
        by_seed (`Mapping[int, Beginning]`): By the seed of a response's requests; others begin with nothing.
    """

    def __init__(self, generator: PolicyGenerator, by_seed: Mapping[int, Beginning]):
        self._generator, self._by_seed = generator, by_seed

    @property
    def weight_version(self) -> str:
        """The policy's."""
        return self._generator.weight_version

    @contextmanager
    def for_rollout(self) -> Iterator["Beginnings"]:
        """The same for one rollout, which stays with one server of several."""
        for_rollout = getattr(self._generator, "for_rollout", None)
        with nullcontext(self._generator) if for_rollout is None else for_rollout() as generator:
            yield Beginnings(generator, self._by_seed)

    async def stream(self, prefix_ids: Sequence[int], max_tokens: int, seed: int) -> AsyncIterator[SampledToken]:
        """What is left of the beginning, then what the policy samples. Given tokens have no log-probability."""
        begun = self._by_seed.get(seed)
        given = () if begun is None else begun.ids[len(prefix_ids) - begun.prompt_tokens :][:max_tokens]
        for token in given:
            yield SampledToken(token, None)
        if len(given) == max_tokens:
            return
        stream = self._generator.stream((*prefix_ids, *given), max_tokens - len(given), seed)
        try:
            async for token in stream:
                yield token
        finally:
            await stream.aclose()


class ShadowJudge:
    """A judge whose verdicts are recorded and not acted upon: every correction is empty, so every chunk stays.

    Args:
        judge ([`Judge`]): Who reviews. It is never asked for a correction.
    """

    def __init__(self, judge: Judge):
        self._judge = judge

    @property
    def exhausted(self) -> bool:
        """Whether the judge's budget is spent."""
        return getattr(self._judge, "exhausted", False)

    async def review(self, problem: Problem, steps: Sequence[str], first_new: int, *, seed: int) -> Verdict:
        """What the judge says."""
        verdict = await self._judge.review(problem, steps, first_new, seed=seed)
        return Revise(verdict.step, verdict.reason) if isinstance(verdict, Revise) else verdict

    async def intervene(
        self, problem: Problem, accepted: str, verdict: Revise, max_tokens: int, *, seed: int
    ) -> Correction:
        """Nothing."""
        return Correction(ids=())
