"""Rewards of rollouts outside TRL's GRPO loop: for trajectories of a teacher, and for the record of methods without.

Calls a reward function as TRL does and says for each response what it got and why. It trains nothing.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from inspect import isawaitable
from typing import Any

from ..errors import RewardError
from ..rollouts.doors import Vocabulary
from ..rollouts.loop import shared_loop
from ..rollouts.rollout import Rollout
from ..rollouts.segmentation import decode


def score_rollouts(
    reward: Callable[..., Any], rows: Sequence[Mapping[str, Any]], rollouts: Sequence[Rollout], vocabulary: Vocabulary
) -> tuple[list[float], list[str | None]]:
    """Rewards of responses, in one call.

    Args:
        reward (`Callable`): In TRL's signature, plain or async.
        rows (`Sequence[Mapping]`): B rows with equal columns.
        rollouts (`Sequence[Rollout]`): B responses to them.
        vocabulary (`Vocabulary`): Spells them; special tokens have no text.

    Returns:
        `tuple`: B rewards, NaN where there is none, and what the function logged as `why`, if it did.

    Raises:
        RewardError: Another number of rewards than responses.
    """
    logged: dict[str, list[Any]] = {}
    texts = [str(decode(rollout.ids, vocabulary)) for rollout in rollouts]
    prompts = [row["prompt"] for row in rows]
    columns = {name: [row[name] for row in rows] for name in rows[0] if name != "prompt"}
    rewards = reward(
        prompts=prompts,
        completions=[
            text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
            for prompt, text in zip(prompts, texts, strict=True)
        ],
        completion_ids=[list(rollout.ids) for rollout in rollouts],
        log_extra=lambda name, values: logged.__setitem__(name, list(values)),
        log_metric=lambda *_: None,
        **columns,
    )
    if isawaitable(rewards):
        rewards = shared_loop().run(rewards)
    if len(rewards) != len(rollouts):
        raise RewardError(f"the reward function gave {len(rewards)} rewards for {len(rollouts)} responses")
    reasons = logged.get("why", [])
    return (
        [math.nan if value is None else float(value) for value in rewards],
        [str(why) if why else None for why in reasons] if len(reasons) == len(rollouts) else [None] * len(rollouts),
    )
