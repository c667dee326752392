"""Algorithm 1: the policy writes in chunks, the judge reviews them, and now and then splices in a correction.

One coroutine per rollout walks between the two doors; rollouts share nothing but the bounds on concurrency. Ids in, ids
out: text is made for the judge's eyes alone, and a policy token is never decoded and encoded again. The invariants:

- a rollout depends on its request, the seeds and the doors, never on timing: reading on while the judge reads
  (`overlap_reviews`) changes the speed and nothing else;
- every loop ends, because each turn adds tokens to a bounded response or takes one of a bounded number of reviews;
- after an error or `cancel`, every stream is closed and no task is left.

What runs where, and how it ends, is `pool.py`'s; `streams.py` reads the policy, `reviewer.py` checks the judge.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple

from ..errors import ConfigError, NoVerdict
from .doors import Judge, PolicyGenerator, Revise, Vocabulary
from .draft import Draft
from .failure_window import FailureWindow
from .loop import BackgroundLoop, shared_loop
from .pool import RolloutPool
from .progress import Progress
from .reviewer import Answer, Reviewer
from .rollout import Decision, ReviewRecord, Role, Rollout, RolloutRequest, Span, StopReason
from .schedule import InterventionBudget, SeedPurpose, request_seed
from .segmentation import decode
from .streams import StreamReader


@dataclass(frozen=True)
class SamplerSettings:
    """How rollouts are made.

    Args:
        budget (`InterventionBudget`): Limits of one rollout.
        run_seed (`int`): Seed of the run.
        overlap_reviews (`bool`, *optional*, defaults to `True`): Whether the policy goes on sampling while the judge
            reads. Changes the speed, never the rollouts.
        max_concurrent_rollouts (`int`, *optional*, defaults to 512): Rollouts in flight at most.
        max_concurrent_reviews (`int`, *optional*, defaults to 64): Calls of the judge in flight at most. Best is what
            the judge works on at once: further calls wait here, where the most urgent one is next.
        no_verdict_limit (`float`, *optional*, defaults to 0.2): Share of reviews without verdict, in [0, 1], above
            which the run stops.
        no_verdict_window (`int`, *optional*, defaults to 200): Over how many of the last reviews.
        pauses_reviews (`bool`, *optional*, defaults to `False`): Whether the run goes on without reviews for a while
            instead of stopping there.
        review_timeout_seconds (`float`, *optional*, defaults to 600.0): One review or correction at most; then there is
            no verdict.

    Raises:
        ConfigError: A number is out of its range.
    """

    budget: InterventionBudget
    run_seed: int
    overlap_reviews: bool = True
    max_concurrent_rollouts: int = 512
    max_concurrent_reviews: int = 64
    no_verdict_limit: float = 0.2
    no_verdict_window: int = 200
    pauses_reviews: bool = False
    review_timeout_seconds: float = 600.0

    def __post_init__(self):
        for field in ("max_concurrent_rollouts", "max_concurrent_reviews", "no_verdict_window"):
            if getattr(self, field) < 1:
                raise ConfigError(field, getattr(self, field), "1 or more", f"set {field}=1 or higher")
        if not self.review_timeout_seconds > 0:
            allowed = "a number of seconds above 0"
            raise ConfigError("review_timeout_seconds", self.review_timeout_seconds, allowed, "use the default 600")
        if not 0.0 <= self.no_verdict_limit <= 1.0:
            raise ConfigError("no_verdict_limit", self.no_verdict_limit, "a share, 0 to 1", "use the default 0.2")


class _Revision(NamedTuple):
    """What a Revise leads to: the first tokens of the chunk stay, the correction follows, if there is to be one."""

    kept_tokens: int
    correction: Span | None


class InterventionSampler:
    """Makes rollouts: plain ones for controls, Algorithm 1 for intervened ones.

    Args:
        generator ([`PolicyGenerator`]): The policy.
        judge ([`Judge`], *optional*): The judge-intervention policy; needed as soon as a rollout may be reviewed.
        vocabulary ([`Vocabulary`]): The policy's vocabulary.
        settings ([`SamplerSettings`]): Limits, seeds and concurrency.
        on_finished (`Callable[[Rollout], None]`, *optional*): Called with each finished rollout, on the background
            thread, in order of finishing. It must return quickly; what it raises is fatal.
        loop ([`BackgroundLoop`], *optional*): Where rollouts and doors run. Defaults to the loop that all samplers
            of the process share, so that doors which hold connections may be shared, too.

    Raises:
        ConfigError: The judge lacks a method.
    """

    def __init__(
        self,
        generator: PolicyGenerator,
        judge: Judge | None,
        vocabulary: Vocabulary,
        settings: SamplerSettings,
        on_finished: Callable[[Rollout], None] | None = None,
        *,
        loop: BackgroundLoop | None = None,
    ):
        if judge is not None and not (hasattr(judge, "review") and hasattr(judge, "intervene")):
            raise ConfigError("judge", judge, "an object with `review` and `intervene`", "add the missing method")
        self._generator, self._judge, self._vocabulary, self._settings = generator, judge, vocabulary, settings
        self._reviewer = Reviewer(
            judge,
            vocabulary,
            max_concurrent=settings.max_concurrent_reviews,
            failures=FailureWindow(
                settings.no_verdict_limit, settings.no_verdict_window, pauses=settings.pauses_reviews
            ),
            timeout_seconds=settings.review_timeout_seconds,
        )
        self._passed_over = 0
        self._pool = RolloutPool(
            self._rollout,
            loop if loop is not None else shared_loop(),
            max_concurrent=settings.max_concurrent_rollouts,
            on_finished=on_finished,
        )

    @property
    def review_window(self) -> list[str | None]:
        """Reasons, or `None` for a verdict, of the reviews that `no_verdict_limit` is held against. May be set."""
        return self._reviewer.failures.reasons

    @review_window.setter
    def review_window(self, reasons: Sequence[str | None]) -> None:
        self._reviewer.failures.reasons = reasons

    @property
    def no_verdicts(self) -> Counter[str]:
        """How many reviews gave no verdict since it was made, by reason; those of rollouts that were given up, too."""
        return self._reviewer.failures.no_verdicts.copy()

    def counters(self) -> dict[str, float]:
        """What was counted since it was made, by metric name. The numbers only grow.

        `judge/paused`: how often reviews paused because too many gave no verdict. `judge/passed_over`: rollouts that
        went on without a review that was due, in such a pause or with the judge's budget spent.
        """
        paused = self._reviewer.failures.paused
        return {"judge/paused": float(paused), "judge/passed_over": float(self._passed_over)}

    async def _rollout(self, request: RolloutRequest) -> Rollout:
        """One rollout; it has one generator from its beginning to its end."""
        for_rollout = getattr(self._generator, "for_rollout", None)
        with nullcontext(self._generator) if for_rollout is None else for_rollout() as generator:
            return await self._algorithm(request, generator)

    async def _algorithm(self, request: RolloutRequest, generator: PolicyGenerator) -> Rollout:
        """Algorithm 1. A control is the case without reviews: one chunk, up to the limit."""
        budget, draft, stream = self._settings.budget, Draft(request, self._vocabulary), None
        now, max_reviews, passed_over = asyncio.get_running_loop().time, self._max_reviews(request), False
        started = now()
        try:
            while draft.stop is None:
                room = budget.max_completion_tokens - len(draft.ids)
                due = len(draft.reviews) < max_reviews
                reviewing = due and self._reviewer.accepts
                wanted = min(budget.chunk_tokens, room) if reviewing else room
                if stream is None or stream.spent:
                    stream = self._open(generator, draft, room if self._settings.overlap_reviews else wanted)
                with self._pool.tally.call("policy", request.row):
                    chunk = await stream.take(wanted)
                self._pool.tally.chunks += 1
                ended = chunk.ids[-1] in self._vocabulary.end_ids
                revision = None
                due = due and (budget.review_final_chunk or not ended)
                passed_over |= due and not (reviewing and self._reviewer.accepts)
                if reviewing and due and self._reviewer.accepts:
                    revision = await self._review(draft, chunk, stream)
                if revision is None:  # Keep
                    draft.append(chunk)
                else:  # Revise
                    draft.append(chunk, revision.kept_tokens)
                    if revision.correction is not None:
                        draft.append(revision.correction)
                if ended and revision is None:
                    draft.stop = StopReason.END
                elif len(draft.ids) == budget.max_completion_tokens:
                    draft.stop = StopReason.LENGTH
        finally:
            if stream is not None:
                await stream.aclose()
        self._passed_over += passed_over
        return draft.finished(now() - started)

    async def _review(self, draft: Draft, chunk: Span, stream: StreamReader) -> _Revision | None:
        """Let the judge read a chunk while `stream` reads on. `None` keeps the chunk, whatever the reason.

        Where reviews wait for their turn, those of rollouts that still sample come first, for they may have far to go;
        of these, whoever has written least, for it was set back by a Revise.
        """
        standing, new = draft.show(chunk)
        steps, first_new = (*standing, *new.steps), len(standing)
        correction, correction_seconds, cut, lookahead_tokens = None, 0.0, 0, 0
        tally = self._pool.tally
        tally.reviews_in_flight += 1
        asked = asyncio.get_running_loop().time()
        try:
            with tally.call("review", draft.request.row):
                verdict, review_seconds = await self._reviewer.review(
                    draft.request.problem,
                    steps,
                    first_new,
                    self._seed(draft, "review"),
                    lambda: (stream.ended, len(draft.ids) + len(chunk) + stream.untaken_tokens),
                )
            if isinstance(verdict, Revise):
                lookahead_tokens = await stream.aclose()
                cut = new.starts[verdict.step - first_new]
                if not verdict.resample:
                    correction, correction_seconds = await self._correct(draft, chunk.ids[:cut], verdict)
        finally:
            tally.reviews_in_flight -= 1
            draft.held_up_seconds += stream.idle_seconds(asked)
        failure = next((answer for answer in (verdict, correction) if isinstance(answer, NoVerdict)), None)
        resampled = isinstance(verdict, Revise) and verdict.resample
        revision = _Revision(cut, correction) if resampled or isinstance(correction, Span) else None
        if failure is not None:
            decision, step, reason = Decision.NO_VERDICT, None, failure.reason
        elif isinstance(verdict, Revise):  # also where the correction came back empty
            decision, step, reason = Decision.REVISE, verdict.step, str(verdict.reason)
        else:
            decision, step, reason = Decision.KEEP, None, ""
        kept_tokens = len(chunk) if revision is None else cut
        draft.reviews.append(
            ReviewRecord(
                chunk_start=len(draft.ids),
                chunk_tokens=len(chunk),
                num_steps=len(steps),
                first_new=first_new,
                decision=decision,
                step=step,
                reason=reason,
                kept_tokens=kept_tokens,
                correction_tokens=len(correction) if isinstance(correction, Span) else 0,
                discarded_ids=chunk.ids[kept_tokens:],
                lookahead_tokens=lookahead_tokens,
                review_seconds=review_seconds,
                correction_seconds=correction_seconds,
            )
        )
        tally.reviews += 1
        tally.revisions += revision is not None
        tally.no_verdicts += failure is not None
        self._reviewer.failures.count(failure)
        return revision

    async def _correct(self, draft: Draft, kept_ids: tuple[int, ...], verdict: Revise) -> Answer:
        """Let the judge continue what stands and the kept beginning of the chunk."""
        budget = self._settings.budget
        accepted = decode((*draft.ids, *kept_ids), self._vocabulary)
        limit = min(budget.correction_tokens, budget.max_completion_tokens - len(accepted.ids))
        seed = self._seed(draft, "correction")
        with self._pool.tally.call("correction", draft.request.row):
            return await self._reviewer.correct(draft.request.problem, accepted, verdict, limit, seed)

    def _open(self, generator: PolicyGenerator, draft: Draft, max_tokens: int) -> StreamReader:
        """Continue what stands. Equal seeds for equal numbers of revisions let a reopened stream go on as it was."""
        request = draft.request
        return StreamReader(
            generator,
            (*request.prompt_ids, *draft.ids),
            max_tokens,
            self._seed(draft, "policy"),
            vocabulary=self._vocabulary,
            tally=self._pool.tally,
            label=f"row {request.row}",
        )

    def _seed(self, draft: Draft, purpose: SeedPurpose) -> int:
        count = draft.revisions if purpose == "policy" else len(draft.reviews)
        return request_seed(self._settings.run_seed, draft.request.update, draft.request.row, count, purpose)

    def _max_reviews(self, request: RolloutRequest) -> int:
        return self._settings.budget.max_reviews if request.role is Role.INTERVENED else 0

    # For callers that block

    def start(self, requests: Iterable[RolloutRequest]) -> None:
        """Start rollouts and return at once. More may be started while others are in flight.

        Raises:
            ConfigError: A rollout may be reviewed and there is no judge.
            ValueError: A row is in flight already, or waits to be collected.
            MInTRLError: The fatal error of rollouts that were started before, if `collect` has not raised it.
        """
        requests = tuple(requests)
        if self._judge is None and any(map(self._max_reviews, requests)):
            raise ConfigError("judge", None, "a judge, where rollouts are reviewed", "pass judge= or set max_reviews=0")
        self._pool.start(requests)

    def collect(self, rows: Iterable[int] | None = None) -> dict[int, Rollout]:
        """Wait for rollouts and hand them out, once.

        A fatal error is raised after all rollouts were cancelled and all streams closed, and drops them all; so does
        a keyboard interrupt.

        Args:
            rows (`Iterable[int]`, *optional*): Global rows to wait for. Defaults to all that were started.

        Returns:
            `dict[int, Rollout]`: By row, in the order asked for.

        Raises:
            GenerationError: The policy could not go on, or yielded what cannot be.
            JudgeError: The judge is set up wrongly.
            FailureLimitError: Too many reviews gave no verdict.
            ValueError: A row was not started, or was handed out already.
            concurrent.futures.CancelledError: Another thread called `cancel` meanwhile.
        """
        return self._pool.collect(None if rows is None else tuple(rows))

    def cancel(self) -> None:
        """Stop and forget all rollouts. When it returns, nothing is left running and all streams are closed."""
        self._pool.cancel()

    def progress(self) -> Progress:
        """How far the rollouts have come. Cheap, and callable from any thread."""
        return self._pool.tally.snapshot()

    def close(self) -> None:
        """Cancel what is in flight. Doors and loop stay open: they belong to whoever made them."""
        if not self._pool.loop.closed:
            self.cancel()

    def __enter__(self) -> "InterventionSampler":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
