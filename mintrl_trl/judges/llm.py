"""A language model as the judge-intervention policy, over any async chat function.

Owns what happens around a chat request: prompts in, verdict or correction out, retries (here and nowhere else), the
account and the check for leaked answers. It never decodes or encodes a token, never turns a failure into a verdict, and
shows the privileged context to the model only where it was told to. Invariant: every call ends in a verdict, a
correction, `NoVerdict` or `JudgeError`, after at most `max_retries` + 1 requests.
"""

import asyncio
import dataclasses
import itertools
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from ..errors import ConfigError, JudgeError, NoVerdict
from ..rollouts.doors import KEEP, Correction, Revise, Verdict, Vocabulary
from ..rollouts.rollout import Problem
from .accounting import Account, Usage
from .chat import ChatFault, ChatFunction, ChatReply, OpenAIChat
from .probe import probe
from .prompts import Domain, Prompts
from .reply import clean_correction, leaks_answer, parse_verdict, verdict_pattern, verdict_schema
from .spread import SpreadChat

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0
# Servers may take other defaults from a model's own files; the paper samples at temperature 1 without any cut.
_VLLM_PLAIN_SAMPLING = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "watermarking": False}
_VLLM_CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}
_VLLM_CHAT_IDS = {"logprobs": True, "return_token_ids": True}
_VLLM_COMPLETION_IDS = {"logprobs": 0, "return_token_ids": True}  # 0: of the sampled token alone


class ReplyForm(Enum):
    """How an endpoint is asked to hold the reply to a review to its form."""

    FREE = "free"  # not at all: the reader is tolerant
    SCHEMA = "schema"  # `response_format`, which many endpoints know
    PATTERN = "pattern"  # vLLM's `structured_outputs`, where no white space can run on without end


class LLMJudge:
    """Judge and corrector behind a chat model.

    Args:
        model (`str`, *optional*): Name of the model at `base_url`; `None` takes the one that is served there.
        base_url (`str` or `Sequence[str]`, *optional*): OpenAI-compatible endpoint with its `/v1`, or several that
            serve the model alike. Nothing is contacted before the first call.
        chat (`ChatFunction`, *optional*): Any async chat function, instead of `base_url`.
        domain (`Domain` or `str`, defaults to `"math"`): Prompt templates: `"math"` or `"code"`.
        prompts (`Prompts`, *optional*): Own prompts, instead of `domain`.
        api_key (`str`, *optional*): Key for the endpoint. Never read from the environment, never shown.
        temperature (`float`, defaults to 1.0): Sampling temperature, at least 0.
        max_tokens (`int`, defaults to 1024): Limit of a reply to a review, in tokens.
        timeout_seconds (`float`, defaults to 120): Limit of one request.
        max_retries (`int`, defaults to 3): How often a request is repeated after a timeout, a cut connection or status
            408, 429 or 5xx.
        prefill (`bool`, *optional*): Whether a correction continues the accepted text itself, as the beginning of the
            answer (vLLM). Otherwise the text is shown and the model is asked to go on. Unset: where it continues ids.
        use_privileged_context (`bool`, defaults to `False`): Whether the model is shown a problem's privileged context.
        shares_tokenizer (`bool`, *optional*): Whether the model has the policy's tokenizer. Corrections then continue
            the very ids that stand (vLLM's `/tokenize` and `/v1/completions`) and come as ids with the model's
            log-probabilities. Unset: `probe` finds out; before it, and where it cannot, corrections come as text.
        constrain_reply (`bool`, *optional*): Whether the endpoint is asked to hold verdicts to their form. Unset:
            `probe` finds out; before it, they are read from free text.
        extra_body (`Mapping`, *optional*): Fields for every request body.
        price_per_million_input (`float`, *optional*): Price of a million tokens read. With both, the cost is counted.
        price_per_million_output (`float`, *optional*): Price of a million tokens written.
        budget_tokens (`int`, *optional*): Tokens, read and written, after which no more reviews are taken.
        budget_cost (`float`, *optional*): The same in money; needs both prices.
        sleep (`Callable`, defaults to `asyncio.sleep`): Waits between retries.

    Attributes:
        account ([`Account`]): What it has cost.
        leaks (`int`): Corrections withheld because they gave the answer away.
        wait_for_server (`Callable`, *optional*): Returns once an endpoint that could not be reached may be asked again.
            Set by whoever waits for the same server anyway; what it raises ends the call.

    Raises:
        ConfigError: Neither or both of `base_url` and `chat`, or a value outside its range.
    """

    def __init__(
        self,
        model: str | None = None,
        base_url: str | Sequence[str] | None = None,
        *,
        chat: ChatFunction | None = None,
        domain: Domain | str = Domain.MATH,
        prompts: Prompts | None = None,
        api_key: str | None = None,
        temperature: float = 1.0,
        max_tokens: int = 1024,
        timeout_seconds: float = 120.0,
        max_retries: int = 3,
        prefill: bool | None = None,
        use_privileged_context: bool = False,
        shares_tokenizer: bool | None = None,
        constrain_reply: bool | None = None,
        extra_body: Mapping[str, Any] | None = None,
        price_per_million_input: float | None = None,
        price_per_million_output: float | None = None,
        budget_tokens: int | None = None,
        budget_cost: float | None = None,
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
        self.account = Account(
            price_per_million_input=price_per_million_input,
            price_per_million_output=price_per_million_output,
            budget_tokens=budget_tokens,
            budget_cost=budget_cost,
        )
        if chat is None:
            optional = {"seed", "top_p", *_VLLM_PLAIN_SAMPLING, *(() if constrain_reply else ("response_format",))}
            chats = [
                OpenAIChat(
                    model,
                    url,
                    api_key=api_key,
                    timeout_seconds=timeout_seconds,
                    extra_body=(_VLLM_PLAIN_SAMPLING if prefill or shares_tokenizer else {}) | dict(extra_body or {}),
                    optional=optional,
                )
                for url in ((base_url,) if isinstance(base_url, str) else base_url)
            ]
            chat = chats[0] if len(chats) == 1 else SpreadChat(chats)
        self.chat, self.prompts = chat, prompts if prompts is not None else Prompts(domain)
        self.temperature, self.max_tokens = temperature, max_tokens
        self.timeout_seconds, self.max_retries = timeout_seconds, max_retries
        self.prefill, self.use_privileged_context = prefill, use_privileged_context
        self.shares_tokenizer, self.constrain_reply = shares_tokenizer, constrain_reply
        self.reply_form = ReplyForm.SCHEMA if constrain_reply else ReplyForm.FREE
        self.continues_ids = bool(shares_tokenizer) and prefill is not False and hasattr(chat, "complete")
        self._said_to_share = shares_tokenizer  # what is found out may differ from server to server
        self.vocabulary: Vocabulary | None = None
        self.longest_text_tokens: int | None = None
        self.needs_logps = False
        self.leaks = 0
        self.wait_for_server: Callable[[], Awaitable[None]] | None = None
        self._model, self._sleep, self._extra_body = model, sleep, dict(extra_body or {})

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
            "shares_tokenizer": self._said_to_share,
            "constrain_reply": self.constrain_reply,
        }

    @property
    def weight_version(self) -> str:
        """Name of the model; empty where it is not known."""
        return getattr(self.chat, "model", None) or self._model or ""

    @property
    def name(self) -> str:
        """What messages call it: its model and where it is asked, not the objects behind."""
        model, where = self.weight_version, getattr(self.chat, "shown_url", "")
        return f"the judge{f' {model!r}' if model else ''} at {where}" if where else repr(self)

    @property
    def exhausted(self) -> bool:
        """Whether its budget is spent; no chunk is reviewed then."""
        return self.account.exhausted

    @property
    def spent(self) -> tuple[int, float]:
        """Tokens and money spent in the run. Set when a run goes on."""
        return self.account.spent

    @spent.setter
    def spent(self, spent: tuple[int, float]) -> None:
        self.account.spent = spent

    def prepare(self, vocabulary: Vocabulary, longest_text_tokens: int, *, needs_logps: bool = False) -> None:
        """Say, before `probe`, whose text is judged.

        Args:
            vocabulary (`Vocabulary`): The policy's.
            longest_text_tokens (`int`): Of a question and the text under review together, at most.
            needs_logps (`bool`, defaults to `False`): Whether corrections have to come with log-probabilities.
        """
        self.vocabulary, self.longest_text_tokens, self.needs_logps = vocabulary, longest_text_tokens, needs_logps

    async def review(self, problem: Problem, steps: Sequence[str], first_new: int, *, seed: int) -> Verdict:
        """Ask whether the newest steps stand.

        Raises:
            NoVerdict: No usable reply: `empty`, `length`, `unparsable`, `inconsistent`, `out_of_range`,
                `context_length`, `content_filter`, or after the last retry `timeout`, `rate_limited`, `server_error`,
                `connection`, `bad_response`.
            JudgeError: The endpoint refuses such requests.
        """
        if self.exhausted:  # this one waited for its turn while others spent the rest
            return KEEP
        messages = self.prompts.review(self._shown(problem), steps, first_new)
        form = self._form(len(steps), first_new)
        reply = await self._ask(
            "review",
            seed,
            lambda: self.chat(messages, max_tokens=self.max_tokens, temperature=self.temperature, seed=seed, **form),
        )
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
            NoVerdict: As in `review`, but for what a reply says: any text is a correction, unless its log-probabilities
                are no numbers (`broken_logps`).
            JudgeError: As in `review`; also where `shares_tokenizer` was set and no token ids came.
        """
        ids = self._continuable(accepted)
        prefill = ids is not None or bool(self.prefill)
        messages = self.prompts.intervention(self._shown(problem), accepted, verdict.reason, prefill=prefill)
        continued = messages[-1]["role"] == "assistant"
        options = {"max_tokens": max_tokens, "temperature": self.temperature, "seed": seed}

        async def ask() -> ChatReply | str:
            if ids is not None:
                opened = await self.chat.tokenize(messages[:-1] if continued else messages)
                return await self.chat.complete((*opened.ids, *ids), **options, **_VLLM_COMPLETION_IDS)
            extra = (_VLLM_CONTINUE if continued else {}) | (_VLLM_CHAT_IDS if self.shares_tokenizer else {})
            return await self.chat(messages, **options, **extra)

        reply = await self._ask("correction", seed, ask)
        if not reply.text and reply.reasoning:
            raise _empty(reply)
        if reply.logps is not None and not all(map(math.isfinite, reply.logps)):
            raise NoVerdict("broken_logps", f"log-probabilities {reply.logps} of a correction")
        text = clean_correction(reply.text, "" if continued else accepted)
        if leaks_answer(text, problem.answer):
            self.leaks += 1
            text = ""
        if not self.shares_tokenizer or not text:
            return Correction(text=text)
        if reply.ids is None:
            raise JudgeError(f"{self.name} sent no token ids; without them set judge_shares_tokenizer: false")
        # Ids spell the reply as it came: where something was taken off, only the text is right.
        if text != reply.text:
            return Correction(text=text)
        # Servers report those of temperature 1, unless they are told to do otherwise.
        return Correction(ids=reply.ids, logps=reply.logps if self.temperature == 1 else None)

    async def probe(self) -> None:
        """Ask for one easy review, find out what the endpoint offers, and explain a set-up that cannot work.

        Raises:
            JudgeError: No verdict came back, or there is too little room; the message says what to try.
        """
        await probe(self)

    def offer(self, *, vllm: bool, shares_tokenizer: bool) -> None:
        """Use what the endpoint was found to offer, where the user left it open."""
        if self.constrain_reply is None or (self.constrain_reply and vllm):
            self.reply_form = ReplyForm.PATTERN if vllm else ReplyForm.SCHEMA
        if self.shares_tokenizer is None:
            self.shares_tokenizer = shares_tokenizer
        self.continues_ids = vllm and bool(self.shares_tokenizer) and self.prefill is not False
        if vllm and isinstance(self.chat, OpenAIChat | SpreadChat):
            self.chat.extra_body = _VLLM_PLAIN_SAMPLING | self._extra_body

    @property
    def may_free_reply(self) -> bool:
        """Whether replies are held to their form without the user's word for it."""
        return self.constrain_reply is None and self.reply_form is not ReplyForm.FREE

    def free_reply(self) -> None:
        """Hold replies to no form."""
        self.reply_form = ReplyForm.FREE

    def counters(self) -> dict[str, float]:
        """Everything counted so far, by metric name. The numbers only grow."""
        return self.account.counters() | {"judge/leak": float(self.leaks)}

    async def aclose(self) -> None:
        """Close the connections, on the event loop that made the calls."""
        if hasattr(self.chat, "aclose"):
            await self.chat.aclose()

    def _shown(self, problem: Problem) -> Problem:
        """The problem as the model may see it."""
        return problem if self.use_privileged_context else dataclasses.replace(problem, privileged_context=None)

    def _continuable(self, accepted: str) -> tuple[int, ...] | None:
        """The ids that the model is to continue; `None` where it had better read the text.

        Control tokens that the policy has sampled would forge turns; as text they are made harmless.
        """
        ids = getattr(accepted, "ids", ())
        if not self.continues_ids or (accepted and not ids):
            return None
        special_ids = frozenset() if self.vocabulary is None else self.vocabulary.special_ids
        return ids if special_ids.isdisjoint(ids) else None

    def _form(self, num_steps: int, first_new: int) -> dict[str, Any]:
        """Fields that hold the reply to its form."""
        if self.reply_form is ReplyForm.PATTERN:
            return {"structured_outputs": {"regex": verdict_pattern(num_steps, first_new)}}
        if self.reply_form is ReplyForm.SCHEMA:
            schema = {"name": "verdict", "schema": verdict_schema(num_steps, first_new)}
            return {"response_format": {"type": "json_schema", "json_schema": schema}}
        return {}

    async def _ask(self, role: str, seed: int, request: Callable[[], Awaitable[ChatReply | str]]) -> ChatReply:
        """One call, and what it took into the account."""
        started, reply = time.monotonic(), ChatReply("")
        try:
            answer = await self.persist(role, seed, request)
            reply = ChatReply(answer) if isinstance(answer, str) else answer
            return reply
        finally:
            tokens, seconds = (reply.prompt_tokens, reply.completion_tokens), time.monotonic() - started
            before = self.exhausted
            self.account.add(role, Usage(1, 0, *tokens, seconds, reply.cached_tokens))
            if self.exhausted and not before:
                spent_tokens, _ = self.account.spent
                logger.warning("%s has spent its budget (%d tokens): no more reviews", self.name, spent_tokens)

    async def persist(self, role: str, seed: int, request: Callable[[], Awaitable[Any]]) -> Any:
        """Make a request; repeat it after transport faults, with capped and growing pauses.

        Raises:
            NoVerdict: The last repetition failed, too.
        """
        for retries in itertools.count():
            try:
                async with asyncio.timeout(self.timeout_seconds):
                    return await request()
            except (ChatFault, TimeoutError, ConnectionError) as error:
                fault = self._fault(error)
            if retries == self.max_retries:
                raise NoVerdict(fault.reason, f"{fault.detail} (after {retries + 1} requests)") from fault
            await self._sleep(_pause_seconds(retries, fault, seed))
            if fault.reason == "connection" and self.wait_for_server is not None:
                await self.wait_for_server()
            self.account.add(role, Usage(retries=1))

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
