"""A judge on several servers: whose requests go where, and what follows where one of them is gone."""

import asyncio
import re
from contextlib import AsyncExitStack

import pytest

from mintrl_trl import MInTRLConfig
from mintrl_trl.errors import NoVerdict
from mintrl_trl.generation.vocabulary import TokenizerVocabulary
from mintrl_trl.judge_setup import served_self_judge
from mintrl_trl.judges.llm import LLMJudge, ReplyForm
from mintrl_trl.rollouts.doors import KEEP, Correction, Revise, TokenText
from mintrl_trl.rollouts.rollout import Problem

from .chat_endpoint import VLLMEndpoint
from .tiny_qwen import qwen_tokenizer

CHAT, PROBLEM = "/v1/chat/completions", Problem("What is 60 + 58?")


def judged(scenario, *, gone=(), **options):
    """Run `scenario(judge, endpoints)` with a judge on three servers, of which those in `gone` are not there."""

    async def run():
        async with AsyncExitStack() as stack:
            endpoints = [await stack.enter_async_context(VLLMEndpoint()) for _ in range(3)]
            for number in gone:
                endpoints[number]._server.close()
                await endpoints[number]._server.wait_closed()
            judge = LLMJudge("judge", [endpoint.url for endpoint in endpoints], max_retries=0, **options)
            try:
                return await scenario(judge, endpoints)
            finally:
                await judge.aclose()

    return asyncio.run(run())


def rollouts_seen(endpoint) -> list[str]:
    """Name of the rollout of each review: its first step says it."""
    found = (re.search(r"rollout \d+", body["messages"][-1]["content"]) for body in endpoint.bodies(CHAT))
    return [match[0] for match in found if match]


async def review_all(judge, endpoints):
    for steps in (1, 2):
        shown = [[f"rollout {row}", "step 2"][:steps] for row in range(12)]
        verdicts = await asyncio.gather(*(judge.review(PROBLEM, texts, steps - 1, seed=0) for texts in shown))
        assert verdicts == [KEEP] * 12
    return [rollouts_seen(endpoint) for endpoint in endpoints]


def test_the_reviews_of_a_rollout_go_to_one_server_and_all_servers_have_some():
    seen = judged(review_all)
    assert all(rollouts.count(name) == 2 for rollouts in seen for name in rollouts)
    assert all(len(set(rollouts)) >= 2 for rollouts in seen)
    assert sum(map(len, seen)) == 24


def test_where_one_is_gone_the_others_take_its_reviews():
    first, second, third = judged(review_all, gone=[1])
    assert second == [] and len(first) + len(third) == 24


def test_where_all_are_gone_there_is_no_verdict():
    async def scenario(judge, endpoints):
        with pytest.raises(NoVerdict) as caught:
            await judge.review(PROBLEM, ["a"], 0, seed=0)
        return caught.value.reason

    assert judged(scenario, gone=[0, 1, 2]) == "connection"


def test_what_one_offers_is_asked_of_all():
    tokenizer = qwen_tokenizer()

    async def scenario(judge, endpoints):
        judge.prepare(TokenizerVocabulary(tokenizer, {tokenizer.eos_token_id}, len(tokenizer)), 1000)
        await judge.probe()
        await review_all(judge, endpoints)
        accepted = TokenText("Wait", tuple(tokenizer.convert_tokens_to_ids(list("Wait"))))
        corrections = [await judge.intervene(PROBLEM, accepted, Revise(0), 9, seed=seed) for seed in range(2)]
        return judge, endpoints, corrections

    judge, endpoints, corrections = judged(scenario)
    assert judge.reply_form is ReplyForm.PATTERN and judge.shares_tokenizer and judge.weight_version == "judge"
    assert all(body["watermarking"] is False for endpoint in endpoints for body in endpoint.bodies(CHAT)[1:])
    ids = tuple(endpoints[0].continuation)
    assert corrections == [Correction(ids=ids, logps=(-0.25,) * len(ids))] * 2


def test_a_self_judge_beside_an_adapter_asks_all_servers_of_the_policy():
    urls = "http://node1:8000,http://node2:8000/v1"
    args = MInTRLConfig("runs/demo", judge="self", use_vllm=True, vllm_server_base_url=urls)
    judge = served_self_judge(args, "base", keeps_base=True, starts_as_base=True)
    assert [chat.base_url for chat in judge.chat.chats] == ["http://node1:8000/v1", "http://node2:8000/v1"]
    assert {chat.model for chat in judge.chat.chats} == {"base"}
