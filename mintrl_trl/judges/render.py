"""A chat model's prompts for the self-judges, as token ids.

Owns the way from chat messages (`prompts.py`) through a tokenizer's chat template to ids. It never decides what a judge
may know. Invariant: a prompt that asks to go on ends where the model's answer begins, and does not hold the text to
continue, so that the judge can append the very ids it was written in.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..rollouts.rollout import Problem
from .prompts import Domain, Message, Prompts
from .reply import spell_verdict

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ChatRenderer:
    """Writes the prompts of [`LocalJudge`] and [`LikelihoodJudge`] for a model with a chat template.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The policy's tokenizer, which is the judge's too.
        domain (`Domain` or `str`, *optional*, defaults to `"math"`): Prompt templates: `"math"` or `"code"`.
        prompts (`Prompts`, *optional*): Own prompts, instead of `domain`.
        chat_template_kwargs (`Mapping`, *optional*): Variables for the chat template; thinking is off by default.

    Raises:
        ConfigError: A tokenizer without a chat template.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        domain: Domain | str = Domain.MATH,
        prompts: Prompts | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ):
        if not tokenizer.chat_template:
            raise ConfigError(
                "processing_class",
                type(tokenizer).__name__,
                "a tokenizer with a chat template, for a judge that is asked in chats",
                "train a chat model, or pass judge=LikelihoodJudge(generator, render_context) with prompts of your own",
            )
        self._tokenizer = copy.deepcopy(tokenizer)  # other threads change flags of theirs
        self._prompts = prompts if prompts is not None else Prompts(domain)
        self._variables = {"enable_thinking": False, **(chat_template_kwargs or {})}

    def review(self, problem: Problem, steps: Sequence[str], first_new: int) -> tuple[int, ...]:
        """Prompt that asks for a verdict on the steps from `first_new` on."""
        return self._ids(self._prompts.review(problem, steps, first_new))

    def reply(self, step: int | None) -> tuple[int, ...]:
        """A whole reply: keep, or revise from the 0-based `step` on."""
        return tuple(self._tokenizer(spell_verdict(step), add_special_tokens=False)["input_ids"])

    def intervention(self, problem: Problem, accepted: str) -> tuple[int, ...]:
        """Prompt that asks to go on with `accepted`."""
        messages = self._prompts.intervention(problem, accepted, prefill=True)
        return self._ids([message for message in messages if message["role"] != "assistant"])

    def solution(self, problem: Problem) -> tuple[int, ...]:
        """Prompt under which the model solves the problem itself, with the privileged context in view."""
        return self._ids(self._prompts.solution(problem))

    def digest(self) -> str:
        """A hash over the wording of the prompts."""
        return self._prompts.digest()

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    def _ids(self, messages: Sequence[Message]) -> tuple[int, ...]:
        text = self._tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True, **self._variables
        )
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])
