"""The HTTP side of the judge, against a small stand-in server on this machine."""

import asyncio
import json
import logging
import socket
import subprocess
import sys

import pytest

from mintrl_trl.errors import ConfigError, JudgeError, NoVerdict
from mintrl_trl.judges.chat import OpenAIChat
from mintrl_trl.judges.llm import LLMJudge
from mintrl_trl.rollouts.doors import KEEP, Correction, Revise
from mintrl_trl.rollouts.rollout import Problem

KEY = "sk-very-secret-key"
CUT, HANG = "cut", "hang"


def completion(text, **message):
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text, **message}}
    usage = {"prompt_tokens": 11, "completion_tokens": 4, "total_tokens": 15}
    return {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}


OK = (200, completion('{"reason": "fine", "decision": "keep"}'))


class StandIn:
    """Answers requests in the order of its script, the last step for ever: (status, body[, headers]), CUT or HANG."""

    def __init__(self, *script):
        self.script, self.requests = list(script), []

    async def __aenter__(self):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_):
        self.server.close()
        await self.server.wait_closed()

    async def _serve(self, reader, writer):
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.requests.append({"line": lines[0], "headers": headers, "body": json.loads(body or "null")})
                step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
                if step == HANG:
                    await reader.read()  # until the client gives up
                if step in (CUT, HANG):
                    return
                status, answer, *more = step
                payload = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
                fields = {
                    "content-type": "application/json",
                    "content-length": len(payload),
                    **(more[0] if more else {}),
                }
                text = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
                writer.write(f"HTTP/1.1 {status} X\r\n{text}\r\n".encode() + payload)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def with_server(*script, call="review", **options):
    """Run one call of a judge against a stand-in; returns (result or exception, stand-in, pauses, judge)."""
    pauses = []

    async def sleep(seconds):
        pauses.append(seconds)

    async def scenario():
        async with StandIn(*script) as server:
            model = options.pop("model", "Qwen/Qwen3-4B-Instruct-2507")
            judge = LLMJudge(model, base_url=server.url, sleep=sleep, **options)
            try:
                if call == "review":
                    result = await judge.review(Problem("q"), ["a", "b"], 0, seed=2**63 - 1)
                else:
                    result = await judge.intervene(Problem("q"), "x is", Revise(1), 48, seed=3)
            except (NoVerdict, JudgeError) as error:
                result = error
            finally:
                await judge.aclose()
            return result, server, pauses, judge

    return asyncio.run(scenario())


def test_construction_needs_no_network(monkeypatch):
    monkeypatch.setattr(socket, "create_connection", lambda *_: pytest.fail("connected"))
    judge = LLMJudge("Qwen/Qwen3-4B-Instruct-2507", base_url="http://localhost:8001/v1")
    assert "Qwen/Qwen3-4B-Instruct-2507" in repr(judge)
    assert judge.weight_version == "Qwen/Qwen3-4B-Instruct-2507"


def test_the_http_library_loads_with_the_first_request():
    code = (
        "import sys; from mintrl_trl.judges.llm import LLMJudge; "
        "LLMJudge('m', base_url='http://localhost:8001/v1'); print('openai' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_review_over_http():
    result, server, pauses, judge = with_server(OK, api_key=KEY)
    assert result == KEEP
    assert pauses == []
    (request,) = server.requests
    assert request["line"] == "POST /v1/chat/completions HTTP/1.1"
    assert request["headers"]["authorization"] == f"bearer {KEY}"
    body = request["body"]
    assert body["model"] == "Qwen/Qwen3-4B-Instruct-2507"
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert (body["max_tokens"], body["temperature"], body["top_p"], body["seed"]) == (1024, 1.0, 1.0, 2**63 - 1)
    assert "top_k" not in body  # not every endpoint knows it
    assert judge.account.usage["review"].prompt_tokens == 11
    assert judge.account.usage["review"].completion_tokens == 4


def test_a_correction_over_http_in_vllm_form():
    answer = completion(" Wait.")
    answer["choices"][0] |= {
        "token_ids": [11, 12],
        "logprobs": {"content": [{"token": "a", "logprob": -0.1, "bytes": None, "top_logprobs": []},
                                 {"token": "b", "logprob": -0.4, "bytes": None, "top_logprobs": []}]},
    }  # fmt: skip
    result, server, _, _ = with_server(
        (200, answer),
        call="intervene",
        prefill=True,
        shares_tokenizer=True,
        extra_body={"chat_template_kwargs": {"enable_thinking": False}},
    )
    assert result == Correction(ids=(11, 12), logps=(-0.1, -0.4))
    body = server.requests[0]["body"]
    assert body["messages"][-1] == {"role": "assistant", "content": "x is"}
    assert body["continue_final_message"] is True
    assert body["add_generation_prompt"] is False
    assert body["logprobs"] is True
    assert body["return_token_ids"] is True
    assert body["max_tokens"] == 48
    assert (body["top_k"], body["min_p"], body["repetition_penalty"]) == (-1, 0.0, 1.0)
    assert body["chat_template_kwargs"] == {"enable_thinking": False}


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_broken_logps_are_no_verdict_and_those_that_do_not_match_are_unknown(temperature):
    answer = completion(" Wait.")
    answer["choices"][0] |= {"token_ids": [11], "logprobs": {"content": [{"token": "a", "logprob": None}]}}
    options = {"call": "intervene", "shares_tokenizer": True, "prefill": True, "temperature": temperature}
    result, *_ = with_server((200, answer), **options)
    assert isinstance(result, NoVerdict) and result.reason == "broken_logps"
    answer["choices"][0]["token_ids"] = [11, 12]
    answer["choices"][0]["logprobs"]["content"][0]["logprob"] = -0.1
    result, *_ = with_server((200, answer), **options)
    assert result == Correction(ids=(11, 12))


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ((429, {"error": {"message": "slow down"}}), "rate_limited"),
        ((408, "late"), "timeout"),
        ((500, "boom"), "server_error"),
        ((503, ""), "server_error"),
        ((200, {"error": {"message": "upstream"}, "choices": None}), "bad_response"),
        ((200, "<html>login</html>", {"content-type": "text/html"}), "bad_response"),
        ((200, '{"id": "x", "choi'), "bad_response"),
        (CUT, "connection"),
    ],
    ids=["429", "408", "500", "503", "no-choices", "html", "cut-json", "cut"],
)
def test_faults_are_repeated_then_no_verdict(fault, reason):
    result, server, pauses, _ = with_server(fault, OK)
    assert result == KEEP
    assert len(server.requests) == 2
    assert len(pauses) == 1
    result, server, pauses, judge = with_server(fault, max_retries=2)
    assert isinstance(result, NoVerdict)
    assert result.reason == reason
    assert len(server.requests) == 3  # the library retries nothing of its own
    assert len(pauses) == judge.account.usage["review"].retries == 2


@pytest.mark.parametrize(("header", "pause"), [("3", 3.0), ("9999", 30.0), ("Wed, 21 Oct 2026 07:28:00 GMT", None)])
def test_retry_after(header, pause):
    _, _, pauses, _ = with_server((429, "x", {"retry-after": header}), OK)
    assert pauses[0] == pause if pause else pauses[0] <= 0.5


def test_a_silent_server_runs_into_the_time_limit():
    result, server, _, _ = with_server(HANG, OK, timeout_seconds=0.2)
    assert result == KEEP
    assert len(server.requests) == 2
    result, *_ = with_server(HANG, timeout_seconds=0.1, max_retries=0)
    assert result.reason == "timeout"


def test_nobody_there():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"

    async def scenario():
        judge = LLMJudge("m", base_url=url, max_retries=0)
        with pytest.raises(JudgeError, match="server is up"):
            await judge.probe()
        await judge.aclose()

    asyncio.run(scenario())


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_a_refusal_stops_the_run_with_the_servers_words(status):
    result, server, pauses, _ = with_server(
        (status, {"error": {"message": f"unsupported model for {KEY}"}}), api_key=KEY
    )
    assert isinstance(result, JudgeError)
    assert str(status) in str(result)
    assert "unsupported model" in str(result)
    assert server.url in str(result)
    assert KEY not in str(result)
    assert [request["line"].split()[0] for request in server.requests].count("POST") == 1
    assert pauses == []


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "This model's maximum context length is 2048 tokens. However, your request has 3000 input tokens."),
        (400, "context_length_exceeded"),
        (413, "payload"),
    ],
)
def test_a_prompt_that_does_not_fit_is_no_verdict(status, message):
    result, server, _, _ = with_server((status, {"error": {"message": message}}))
    assert isinstance(result, NoVerdict)
    assert result.reason == "context_length"
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "Content Exists Risk"),
        (400, "The response was filtered due to the prompt triggering Azure OpenAI's content management policy."),
        (400, "<400> InternalError.Algo.DataInspectionFailed (data_inspection_failed)"),
    ],
    ids=["DeepSeek", "Azure", "Alibaba"],
)
def test_a_text_that_the_provider_will_not_read_costs_one_verdict_and_not_the_run(status, message):
    result, server, _, _ = with_server((status, {"error": {"message": message, "code": "invalid_request_error"}}))
    assert isinstance(result, NoVerdict)
    assert result.reason == "content_filter" and message in result.detail
    assert len(server.requests) == 1


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_empty_content_names_the_reasoning(field):
    result, *_ = with_server((200, completion(None, **{field: "Okay, the user"})))
    assert result.reason == "empty"
    assert "reasoning_content (14 characters)" in result.detail


def test_without_a_name_the_served_model_is_asked_for():
    models = {"object": "list", "data": [{"id": "base", "object": "model"},
                                         {"id": "policy-v7", "object": "model", "parent": "base"}]}  # fmt: skip
    result, server, _, judge = with_server((200, models), OK, model=None)
    assert result == KEEP
    assert [request["line"].split()[1] for request in server.requests] == ["/v1/models", "/v1/chat/completions"]
    assert server.requests[1]["body"]["model"] == "base"  # never an adapter
    assert judge.weight_version == "base"

    models["data"].append({"id": "other", "object": "model"})
    result, *_ = with_server((200, models), model=None)
    assert isinstance(result, JudgeError)
    assert "['base', 'other']" in str(result)


def test_the_key_is_never_shown_and_never_taken_from_the_environment(monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-somebody-else")
    _, server, _, judge = with_server(OK)
    assert server.requests[0]["headers"]["authorization"] == "bearer none"
    _, _, _, judge = with_server((500, KEY), api_key=KEY, max_retries=0)
    assert KEY not in repr(judge) + repr(judge.chat) + caplog.text
    result, *_ = with_server((500, KEY), api_key=KEY, max_retries=0)
    assert KEY not in str(result)
    assert "user:pass" not in repr(OpenAIChat("m", "http://user:pass@host:1/v1"))
    with pytest.raises(ConfigError) as caught:
        LLMJudge("m", base_url="http://localhost:1/v1", api_key="sk-a\nsk-b")
    assert "sk-a" not in str(caught.value)
    assert LLMJudge("m", base_url="http://localhost:1/v1", api_key=" sk-a \n").chat is not None


def test_one_judge_serves_one_event_loop_after_another():
    async def ask(judge):
        async with StandIn(OK) as server:
            judge.chat.base_url = server.url
            verdict = await judge.review(Problem("q"), ["a"], 0, seed=1)
            await judge.aclose()
        return verdict

    judge = LLMJudge("m", base_url="http://127.0.0.1:1/v1")
    assert [asyncio.run(ask(judge)) for _ in range(2)] == [KEEP, KEEP]


def test_many_reviews_at_once():
    async def scenario():
        async with StandIn(OK) as server:
            judge = LLMJudge("m", base_url=server.url)
            verdicts = await asyncio.gather(*(judge.review(Problem("q"), ["a"], 0, seed=row) for row in range(64)))
            await judge.aclose()
            return verdicts, sorted(request["body"]["seed"] for request in server.requests)

    verdicts, seeds = asyncio.run(scenario())
    assert verdicts == [KEEP] * 64
    assert seeds == list(range(64))
