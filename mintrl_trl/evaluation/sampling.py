"""Evaluation: n responses of each problem by the policy alone, scored by a reward function, counted per problem.

Owns the way from problems to responses. No judge takes part in an evaluation: every rollout is a control rollout, so
scores are the policy's own. Pilot rollouts (`calibration`) go the same way and name a judge. Sampling and scoring are
two functions, so responses can be scored again without being sampled again.

The invariant: every problem has exactly n responses, and what a response is depends on its request alone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError
from ..rollouts.doors import Judge, PolicyGenerator, Vocabulary
from ..rollouts.rollout import Problem, Role, Rollout, RolloutRequest
from ..rollouts.sampler import InterventionSampler, SamplerSettings
from ..rollouts.schedule import InterventionBudget, request_seed
from .results import EvalProblem, EvalResult
from .scoring import score_responses


@dataclass(frozen=True)
class Reviews:
    """The judge of pilot rollouts, and how it takes part.

    Args:
        judge (`Judge`): Reviews, and corrects.
        budget (`InterventionBudget`): Limits of one rollout.
        options (`Mapping[str, Any]`, *optional*): Further fields of [`SamplerSettings`], of the judge's concurrency and
            failures.
    """

    judge: Judge
    budget: InterventionBudget
    options: Mapping[str, Any] = field(default_factory=dict)


def evaluate_policy(
    generator: PolicyGenerator,
    vocabulary: Vocabulary,
    problems: Sequence[EvalProblem],
    reward: Callable[..., Sequence[float | None]],
    **sampling: Any,
) -> EvalResult:
    """Sample, score and count: `score_responses` of `sample_responses`, whose keyword arguments `sampling` holds."""
    return score_responses(problems, sample_responses(generator, vocabulary, problems, **sampling), reward, vocabulary)


def sample_responses(
    generator: PolicyGenerator,
    vocabulary: Vocabulary,
    problems: Sequence[EvalProblem],
    *,
    num_samples: int,
    max_completion_tokens: int,
    run_seed: int = 0,
    update: int = 0,
    max_concurrent_rollouts: int = 512,
    watch: Callable[[InterventionSampler], AbstractContextManager] | None = None,
) -> list[list[Rollout]]:
    """Sample responses of every problem with the policy alone.

    Args:
        generator (`PolicyGenerator`): The policy.
        vocabulary (`Vocabulary`): Its vocabulary.
        problems (`Sequence[EvalProblem]`): At least one.
        num_samples (`int`): Responses per problem, n.
        max_completion_tokens (`int`): Length limit of a response.
        run_seed (`int`, *optional*, defaults to 0): Seed of the run. Evaluation draws from streams of its own, so
            it neither repeats nor disturbs what training samples.
        update (`int`, *optional*, defaults to 0): Optimizer steps taken; enters the seeds.
        max_concurrent_rollouts (`int`, *optional*, defaults to 512): Bound on requests in flight.
        watch (`Callable`, *optional*): From the sampler to a context manager that is entered while it runs, such as
            `lambda sampler: LiveProgress(sampler.progress, "evaluation")`.

    Returns:
        `list[list[Rollout]]`: `num_samples` rollouts for each problem, in the problems' order.

    Raises:
        ConfigError: No problem, or no sample of each.
        GenerationError: The policy could not go on.
    """
    if not problems:
        raise ConfigError("problems", problems, "at least one problem", "pass the rows to evaluate on")
    if num_samples < 1:
        raise ConfigError("num_samples", num_samples, "at least 1", "raise num_samples")
    requests = [
        RolloutRequest(
            row=index * num_samples + sample,
            prompt_ids=problem.prompt_ids,
            problem=Problem(question=problem.prompt if isinstance(problem.prompt, str) else ""),
            role=Role.CONTROL,
            update=update,
        )
        for index, problem in enumerate(problems)
        for sample in range(num_samples)
    ]
    rollouts = {
        rollout.request.row: rollout
        for rollout in sample_requests(
            generator,
            vocabulary,
            requests,
            max_completion_tokens=max_completion_tokens,
            run_seed=run_seed,
            update=update,
            max_concurrent_rollouts=max_concurrent_rollouts,
            watch=watch,
        )
    }
    rows = iter(requests)
    return [[rollouts[next(rows).row] for _ in range(num_samples)] for _ in problems]


def sample_requests(
    generator: PolicyGenerator,
    vocabulary: Vocabulary,
    requests: Sequence[RolloutRequest],
    *,
    max_completion_tokens: int,
    run_seed: int = 0,
    update: int = 0,
    max_concurrent_rollouts: int = 512,
    max_held: int | None = None,
    on_finished: Callable[[Rollout], None] | None = None,
    watch: Callable[[InterventionSampler], AbstractContextManager] | None = None,
    reviews: Reviews | None = None,
) -> Iterator[Rollout]:
    """Sample responses and hand them out in the order of the requests.

    Args:
        generator, vocabulary, max_completion_tokens, run_seed, update, max_concurrent_rollouts, watch: As for
            [`sample_responses`].
        requests (`Sequence[RolloutRequest]`): Of controls, or with `reviews` of intervened rollouts; a request's row
            decides its seed.
        max_held (`int`, *optional*): Requests started and not yet handed out at most, which bounds the memory of long
            evaluations; by default all are started at once.
        on_finished (`Callable[[Rollout], None]`, *optional*): Called with each rollout as it finishes, on another
            thread, one at a time. What it raises ends the sampling.
        reviews ([`Reviews`], *optional*): The judge of intervened rollouts; its budget holds in place of
            `max_completion_tokens`.

    Raises:
        GenerationError: The policy could not go on.
        JudgeError: The judge is set up wrongly.
        FailureLimitError: Too many reviews gave no verdict.
    """
    budget = InterventionBudget(
        chunk_tokens=max_completion_tokens,
        max_reviews=0,
        correction_tokens=1,
        max_completion_tokens=max_completion_tokens,
    )
    settings = SamplerSettings(
        budget=budget if reviews is None else reviews.budget,
        run_seed=sampler_seed(run_seed, update),
        max_concurrent_rollouts=max_concurrent_rollouts,
        **({} if reviews is None else reviews.options),
    )
    judge = None if reviews is None else reviews.judge
    sampler = InterventionSampler(generator, judge, vocabulary, settings, on_finished)
    held = len(requests) if max_held is None else max_held
    try:
        with watch(sampler) if watch is not None else nullcontext():
            sampler.start(requests[:held])
            for number, request in enumerate(requests):
                if number + held < len(requests):  # before the last one is collected, so that counters go on
                    sampler.start([requests[number + held]])
                (rollout,) = sampler.collect([request.row]).values()
                yield rollout
    finally:
        sampler.close()


def sampler_seed(run_seed: int, update: int = 0) -> int:
    """The seed of an evaluation's sampler: a stream apart from what training with the same seed samples."""
    return request_seed(run_seed, update, row=0, revisions=0, purpose="eval")
