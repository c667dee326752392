"""What one writes first: rounds in which all rows sample a chunk, all wait, all are reviewed, all wait.

It owns the order of calls and nothing else: chunks, cuts, seeds and records are the sampler's, so the rollouts are the
same ones. One length for all rows of a call, as with `generate`: the controls take part in the rounds without being
reviewed. After the last round all rows that are left run to their end.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any

from mintrl_trl.rollouts.doors import Judge, PolicyGenerator, Revise, Vocabulary
from mintrl_trl.rollouts.draft import Draft
from mintrl_trl.rollouts.rollout import Author, Decision, ReviewRecord, Role, Rollout, RolloutRequest, Span, StopReason
from mintrl_trl.rollouts.schedule import InterventionBudget, SeedPurpose, request_seed
from mintrl_trl.rollouts.segmentation import Segmentation, decode

Shown = tuple[Draft, Span, list, Segmentation]


class LockStep:
    """Makes the rollouts of one batch.

    Args:
        generator (`PolicyGenerator`), judge (`Judge`), vocabulary (`Vocabulary`): The doors.
        budget (`InterventionBudget`): Limits of one rollout.
        run_seed (`int`): Seed of the run.
    """

    def __init__(
        self,
        generator: PolicyGenerator,
        judge: Judge,
        vocabulary: Vocabulary,
        budget: InterventionBudget,
        run_seed: int,
    ):
        self._generator, self._judge, self._vocabulary = generator, judge, vocabulary
        self._budget, self._run_seed = budget, run_seed

    async def rollouts(self, requests: Iterable[RolloutRequest]) -> dict[int, Rollout]:
        """All rollouts, by row."""
        drafts = [Draft(request, self._vocabulary) for request in requests]
        for index in range(self._budget.max_reviews + 1):
            live = [draft for draft in drafts if draft.stop is None]
            last = index == self._budget.max_reviews
            chunks = await _all(self._chunk(draft, None if last else self._budget.chunk_tokens) for draft in live)
            shown: list[Shown] = []
            for draft, chunk in zip(live, chunks, strict=True):
                if last or draft.request.role is Role.CONTROL:
                    self._accept(draft, chunk)
                else:
                    standing, new = draft.show(chunk)
                    shown.append((draft, chunk, [*standing], new))
            verdicts = await _all(self._review(draft, standing, new) for draft, _, standing, new in shown)
            revised = [
                (draft, chunk, len(standing), new, verdict)
                for (draft, chunk, standing, new), verdict in zip(shown, verdicts, strict=True)
                if isinstance(verdict, Revise)
            ]
            for (draft, chunk, standing, new), verdict in zip(shown, verdicts, strict=True):
                if not isinstance(verdict, Revise):
                    self._record(draft, chunk, standing, new, None, len(chunk), 0)
                    self._accept(draft, chunk)
            await _all(self._correct(*row) for row in revised)
        return {draft.request.row: draft.finished(0.0) for draft in drafts}

    async def _chunk(self, draft: Draft, tokens: int | None) -> Span:
        room = self._budget.max_completion_tokens - len(draft.ids)
        prefix = (*draft.request.prompt_ids, *draft.ids)
        stream = self._generator.stream(prefix, min(tokens or room, room), self._seed(draft, "policy"))
        take, sampled = getattr(stream, "take", list), []
        async for token in stream:
            sampled.append(token)
            sampled += take()
        ids, logps = zip(*sampled, strict=True)
        return Span(ids, Author.POLICY, self._generator.weight_version, None if None in logps else logps)

    async def _review(self, draft: Draft, standing: Sequence, new: Segmentation) -> Any:
        seed = self._seed(draft, "review")
        return await self._judge.review(draft.request.problem, (*standing, *new.steps), len(standing), seed=seed)

    async def _correct(self, draft: Draft, chunk: Span, standing: int, new: Segmentation, verdict: Revise) -> None:
        cut = new.starts[verdict.step - standing]
        accepted = decode((*draft.ids, *chunk.ids[:cut]), self._vocabulary)
        limit = min(self._budget.correction_tokens, self._budget.max_completion_tokens - len(accepted.ids))
        seed = self._seed(draft, "correction")
        correction = await self._judge.intervene(draft.request.problem, accepted, verdict, limit, seed=seed)
        span = Span(correction.ids, Author.INTERVENTION, "", correction.logps)
        self._record(draft, chunk, [None] * standing, new, verdict, cut, len(span))
        draft.append(chunk, cut)
        draft.append(span)

    def _accept(self, draft: Draft, chunk: Span) -> None:
        draft.append(chunk)
        if chunk.ids[-1] in self._vocabulary.end_ids:
            draft.stop = StopReason.END
        elif len(draft.ids) == self._budget.max_completion_tokens:
            draft.stop = StopReason.LENGTH

    def _record(
        self,
        draft: Draft,
        chunk: Span,
        standing: Sequence,
        new: Segmentation,
        verdict: Revise | None,
        kept_tokens: int,
        correction_tokens: int,
    ) -> None:
        draft.reviews.append(
            ReviewRecord(
                chunk_start=len(draft.ids),
                chunk_tokens=len(chunk),
                num_steps=len(standing) + len(new.steps),
                first_new=len(standing),
                decision=Decision.KEEP if verdict is None else Decision.REVISE,
                step=None if verdict is None else verdict.step,
                kept_tokens=kept_tokens,
                correction_tokens=correction_tokens,
                discarded_ids=chunk.ids[kept_tokens:],
            )
        )

    def _seed(self, draft: Draft, purpose: SeedPurpose) -> int:
        count = draft.revisions if purpose == "policy" else len(draft.reviews)
        return request_seed(self._run_seed, draft.request.update, draft.request.row, count, purpose)


async def _all(calls: Iterable[Awaitable]) -> list:
    """Everyone waits for the slowest."""
    return await asyncio.gather(*calls)
