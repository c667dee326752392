"""One chat request: what goes in, what comes out, and how it is made at an OpenAI-compatible endpoint.

Owns the judge's connection and the sorting of its failures into three kinds: `ChatFault` (the same request may succeed
later), `NoVerdict` (this request never will) and `JudgeError` (no request will). It never repeats a request and knows
no prompt. The key is sent to the given address, is never read from the environment, and appears in no message.
"""

import asyncio
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit, urlunsplit

from ..errors import ConfigError, JudgeError, NoVerdict
from .prompts import Message

if TYPE_CHECKING:
    import openai

CONNECT_SECONDS = 10.0
LONGEST_TEXT_CHARS = 1000
HIDDEN = "(hidden)"
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
        ids (`tuple[int, ...]`, *optional*): Token ids of the answer, in the model's vocabulary.
        logps (`tuple[float, ...]`, *optional*): Log-probability of each id, in nats.
    """

    text: str
    finish_reason: str = "stop"
    reasoning: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
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


class OpenAIChat:
    """A chat model behind an OpenAI-compatible endpoint (vLLM, DeepSeek, ...). Connects on the first request.

    Args:
        model (`str`, *optional*): Name of the model there. `None` asks the endpoint, which must serve just one.
        base_url (`str`): Address with its `/v1`.
        api_key (`str`, *optional*): Key for the endpoint.
        timeout_seconds (`float`, defaults to 120): How long the endpoint may be silent.
        extra_body (`Mapping`, *optional*): Fields for every request body, such as
            `{"chat_template_kwargs": {"enable_thinking": False}}`.

    Raises:
        ConfigError: Not an http address, or a key that no header can carry.
    """

    def __init__(
        self,
        model: str | None,
        base_url: str,
        *,
        api_key: str | None = None,
        timeout_seconds: float = 120.0,
        extra_body: Mapping[str, Any] | None = None,
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
        self.model, self.base_url, self.timeout_seconds = model, base_url, timeout_seconds
        self.extra_body = dict(extra_body or {})
        self._api_key = api_key
        self._client: openai.AsyncOpenAI | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"OpenAIChat({self.model!r}, {self.shown_url!r})"

    async def __call__(
        self, messages: Sequence[Message], *, max_tokens: int, temperature: float, seed: int, **extra: Any
    ) -> ChatReply:
        """Make one request, without retries.

        Raises:
            ChatFault: Timeout, cut connection, status 408, 429 or 5xx, or a reply without any choice.
            NoVerdict: The messages do not fit the model's context.
            JudgeError: Any other refusal, with the endpoint's own text.
        """
        import openai

        try:
            client = self._open_client()
            model = self.model or await self._served_model(client)
            completion = await client.chat.completions.create(
                model=model,
                messages=list(messages),
                max_tokens=max_tokens,
                temperature=temperature,
                top_p=1.0,
                seed=seed,
                extra_body={**self.extra_body, **extra},
            )
        except openai.APITimeoutError as error:
            raise ChatFault("timeout", f"{self.shown_url} was silent for {self.timeout_seconds:g} s") from error
        except openai.APIStatusError as error:
            raise self._refusal(error) from error
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            raise ChatFault("connection", self._safe(f"{self.shown_url}: {type(cause).__name__}: {cause}")) from error
        except (ValueError, openai.APIError) as error:  # a body that is no JSON, or no completion
            raise ChatFault("bad_response", self._safe(f"{self.shown_url}: {error}")) from error
        return self._reply(completion)

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
            )
            self._loop = loop
        return self._client

    async def _served_model(self, client: "openai.AsyncOpenAI") -> str:
        """The one base model that the endpoint serves (adapters name a parent)."""
        cards = (await client.models.list()).data or []
        names = sorted(card.id for card in cards if getattr(card, "parent", None) is None)
        if len(names) != 1:
            raise JudgeError(f"{self.shown_url} serves {names or 'no model'}; give the judge's name as `model`")
        self.model = names[0]
        return self.model

    def _refusal(self, error: "openai.APIStatusError") -> Exception:
        status = error.status_code
        words = " ".join(error.response.text.split())[:LONGEST_TEXT_CHARS] or "(no text)"
        message = self._safe(f"{self.shown_url} answered {status} for model {self.model!r}: {words}")
        if status == 413 or (status in (400, 422) and _TOO_LONG.search(words)):
            return NoVerdict("context_length", message)
        if status not in (408, 429) and status < 500:
            return JudgeError(message)
        reason = {408: "timeout", 429: "rate_limited"}.get(status, "server_error")
        return ChatFault(reason, message, _seconds(error.response.headers.get("retry-after")))

    def _reply(self, completion: Any) -> ChatReply:
        choices = getattr(completion, "choices", None)
        if not choices:
            detail = f"{self.shown_url} sent no choice: {str(completion)[:LONGEST_TEXT_CHARS]}"
            raise ChatFault("bad_response", self._safe(detail))
        choice, usage = choices[0], getattr(completion, "usage", None)
        message = choice.message
        reasoning = getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None)
        ids = getattr(choice, "token_ids", None)
        content = getattr(getattr(choice, "logprobs", None), "content", None) or []
        logps = [getattr(token, "logprob", None) for token in content]
        known = ids is not None and len(logps) == len(ids) and all(isinstance(logp, float | int) for logp in logps)
        return ChatReply(
            text=message.content or "",
            finish_reason=choice.finish_reason or "",
            reasoning=reasoning if isinstance(reasoning, str) else "",
            prompt_tokens=getattr(usage, "prompt_tokens", None) or 0,
            completion_tokens=getattr(usage, "completion_tokens", None) or 0,
            ids=None if ids is None else tuple(ids),
            logps=tuple(map(float, logps)) if known else None,
        )

    def _safe(self, text: str) -> str:
        return text.replace(self._api_key, HIDDEN) if self._api_key else text


def _seconds(header: str | None) -> float:
    """The seconds of a `Retry-After` header; 0 without one, or where it holds a date."""
    try:
        seconds = float(header or 0.0)
    except ValueError:
        return 0.0
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0
