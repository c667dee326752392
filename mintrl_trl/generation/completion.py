"""The reply to one completion request: bytes of a vLLM event stream in, sampled tokens out.

Owns what a stream may say and refuses everything else; it never touches a socket. Invariant: the tokens handed out
are a continuation of exactly the prompt ids that were asked for, no longer than the limit, with nothing after an end
id, and their log-probabilities are finite numbers or unknown.

What vLLM sends with `return_token_ids`: `prompt_token_ids` in the first event only; in each event the new `token_ids`,
the stop token that ended the text among them (it is left out of `text` alone, which nobody reads here); NaN as `null`,
because JSON has no NaN.
"""

import json
import math
from collections.abc import Sequence
from typing import Any

from ..rollouts.doors import SampledToken
from ..wire import server_words
from .server import PASSING_STATUSES, ServerError

_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")  # of an event stream
_LONGEST_LINE_BYTES = 2**24  # the first event echoes the prompt, some 8 bytes an id
_SHOWN_BYTES = 200
ROUNDING_NATS = 1e-3  # a probability of one may come out a little above it


class CompletionReply:
    """Reads one event stream.

    Args:
        what (`str`): The request in words, for messages.
        prefix_ids (`Sequence[int]`): The prompt that was sent.
        max_tokens (`int`): The limit that was sent.
        end_ids (`frozenset[int]`): Ids that end a response.
        vocabulary_size (`int`): Ids lie below it.
        reports_logps (`bool`): Whether the server's values are log-probabilities under the sampling distribution.
            Otherwise they are checked and reported as unknown.
    """

    def __init__(
        self,
        what: str,
        prefix_ids: Sequence[int],
        max_tokens: int,
        *,
        end_ids: frozenset[int],
        vocabulary_size: int,
        reports_logps: bool = True,
    ):
        self.count = 0  # tokens handed out
        self.finished = False  # an end id came, or the limit was reached
        self.what = what
        self._prefix_ids, self._max_tokens = list(prefix_ids), max_tokens
        self._end_ids, self._vocabulary_size, self._reports_logps = end_ids, vocabulary_size, reports_logps
        self._unread = b""
        self._other = b""  # how the first line began that belongs to no event

    def feed(self, data: bytes) -> list[SampledToken]:
        """Take bytes as they come, cut anywhere, and give the tokens they complete."""
        # Lines end at b"\n" only: text in an event may hold U+2028 and other characters that `str.splitlines` cuts at.
        *lines, self._unread = (self._unread + data).split(b"\n")
        if len(self._unread) > _LONGEST_LINE_BYTES:
            found = f"a line of more than {_LONGEST_LINE_BYTES} bytes: {self._unread[:_SHOWN_BYTES]!r}"
            raise self._refusal(found, "garbage", retryable=True)
        tokens: list[SampledToken] = []
        for line in lines:
            self._other = self._other or (b"" if line.startswith(_FIELDS) else line.strip()[:_SHOWN_BYTES])
            payload = line[5:].strip() if line.startswith(b"data:") else b""
            if payload and payload != b"[DONE]" and not self.finished:
                tokens += self._read_event(payload)
        return tokens

    def cut_short(self) -> ServerError:
        """The fault of a stream whose bytes end too early."""
        other = self._other or (b"" if self._unread.startswith(_FIELDS) else self._unread[:_SHOWN_BYTES])
        message = f"{self.what}: the stream ended after {self.count} tokens, unfinished"
        message += f"; it is no stream of events, but {other!r}" if other else ""
        return ServerError(message, retryable=True, kind="cut")

    def _read_event(self, payload: bytes) -> list[SampledToken]:
        try:
            return self._tokens(json.loads(payload))
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            found = f"an event that is not JSON, or no completion: {payload[:_SHOWN_BYTES]!r}"
            raise self._refusal(found, "garbage", retryable=True) from error

    def _tokens(self, event: dict[str, Any]) -> list[SampledToken]:
        if event.get("error"):
            code = event["error"].get("code") if isinstance(event["error"], dict) else None
            text = server_words(json.dumps(event))
            message = f"{self.what}: the server reported after {self.count} tokens: {text}"
            kind = None if type(code) is int else "error"
            raise ServerError(message, status=code, retryable=code in PASSING_STATUSES, kind=kind)
        if not event.get("choices"):
            return []  # usage figures
        (choice,) = event["choices"]
        echo = choice.get("prompt_token_ids")
        if echo is not None and echo != self._prefix_ids:
            raise self._refusal(f"another prompt than was sent: {_first_difference(echo, self._prefix_ids)}", "echo")
        ids = self._checked_ids(choice)
        logps = self._checked_logps(choice, len(ids))
        ends = (index for index, token in enumerate(ids) if token in self._end_ids)
        stop = next(ends, len(ids) - 1) + 1  # nothing after an end id is taken
        self.count += stop
        self.finished = self.count == self._max_tokens or (stop > 0 and ids[stop - 1] in self._end_ids)
        if self.count > self._max_tokens:
            raise self._refusal(f"{self.count} tokens where at most {self._max_tokens} were asked for", "length")
        reason = choice.get("finish_reason")
        if reason is not None and not self.finished:
            last = f", last id {ids[-1]}" if ids else ""
            raise self._refusal(
                f"an end after {self.count} of {self._max_tokens} tokens (finish_reason {reason!r}, stop_reason "
                f"{choice.get('stop_reason')!r}{last}), though none of the end ids {sorted(self._end_ids)} came",
                "end",
                retryable=reason == "abort",  # as by a server that is told to stop
            )
        return [SampledToken(token, logp) for token, logp in zip(ids[:stop], logps[:stop], strict=True)]

    def _checked_ids(self, choice: dict[str, Any]) -> list[int]:
        ids = choice.get("token_ids")
        if ids is None:
            found = "no `token_ids`: the server does not know `return_token_ids`. Use vLLM 0.22 or newer"
            raise self._refusal(found, "ids")
        for token in ids:
            if type(token) is not int or not 0 <= token < self._vocabulary_size:
                raise self._refusal(
                    f"{token!r}, no id below {self._vocabulary_size}: the server has another model or tokenizer",
                    "ids",
                )
        return ids

    def _checked_logps(self, choice: dict[str, Any], count: int) -> list[float | None]:
        logps = (choice.get("logprobs") or {}).get("token_logprobs")
        if logps is None:
            return [None] * count
        if len(logps) != count:
            raise self._refusal(f"{len(logps)} log-probabilities for {count} tokens", "logps")
        for logp in logps:
            if logp is None or not logp > -math.inf:  # NaN, or a token that cannot have been sampled
                shown = "NaN" if logp is None or math.isnan(logp) else logp
                found = f"{shown} as a log-probability, so the logits are broken (check the synced weights)"
                raise self._refusal(found, "nan")
            if logp > ROUNDING_NATS:
                raise self._refusal(
                    f"{logp} as a log-probability; logits? Start the server with --logprobs-mode processed_logprobs",
                    "logps",
                )
        return logps if self._reports_logps else [None] * count

    def _refusal(self, found: str, kind: str, *, retryable: bool = False) -> ServerError:
        return ServerError(f"{self.what} gave {found}", kind=kind, retryable=retryable)


def _first_difference(got: Sequence[int], sent: Sequence[int]) -> str:
    place = next((i for i, (a, b) in enumerate(zip(got, sent, strict=False)) if a != b), min(len(got), len(sent)))
    shown = [str(ids[place]) if place < len(ids) else "nothing" for ids in (got, sent)]
    return f"{len(got)} ids for {len(sent)}; at position {place}, {shown[0]} for {shown[1]}"
