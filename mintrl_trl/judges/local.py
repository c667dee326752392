"""Self-judges: the frozen base model, in the training process, reads what the policy wrote and continues it.

Both judges ask nothing but likelihoods, so no reply has to be parsed. `LocalJudge` scores the few replies that are
possible and takes the likeliest; `LikelihoodJudge` looks for text that the model, knowing the reference, would hardly
have written. Their corrections are sampled by the same base weights and come as ids with log-probabilities. They own no
model and no prompt: both are passed in. Invariant: only base weights are ever asked, and only ids of the policy's own
vocabulary come back.
"""

import math
import random
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Protocol

from ..errors import ConfigError, JudgeError, NoVerdict
from ..rollouts.doors import KEEP, Correction, Revise, SampledToken, Verdict
from ..rollouts.rollout import Problem
from .prompts import Domain
from .render import ChatRenderer
from .reply import leaks_answer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Decode = Callable[[Sequence[int]], str]


class BaseModel(Protocol):
    """What is asked of a generator: it streams and scores with frozen base weights. `LocalGenerator` does."""

    end_ids: frozenset[int]
    base_version: str
    has_base: bool
    max_positions: int | None  # longest prefix and continuation together

    def stream(
        self, prefix_ids: Sequence[int], max_tokens: int, seed: int, *, weights: str
    ) -> AsyncIterator[SampledToken]:
        """Sample a continuation."""

    async def score_all(
        self, prefix_ids: Sequence[int], continuations: Sequence[Sequence[int]], *, weights: str
    ) -> list[tuple[float, ...]]:
        """Log-probabilities of each continuation's ids."""


class Renderer(Protocol):
    """Writes the prompts of [`LocalJudge`], as ids. `ChatRenderer` does for models with a chat template."""

    def review(self, problem: Problem, steps: Sequence[str], first_new: int) -> Sequence[int]:
        """Prompt that asks for a verdict on the steps from `first_new` on."""

    def reply(self, step: int | None) -> Sequence[int]:
        """A whole reply: keep, or revise from the 0-based `step` on. No reply may be the beginning of another."""

    def intervention(self, problem: Problem, accepted: str) -> Sequence[int]:
        """Prompt that asks to go on with `accepted`, whose ids are appended to it."""


class _SelfJudge:
    """What the two judges share: the base model, and how it continues a text."""

    def __init__(self, generator: BaseModel, decode: Decode | None):
        if not getattr(generator, "has_base", False):
            raise ConfigError(
                "generator",
                type(generator).__name__,
                "one that serves frozen base weights in process",
                "train a PEFT adapter with a LocalGenerator, or give the LocalGenerator a base_model",
            )
        self._generator, self._decode = generator, decode
        self.weight_version = generator.base_version
        self.leaks = 0  # corrections withheld because they gave the answer away

    def counters(self) -> dict[str, float]:
        """Everything counted so far, by metric name. The numbers only grow."""
        counted = {"judge/leak": float(self.leaks)}
        if hasattr(self._generator, "work"):
            passes, positions = self._generator.work("base")
            counted |= {"passes/judge": float(passes), "positions/judge": float(positions)}
        return counted

    def _joined(self, prompt: Sequence[int], accepted: Sequence[int], more_tokens: int) -> list[int]:
        """`prompt` and `accepted`; where the model has too few positions, the accepted ids lose their beginning."""
        limit = self._generator.max_positions
        excess = 0 if limit is None else max(0, len(prompt) + len(accepted) + more_tokens - limit)
        if excess > len(accepted):
            raise NoVerdict("context_length", f"{len(prompt)} + {more_tokens} tokens for {limit} positions")
        return [*prompt, *accepted[excess:]]

    async def _continue(
        self, problem: Problem, prompt: Sequence[int], accepted: str, max_tokens: int, seed: int
    ) -> Correction:
        """Sample up to `max_tokens` tokens after prompt and accepted text; an end id ends them and is left out."""
        stream = self._generator.stream(
            self._joined(prompt, _ids(accepted), max_tokens), max_tokens, seed, weights="base"
        )
        try:
            tokens = [token async for token in stream]
        finally:
            await stream.aclose()
        tokens = tokens[:-1] if tokens and tokens[-1].id in self._generator.end_ids else tokens
        ids = tuple(token.id for token in tokens)
        if self._decode is not None and leaks_answer(self._decode(ids), problem.answer):
            self.leaks += 1
            return Correction(ids=())
        return Correction(ids=ids, logps=tuple(token.logp for token in tokens))


class LocalJudge(_SelfJudge):
    """Judges by the likeliest of the possible replies: keep, or revise at one of the new steps.

    Each reply is weighed by its total log-probability after the prompt, not by the mean over its tokens: as no reply is
    the beginning of another, that is the very probability with which the model would give it, and a longer number is
    not favoured for being easy to complete.

    Args:
        generator ([`BaseModel`]): Serves the base weights, such as a [`LocalGenerator`].
        renderer ([`Renderer`]): Writes the prompts and replies.
        temperature (`float`, *optional*, defaults to 0.0): 0 takes the likeliest reply; above 0 the reply is drawn from
            softmax(log-probabilities / temperature), with the review's seed.
        keep_bias (`float`, *optional*, defaults to 0.0): Nats added to the reply keep, to set how often the judge
            intervenes.
        decode (`Callable`, *optional*): From ids to text. With it, a correction that gives the problem's answer away is
            withheld and counted in `leaks`.

    Raises:
        ConfigError: A generator without base weights, or a temperature below 0.
    """

    def __init__(
        self,
        generator: BaseModel,
        renderer: Renderer,
        *,
        temperature: float = 0.0,
        keep_bias: float = 0.0,
        decode: Decode | None = None,
    ):
        super().__init__(generator, decode)
        if not (math.isfinite(temperature) and temperature >= 0):
            raise ConfigError("temperature", temperature, "0 or above", "use 0 for the likeliest reply")
        if not math.isfinite(keep_bias):
            raise ConfigError("keep_bias", keep_bias, "a finite number of nats", "use 0")
        self._renderer, self.temperature, self.keep_bias = renderer, temperature, keep_bias

    def settings(self) -> dict[str, float | str | None]:
        """What its verdicts depend on, besides the base weights; of the prompts a hash, where they offer one."""
        prompts = self._renderer.digest() if hasattr(self._renderer, "digest") else None
        return {"temperature": self.temperature, "keep_bias": self.keep_bias, "prompts": prompts}

    async def review(self, problem: Problem, steps: Sequence[str], first_new: int, *, seed: int) -> Verdict:
        """Keep, or revise at the new step whose reply is likeliest.

        Raises:
            NoVerdict: The prompt is too long (`context_length`), or no reply has any probability (`not_finite`).
        """
        choices = [None, *range(first_new, len(steps))]
        replies = [self._renderer.reply(step) for step in choices]
        prompt = self._joined(self._renderer.review(problem, steps, first_new), (), max(map(len, replies)))
        totals = [sum(logps) for logps in await self._generator.score_all(prompt, replies, weights="base")]
        totals[0] += self.keep_bias
        best = max(totals)
        if not math.isfinite(best):
            raise NoVerdict("not_finite", f"log-probabilities of the replies: {totals}")
        if self.temperature:
            weights = [math.exp((total - best) / self.temperature) for total in totals]
            chosen = random.Random(seed).choices(range(len(choices)), weights)[0]
        else:
            chosen = totals.index(best)
        step = choices[chosen]
        if step is None:
            return KEEP
        return Revise(step, f"this reply is {totals[chosen] - totals[0]:.2f} nats likelier than keep")

    async def intervene(
        self, problem: Problem, accepted: str, verdict: Revise, max_tokens: int, *, seed: int
    ) -> Correction:
        """Continue `accepted` with the base weights, after the renderer's prompt.

        Raises:
            NoVerdict: Prompt and correction alone are too long (`context_length`).
            JudgeError: The text comes without token ids.
        """
        prompt = self._renderer.intervention(problem, accepted)
        return await self._continue(problem, prompt, accepted, max_tokens, seed)


class LikelihoodJudge(_SelfJudge):
    """Rejects the first new step that the base model, knowing the reference, would hardly have written.

    Args:
        generator ([`BaseModel`]): Serves the base weights, such as a [`LocalGenerator`].
        render_context (`Callable[[Problem], Sequence[int]]`): Prompt under which the model writes a solution itself,
            with the privileged context in view. The solution so far is scored after it, and corrections continue it.
        threshold (`float`): In nats, below 0. A step is rejected if its log-probability, the sum over its tokens, is
            below. How far right steps go down depends on the task and on how long its steps are: calibrate on some.
        decode (`Callable`, *optional*): From ids to text, for reasons and to withhold corrections that give the answer
            away.

    Raises:
        ConfigError: A generator without base weights, or a threshold that is not below 0.
    """

    def __init__(
        self,
        generator: BaseModel,
        render_context: Callable[[Problem], Sequence[int]],
        *,
        threshold: float,
        decode: Decode | None = None,
    ):
        super().__init__(generator, decode)
        if not (math.isfinite(threshold) and threshold < 0):
            raise ConfigError("threshold", threshold, "a finite number of nats below 0", "calibrate it on right steps")
        self._render_context, self.threshold = render_context, threshold

    def settings(self) -> dict[str, float]:
        """What its verdicts depend on, besides the base weights and the prompt."""
        return {"threshold": self.threshold}

    async def review(self, problem: Problem, steps: Sequence[str], first_new: int, *, seed: int) -> Verdict:
        """Keep, or revise at the first new step below the threshold.

        Raises:
            NoVerdict: Context and new steps alone are too long (`context_length`).
            JudgeError: The steps come without token ids.
        """
        ids = [_ids(step) for step in steps]
        accepted, new = list(chain(*ids[:first_new])), list(chain(*ids[first_new:]))
        prefix = self._joined(self._render_context(problem), accepted, len(new))
        (logps,) = await self._generator.score_all(prefix, [new], weights="base")
        scores = iter(logps)
        for step in range(first_new, len(steps)):
            own = list(islice(scores, len(ids[step])))
            if sum(own) < self.threshold:
                least = own.index(min(own))
                token = ids[step][least]
                shown = f"token {token}" if self._decode is None else repr(self._decode([token]))
                return Revise(step, f"log-probability {sum(own):.2f}, of which {own[least]:.2f} for {shown}")
        return KEEP

    async def intervene(
        self, problem: Problem, accepted: str, verdict: Revise, max_tokens: int, *, seed: int
    ) -> Correction:
        """Continue `accepted` with the base weights, in the context in which it was judged.

        Raises:
            NoVerdict: Context and correction alone are too long (`context_length`).
            JudgeError: The text comes without token ids.
        """
        return await self._continue(problem, self._render_context(problem), accepted, max_tokens, seed)


def chat_self_judge(
    generator: BaseModel,
    tokenizer: "PreTrainedTokenizerBase",
    *,
    domain: Domain | str = Domain.MATH,
    threshold: float | None = None,
    **options: object,
) -> LocalJudge | LikelihoodJudge:
    """A self-judge for a chat model, with this package's prompts and a check for leaked answers.

    Args:
        generator ([`BaseModel`]): Serves the base weights.
        tokenizer (`PreTrainedTokenizerBase`): The policy's tokenizer, with a chat template.
        domain (`Domain` or `str`, *optional*, defaults to `"math"`): Prompt templates: `"math"` or `"code"`.
        threshold (`float`, *optional*): With one, a [`LikelihoodJudge`]; else a [`LocalJudge`].
        **options: For [`LocalJudge`].
    """
    renderer = ChatRenderer(tokenizer, domain=domain)
    if threshold is None:
        return LocalJudge(generator, renderer, decode=renderer.decode, **options)
    return LikelihoodJudge(generator, renderer.solution, threshold=threshold, decode=renderer.decode, **options)


def _ids(text: str) -> tuple[int, ...]:
    ids = getattr(text, "ids", None)
    if ids is None:
        raise JudgeError("a self-judge needs the token ids of the text; pass TokenText")
    return ids
