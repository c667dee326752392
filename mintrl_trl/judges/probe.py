"""The first questions to a judge: does it answer, what does its endpoint offer, is there room for what will be asked.

Owns the explanations of what can be wrong with a set-up. It decides nothing that the user has decided, and changes no
server. Invariant: whatever is wrong comes out as a `JudgeError` that says what to try.
"""

import logging
import re
from typing import TYPE_CHECKING

from ..errors import JudgeError, NoVerdict
from ..rollouts.doors import Revise, TokenText
from ..rollouts.rollout import Problem
from .chat import RefusedError, Tokenized

if TYPE_CHECKING:
    from .llm import LLMJudge

logger = logging.getLogger(__name__)

_PROBLEM, _STEP = Problem("What is 17 + 25?"), "17 + 25 = 42, so the answer is 42."
# Numbers, formulas, code, scripts and blanks: two tokenizers that agree on all of it are one.
_SAMPLE = """Let $x_1 = \\frac{-3}{8}$; then 1234567 + 89.25 ≠ x², it's don't-know.

```python
for i in range(10):
\tprint(f'{i:>5}',   end='')


# Grüße, 数学, задача 🎲
```
"""
_CORRECTION_TOKENS = 16
# Where a reply had to have a form, that may be why nothing usable came.
_FORM_TO_BLAME = ("empty", "length", "unparsable", "inconsistent", "out_of_range", "server_error", "bad_response")
_FORM = re.compile(r"response_format|structured|guided|schema|regex|grammar", re.IGNORECASE)
_THINKING_OFF = (
    "judge_extra_body: {chat_template_kwargs: {enable_thinking: false}} on vLLM, "
    "{thinking: {type: disabled}} at DeepSeek"
)
_HINTS = {
    "empty": "Where the text came as reasoning, start the server without --reasoning-parser, or turn thinking off: "
    + _THINKING_OFF,
    "length": "Raise judge_max_tokens, or turn thinking off: " + _THINKING_OFF,
    "unparsable": "Take a stronger model, or set judge_constrain_reply: true where the server knows JSON schemas",
    "connection": "Check that the server is up and that judge_base_url ends in /v1",
    "timeout": "Check that the server is not overloaded, or raise judge_timeout_seconds",
    "context_length": "Start its server with a larger --max-model-len",
    "rate_limited": "Lower max_concurrent_reviews, or ask the provider for a higher limit",
}


class UnfitJudgeError(JudgeError):
    """A judge that cannot work as it is set up.

    Args:
        found (`str`): What is wrong.
        fix (`str`): What to change, in the names of a recipe's settings.
    """

    def __init__(self, found: str, fix: str):
        self.found, self.fix = found, fix
        super().__init__(f"{found}. {fix}.")

    def __reduce__(self):
        return type(self), (self.found, self.fix)


async def probe(judge: "LLMJudge") -> None:
    """Ask a judge for an easy review and use what its endpoint offers.

    Raises:
        JudgeError: It cannot work as it is set up; the message says what to try.
    """
    known = await _learn(judge)
    prompt_tokens = await _review(judge)
    if judge.account.is_limited and not judge.exhausted and not prompt_tokens:
        raise UnfitJudgeError(
            f"{judge.name} does not say how many tokens a reply took (`usage`), so its budget would never be spent",
            "Remove judge_budget_tokens and judge_budget_cost, and set a limit with the provider",
        )
    if known is not None and known.max_model_len is not None:
        _check_room(judge, known.max_model_len, prompt_tokens)
    if judge.needs_logps and not (judge.shares_tokenizer and judge.temperature == 1):
        raise UnfitJudgeError(
            f"anchor='judge' needs the judge's log-probabilities, and {judge.name} gives none: they come from a vLLM "
            "server whose model has the policy's tokenizer, at judge_temperature 1",
            "Set anchor='const'",
        )
    if judge.shares_tokenizer:
        await _correct(judge)


async def _learn(judge: "LLMJudge") -> Tokenized | None:
    """Whether the endpoint is vLLM's and has the policy's tokenizer; what it made of a sample."""
    if not hasattr(judge.chat, "tokenize"):
        return None
    try:
        found = await judge.persist("review", 0, lambda: judge.chat.tokenize(_SAMPLE))
    except JudgeError:
        found = None  # no such route
    except NoVerdict as failure:
        if failure.reason == "connection":
            raise _explained(judge, failure) from failure
        found = None  # a gateway that does not know the route and has its own way to say so
    same = found is not None and judge.vocabulary is not None and found.ids == tuple(judge.vocabulary.encode(_SAMPLE))
    if judge.shares_tokenizer and found is not None and judge.vocabulary is not None and not same:
        raise UnfitJudgeError(
            f"{judge.name} has another tokenizer than the policy, so its token ids mean other text",
            "Remove judge_shares_tokenizer, or take a model of the same family",
        )
    judge.offer(vllm=found is not None, shares_tokenizer=same)
    return found


async def _review(judge: "LLMJudge") -> int:
    """Tokens of the prompt of an easy review that came to a verdict."""
    for last in (False, True):
        before = judge.account.usage["review"].prompt_tokens
        try:
            await judge.review(_PROBLEM, [_STEP], 0, seed=0)
            break
        except NoVerdict as failure:
            if last or not judge.may_free_reply or failure.reason not in _FORM_TO_BLAME:
                raise _explained(judge, failure) from failure
            found: Exception = failure
        except RefusedError as refusal:
            if refusal.status not in (400, 422) or last or not judge.may_free_reply:
                if judge.constrain_reply and _FORM.search(refusal.words):
                    raise UnfitJudgeError(
                        f"{refusal}. It knows no such form", "Remove judge_constrain_reply"
                    ) from refusal
                raise
            found = refusal
        judge.free_reply()
        logger.warning("%s gave no verdict when held to its form; it is asked for free text. %s", judge.name, found)
    return judge.account.usage["review"].prompt_tokens - before


def _check_room(judge: "LLMJudge", room: int, prompt_tokens: int) -> None:
    text = judge.longest_text_tokens
    if text is None or room >= prompt_tokens + text + judge.max_tokens:
        return
    need = prompt_tokens + text + judge.max_tokens
    raise UnfitJudgeError(
        f"{judge.name} has a context of {room} tokens, and a review may need {need}: {text} of question and solution, "
        f"{prompt_tokens} of instructions, {judge.max_tokens} of reply",
        f"Start its server with --max-model-len {need} where its model has as many positions, or lower "
        "max_prompt_length, max_reviews, chunk_tokens or judge_max_tokens",
    )


async def _correct(judge: "LLMJudge") -> None:
    """Let the judge continue ids once."""
    accepted = TokenText("") if judge.vocabulary is None else TokenText(_STEP, judge.vocabulary.encode(_STEP))
    try:
        correction = await judge.intervene(_PROBLEM, accepted, Revise(0), _CORRECTION_TOKENS, seed=0)
    except (NoVerdict, JudgeError) as failure:
        raise UnfitJudgeError(
            f"{judge.name} gave no correction as token ids ({failure})",
            "Use vLLM 0.22 or newer, or set judge_shares_tokenizer: false for corrections as text",
        ) from failure
    if judge.needs_logps and correction.ids and correction.logps is None:
        raise UnfitJudgeError(
            f"anchor='judge' needs log-probabilities, and {judge.name} sends none", "Set anchor='const'"
        )


def _explained(judge: "LLMJudge", failure: NoVerdict) -> JudgeError:
    hint = _HINTS.get(failure.reason, "Ask it by hand and look at what comes back")
    return UnfitJudgeError(f"{judge.name} gave no verdict on a trivial review ({failure})", hint)
