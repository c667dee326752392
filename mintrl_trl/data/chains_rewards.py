"""Rewards of the small world that say nothing about whether an answer is right.

For asking what a method learns without an outcome: from the form alone, or from noise. They own no rule of the world
but the form of an answer. Invariant: neither looks at the right answer.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import Any

from .chains import EOS_ID, LETTERS

_ANSWER = re.compile("#" + "".join(f"{letter}[0-9]" for letter in LETTERS))


def format_reward(
    prompts: Sequence[str], completions: Sequence[str], completion_ids: Sequence[Sequence[int]], **kwargs: object
) -> list[float]:
    """1.0 for a response that ends in `#`, a value after every letter, and `<eos>`, right or wrong; else 0.0.

    Args:
        prompts (`Sequence[str]`): Questions; not read.
        completions (`Sequence[str]`): Responses, decoded without special tokens.
        completion_ids (`Sequence[Sequence[int]]`): The responses' ids, which alone show whether they ended.
        **kwargs: Columns and what else TRL passes; not read.

    Returns:
        `list[float]`: One reward per completion, in order.
    """
    length = 1 + 2 * len(LETTERS)
    return [
        float(list(ids[-1:]) == [EOS_ID] and _ANSWER.fullmatch(text[-length:]) is not None)
        for text, ids in zip(completions, completion_ids, strict=True)
    ]


def random_reward(
    prompts: Sequence[str],
    completions: Sequence[str],
    completion_ids: Sequence[Sequence[int]],
    trainer_state: Any = None,
    **kwargs: object,
) -> list[float]:
    """1.0 or 0.0 with equal chances: a hash of the update, the place in the batch, the question and the response.

    So it says nothing about the response, and a run that goes on from a checkpoint is rewarded as it would have been.

    Args:
        prompts (`Sequence[str]`): Questions.
        completions (`Sequence[str]`): Responses as text; not read.
        completion_ids (`Sequence[Sequence[int]]`): The responses' ids.
        trainer_state (`TrainerState`, *optional*): Its `global_step` is the update.
        **kwargs: Columns and what else TRL passes; not read.

    Returns:
        `list[float]`: One reward per completion, in order.
    """
    update = getattr(trainer_state, "global_step", 0)
    return [
        float(hashlib.blake2b(f"{update} {place} {prompt} {list(ids)}".encode(), digest_size=1).digest()[0] & 1)
        for place, (prompt, ids) in enumerate(zip(prompts, completion_ids, strict=True))
    ]
