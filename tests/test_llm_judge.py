"""LLMJudge over a scripted chat function: verdicts, corrections, privileged context, leaks, retries, counting."""

import asyncio
import logging

import pytest

from mintrl_trl.errors import ConfigError, JudgeError, NoVerdict
from mintrl_trl.judges.accounting import Usage
from mintrl_trl.judges.chat import ChatFault, ChatReply
from mintrl_trl.judges.llm import LONGEST_PAUSE_SECONDS, LLMJudge
from mintrl_trl.judges.prompts import Prompts
from mintrl_trl.rollouts.doors import KEEP, Correction, Revise, TokenText
from mintrl_trl.rollouts.rollout import Problem

KEEP_TEXT = '{"reason": "fine", "decision": "keep"}'
REVISE_TEXT = '{"reason": "wrong sum", "decision": "revise", "step": 2}'
PROBLEM = Problem("What is 60 + 58?", privileged_context="60 + 58 = 118 by adding", answer="118")
STEPS = [TokenText("60 + 58\n\n", (5, 6)), TokenText("is 100", (7,))]
VERDICT = Revise(1, "wrong sum")


class ScriptedChat:
    """Plays replies or raises errors in order, the last one for ever, and records what it was asked."""

    def __init__(self, *script):
        self.script, self.calls = list(script), []

    async def __call__(self, messages, **options):
        self.calls.append({"messages": messages, **options})
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(step, Exception):
            raise step
        return await step() if callable(step) else step

    @property
    def prompt(self):
        return "\n".join(message["content"] for message in self.calls[-1]["messages"])


class Sleeper:
    """Stands in for `asyncio.sleep` and records the pauses."""

    def __init__(self):
        self.pauses = []

    async def __call__(self, seconds):
        self.pauses.append(seconds)


def judge_of(*script, **options):
    chat = ScriptedChat(*script)
    return LLMJudge(chat=chat, sleep=Sleeper(), **options), chat


def review(judge, steps=STEPS, first_new=0, seed=7, problem=PROBLEM):
    return asyncio.run(judge.review(problem, steps, first_new, seed=seed))


def intervene(judge, accepted="60 + 58\n\n", max_tokens=64, seed=8, problem=PROBLEM):
    return asyncio.run(judge.intervene(problem, TokenText(accepted), VERDICT, max_tokens, seed=seed))


def no_verdict(call, *args, **options):
    with pytest.raises(NoVerdict) as caught:
        call(*args, **options)
    return caught.value


def test_review():
    judge, chat = judge_of(ChatReply(KEEP_TEXT, prompt_tokens=100, completion_tokens=9), ChatReply(REVISE_TEXT))
    assert review(judge) == KEEP
    assert review(judge, first_new=1, seed=2**63 - 1) == VERDICT
    assert chat.calls[0]["messages"] == Prompts("math").review(Problem(PROBLEM.question), STEPS, 0)
    assert {name: value for name, value in chat.calls[1].items() if name != "messages"} == {
        "max_tokens": 1024,
        "temperature": 1.0,
        "seed": 2**63 - 1,
    }
    assert judge.account.usage["review"].calls == 2
    assert judge.account.usage["review"].prompt_tokens == 100


def test_a_chat_function_may_return_plain_text():
    async def chat(messages, **options):
        return KEEP_TEXT

    assert review(LLMJudge(chat=chat)) == KEEP


def test_privileged_context_is_shown_only_where_both_sides_agree():
    without, chat = judge_of(ChatReply(KEEP_TEXT))
    review(without)
    assert "by adding" not in chat.prompt
    chat.script = [ChatReply("Wait.")]
    intervene(without)
    assert "by adding" not in chat.prompt

    allowed, chat = judge_of(ChatReply(KEEP_TEXT), use_privileged_context=True)
    review(allowed)
    assert "by adding" in chat.prompt
    assert "never mention it" in chat.prompt
    review(allowed, problem=Problem("What is 60 + 58?"))
    assert "reference" not in chat.prompt
    chat.script = [ChatReply("Wait.")]
    intervene(allowed)
    assert "by adding" in chat.prompt


@pytest.mark.parametrize(
    ("reply", "reason", "detail"),
    [
        (ChatReply('{"decision":' + "\n" * 900, "length"), "length", "cut at 1024 tokens"),
        (ChatReply('{"decision":', "stop"), "unparsable", "no JSON object"),
        (ChatReply('{"decision": "revise", "step": 9}', "length"), "out_of_range", "step 9"),
        (ChatReply(""), "empty", "no content"),
        (ChatReply(" \n", "content_filter"), "empty", "content_filter"),
        (ChatReply("", reasoning="I think..."), "empty", "reasoning_content (10 characters)"),
        (ChatReply("", "length", reasoning="I think..."), "empty", "'length'"),
    ],
    ids=["white-space-loop", "cut", "range", "empty", "filter", "reasoning", "reasoning-cut"],
)
def test_replies_without_verdict(reply, reason, detail):
    judge, chat = judge_of(reply)
    failure = no_verdict(review, judge)
    assert failure.reason == reason
    assert detail in failure.detail
    assert len(chat.calls) == 1  # what a model says is never asked for again


def test_a_complete_verdict_counts_even_if_the_limit_cut_what_follows():
    judge, _ = judge_of(ChatReply(KEEP_TEXT + "\n" * 50, "length"))
    assert review(judge) == KEEP


def test_correction_by_a_new_message():
    judge, chat = judge_of(ChatReply("Wait, let me add again.", "length"))
    assert intervene(judge, max_tokens=48, seed=5) == Correction(text="Wait, let me add again.")
    assert [message["role"] for message in chat.calls[0]["messages"]] == ["system", "user"]
    assert {name: value for name, value in chat.calls[0].items() if name != "messages"} == {
        "max_tokens": 48,
        "temperature": 1.0,
        "seed": 5,
    }
    assert "wrong sum" in chat.prompt
    assert judge.account.usage["correction"].calls == 1
    assert judge.account.usage["review"].calls == 0


def test_correction_by_continuing_the_text():
    judge, chat = judge_of(ChatReply(" Wait."), prefill=True)
    assert intervene(judge, accepted="60 + 58 is") == Correction(text=" Wait.")
    assert chat.calls[0]["messages"][-1] == {"role": "assistant", "content": "60 + 58 is"}
    assert chat.calls[0]["continue_final_message"] is True
    assert chat.calls[0]["add_generation_prompt"] is False
    intervene(judge, accepted="")  # nothing to continue: an ordinary question
    assert chat.calls[1]["messages"][-1]["role"] == "user"
    assert "continue_final_message" not in chat.calls[1]
    chat.script = [ChatReply(KEEP_TEXT)]
    review(judge)
    assert "continue_final_message" not in chat.calls[2]


def test_correction_by_ids():
    reply = ChatReply(" Wait.", ids=(11, 12), logps=(-0.1, -0.4))
    judge, chat = judge_of(reply, prefill=True, shares_tokenizer=True)
    assert intervene(judge, accepted="x is") == Correction(ids=(11, 12), logps=(-0.1, -0.4))
    assert chat.calls[0]["return_token_ids"] is True
    assert chat.calls[0]["logprobs"] is True
    chat.script = [ChatReply(" Wait.<|im_end|>", ids=(11, 12, 2))]
    assert intervene(judge, accepted="x is") == Correction(text=" Wait.")  # the ids spell more than may be used
    chat.script = [ChatReply(" Wait.", ids=(11, 12))]
    assert intervene(judge, accepted="x is") == Correction(ids=(11, 12))
    chat.script = [ChatReply(" Wait.")]
    with pytest.raises(JudgeError, match="judge_shares_tokenizer: false"):
        intervene(judge, accepted="x is")


def test_empty_corrections():
    judge, _ = judge_of(ChatReply(""))
    assert intervene(judge) == Correction(text="")
    judge, _ = judge_of(ChatReply("  \n"), shares_tokenizer=True)
    assert intervene(judge) == Correction(text="")
    judge, _ = judge_of(ChatReply("<think>so"))
    assert intervene(judge) == Correction(text="")
    judge, _ = judge_of(ChatReply("", reasoning="hm"))
    assert no_verdict(intervene, judge).reason == "empty"


def test_leaks_are_withheld_and_counted():
    judge, chat = judge_of(ChatReply("Wait, it is 118."), ChatReply("Wait, 1180?"), shares_tokenizer=True)
    chat.script[1] = ChatReply("Wait, 1180?", ids=(3,))
    assert intervene(judge) == Correction(text="")
    assert judge.leaks == 1
    assert intervene(judge) == Correction(ids=(3,))
    short = Problem("q", answer="5")
    chat.script = [ChatReply("It is 5.", ids=(4,))]
    assert intervene(judge, problem=short) == Correction(ids=(4,))
    assert judge.counters()["judge/leak"] == 1.0


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ChatFault("rate_limited", "slow down"), "rate_limited"),
        (TimeoutError(), "timeout"),
        (ConnectionResetError("cut"), "connection"),
    ],
    ids=["fault", "timeout", "connection"],
)
def test_transport_faults_are_repeated_with_growing_capped_pauses(error, reason):
    judge, chat = judge_of(error, error, ChatReply(KEEP_TEXT))
    assert review(judge) == KEEP
    assert len(chat.calls) == 3
    assert chat.calls[0] == chat.calls[2]  # the same seed as well
    assert len(judge._sleep.pauses) == 2
    assert judge.account.usage["review"] == Usage(1, 2, 0, 0, judge.account.usage["review"].seconds)

    judge, chat = judge_of(error, max_retries=12)
    failure = no_verdict(review, judge)
    assert failure.reason == reason
    assert "after 13 requests" in failure.detail
    assert len(chat.calls) == 13
    pauses = judge._sleep.pauses
    assert 0.25 <= pauses[0] <= 0.5
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE_SECONDS


@pytest.mark.parametrize(("reason", "waits"), [("connection", 2), ("server_error", 0)])
def test_a_server_that_somebody_else_waits_for_is_waited_for(reason, waits):
    judge, _ = judge_of(ChatFault(reason), ChatFault(reason), ChatReply(KEEP_TEXT))
    waited = []

    async def wait():
        waited.append(0)

    judge.wait_for_server = wait
    assert review(judge) == KEEP
    assert len(waited) == waits


def test_no_retries_where_none_are_wanted():
    judge, chat = judge_of(ChatFault("server_error"), max_retries=0)
    assert no_verdict(review, judge).reason == "server_error"
    assert len(chat.calls) == 1
    assert judge._sleep.pauses == []


def test_the_wait_that_a_server_asks_for_is_kept_within_the_cap():
    judge, _ = judge_of(ChatFault("rate_limited", "", 7.0), ChatFault("rate_limited", "", 900.0), ChatReply(KEEP_TEXT))
    assert review(judge) == KEEP
    assert judge._sleep.pauses == [7.0, LONGEST_PAUSE_SECONDS]


def test_rollouts_do_not_come_back_at_the_same_moment():
    pauses = set()
    for seed in range(8):
        judge, _ = judge_of(ChatFault("server_error"), ChatReply(KEEP_TEXT))
        review(judge, seed=seed)
        pauses.update(judge._sleep.pauses)
    assert len(pauses) == 8


@pytest.mark.parametrize("error", [JudgeError("no such model"), NoVerdict("context_length"), KeyError("bug")])
def test_other_errors_are_not_repeated(error):
    judge, chat = judge_of(error)
    with pytest.raises(type(error)):
        review(judge)
    assert len(chat.calls) == 1
    assert judge.account.usage["review"].calls == 1


def test_a_silent_chat_function_runs_into_the_time_limit():
    async def silent():
        await asyncio.sleep(60)

    judge, chat = judge_of(silent, timeout_seconds=0.02, max_retries=1)
    assert no_verdict(review, judge).reason == "timeout"
    assert len(chat.calls) == 2


def test_cancelling_a_review_cancels_the_request():
    cancelled = []

    async def silent():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def scenario(judge):
        task = asyncio.create_task(judge.review(PROBLEM, STEPS, 0, seed=1))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    judge, chat = judge_of(silent)
    asyncio.run(scenario(judge))
    assert cancelled == [True]
    assert len(chat.calls) == 1


def test_constrained_replies_name_the_new_steps():
    judge, chat = judge_of(ChatReply(KEEP_TEXT), constrain_reply=True)
    review(judge, steps=list("abcd"), first_new=2)
    schema = chat.calls[0]["response_format"]["json_schema"]["schema"]
    keep, revise = schema["anyOf"]
    assert list(keep["properties"]) == ["reason", "decision"]
    assert list(revise["properties"]) == ["reason", "decision", "step"]  # the reason comes first
    assert revise["properties"]["step"] == {"enum": [3, 4]}
    chat.script = [ChatReply("Wait.")]
    intervene(judge)
    assert "response_format" not in chat.calls[1]


def test_counters_only_grow():
    judge, chat = judge_of(ChatReply(KEEP_TEXT, prompt_tokens=10, completion_tokens=3))
    review(judge)
    before = judge.counters()
    assert before["judge/review/calls"] == 1.0
    assert before["judge/review/completion_tokens"] == 3.0
    assert before["judge/correction/calls"] == 0.0
    chat.script = [ChatReply("Wait.", prompt_tokens=20, completion_tokens=2)]
    intervene(judge)
    after = judge.counters()
    assert after["judge/correction/prompt_tokens"] == 20.0
    assert all(after[name] >= value for name, value in before.items())
    assert Usage(1, 0, 10, 3, 0.5) + Usage(2, 1, 5, 5, 0.25) == Usage(3, 1, 15, 8, 0.75)


def test_probe():
    judge, _ = judge_of(ChatReply(KEEP_TEXT))
    asyncio.run(judge.probe())
    judge, _ = judge_of(ChatReply("", reasoning="Okay, ..."))
    with pytest.raises(JudgeError, match="--reasoning-parser"):
        asyncio.run(judge.probe())
    judge, _ = judge_of(ChatReply("I would keep it."))
    with pytest.raises(JudgeError, match="judge_constrain_reply: true"):
        asyncio.run(judge.probe())
    judge, _ = judge_of(JudgeError("no such model"))
    with pytest.raises(JudgeError, match="no such model"):
        asyncio.run(judge.probe())


def test_own_prompts_are_used():
    prompts = Prompts("code")
    judge, chat = judge_of(ChatReply(KEEP_TEXT), prompts=prompts)
    review(judge)
    assert chat.calls[0]["messages"] == prompts.review(Problem(PROBLEM.question), STEPS, 0)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({}, "base_url"),
        ({"model": "m"}, "base_url"),
        ({"base_url": "http://localhost/v1", "chat": ScriptedChat("")}, "base_url"),
        ({"base_url": "localhost:8001/v1"}, "base_url"),
        ({"chat": ScriptedChat(""), "domain": "chess"}, "domain"),
        ({"chat": ScriptedChat(""), "temperature": -0.1}, "temperature"),
        ({"chat": ScriptedChat(""), "max_tokens": 0}, "max_tokens"),
        ({"chat": ScriptedChat(""), "max_retries": -1}, "max_retries"),
        ({"chat": ScriptedChat(""), "timeout_seconds": 0}, "timeout_seconds"),
        ({"chat": ScriptedChat(""), "timeout_seconds": float("inf")}, "timeout_seconds"),
    ],
)
def test_refuses_settings(arguments, field):
    with pytest.raises(ConfigError, match=f"`{field}`"):
        LLMJudge(**arguments)


def test_nothing_is_logged(caplog):
    caplog.set_level(logging.DEBUG)
    judge, _ = judge_of(ChatFault("server_error"), ChatReply(KEEP_TEXT), use_privileged_context=True)
    review(judge)
    assert "by adding" not in caplog.text
