"""One chat request: what goes in, what comes out, and how it is made at an OpenAI-compatible endpoint.

Owns the judge's connection and the sorting of its failures into three kinds: `ChatFault` (the same request may succeed
later), `NoVerdict` (this request never will) and `JudgeError` (no request will). It knows no prompt and never repeats a
request, but that a field which the endpoint refuses by name may be left out. The key is sent to the given address, is
never read from the environment, and appears in no message.
"""

import asyncio
import json
import logging
import math
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import urlsplit, urlunsplit

from ..errors import ConfigError, JudgeError, NoVerdict
from ..wire import LONGEST_TEXT_CHARS, is_local, seconds_to_wait, server_words
from .prompts import Message

if TYPE_CHECKING:
    import openai

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 10.0
HIDDEN = "(hidden)"
# Fields of a request that have a setting of their own, or that replies could not be read with.
OWN_FIELDS = frozenset({"model", "messages", "prompt", "n", "stream", "max_tokens", "temperature", "seed"})
_NEW_NAMES = {"max_tokens": "max_completion_tokens"}  # of fields that some endpoints know by another name only
# Words of a provider that will not read this text; another rollout's it may. (DeepSeek, Azure, Alibaba)
_WITHHELD = re.compile(r"content exists risk|content[ _]filter|content management policy|data_inspection_failed", re.I)
_TOO_LONG = re.compile(
    r"context[ _]length|context window|maximum model length|prompt is too long|too many tokens", re.I
)


@dataclass(frozen=True)
class ChatReply:
    """What a chat model answered.

    Args:
        text (`str`): The answer; empty where there is none.
        finish_reason (`str`, defaults to `"stop"`): `"length"` where the token limit cut it.
        reasoning (`str`, defaults to `""`): Text that the server sorted out as reasoning.
        prompt_tokens (`int`, defaults to 0): Tokens read.
        completion_tokens (`int`, defaults to 0): Tokens written.
        cached_tokens (`int`, defaults to 0): Tokens read that the server had in its cache, where it says so.
        ids (`tuple[int, ...]`, *optional*): Token ids of the answer, in the model's vocabulary.
        logps (`tuple[float, ...]`, *optional*): Log-probability of each id, in nats.
    """

    text: str
    finish_reason: str = "stop"
    reasoning: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    ids: tuple[int, ...] | None = None
    logps: tuple[float, ...] | None = None


class ChatFunction(Protocol):
    """Any async function of this form is a chat model.

    `extra` holds further fields of the request body. A `ChatFault`, a `TimeoutError` or a `ConnectionError` is retried
    by the caller; a `JudgeError` stops the run.
    """

    async def __call__(
        self, messages: Sequence[Message], *, max_tokens: int, temperature: float, seed: int, **extra: Any
    ) -> ChatReply | str:
        """Answer `messages` with at most `max_tokens` tokens."""


class ChatFault(Exception):  # noqa: N818 - handled inside the package, never shown as an error
    """A request failed in a way that the same request may not fail in later.

    Args:
        reason (`str`): Short snake_case reason.
        detail (`str`, *optional*): What was seen.
        retry_after_seconds (`float`, *optional*): How long the server asks to wait.
    """

    def __init__(self, reason: str, detail: str = "", retry_after_seconds: float = 0.0):
        self.reason, self.detail, self.retry_after_seconds = reason, detail, retry_after_seconds
        super().__init__(f"{reason}: {detail}" if detail else reason)


class RefusedError(JudgeError):
    """An endpoint refused a request for what it holds.

    Args:
        message (`str`): Address, status and the endpoint's own text.
        status (`int`): HTTP status.
        words (`str`): The endpoint's own text.
    """

    def __init__(self, message: str, status: int, words: str):
        self.status, self.words = status, words
        super().__init__(message)

    def __reduce__(self):
        return type(self), (str(self), self.status, self.words)


class Tokenized(NamedTuple):
    """Token ids in the model's vocabulary, and the most tokens that a request may hold."""

    ids: tuple[int, ...]
    max_model_len: int | None


class OpenAIChat:
    """A chat model behind an OpenAI-compatible endpoint (vLLM, DeepSeek, ...). Connects on the first request.

    Args:
        model (`str`, *optional*): Name of the model there. `None` asks the endpoint, which must serve just one.
        base_url (`str`): Address with its `/v1`.
        api_key (`str`, *optional*): Key for the endpoint.
        timeout_seconds (`float`, defaults to 120): How long the endpoint may be silent.
        extra_body (`Mapping`, *optional*): Fields for every request body, such as
            `{"chat_template_kwargs": {"enable_thinking": False}}`.
        optional (`Collection[str]`, *optional*): Fields that are left out, from then on, where the endpoint refuses a
            request and names them.

    Attributes:
        left_out (`set[str]`): Those that it does not take.

    Raises:
        ConfigError: Not an http address, a key that no header can carry, or `extra_body` holds a field of `OWN_FIELDS`.
    """

    def __init__(
        self,
        model: str | None,
        base_url: str,
        *,
        api_key: str | None = None,
        timeout_seconds: float = 120.0,
        extra_body: Mapping[str, Any] | None = None,
        optional: Collection[str] = (),
    ):
        parts = urlsplit(base_url)
        self.shown_url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                "base_url", self.shown_url, "an http or https address", "write it like 'http://localhost:8001/v1'"
            )
        api_key = (api_key or "").strip()
        if not re.fullmatch(r"[!-~]*", api_key):
            raise ConfigError("api_key", HIDDEN, "one word of ASCII characters", "check how the key was copied")
        check_extra_body("extra_body", extra_body)
        self.model, self.base_url, self.timeout_seconds = model, base_url, timeout_seconds
        self.extra_body = dict(extra_body or {})
        self.optional, self.left_out = frozenset(optional), set[str]()
        self._api_key = api_key
        self._client: openai.AsyncOpenAI | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def base_urls(self) -> tuple[str, ...]:
        """Addresses of all endpoints: this one."""
        return (self.base_url,)

    def __repr__(self) -> str:
        return f"OpenAIChat({self.model!r}, {self.shown_url!r})"

    async def __call__(
        self, messages: Sequence[Message], *, max_tokens: int, temperature: float, seed: int, **extra: Any
    ) -> ChatReply:
        """Make one chat request.

        Raises:
            ChatFault: Timeout, cut connection, status 408, 429 or 5xx, or a reply without any choice.
            NoVerdict: The messages do not fit the model's context, or the provider will not read them.
            JudgeError: Any other refusal, with the endpoint's own text.
        """
        sampling = {"max_tokens": max_tokens, "temperature": temperature, "top_p": 1.0, "seed": seed}
        return self._reply(
            await self._ask("/chat/completions", {"messages": list(messages)} | sampling | self.extra_body | extra)
        )

    async def complete(
        self, prompt_ids: Sequence[int], *, max_tokens: int, temperature: float, seed: int, **extra: Any
    ) -> ChatReply:
        """Continue token ids, where the endpoint takes them (vLLM). Raises as a chat request does."""
        sampling = {"max_tokens": max_tokens, "temperature": temperature, "top_p": 1.0, "seed": seed}
        body = {"prompt": list(prompt_ids)} | sampling | self.extra_body | extra
        body.pop("chat_template_kwargs", None)
        return self._reply(await self._ask("/completions", body))

    async def tokenize(self, what: str | Sequence[Message]) -> Tokenized:
        """Ids of a text, or of a chat up to where its answer begins, as the endpoint makes them (vLLM's `/tokenize`).

        Raises:
            JudgeError: The endpoint has no such route. Else as for a chat request.
        """
        if isinstance(what, str):
            body = {"prompt": what, "add_special_tokens": False}
        else:
            body = {"messages": list(what), "add_generation_prompt": True}
            if "chat_template_kwargs" in self.extra_body:
                body["chat_template_kwargs"] = self.extra_body["chat_template_kwargs"]
        answer = await self._ask(f"{self.base_url.rstrip('/').removesuffix('/v1')}/tokenize", body)
        ids, room = answer.get("tokens"), answer.get("max_model_len")
        if not isinstance(ids, list) or not all(type(token) is int for token in ids):
            raise JudgeError(self._safe(f"{self.shown_url} has no route /tokenize: {str(answer)[:LONGEST_TEXT_CHARS]}"))
        return Tokenized(tuple(ids), room if type(room) is int else None)

    async def aclose(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.close()

    def _open_client(self) -> "openai.AsyncOpenAI":
        """The client of the running event loop; connections cannot move to another loop."""
        import openai

        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._client = openai.AsyncOpenAI(
                base_url=self.base_url,
                api_key=self._api_key or "none",  # never the variable that the library would read
                max_retries=0,
                timeout=openai.Timeout(self.timeout_seconds, connect=min(CONNECT_SECONDS, self.timeout_seconds)),
                http_client=openai.DefaultAsyncHttpx2Client(trust_env=not is_local(self.base_url)),  # else by a proxy
            )
            self._loop = loop
        return self._client

    async def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a body for our model, without the fields that the endpoint is known not to take."""
        if self.model is None:
            names = await self._served_models()
            if len(names) != 1:
                raise JudgeError(f"{self.shown_url} serves {names or 'no model'}; give the judge's name as `model`")
            self.model = names[0]
        left_out = set(self.left_out)
        while True:  # ends: every turn leaves out more
            sent = {_NEW_NAMES[name] if name in left_out and name in _NEW_NAMES else name: body[name] for name in body}
            sent = {"model": self.model} | {name: value for name, value in sent.items() if name not in left_out}
            try:
                answer = await self._send(path, sent)
                break
            except RefusedError as refusal:
                named = {name for name in self.optional & sent.keys() if _names(refusal.words, name)}
                named |= {old for old, new in _NEW_NAMES.items() if old in sent and _names(refusal.words, old, new)}
                if not named:
                    raise await self._explained(refusal) from refusal.__cause__
                left_out |= named
        if not left_out <= self.left_out:  # only now is it known that they were the reason
            names = ", ".join(sorted(left_out - self.left_out))
            logger.info("%s does not take %s; it is asked without", self.shown_url, names)
            self.left_out |= left_out
        return answer

    async def _send(self, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        """One request; its failure sorted, its answer a JSON object. Without a body it is a GET."""
        import openai

        try:
            client = self._open_client()
            if body is None:
                text = await client.get(path, cast_to=str)
            else:
                text = await client.post(path, body=body, cast_to=str)
            answer = json.loads(text)
        except openai.APITimeoutError as error:
            raise ChatFault("timeout", f"{self.shown_url} was silent for {self.timeout_seconds:g} s") from error
        except openai.APIStatusError as error:
            raise self._refusal(error) from error
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            raise ChatFault("connection", self._safe(f"{self.shown_url}: {type(cause).__name__}: {cause}")) from error
        except (ValueError, openai.APIError) as error:
            raise ChatFault("bad_response", self._safe(f"{self.shown_url}: {error}")) from error
        if not isinstance(answer, dict):
            raise ChatFault("bad_response", self._safe(f"{self.shown_url} sent {str(answer)[:LONGEST_TEXT_CHARS]}"))
        return answer

    async def _served_models(self) -> list[str]:
        """The base models that the endpoint serves (adapters name a parent)."""
        cards = (await self._send("/models", None)).get("data")
        cards = [card for card in cards if isinstance(card, dict)] if isinstance(cards, list) else []
        return sorted(str(card.get("id")) for card in cards if card.get("parent") is None)

    async def _explained(self, refusal: RefusedError) -> RefusedError:
        """The refusal; where the model is not there, with the names of those that are."""
        names: list[str] = []
        if refusal.status in (400, 404):
            with suppress(ChatFault, JudgeError, NoVerdict):
                names = await self._served_models()
        if not names or self.model in names:
            return refusal
        return RefusedError(
            f"{str(refusal).rstrip('.')}. It serves {', '.join(map(repr, names))}", refusal.status, refusal.words
        )

    def _refusal(self, error: "openai.APIStatusError") -> Exception:
        status = error.status_code
        words = self._safe(" ".join(error.response.text.split())[:LONGEST_TEXT_CHARS])
        said = self._safe(server_words(error.response.text))
        message = f"{self.shown_url} answered {status} for model {self.model!r}: {said}"
        if status == 413 or (status in (400, 422) and _TOO_LONG.search(words)):
            return NoVerdict("context_length", message)
        if status in (400, 403, 422) and _WITHHELD.search(words):
            return NoVerdict("content_filter", message)
        if status not in (408, 429) and status < 500:
            return RefusedError(message, status, words)
        reason = {408: "timeout", 429: "rate_limited"}.get(status, "server_error")
        return ChatFault(reason, message, seconds_to_wait(error.response.headers.get("retry-after")))

    def _reply(self, answer: dict[str, Any]) -> ChatReply:
        """A chat's or a completion's answer. Fields are missing, null or odd at some endpoints."""
        try:
            choice = answer["choices"][0]
            message = choice["message"] if "message" in choice else {"content": choice["text"]}
            text, reasoning = message.get("content"), message.get("reasoning_content") or message.get("reasoning")
            usage = answer.get("usage") or {}
            details = usage.get("prompt_tokens_details") or {}
            ids, logprobs = choice.get("token_ids"), choice.get("logprobs") or {}
            logps = logprobs.get("token_logprobs") or [token["logprob"] for token in logprobs.get("content") or []]
            logps = [math.nan if logp is None else float(logp) for logp in logps]  # JSON has no NaN
            known = ids is not None and len(logps) == len(ids)
            return ChatReply(
                text=text if isinstance(text, str) else "",
                finish_reason=str(choice.get("finish_reason") or ""),
                reasoning=reasoning if isinstance(reasoning, str) else "",
                prompt_tokens=int(usage.get("prompt_tokens") or 0),
                completion_tokens=int(usage.get("completion_tokens") or 0),
                # DeepSeek has a name of its own for it.
                cached_tokens=int(details.get("cached_tokens") or usage.get("prompt_cache_hit_tokens") or 0),
                ids=None if ids is None else tuple(ids),
                logps=tuple(logps) if known else None,
            )
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            detail = f"{self.shown_url} sent no completion: {str(answer)[:LONGEST_TEXT_CHARS]}"
            raise ChatFault("bad_response", self._safe(detail)) from error

    def _safe(self, text: str) -> str:
        return text.replace(self._api_key, HIDDEN) if self._api_key else text


def check_extra_body(field: str, body: Mapping[str, Any] | None) -> None:
    """Check what a user adds to request bodies.

    Raises:
        ConfigError: It would take the place of something else.
    """
    taken = sorted(OWN_FIELDS & set(body or ()))
    if taken:
        allowed = f"fields other than {', '.join(sorted(OWN_FIELDS))}, which are set elsewhere or not at all"
        raise ConfigError(field, taken, allowed, f"remove {', '.join(taken)} from {field}")


def _names(words: str, *fields: str) -> bool:
    """Whether the words of a refusal name all these fields."""
    return all(re.search(rf"\b{field}\b", words) for field in fields)
