"""One chat model on several servers, as the base model beside an adapter that several policy servers serve.

Owns which server gets a request; how a request is made, and what follows where all fail, is that of
[`OpenAIChat`][mintrl_trl.judges.chat.OpenAIChat]. Invariant: the reviews of a rollout go to one server, whose cache
holds what they repeat, as long as it is there.
"""

import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from .chat import ChatFault, ChatReply, OpenAIChat, Tokenized
from .prompts import FIRST_STEP_END, Message

_T = TypeVar("_T")


class SpreadChat:
    """A chat model behind several endpoints, which serve it alike.

    Args:
        chats (`Sequence[OpenAIChat]`): One for each endpoint, set up alike.
    """

    def __init__(self, chats: Sequence[OpenAIChat]):
        self.chats = tuple(chats)

    def __repr__(self) -> str:
        return f"SpreadChat({list(self.chats)!r})"

    @property
    def model(self) -> str | None:
        """Its name there."""
        return self.chats[0].model

    @property
    def base_urls(self) -> tuple[str, ...]:
        """Addresses of all endpoints."""
        return tuple(chat.base_url for chat in self.chats)

    @property
    def shown_url(self) -> str:
        """The same as they may be shown."""
        return ", ".join(chat.shown_url for chat in self.chats)

    @property
    def extra_body(self) -> dict[str, Any]:
        """Fields for every request body."""
        return self.chats[0].extra_body

    @extra_body.setter
    def extra_body(self, fields: Mapping[str, Any]) -> None:
        for chat in self.chats:
            chat.extra_body = dict(fields)

    async def __call__(self, messages: Sequence[Message], **options: Any) -> ChatReply:
        """As [`OpenAIChat`]; by the first step that the messages show, which a rollout's reviews have in common."""
        first, _, _ = messages[-1]["content"].partition(FIRST_STEP_END)
        return await self._ask(first.encode(errors="replace"), lambda chat: chat(messages, **options))

    async def complete(self, prompt_ids: Sequence[int], **options: Any) -> ChatReply:
        """As [`OpenAIChat.complete`]."""
        return await self._ask(repr(prompt_ids).encode(), lambda chat: chat.complete(prompt_ids, **options))

    async def tokenize(self, what: str | Sequence[Message]) -> Tokenized:
        """As [`OpenAIChat.tokenize`]."""
        return await self._ask(repr(what).encode(errors="replace"), lambda chat: chat.tokenize(what))

    async def aclose(self) -> None:
        """Close the connections."""
        for chat in self.chats:
            await chat.aclose()

    async def _ask(self, key: bytes, request: Callable[[OpenAIChat], Awaitable[_T]]) -> _T:
        """Make a request where its key belongs; where nobody is there, at the next server, each of them once."""
        first = zlib.crc32(key) % len(self.chats)
        *others, last = (*self.chats[first:], *self.chats[:first])
        for chat in others:
            try:
                return await request(chat)
            except ChatFault as fault:
                if fault.reason != "connection":
                    raise
        return await request(last)
