"""A language model as the judge-intervention policy, over any async chat function.

Owns what happens around a chat request: prompts in, verdict or correction out, retries (here and nowhere else), usage
and the check for leaked answers. It never sees token ids of the policy, never turns a failure into a verdict, and shows
the privileged context to the model only where it was told to. Invariant: every call ends in a verdict, a correction,
`NoVerdict` or `JudgeError`, after at most `max_retries` + 1 requests.
"""

import asyncio
import dataclasses
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError, JudgeError, NoVerdict
from ..rollouts.doors import Correction, Revise, Verdict
from ..rollouts.rollout import Problem
from .chat import ChatFault, ChatFunction, ChatReply, OpenAIChat
from .prompts import Domain, Message, Prompts
from .reply import clean_correction, leaks_answer, parse_verdict

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0
# Servers may take other defaults from a model's own files; the paper samples at temperature 1 without any cut.
_VLLM_PLAIN_SAMPLING = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
_VLLM_CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}
_VLLM_TOKENS = {"logprobs": True, "return_token_ids": True}
_HINTS = {
    "empty": "Where the text came as reasoning, start the server without --reasoning-parser, or turn thinking off with "
    "extra_body={'chat_template_kwargs': {'enable_thinking': False}}",
    "length": "Raise max_tokens, or turn thinking off",
    "unparsable": "Take a stronger model, or set constrain_reply=True where the server knows JSON schemas",
    "connection": "Check that the server is up and that base_url ends in /v1",
    "timeout": "Check that the server is not overloaded, or raise timeout_seconds",
}


@dataclass(frozen=True)
class Usage:
    """What calls of one kind cost: calls, repeated requests, tokens, and wall-clock seconds with retries and pauses."""

    calls: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(*(mine + theirs for mine, theirs in zip(_fields(self), _fields(other), strict=True)))


class LLMJudge:
    """Judge and corrector behind a chat model.

    Args:
        model (`str`, *optional*): Name of the model at `base_url`; `None` takes the one that is served there.
        base_url (`str`, *optional*): OpenAI-compatible endpoint with its `/v1`. Nothing is contacted before the first
            call.
        chat (`ChatFunction`, *optional*): Any async chat function, instead of `base_url`.
        domain (`Domain` or `str`, defaults to `"math"`): Prompt templates: `"math"` or `"code"`.
        prompts (`Prompts`, *optional*): Own prompts, instead of `domain`.
        api_key (`str`, *optional*): Key for the endpoint. Never read from the environment, never shown.
        temperature (`float`, defaults to 1.0): Sampling temperature, at least 0.
        max_tokens (`int`, defaults to 1024): Limit of a reply to a review, in tokens.
        timeout_seconds (`float`, defaults to 120): Limit of one request.
        max_retries (`int`, defaults to 3): How often a request is repeated after a timeout, a cut connection or status
            408, 429 or 5xx.
        prefill (`bool`, defaults to `False`): Whether a correction continues the accepted text itself, as the beginning
            of the answer (vLLM: `continue_final_message`). Otherwise the text is shown and the model is asked to go on.
        use_privileged_context (`bool`, defaults to `False`): Whether the model is shown a problem's privileged context.
        shares_tokenizer (`bool`, defaults to `False`): Whether the model has the policy's tokenizer. Corrections then
            come as token ids with the model's log-probabilities (vLLM: `return_token_ids`).
        constrain_reply (`bool`, defaults to `False`): Whether the endpoint is asked to hold verdicts to a JSON schema
            (`response_format`).
        extra_body (`Mapping`, *optional*): Fields for every request body.
        sleep (`Callable`, defaults to `asyncio.sleep`): Waits between retries.

    Raises:
        ConfigError: Neither or both of `base_url` and `chat`, or a value outside its range.
    """

    def __init__(
        self,
        model: str | None = None,
        base_url: str | None = None,
        *,
        chat: ChatFunction | None = None,
        domain: Domain | str = Domain.MATH,
        prompts: Prompts | None = None,
        api_key: str | None = None,
        temperature: float = 1.0,
        max_tokens: int = 1024,
        timeout_seconds: float = 120.0,
        max_retries: int = 3,
        prefill: bool = False,
        use_privileged_context: bool = False,
        shares_tokenizer: bool = False,
        constrain_reply: bool = False,
        extra_body: Mapping[str, Any] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ):
        if (base_url is None) == (chat is None):
            raise ConfigError("base_url", base_url, "an endpoint, or a chat function as `chat`", "give one of the two")
        for name, value, least in (
            ("temperature", temperature, 0.0),
            ("max_tokens", max_tokens, 1),
            ("max_retries", max_retries, 0),
        ):
            if not (math.isfinite(value) and value >= least):
                raise ConfigError(name, value, f"at least {least}", f"set {name}={least} or more")
        if not (math.isfinite(timeout_seconds) and timeout_seconds > 0):
            raise ConfigError("timeout_seconds", timeout_seconds, "a finite number above 0", "use 120")
        if chat is None:
            body = (_VLLM_PLAIN_SAMPLING if prefill or shares_tokenizer else {}) | dict(extra_body or {})
            chat = OpenAIChat(model, base_url, api_key=api_key, timeout_seconds=timeout_seconds, extra_body=body)
        self.chat, self.prompts = chat, prompts if prompts is not None else Prompts(domain)
        self.temperature, self.max_tokens = temperature, max_tokens
        self.timeout_seconds, self.max_retries = timeout_seconds, max_retries
        self.prefill, self.use_privileged_context = prefill, use_privileged_context
        self.shares_tokenizer, self.constrain_reply = shares_tokenizer, constrain_reply
        self.usage = {"review": Usage(), "correction": Usage()}
        self.leaks = 0  # corrections withheld because they gave the answer away
        self._model, self._sleep = model, sleep

    def __repr__(self) -> str:
        return f"LLMJudge(chat={self.chat!r}, domain={self.prompts.domain.value!r}, prefill={self.prefill})"

    def settings(self) -> dict[str, object]:
        """What its verdicts and corrections depend on: the model and how it is asked, not where."""
        return {
            "model": self._model,
            "prompts": self.prompts.digest(),
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "prefill": self.prefill,
            "use_privileged_context": self.use_privileged_context,
            "shares_tokenizer": self.shares_tokenizer,
            "constrain_reply": self.constrain_reply,
        }

    @property
    def weight_version(self) -> str:
        """Name of the model; empty where it is not known."""
        return getattr(self.chat, "model", None) or self._model or ""

    async def review(self, problem: Problem, steps: Sequence[str], first_new: int, *, seed: int) -> Verdict:
        """Ask whether the newest steps stand.

        Raises:
            NoVerdict: No usable reply: `empty`, `length`, `unparsable`, `inconsistent`, `out_of_range`,
                `context_length`, or after the last retry `timeout`, `rate_limited`, `server_error`, `connection`,
                `bad_response`.
            JudgeError: The endpoint refuses such requests.
        """
        messages = self.prompts.review(self._shown(problem), steps, first_new)
        schema = {"response_format": _schema(len(steps), first_new)} if self.constrain_reply else {}
        reply = await self._ask("review", messages, max_tokens=self.max_tokens, seed=seed, **schema)
        if not reply.text.strip():
            raise _empty(reply)
        try:
            return parse_verdict(reply.text, len(steps), first_new)
        except NoVerdict as failure:
            if reply.finish_reason == "length" and failure.reason == "unparsable":
                raise NoVerdict("length", f"cut at {self.max_tokens} tokens; {failure.detail}") from failure
            raise

    async def intervene(
        self, problem: Problem, accepted: str, verdict: Revise, max_tokens: int, *, seed: int
    ) -> Correction:
        """Continue `accepted` with at most `max_tokens` tokens of the model.

        A correction that gives the problem's answer away is withheld: it comes back empty and is counted in `leaks`.

        Raises:
            NoVerdict: As in `review`, but for what a reply says: any text is a correction.
            JudgeError: As in `review`; also where `shares_tokenizer` was set and no token ids came.
        """
        messages = self.prompts.intervention(self._shown(problem), accepted, verdict.reason, prefill=self.prefill)
        continued = messages[-1]["role"] == "assistant"
        extra = (_VLLM_CONTINUE if continued else {}) | (_VLLM_TOKENS if self.shares_tokenizer else {})
        reply = await self._ask("correction", messages, max_tokens=max_tokens, seed=seed, **extra)
        if not reply.text and reply.reasoning:
            raise _empty(reply)
        text = clean_correction(reply.text, "" if continued else accepted)
        if leaks_answer(text, problem.answer):
            self.leaks += 1
            text = ""
        if not self.shares_tokenizer or not text:
            return Correction(text=text)
        if reply.ids is None:
            raise JudgeError(f"{self!r} sent no token ids; without them set shares_tokenizer=False")
        # Ids spell the reply as it came: where something was taken off, only the text is right.
        return Correction(ids=reply.ids, logps=reply.logps) if text == reply.text else Correction(text=text)

    async def probe(self) -> None:
        """Ask for one easy review, to find a wrong set-up before training starts.

        Raises:
            JudgeError: No verdict came back; the message says what to try.
        """
        try:
            await self.review(Problem("What is 17 + 25?"), ["17 + 25 = 42, so the answer is 42."], 0, seed=0)
        except NoVerdict as failure:
            hint = _HINTS.get(failure.reason, "Ask it by hand and look at what comes back")
            raise JudgeError(f"{self!r} gave no verdict on a trivial review ({failure}). {hint}.") from failure

    def counters(self) -> dict[str, float]:
        """Everything counted so far, by metric name. The numbers only grow."""
        counted = {
            f"judge/{role}/{field.name}": float(getattr(usage, field.name))
            for role, usage in self.usage.items()
            for field in dataclasses.fields(Usage)
        }
        return counted | {"judge/leak": float(self.leaks)}

    async def aclose(self) -> None:
        """Close the connections, on the event loop that made the calls."""
        if hasattr(self.chat, "aclose"):
            await self.chat.aclose()

    def _shown(self, problem: Problem) -> Problem:
        """The problem as the model may see it."""
        return problem if self.use_privileged_context else dataclasses.replace(problem, privileged_context=None)

    async def _ask(self, role: str, messages: list[Message], *, max_tokens: int, seed: int, **extra: Any) -> ChatReply:
        """One request, repeated after transport faults with capped, growing pauses."""
        started, retries, reply = time.monotonic(), 0, ChatReply("")
        try:
            while True:
                try:
                    async with asyncio.timeout(self.timeout_seconds):
                        answer = await self.chat(
                            messages, max_tokens=max_tokens, temperature=self.temperature, seed=seed, **extra
                        )
                    reply = ChatReply(answer) if isinstance(answer, str) else answer
                    return reply
                except (ChatFault, TimeoutError, ConnectionError) as error:
                    fault = self._fault(error)
                if retries == self.max_retries:
                    raise NoVerdict(fault.reason, f"{fault.detail} (after {retries + 1} requests)") from fault
                await self._sleep(_pause_seconds(retries, fault, seed))
                retries += 1
        finally:
            seconds = time.monotonic() - started
            self.usage[role] += Usage(1, retries, reply.prompt_tokens, reply.completion_tokens, seconds)

    def _fault(self, error: Exception) -> ChatFault:
        if isinstance(error, ChatFault):
            return error
        if isinstance(error, TimeoutError):
            return ChatFault("timeout", f"no answer within {self.timeout_seconds:g} s")
        return ChatFault("connection", f"{type(error).__name__}: {error}")


def _pause_seconds(retries: int, fault: ChatFault, seed: int) -> float:
    """Doubles from half a second, spread by the seed so that rollouts do not come back at once, and capped."""
    doubled = FIRST_PAUSE_SECONDS * 2 ** min(retries, 10)  # beyond that the cap rules
    pause = doubled * random.Random(seed + retries).uniform(0.5, 1.0)
    return min(max(pause, fault.retry_after_seconds), LONGEST_PAUSE_SECONDS)


def _empty(reply: ChatReply) -> NoVerdict:
    detail = f"no content, finish reason {reply.finish_reason!r}"
    if reply.reasoning:
        detail += f"; the text came as reasoning_content ({len(reply.reasoning)} characters)"
    return NoVerdict("empty", detail)


def _schema(num_steps: int, first_new: int) -> dict[str, Any]:
    """The reply as a JSON schema: the reason first, and a step among the new ones."""

    def variant(decision: str, **more: Any) -> dict[str, Any]:
        properties = {"reason": {"type": "string", "maxLength": 200}, "decision": {"const": decision}, **more}
        return {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }

    steps = {"enum": list(range(first_new + 1, num_steps + 1))}
    schema = {"anyOf": [variant("keep"), variant("revise", step=steps)]}
    return {"type": "json_schema", "json_schema": {"name": "verdict", "schema": schema}}


def _fields(usage: Usage) -> tuple[float, ...]:
    return dataclasses.astuple(usage)
