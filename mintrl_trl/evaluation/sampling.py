"""Evaluation: n responses of each problem by the policy alone, scored by a reward function, counted per problem.

Owns the way from problems to counts. No judge ever takes part: every rollout is a control rollout, so scores are the
policy's own. Sampling and scoring are two functions, so responses can be scored again without being sampled again.

The invariant: every problem has exactly n responses, and Pass@k divides by them. A response without a reward counts as
not solved, and is counted apart, so a score is never better than what was verified.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from inspect import isawaitable
from statistics import fmean, stdev
from typing import Any

from ..errors import ConfigError, DataError, RewardError
from ..rollouts.doors import PolicyGenerator, Vocabulary
from ..rollouts.loop import shared_loop
from ..rollouts.rollout import Problem, Role, Rollout, RolloutRequest, StopReason
from ..rollouts.sampler import InterventionSampler, SamplerSettings
from ..rollouts.schedule import InterventionBudget, request_seed
from ..rollouts.segmentation import decode
from .pass_at_k import SOLVED_ABOVE, pass_at_k


@dataclass(frozen=True)
class EvalProblem:
    """One problem to evaluate on.

    Args:
        prompt (`str` or `list[dict]`): Text or messages, as reward functions get it.
        prompt_ids (`tuple[int, ...]`): The rendered prompt.
        columns (`Mapping[str, Any]`): The row's other columns, for the reward function.
        subset (`str`, *optional*): Name of the subset the problem is reported under, besides the whole.
    """

    prompt: str | list[dict[str, str]]
    prompt_ids: tuple[int, ...]
    columns: Mapping[str, Any] = field(default_factory=dict)
    subset: str | None = None

    @classmethod
    def from_row(
        cls,
        row: Mapping[str, Any],
        tokenizer: Any,
        *,
        subset: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> "EvalProblem":
        """Render a row's `prompt` as training does: messages through the chat template, text as it is."""
        prompt = row["prompt"]
        if isinstance(prompt, str):
            ids = tokenizer(prompt)["input_ids"]
        else:
            ids = tokenizer.apply_chat_template(
                prompt, add_generation_prompt=True, tokenize=True, return_dict=True, **(chat_template_kwargs or {})
            )["input_ids"]
        return cls(prompt, tuple(ids), {name: row[name] for name in row if name != "prompt"}, subset)


@dataclass(frozen=True)
class ProblemResult:
    """Counts of one problem.

    Args:
        samples (`int`): Responses, the n of Pass@k.
        solved (`int`): Responses rewarded above 0.5.
        unscored (`int`): Responses that got no reward; counted as not solved.
        truncated (`int`): Responses that reached the length limit.
        tokens (`int`): Response tokens of all of them.
        subset (`str`, *optional*): Name of the subset.
    """

    samples: int
    solved: int
    unscored: int
    truncated: int
    tokens: int
    subset: str | None = None


@dataclass(frozen=True)
class EvalResult:
    """Counts of every problem, in order, and the scores that follow from them."""

    problems: tuple[ProblemResult, ...]

    @property
    def subsets(self) -> tuple[str, ...]:
        """Names of the subsets, in order of appearance."""
        return tuple(dict.fromkeys(problem.subset for problem in self.problems if problem.subset is not None))

    def pass_at(self, k: int, subset: str | None = None) -> float:
        """Unbiased Pass@k, averaged over the problems of `subset` (`None`: all), in [0, 1].

        Raises:
            ConfigError: No problem is in `subset`, or one has fewer than `k` responses.
        """
        return fmean(self._scores(k, subset))

    def standard_error(self, k: int, subset: str | None = None) -> float:
        """Standard error of `pass_at` over the draw of problems; NaN for a single problem."""
        scores = self._scores(k, subset)
        return stdev(scores) / math.sqrt(len(scores)) if len(scores) > 1 else math.nan

    def metrics(self, ks: Iterable[int] = (1,), prefix: str = "eval") -> dict[str, float]:
        """Scores by name, for a tracker.

        Args:
            ks (`Iterable[int]`, *optional*, defaults to `(1,)`): Values of k.
            prefix (`str`, *optional*, defaults to `"eval"`): First part of every name.

        Returns:
            `dict[str, float]`: `eval/pass@1`, `eval/<subset>/pass@1` and so on; `eval/unscored` and `eval/truncated`
            as shares of all responses; `eval/length`, the mean response length in tokens.
        """
        ks = tuple(ks)
        named = {f"{prefix}/pass@{k}": self.pass_at(k) for k in ks}
        for subset in self.subsets:
            named |= {f"{prefix}/{subset}/pass@{k}": self.pass_at(k, subset) for k in ks}
        samples = sum(problem.samples for problem in self.problems)
        named[f"{prefix}/unscored"] = sum(problem.unscored for problem in self.problems) / samples
        named[f"{prefix}/truncated"] = sum(problem.truncated for problem in self.problems) / samples
        named[f"{prefix}/length"] = sum(problem.tokens for problem in self.problems) / samples
        return named

    def _scores(self, k: int, subset: str | None) -> list[float]:
        chosen = [problem for problem in self.problems if subset is None or problem.subset == subset]
        if not chosen:
            raise ConfigError("subset", subset, f"None or one of {list(self.subsets)}", "name a subset of the problems")
        return [pass_at_k(problem.samples, problem.solved, k) for problem in chosen]


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
    budget = InterventionBudget(
        chunk_tokens=max_completion_tokens,
        max_reviews=0,
        correction_tokens=1,
        max_completion_tokens=max_completion_tokens,
    )
    settings = SamplerSettings(
        budget=budget,
        run_seed=request_seed(run_seed, update, row=0, revisions=0, purpose="eval"),
        max_concurrent_rollouts=max_concurrent_rollouts,
    )
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
    sampler = InterventionSampler(generator, None, vocabulary, settings)
    try:
        with watch(sampler) if watch is not None else nullcontext():
            sampler.start(requests)
            rollouts = sampler.collect()
    finally:
        sampler.close()
    rows = iter(requests)
    return [[rollouts[next(rows).row] for _ in range(num_samples)] for _ in problems]


def score_responses(
    problems: Sequence[EvalProblem],
    responses: Sequence[Sequence[Rollout]],
    reward: Callable[..., Sequence[float | None]],
    vocabulary: Vocabulary,
) -> EvalResult:
    """Score responses with a reward function in TRL's signature, in one call, and count per problem.

    Args:
        problems (`Sequence[EvalProblem]`): The problems; all with the same columns.
        responses (`Sequence[Sequence[Rollout]]`): The responses of each problem, in the same order.
        reward (`Callable`): Plain or async. Called with `prompts`, `completions`, `completion_ids`, one list per
            column, `log_extra` and `log_metric`. Completions are messages where the prompt is messages. `None` or NaN:
            no reward.
        vocabulary (`Vocabulary`): Spells the responses; special tokens have no text.

    Returns:
        `EvalResult`: Counts in the problems' order.

    Raises:
        DataError: A problem has other columns than the first.
        RewardError: Another number of rewards than responses, or not one response got a reward.
    """
    names = list(problems[0].columns)
    for index, problem in enumerate(problems):
        if set(problem.columns) != set(names):
            allowed = f"the columns {names} of the first problem"
            raise DataError(f"problem {index}", "columns", list(problem.columns), allowed, "fill in or drop columns")
    pairs = [(problem, rollout) for problem, own in zip(problems, responses, strict=True) for rollout in own]
    rewards = reward(
        prompts=[problem.prompt for problem, _ in pairs],
        completions=[_completion(problem, decode(rollout.ids, vocabulary)) for problem, rollout in pairs],
        completion_ids=[list(rollout.ids) for _, rollout in pairs],
        log_extra=_ignore,
        log_metric=_ignore,
        **{name: [problem.columns[name] for problem, _ in pairs] for name in names},
    )
    if isawaitable(rewards):
        rewards = shared_loop().run(rewards)
    if len(rewards) != len(pairs):
        raise RewardError(f"the reward function gave {len(rewards)} rewards for {len(pairs)} responses")
    values = iter([math.nan if value is None else float(value) for value in rewards])
    results = [
        _count(problem.subset, own, [next(values) for _ in own])
        for problem, own in zip(problems, responses, strict=True)
    ]
    if all(result.unscored == result.samples for result in results):
        raise RewardError("the reward function gave no reward to any response; check its columns and its time limit")
    return EvalResult(tuple(results))


def _completion(problem: EvalProblem, text: str) -> str | list[dict[str, str]]:
    return str(text) if isinstance(problem.prompt, str) else [{"role": "assistant", "content": str(text)}]


def _count(subset: str | None, rollouts: Sequence[Rollout], rewards: Sequence[float]) -> ProblemResult:
    return ProblemResult(
        samples=len(rollouts),
        solved=sum(reward > SOLVED_ABOVE for reward in rewards),
        unscored=sum(math.isnan(reward) for reward in rewards),
        truncated=sum(rollout.stop is StopReason.LENGTH for rollout in rollouts),
        tokens=sum(len(rollout.ids) for rollout in rollouts),
        subset=subset,
    )


def _ignore(*args: Any, **kwargs: Any) -> None:
    """Stands in for TRL's logging hooks, which reward functions may call."""
