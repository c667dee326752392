"""A man in the middle that changes nothing and writes down everything: what was asked, and which ids came back."""

import http.client
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


@dataclass
class Exchange:
    """One request and what its answer held, as far as the client listened."""

    path: str
    body: dict
    prompt_ids: list[int] = field(default_factory=list)  # as the server echoed them
    ids: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    usage: dict = field(default_factory=dict)

    def read(self, line: bytes) -> None:
        """Take one line of an event stream, or a whole JSON answer."""
        data = line.removeprefix(b"data:").strip()
        if not data.startswith(b"{"):
            return
        event = json.loads(data)
        self.usage = event.get("usage") or self.usage
        for choice in event.get("choices", []):
            self.logps += (choice.get("logprobs") or {}).get("token_logprobs") or []
            self.prompt_ids += choice.get("prompt_token_ids") or event.get("prompt_token_ids") or []
            self.ids += choice.get("token_ids") or []


class Recorder:
    """A server on 127.0.0.1 in front of `url`. Use as a context manager."""

    def __init__(self, url: str):
        self._address = urlsplit(url)
        self.exchanges: list[Exchange] = []

    def completions(self) -> list[Exchange]:
        return [one for one in self.exchanges if one.path == "/v1/completions"]

    def __enter__(self) -> "Recorder":
        recorder, address = self, self._address

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                raw = self.rfile.read(int(self.headers.get("content-length") or 0))
                exchange = Exchange(self.path, json.loads(raw) if raw else {})
                recorder.exchanges.append(exchange)
                upstream = http.client.HTTPConnection(address.hostname, address.port, timeout=300)
                try:
                    headers = {"content-type": "application/json", "connection": "close"}
                    upstream.request(self.command, self.path, raw or None, headers)
                    answer = upstream.getresponse()
                    self.send_response(answer.status)
                    self.send_header("content-type", answer.getheader("content-type") or "text/plain")
                    self.send_header("connection", "close")
                    self.end_headers()
                    for line in answer:
                        exchange.read(line)
                        self.wfile.write(line)
                        self.wfile.flush()
                except (OSError, http.client.HTTPException):
                    pass  # one of the two sides left
                finally:
                    upstream.close()
                    self.close_connection = True

            do_POST = do_GET  # noqa: N815

        class Server(ThreadingHTTPServer):
            request_queue_size = 128
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # a client that leaves is no news

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)
