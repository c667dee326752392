"""A scripted stand-in for a vLLM server on 127.0.0.1: same routes, same bodies, no model.

Speaks HTTP/1.1 with server-sent events from a thread of its own, records every request, sees clients leave, and fails
on demand. What it answers is what vLLM 0.31 writes: `prompt_token_ids` in the first event only, the stop token among
`token_ids`, NaN as null, errors as `{"error": {...}}`, unknown routes as FastAPI's 404.
"""

import asyncio
import json
import math
import os
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

END = 0  # id that ends a response
HANG = object()  # script step or fault: say nothing more until the client leaves
CUT = object()  # script step or fault: drop the connection
TEXT = "a\u2028b"  # text of every token; its line separator must not end an event


@dataclass(frozen=True)
class Seen:
    """A request as it arrived."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True)
class Status:
    """A fault: this status with this body."""

    code: int
    message: str = "scripted fault"
    retry_after: str = ""


def events(prompt: list[int], ids: Iterable[int], *, size: int = 1, logps=None, finish: str = "stop") -> list[dict]:
    """Events of one streamed completion, `size` tokens each, as vLLM writes them with `return_token_ids`."""
    ids = list(ids)
    logps = [-0.5] * len(ids) if logps is None else list(logps)
    written = []
    for start in range(0, len(ids), size):
        part = ids[start : start + size]
        values = [None if math.isnan(value) else value for value in logps[start : start + size]]
        last = start + size >= len(ids)
        choice = {"index": 0, "text": TEXT, "token_ids": part, "stop_reason": None}
        choice["logprobs"] = {"token_logprobs": values, "tokens": [TEXT] * len(part)}
        choice["finish_reason"] = finish if last else None
        if start == 0:
            choice["prompt_token_ids"] = prompt
        written.append({"id": "cmpl-1", "object": "text_completion", "model": "policy", "choices": [choice]})
    return written


def count_down(body: dict) -> list:
    """The default script: from the last prompt id down to the end id, cut at `max_tokens`."""
    ids = list(range(body["prompt"][-1] - 1, END - 1, -1)) or [END]
    cut = ids[: body["max_tokens"]]
    return events(body["prompt"], cut, finish="stop" if cut[-1] == END else "length")


class FakeVLLM:
    """Use as a context manager. `script(body)` gives the steps of a completion: events (dict), raw bytes, pauses in
    seconds (float), `HANG` or `CUT`; `chat(body)` gives the text of a chat reply, `tokenize(body)` ids and
    `complete(body)` the ids of a completion that is not streamed; a server without `tokenize` has no such route.
    `faults[path]` is a queue: each fault takes the place of one answer."""

    def __init__(self, model: str = "policy", max_model_len: int = 4096, dev_mode: bool = True, lora: bool = True):
        self.model, self.max_model_len, self.dev_mode, self.lora = model, max_model_len, dev_mode, lora
        self.logprobs_mode = "raw_logprobs"
        self.device, self.worker_extension = "cuda", ""
        self.transfer: dict | None = None  # --weight-transfer-config
        self.dtype: str | None = None
        self.chat_models: set[str] | None = None  # names that chats may ask for; None: any
        self.script: Callable[[dict], list] = count_down
        self.chat: Callable[[dict], str] = lambda body: ""
        self.tokenize: Callable[[dict], list[int]] | None = None
        self.complete: Callable[[dict], list[int]] = lambda body: [END]
        self.faults: dict[str, deque] = defaultdict(deque)
        self.seen: list[Seen] = []
        self.open_streams = 0
        self.most_open_streams = 0
        self.aborted: list[dict] = []  # bodies of completions whose client left before their end
        self.connections = 0
        self.resets = 0
        self.restart()

    def restart(self) -> None:
        """Forget weights and adapters, as a restarted server does."""
        self.weights_path, self.weight_version = None, "default"
        self.adapters: dict[str, str] = {}

    def bodies(self, path: str) -> list[Any]:
        return [seen.body for seen in self.seen if seen.path == path]

    @property
    def open_connections(self) -> int:
        return len(self._tasks)

    def __enter__(self) -> "FakeVLLM":
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._connection, "127.0.0.1", 0, backlog=1024), self._loop
        ).result(5)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    def __exit__(self, *exc) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    async def _stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # lets the transports close

    def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._one_request(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _one_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        first, *rest = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        method, target, _ = first.split(" ")
        path, _, query = target.partition("?")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in rest)}
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        seen = Seen(method, path, query, headers, json.loads(raw) if raw else None)
        self.seen.append(seen)
        fault = self.faults[path].popleft() if self.faults[path] else None
        if fault is CUT:
            return False
        if fault is HANG:
            await reader.read(1)
            return False
        if isinstance(fault, float):
            await asyncio.sleep(fault)
        if isinstance(fault, Status):
            error = {"error": {"message": fault.message, "type": "Error", "code": fault.code}}
            self._answer(writer, fault.code, error, f"retry-after: {fault.retry_after}\r\n" * bool(fault.retry_after))
        elif (method, path) == ("POST", "/v1/completions") and seen.body.get("stream"):
            return await self._stream(seen.body, reader, writer)
        else:
            self._answer(writer, *self._control(seen))
        await writer.drain()
        return headers.get("connection") != "close"

    def _answer(self, writer: asyncio.StreamWriter, status: int, body: Any, fields: str = "") -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        kind = "text/plain" if isinstance(body, str) else "application/json"
        writer.write(
            f"HTTP/1.1 {status} X\r\n{fields}content-type: {kind}\r\ncontent-length: {len(data)}\r\n\r\n".encode()
            + data
        )

    async def _stream(self, body: dict, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if body["model"] not in {self.model, *self.adapters}:
            message = f"The model `{body['model']}` does not exist."
            self._answer(writer, 404, {"error": {"message": message, "type": "NotFoundError", "code": 404}})
            return True
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        self.open_streams += 1
        self.most_open_streams = max(self.most_open_streams, self.open_streams)
        steps = asyncio.ensure_future(self._write_steps(body, writer))
        left = asyncio.ensure_future(reader.read(1))  # ends when the client leaves
        try:
            await asyncio.wait({steps, left}, return_when=asyncio.FIRST_COMPLETED)
            if not steps.done():
                self.aborted.append(body)
            return steps.done() and not left.done() and steps.result()
        finally:
            self.open_streams -= 1
            for task in (steps, left):
                task.cancel()
            await asyncio.gather(steps, left, return_exceptions=True)

    async def _write_steps(self, body: dict, writer: asyncio.StreamWriter) -> bool:
        for step in [*self.script(body), b"data: [DONE]\n\n", b""]:
            if step is CUT:
                return False
            if step is HANG:
                await asyncio.Event().wait()
            elif isinstance(step, float):
                await asyncio.sleep(step)
            else:
                if isinstance(step, dict):
                    step = f"data: {json.dumps(step, ensure_ascii=False)}\n\n".encode()
                writer.write(b"%x\r\n%s\r\n" % (len(step), step))
                await writer.drain()
        return True

    def _control(self, seen: Seen) -> tuple[int, Any]:
        body = seen.body or {}
        dev = {
            ("POST", "/collective_rpc"): self._collective_rpc,
            ("POST", "/reset_prefix_cache"): self._reset_prefix_cache,
            ("POST", "/update_weight_version"): self._update_weight_version,
            ("GET", "/weight_info"): lambda body: (200, {"weight_version": self.weight_version}),
            ("GET", "/server_info"): lambda body: (200, {"vllm_config": self._config()}),
        }
        lora = {
            ("POST", "/v1/load_lora_adapter"): self._load_adapter,
            ("POST", "/v1/unload_lora_adapter"): self._unload_adapter,
        }
        always = {
            ("GET", "/health"): lambda body: (200, ""),
            ("GET", "/v1/models"): self._models,
            ("POST", "/v1/chat/completions"): self._chat,
            ("POST", "/v1/completions"): self._complete,
        }
        if self.tokenize is not None:
            always["POST", "/tokenize"] = self._tokenize
        routes = always | (dev if self.dev_mode else {}) | (lora if self.lora else {})
        route = routes.get((seen.method, seen.path))
        if route is None and seen.path in {path for _, path in routes}:
            return 405, {"detail": "Method Not Allowed"}
        return route(body) if route else (404, {"detail": "Not Found"})

    def _models(self, body: dict) -> tuple[int, Any]:
        base = {"id": self.model, "root": "/base", "parent": None, "max_model_len": self.max_model_len}
        adapters = [
            {"id": name, "root": path, "parent": self.model, "max_model_len": None}
            for name, path in self.adapters.items()
        ]
        return 200, {"object": "list", "data": [base, *adapters]}

    def _chat(self, body: dict) -> tuple[int, Any]:
        if self.chat_models is not None and body["model"] not in self.chat_models:
            message = f"The model `{body['model']}` does not exist."
            return 404, {"error": {"message": message, "type": "NotFoundError", "code": 404}}
        message = {"role": "assistant", "content": self.chat(body)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        answer = {"id": "chat-1", "object": "chat.completion", "created": 0, "model": body["model"]}
        return 200, answer | {"choices": [choice], "usage": usage}

    def _config(self) -> dict[str, Any]:
        return {
            "model_config": {"logprobs_mode": self.logprobs_mode, "dtype": self.dtype},
            "device_config": {"device": self.device},
            "parallel_config": {"worker_extension_cls": self.worker_extension},
            "weight_transfer_config": self.transfer,
        }

    def _tokenize(self, body: dict) -> tuple[int, Any]:
        ids = self.tokenize(body)
        return 200, {"count": len(ids), "max_model_len": self.max_model_len, "tokens": ids}

    def _complete(self, body: dict) -> tuple[int, Any]:
        ids = self.complete(body)[: body["max_tokens"]]
        choice = {"index": 0, "text": TEXT * len(ids), "token_ids": ids, "finish_reason": "stop"}
        choice["logprobs"] = {"token_logprobs": [-0.5] * len(ids)}
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(ids)}
        return 200, {"id": "cmpl-2", "object": "text_completion", "choices": [choice], "usage": usage}

    def _collective_rpc(self, body: dict) -> tuple[int, Any]:
        path = body["kwargs"]["weights_path"]
        if not os.path.isdir(path):
            return 500, {"error": {"message": f"no such folder: {path}", "type": "InternalServerError", "code": 500}}
        self.weights_path = path
        return 200, {"results": [None]}

    def _reset_prefix_cache(self, body: dict) -> tuple[int, Any]:
        self.resets += self.open_streams == 0
        return 200, {"success": self.open_streams == 0}

    def _update_weight_version(self, body: dict) -> tuple[int, Any]:
        self.weight_version = body["new_version"]
        return 200, {"success": True, "new_version": self.weight_version}

    def _load_adapter(self, body: dict) -> tuple[int, Any]:
        name, path = body["lora_name"], body["lora_path"]
        if name in self.adapters:
            message = f"The lora adapter '{name}' has already been loaded."
            return 400, {"error": {"message": message, "type": "InvalidUserInput", "code": 400}}
        if not os.path.isdir(path):
            return 404, {"error": {"message": f"No adapter found for {path}", "type": "NotFoundError", "code": 404}}
        self.adapters[name] = path
        return 200, f"Success: LoRA adapter '{name}' added successfully."

    def _unload_adapter(self, body: dict) -> tuple[int, Any]:
        name = body["lora_name"]
        if self.adapters.pop(name, None) is None:
            message = f"The lora adapter '{name}' cannot be found."
            return 404, {"error": {"message": message, "type": "NotFoundError", "code": 404}}
        return 200, f"Success: LoRA adapter '{name}' removed successfully."
