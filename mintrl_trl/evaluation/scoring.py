"""Scores responses with a reward function in TRL's signature: one call for many responses, one result for each.

It knows reward functions and texts. It samples nothing, and the rules of a reward are the function's own.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from inspect import isawaitable
from typing import Any, NamedTuple

from ..errors import DataError, RewardError
from ..rollouts.doors import Vocabulary
from ..rollouts.loop import shared_loop
from ..rollouts.rollout import Rollout, StopReason
from ..rollouts.segmentation import decode
from .pass_at_k import SOLVED_ABOVE
from .results import EvalProblem, EvalResult, ProblemResult

# Reasons of `rewards.math` and `rewards.code` for a response that gives no answer at all.
NO_ANSWER = frozenset({"no_box", "unclosed", "empty_box", "no_code", "unfinished_thinking"})


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
            column, `log_extra` and `log_metric`. Completions are messages where the prompt is messages. `None` or
            what is not finite: no reward.
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
    rewarded = call_reward(
        reward,
        prompts=[problem.prompt for problem, _ in pairs],
        texts=[str(decode(rollout.ids, vocabulary)) for _, rollout in pairs],
        completion_ids=[rollout.ids for _, rollout in pairs],
        columns={name: [problem.columns[name] for problem, _ in pairs] for name in names},
    )
    values = iter(rewarded)
    results = [
        _count(problem, own, [next(values) for _ in own]) for problem, own in zip(problems, responses, strict=True)
    ]
    if all(result.unscored == result.samples for result in results):
        raise RewardError("the reward function gave no reward to any response; check its columns and its time limit")
    return EvalResult(tuple(results))


class Rewarded(NamedTuple):
    """What a reward function said of a response.

    Args:
        reward (`float`): NaN where it gave none.
        why (`str`): Its reason; empty where it gives none.
        detail (`str`): What it read or saw.
    """

    reward: float
    why: str = ""
    detail: str = ""

    @property
    def solved(self) -> bool:
        """Whether it counts as right."""
        return self.reward > SOLVED_ABOVE


def call_reward(
    reward: Callable[..., Sequence[float | None]],
    *,
    prompts: Sequence[str | list[dict[str, str]]],
    texts: Sequence[str],
    completion_ids: Sequence[Sequence[int]],
    columns: Mapping[str, Sequence[Any]],
) -> list[Rewarded]:
    """Call a reward function in TRL's signature once, for responses of equal columns.

    Args:
        reward (`Callable`): As for [`score_responses`]. What it hands to `log_extra` as `why`, and as `boxed` or
            `detail`, is its reason.
        prompts, texts, completion_ids, columns: One entry per response.

    Raises:
        RewardError: Another number of rewards than responses.
    """
    extra: dict[str, Sequence[Any]] = {}
    rewards = reward(
        prompts=list(prompts),
        completions=[_completion(prompt, text) for prompt, text in zip(prompts, texts, strict=True)],
        completion_ids=[list(ids) for ids in completion_ids],
        log_extra=extra.__setitem__,
        log_metric=_ignore,
        **columns,
    )
    if isawaitable(rewards):
        rewards = shared_loop().run(rewards)
    if len(rewards) != len(texts):
        raise RewardError(f"the reward function gave {len(rewards)} rewards for {len(texts)} responses")
    nothing = [""] * len(texts)
    whys, details = extra.get("why", nothing), extra.get("detail", extra.get("boxed", nothing))
    return [
        Rewarded(math.nan if value is None or not math.isfinite(value) else float(value), str(why), str(detail))
        for value, why, detail in zip(rewards, whys, details, strict=True)
    ]


def _completion(prompt: str | list[dict[str, str]], text: str) -> str | list[dict[str, str]]:
    return text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]


def _count(problem: EvalProblem, rollouts: Sequence[Rollout], rewarded: Sequence[Rewarded]) -> ProblemResult:
    return ProblemResult(
        samples=len(rollouts),
        solved=sum(one.solved for one in rewarded),
        unscored=sum(math.isnan(one.reward) for one in rewarded),
        truncated=sum(rollout.stop is StopReason.LENGTH for rollout in rollouts),
        tokens=sum(len(rollout.ids) for rollout in rollouts),
        subset=problem.subset,
        id=problem.id,
        no_answer=sum(one.why in NO_ANSWER for one in rewarded),
    )


def _ignore(*args: Any, **kwargs: Any) -> None:
    """Stands in for TRL's logging hook, which reward functions may call."""
