"""A man in the middle that spoils answers: between a client and a server, real or scripted, on 127.0.0.1.

Everything passes unchanged unless a fault is planned for its path. Faults act on whole answers or on the events of a
stream; a server that is not there at all is `down`.
"""

import http.client
import json
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Answer:
    """This answer in place of the server's, which is not asked."""

    status: int
    body: bytes = b'{"error": {"message": "planned fault"}}'
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Cut:
    """The connection is dropped after some events; `then` is called first."""

    after: int = 0
    then: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class Silence:
    """Nothing more comes after some events, but the connection stays; at a server that has it, that is a hang."""

    after: int = 0


@dataclass(frozen=True)
class Trickle:
    """A pause before each event, and comments meanwhile, which are no tokens."""

    seconds: float


@dataclass(frozen=True)
class Garbage:
    """Bytes in place of the event that follows some others."""

    after: int = 0
    line: bytes = b"data: {<html>502 Bad Gateway</html>\n"


@dataclass(frozen=True)
class Change:
    """Every event as this function makes it: it takes and returns a JSON object, or text for what is not JSON."""

    change: Callable[[dict], dict | str]


Fault = Answer | Cut | Silence | Trickle | Garbage | Change


class FaultProxy:
    """Use as a context manager. `plan` spoils the next answers of a path, `always[path] = fault` all of them."""

    def __init__(self, url: str):
        self._address = urlsplit(url)
        self._planned: dict[str, deque[Fault | None]] = defaultdict(deque)
        self.always: dict[str, Fault] = {}
        self.asked: list[tuple[str, dict]] = []  # path and body of every request
        self._port = 0
        self._closing = threading.Event()

    def plan(self, path: str, *faults: Fault | None) -> None:
        """What becomes of the next requests for `path`; `None` lets one pass."""
        self._planned[path].extend(faults)

    def bodies(self, path: str) -> list[dict]:
        return [body for asked, body in self.asked if asked == path]

    def next_fault(self, path: str) -> Fault | None:
        planned = self._planned[path]
        return planned.popleft() if planned else self.always.get(path)

    @contextmanager
    def down(self) -> Iterator[None]:
        """Nobody is there meanwhile."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    def crash(self, seconds: float, then: Callable[[], object]) -> None:
        """All connections break and nobody listens for a while, as where a server is killed and started again."""
        with self.down():
            then()
            time.sleep(seconds)

    def start(self) -> None:
        """Listen, on the same port as before."""
        self._server = _Server(("127.0.0.1", self._port), _handler(self))
        self._port = self._server.server_port
        self.url = f"http://127.0.0.1:{self._port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Break all connections and listen no more."""
        self._server.closed = True
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def __enter__(self) -> "FaultProxy":
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._closing.set()
        self.stop()

    def pass_on(self, command: str, path: str, raw: bytes, fault: Fault | None, listener: "_Server") -> Iterator[bytes]:
        """Status line, headers and lines of an answer, as long as the listener that got the request is there."""
        if isinstance(fault, Answer):
            head = f"HTTP/1.1 {fault.status} X\r\nconnection: close\r\ncontent-length: {len(fault.body)}\r\n"
            yield (head + "".join(f"{name}: {value}\r\n" for name, value in fault.headers.items()) + "\r\n").encode()
            yield fault.body
            return
        if listener.closed or (isinstance(fault, Silence | Cut) and fault.after == 0):
            return
        upstream = http.client.HTTPConnection(self._address.hostname, self._address.port, timeout=60)
        try:
            upstream.request(command, path, raw or None, {"content-type": "application/json", "connection": "close"})
            answer = upstream.getresponse()
            kind = answer.getheader("content-type") or "text/plain"
            yield f"HTTP/1.1 {answer.status} X\r\ncontent-type: {kind}\r\nconnection: close\r\n".encode()
            if isinstance(fault, Change) and "json" in kind:  # not a stream
                yield b"\r\n" + _changed(answer.read(), fault.change)
                return
            # With a length, or in chunks, the client notices that an answer is cut short.
            length = answer.getheader("content-length")
            framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
            yield f"{framing}\r\n\r\n".encode()
            events = 0
            for line in answer:
                if listener.closed:
                    return
                if line.startswith(b"data: {"):
                    if isinstance(fault, Cut | Silence) and events == fault.after:
                        return
                    if isinstance(fault, Garbage) and events == fault.after:
                        line = fault.line
                    if isinstance(fault, Trickle):
                        for _ in range(5):
                            self._closing.wait(fault.seconds / 5)
                            yield _chunk(b": still here\n\n")
                    if isinstance(fault, Change):
                        line = b"data: " + _changed(line[6:], fault.change) + b"\n"
                    events += 1
                yield line if length is not None else _chunk(line)
            if length is None:
                yield b"0\r\n\r\n"
        finally:
            upstream.close()


def _chunk(line: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(line), line)


def _changed(data: bytes, change: Callable[[dict], dict | str]) -> bytes:
    changed = change(json.loads(data))
    return changed.encode() if isinstance(changed, str) else json.dumps(changed).encode()


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True
    block_on_close = False
    closed = False

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that leaves is no news


def _handler(proxy: FaultProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            self.close_connection = True
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
            path = self.path.partition("?")[0]
            proxy.asked.append((path, json.loads(raw) if raw else {}))
            fault = proxy.next_fault(path)
            with suppress(OSError, http.client.HTTPException):  # one of the two sides left
                for part in proxy.pass_on(self.command, self.path, raw, fault, self.server):
                    self.wfile.write(part)
                    self.wfile.flush()
            if isinstance(fault, Cut):
                fault.then()
            if isinstance(fault, Silence):
                self._wait_for_the_client()

        do_POST = do_GET  # noqa: N815

        def _wait_for_the_client(self) -> None:
            """Until it leaves, or the test ends."""
            self.connection.settimeout(0.05)
            while not proxy._closing.is_set():
                with suppress(TimeoutError):
                    if not self.connection.recv(1):
                        return
                time.sleep(0.01)

    return Handler
