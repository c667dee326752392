"""Chat endpoints as others run them, on 127.0.0.1: vLLM with ids and forms, DeepSeek without, and what refuses."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from .tiny_qwen import qwen_tokenizer

KEEP_TEXT = '{"reason": "fine", "decision": "keep"}'


class Endpoint:
    """Routes of one server: from (method, path) to a function of the body that gives status and answer.

    Use as an async context manager, on the loop that asks. `seen` holds every request: path and body.
    """

    def __init__(self, models: tuple[str, ...] = ("judge",)):
        self.models = models
        self.seen: list[tuple[str, Any]] = []
        self.text: Callable[[dict], str | None] = lambda body: KEEP_TEXT
        self.refused: dict[str, str] = {}  # field of a body -> the words of its refusal
        self.reasoning: str | None = None
        self.usage: dict[str, Any] = {"prompt_tokens": 100, "completion_tokens": 10}
        self.routes: dict[tuple[str, str], Callable[[dict], tuple[int, Any]]] = {
            ("GET", "/v1/models"): lambda body: (200, {"data": [{"id": name} for name in self.models]}),
            ("POST", "/v1/chat/completions"): self.chat,
        }

    async def __aenter__(self) -> "Endpoint":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.root = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self.url = f"{self.root}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    def bodies(self, path: str) -> list[dict]:
        return [body for seen, body in self.seen if seen == path]

    def chat(self, body: dict) -> tuple[int, Any]:
        if body["model"] not in self.models:
            return 404, {"error": {"message": f"The model `{body['model']}` does not exist."}}
        for field, words in self.refused.items():
            if field in body:
                return 400, {"error": {"message": words}}
        message = {"role": "assistant", "content": self.text(body), "reasoning_content": self.reasoning}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return 200, {"choices": [choice], "usage": self.usage}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *rest = head.decode().strip().split("\r\n")
                method, path, _ = first.split(" ")
                headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in rest)}
                body = json.loads(await reader.readexactly(int(headers.get("content-length", 0))) or "null")
                self.seen.append((path, body))
                route = self.routes.get((method, path), lambda body: (404, {"detail": "Not Found"}))
                status, answer = route(body)
                data = json.dumps(answer).encode()
                fields = f"content-type: application/json\r\ncontent-length: {len(data)}\r\nconnection: close\r\n"
                writer.write(f"HTTP/1.1 {status} X\r\n{fields}\r\n".encode() + data)
                await writer.drain()
                return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


class VLLMEndpoint(Endpoint):
    """Knows `/tokenize` and token ids, with the tokenizer of `tiny_qwen`; answers completions with `continuation`."""

    def __init__(self, models: tuple[str, ...] = ("judge",), max_model_len: int = 4096):
        super().__init__(models)
        self.tokenizer, self.max_model_len = qwen_tokenizer(), max_model_len
        self.continuation: list[int] = self.tokenizer(" Wait")["input_ids"]
        self.sends_ids = True
        self.routes |= {("POST", "/tokenize"): self.tokenize, ("POST", "/v1/completions"): self.complete}

    def tokenize(self, body: dict) -> tuple[int, Any]:
        if body["model"] not in self.models:
            return 404, {"error": {"message": f"The model `{body['model']}` does not exist."}}
        text = body.get("prompt")
        if text is None:
            options = {"tokenize": False, "add_generation_prompt": body["add_generation_prompt"]}
            text = self.tokenizer.apply_chat_template(
                body["messages"], **options, **body.get("chat_template_kwargs", {})
            )
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return 200, {"count": len(ids), "max_model_len": self.max_model_len, "tokens": ids}

    def complete(self, body: dict) -> tuple[int, Any]:
        ids = self.continuation[: body["max_tokens"]]
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        choice = {"index": 0, "text": text, "finish_reason": "length"}
        choice["logprobs"] = {"token_logprobs": [-0.25] * len(ids), "tokens": [text] * len(ids)}
        if self.sends_ids:
            choice["token_ids"] = ids
        return 200, {"choices": [choice], "usage": self.usage}
