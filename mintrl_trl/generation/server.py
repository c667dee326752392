"""One vLLM server over HTTP: its address, its clients, its failures in words.

Owns how this package reaches a server: one HTTP library (`openai`, whose own retries are off), explicit time limits,
and one kind of error that names URL, age and the server's own text. It never decides what to ask or what an answer
means. Invariant: no call waits for ever.
"""

import json
import logging
import threading
import time
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..errors import ConfigError, GenerationError, ServerLostError
from ..wire import is_local, proxy_of, seconds_to_wait, server_words

if TYPE_CHECKING:
    import openai

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 5.0  # a server that is there accepts at once
CROWD_CONNECT_SECONDS = 60.0  # where this process opens hundreds of connections at once, its own work counts, too
IDLE_CONNECTIONS = 64  # the pool looks at every idle one with every request, so that hundreds cost more than they save
LONGEST_PAUSE_SECONDS = 8.0
LONGEST_WAIT_SECONDS = 30.0  # that a server may ask for
PASSING_STATUSES = frozenset({408, 429, 500, 502, 503, 504})  # the same request may succeed later
LOST_KINDS = frozenset({"refused", "cut"})  # of faults where there is no server any more
BUSY_STATUSES = PASSING_STATUSES - {500}  # once the server has had time


class ServerError(GenerationError):
    """A request that a server did not answer as it should.

    Args:
        message (`str`): URL, age and the server's own words.
        status (`int`, *optional*): HTTP status; `None` where no answer came, or one that cannot be.
        retryable (`bool`): Whether the same request may succeed later.
        kind (`str`, *optional*): One word for counts: `refused` (nobody there), `cut` (the connection broke), `silent`,
            or what was wrong with an answer. Defaults to the status, such as `status_503`.
        wait_seconds (`float`): How long the server asks to wait before the request is repeated.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retryable: bool = False,
        kind: str | None = None,
        wait_seconds: float = 0.0,
    ):
        self.status, self.retryable, self.wait_seconds = status, retryable, wait_seconds
        self.kind = kind if kind is not None else f"status_{status}"
        super().__init__(message)


def server_root(base_url: str) -> str:
    """Address of a server without a trailing `/` and `/v1`.

    >>> server_root("http://localhost:8000/v1/")
    'http://localhost:8000'

    Raises:
        ConfigError: It is not an http or https address.
    """
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            "base_url", base_url, "an http or https address of a vLLM server", "write it like 'http://localhost:8000'"
        )
    return base_url.rstrip("/").removesuffix("/v1").rstrip("/")


def pause_seconds(attempt: int, seed: int) -> float:
    """Pause before retry number `attempt` (from 0): doubles from half a second, capped, spread by the seed."""
    return min(0.5 * 2 ** min(attempt, 10), LONGEST_PAUSE_SECONDS) * (0.5 + 0.5 * (seed % 1024) / 1024)


def as_fault(error: Exception, what: str, seconds: float) -> ServerError:
    """The failure of request `what` after `seconds` as a [`ServerError`]: a refusal of the server, or no answer."""
    response = getattr(error, "response", None)
    if response is not None:
        status = response.status_code
        message = f"{what} answered {status} after {seconds:.1f} s: {server_words(response.text)}"
        wait_seconds = min(seconds_to_wait(response.headers.get("retry-after")), LONGEST_WAIT_SECONDS)
        return ServerError(message, status=status, retryable=status in PASSING_STATUSES, wait_seconds=wait_seconds)
    cause = error.__cause__ or error
    name = type(cause).__name__  # ConnectError, ConnectTimeout, ReadTimeout, RemoteProtocolError, ...
    kind = "refused" if name.startswith("Connect") else "silent" if "Timeout" in name else "cut"
    message = f"{what} failed after {seconds:.1f} s: {name}: {cause}"
    return ServerError(message, retryable=True, kind=kind)


def open_async_client(root: str, *, api_key: str | None, max_connections: int) -> "openai.AsyncOpenAI":
    """Client for streams on the running event loop. It sets no read limit: whoever reads knows how long to wait."""
    import httpx2
    import openai

    limits = httpx2.Limits(max_connections=max_connections, max_keepalive_connections=IDLE_CONNECTIONS)
    timeout = httpx2.Timeout(None, connect=CROWD_CONNECT_SECONDS, write=CROWD_CONNECT_SECONDS)
    http_client = openai.DefaultAsyncHttpx2Client(limits=limits, timeout=timeout, trust_env=not is_local(root))
    return openai.AsyncOpenAI(
        base_url=root, api_key=api_key or "none", max_retries=0, timeout=timeout, http_client=http_client
    )


class ServerControl:
    """Blocking calls to one server: is it up, what does it serve, load these weights. Never retries a call.

    Args:
        base_url (`str`): Address of the server, with or without `/v1`.
        api_key (`str`, *optional*): The server's own key. No key is ever read from the environment.
    """

    def __init__(self, base_url: str, *, api_key: str | None = None):
        self.root = server_root(base_url)
        self._api_key = api_key

    def __repr__(self) -> str:
        return f"ServerControl({self.root!r})"

    @cached_property
    def _client(self) -> "openai.OpenAI":
        import openai

        return openai.OpenAI(
            base_url=self.root,
            api_key=self._api_key or "none",
            max_retries=0,
            default_headers={"Connection": "close"},
            http_client=openai.DefaultHttpx2Client(trust_env=not is_local(self.root)),  # no proxy leads to oneself
        )

    def call(self, method: str, path: str, body: dict[str, Any] | None = None, *, seconds: float) -> Any:
        """Make one request on a connection of its own: calls lie minutes apart, and an idle connection may be gone.

        Returns:
            The JSON value of the answer, or its text where it is not JSON.

        Raises:
            ServerError: The server refused, or gave no answer within `seconds`.
        """
        import openai

        started = time.monotonic()
        seconds = max(seconds, 0.1)
        options = {"timeout": openai.Timeout(seconds, connect=min(CONNECT_SECONDS, seconds))}
        try:
            if method == "GET":
                text = self._client.get(path, cast_to=str, options=options)
            else:
                text = self._client.post(path, cast_to=str, body=body, options=options)
        except openai.OpenAIError as error:
            proxy = proxy_of(self.root)
            way = "" if proxy is None else f" (by way of the proxy {proxy}, unless NO_PROXY names the server)"
            raise as_fault(error, f"{method} {self.root}{path}{way}", time.monotonic() - started) from error
        try:
            return json.loads(text)
        except ValueError:
            return text

    def wait_until_ready(
        self,
        seconds: float,
        given_up: threading.Event | None = None,
        on_fault: Callable[[ServerError], None] = lambda fault: None,
    ) -> None:
        """Wait until the server says that it is healthy, `seconds` at most, or until `given_up` is set.

        Args:
            seconds (`float`): How long.
            given_up (`threading.Event`, *optional*): Once it is set, nobody waits for the server any more.
            on_fault (`Callable[[ServerError], None]`, *optional*): Told the first fault that makes it wait.

        Raises:
            ServerLostError: Not within `seconds`; names the last answer.
            ServerError: No waiting can help.
        """
        given_up = given_up or threading.Event()
        deadline, told = time.monotonic() + seconds, False
        while True:
            try:
                self.call("GET", "/health", seconds=min(CONNECT_SECONDS, deadline - time.monotonic()))
                if told:
                    logger.info("%s is up.", self.root)
                return
            except ServerError as fault:
                left = deadline - time.monotonic()
                if not fault.retryable:
                    raise
                if not told:
                    on_fault(fault)
                if left <= 0 or given_up.is_set():
                    message = f"{self.root} was not ready within {seconds:.4g} s. Last answer: {fault}"
                    raise ServerLostError(message) from fault
                if not told:
                    logger.info("Waiting up to %.4g s for %s. Its answer so far: %s", seconds, self.root, fault)
                    told = True
            given_up.wait(min(0.5, left))

    def models(self, *, seconds: float) -> dict[str, dict[str, Any]]:
        """What the server serves, base model and adapters: name -> card (`root`, `parent`, `max_model_len`)."""
        answer = self.call("GET", "/v1/models", seconds=seconds)
        try:
            return {card["id"]: card for card in answer["data"]}
        except (TypeError, KeyError) as error:
            raise GenerationError(f"{self.root}/v1/models gave no list of models: {str(answer)[:200]}") from error
