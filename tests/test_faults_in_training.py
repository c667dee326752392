"""Faults between a run and its servers: a run that goes on makes the rollouts it would have made, one that stops loses
no update, and both have counted what happened."""

import math
import threading
import time

import pytest

from mintrl_trl import GenerationError, MInTRLTrainer
from mintrl_trl.checkpoints import list_checkpoints
from mintrl_trl.errors import JudgeLostError, ServerLostError
from mintrl_trl.judges.llm import LLMJudge
from mintrl_trl.judges.reply import spell_verdict
from mintrl_trl.reporting.run_folder import RunFolder
from mintrl_trl.rollouts.rollout import Author

from .fake_vllm import FakeVLLM, events
from .fault_proxy import Answer, Change, Cut, FaultProxy, Garbage, Silence
from .served import COMPLETIONS, END, MODEL, RELOAD, served_trainers
from .tiny_qwen import cached_qwen
from .trainers import parity_reward

pytestmark = pytest.mark.slow
CHAT, HEALTH, WEIGHTS = "/v1/chat/completions", "/health", "/weight_info"


@pytest.fixture(scope="module", autouse=True)
def model():
    with cached_qwen(MODEL):
        yield


def write(body: dict, weights_path: str | None) -> list[dict]:
    """Letters that depend on what stands before them alone; the end, after ten or more in all. Digits where the server
    has the weights it starts with."""
    prompt, ids, first = list(body["prompt"]), [], 65 if weights_path else 48
    while len(ids) < body["max_tokens"] and ids[-1:] != [END]:
        so_far = prompt + ids
        ids.append(END if sum(so_far) % 7 == 0 and len(so_far) > 14 else first + (sum(so_far) + len(so_far)) % 10)
    return events(body["prompt"], ids, size=2, finish="stop" if ids[-1] == END else "length")


@pytest.fixture
def server():
    with FakeVLLM(MODEL) as fake:
        fake.script = lambda body: write(body, fake.weights_path)
        yield fake


@pytest.fixture
def proxy(server, monkeypatch):
    monkeypatch.setattr("mintrl_trl.generation.vllm.pause_seconds", lambda attempt, seed: 0.02)
    monkeypatch.setattr("mintrl_trl.judges.llm.FIRST_PAUSE_SECONDS", 0.02)
    with FaultProxy(server.url) as proxy:
        yield proxy


@pytest.fixture
def train(proxy):
    """Makes trainers whose server is the proxy, and closes them."""
    with served_trainers(proxy.url) as served:

        def make(folder, reward=parity_reward, judge="reject", **overrides) -> MInTRLTrainer:
            overrides = {"vllm_server_timeout": 2.0, "save_strategy": "steps", "save_steps": 50} | overrides
            trainer = served(folder, reward=reward, judge_object=judge, **overrides)
            for generator in trainer.policy.served._generators:
                generator.silence_seconds, generator.seconds_per_token = 2.0, 0.0
            return trainer

        yield make


def after_the_first_update(do):
    """A reward that does something when the first batch is rewarded, so that the second one meets it."""
    done = []

    def reward(completions, completion_ids, **kwargs):
        if not done:
            done.append(do())
        return parity_reward(completions, completion_ids)

    return reward


def rollouts(folder) -> list[tuple]:
    return [
        (one.update, one.row, one.ids, tuple((span.author, span.start, span.end) for span in one.spans))
        for one in RunFolder(folder).rollouts()
    ]


def own_tokens(folder) -> list[tuple[int, ...]]:
    """What the policy wrote in each rollout."""
    return [
        tuple(token for span in one.spans if span.author is Author.POLICY for token in one.ids[span.start : span.end])
        for one in RunFolder(folder).rollouts()
    ]


def counts(folder) -> dict[str, float]:
    """Counters of the policy's server over the run, but times and zeros."""
    total = {}
    for line in RunFolder(folder).metrics():
        for name, value in line.items():
            if name.startswith("server/") and value and name != "server/seconds_lost":
                total[name] = total.get(name, 0) + value
    return total


def away(proxy, seconds) -> None:
    with proxy.down():
        time.sleep(seconds)


def crash(proxy, server):
    """The server comes back with the weights it starts with; the other streams of the batch are open or just begin."""
    proxy.plan(COMPLETIONS, None, None, None, Cut(1, then=lambda: proxy.crash(0.8, server.restart)))


PASSING = {
    "cut": (lambda proxy, server: proxy.plan(COMPLETIONS, *[Cut(2)] * 20), "cut"),
    "busy": (lambda proxy, server: proxy.plan(COMPLETIONS, *[Answer(503)] * 30), "status_503"),
    "garbage": (lambda proxy, server: proxy.plan(COMPLETIONS, *[Garbage(1)] * 8), "garbage"),
    "restarted in the middle": (crash, "cut"),
    "restarted between updates": (lambda proxy, server: server.restart(), None),
    "lost while it takes weights": (lambda proxy, server: proxy.plan(RELOAD, Cut(), Cut()), None),
    "away between updates": (
        lambda proxy, server: threading.Thread(target=away, args=(proxy, 1.0)).start() or time.sleep(0.3),
        None,
    ),
}


@pytest.mark.parametrize("name", PASSING)
def test_a_run_that_meets_a_passing_fault_makes_the_rollouts_it_would_have_made(
    proxy, server, train, tmp_path, monkeypatch, name
):
    train(tmp_path / "whole").train()
    monkeypatch.setattr("mintrl_trl.generation.recovery.FRESH_SECONDS", 0.3)  # no restart is quicker
    meet, kind = PASSING[name]
    trainer = train(tmp_path / "met", after_the_first_update(lambda: meet(proxy, server)))
    trainer.train()
    assert trainer.state.global_step == 2
    assert rollouts(tmp_path / "met") == rollouts(tmp_path / "whole")
    assert all(65 <= token < 75 or token == END for one in own_tokens(tmp_path / "met") for token in one)
    counted = counts(tmp_path / "met")
    faults = {one: number for one, number in counted.items() if "/fault/" in one}
    assert set(faults) - {"server/fault/refused"} == ({f"server/fault/{kind}"} if kind else set())
    asked_again = counted.get("server/repeated", 0) + counted.get("server/continued", 0)
    waits = faults.get("server/fault/refused", 0)  # or requests that were refused
    assert sum(faults.values()) - waits <= asked_again <= sum(faults.values())
    assert (waits > 0) == (name in ("away between updates", "restarted in the middle"))
    if name == "restarted in the middle":
        assert counted["server/restored"] >= 1


LASTING = {
    "NaN": (COMPLETIONS, Change(lambda event: nan(event)), GenerationError, "nan"),
    "silence": (COMPLETIONS, Silence(1), GenerationError, "silent"),
    "503": (COMPLETIONS, Answer(503), ServerLostError, "status_503"),
    "a sync that is refused": (RELOAD, Answer(500, b'{"error": {"message": "no such folder"}}'), GenerationError, None),
}


def nan(event):
    event["choices"][0]["logprobs"] = {"token_logprobs": [math.nan] * len(event["choices"][0]["token_ids"])}
    return event


@pytest.mark.parametrize("name", LASTING)
def test_a_run_that_cannot_go_on_loses_no_update(proxy, train, tmp_path, name):
    path, fault, error, kind = LASTING[name]
    trainer = train(tmp_path, after_the_first_update(lambda: proxy.always.update({path: fault})))
    started = time.monotonic()
    with pytest.raises(error) as caught:
        trainer.train()
    assert time.monotonic() - started < 40
    assert "--resume_from_checkpoint" in caught.value.__notes__[-1]
    assert [(found.update, found.problem) for found in list_checkpoints(tmp_path)] == [(1, None)]
    assert kind is None or counts(tmp_path)[f"server/fault/{kind}"] >= 1
    proxy.always.clear()
    resumed = train(tmp_path, after_the_first_update(lambda: None))
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 2


@pytest.fixture
def judge_proxy():
    with FakeVLLM("judge") as fake:
        fake.chat = lambda body: spell_verdict(None)
        with FaultProxy(fake.url) as proxy:
            yield proxy


def llm_judge(proxy) -> LLMJudge:
    return LLMJudge("judge", f"{proxy.url}/v1", timeout_seconds=0.7, max_retries=1, constrain_reply=False)


def test_a_judge_on_the_policys_server_waits_for_it_with_the_policy(train, proxy, server, tmp_path, monkeypatch):
    monkeypatch.setattr("mintrl_trl.generation.recovery.FRESH_SECONDS", 0.3)  # no restart is quicker
    server.chat = lambda body: spell_verdict(None)

    def judge():
        return LLMJudge(MODEL, f"{proxy.url}/v1", timeout_seconds=0.7, max_retries=3, constrain_reply=False)

    def meet():
        proxy.plan(CHAT, None, Cut(then=lambda: proxy.crash(1.5, server.restart)))

    train(tmp_path / "whole", judge=judge()).train()
    train(tmp_path / "met", after_the_first_update(meet), judge()).train()
    assert rollouts(tmp_path / "met") == rollouts(tmp_path / "whole")
    assert {line.get("judge/no_verdict", 0) for line in RunFolder(tmp_path / "met").metrics()} == {0}
    assert sum(line.get("server/restored", 0) for line in RunFolder(tmp_path / "met").metrics()) >= 1


JUDGE_FAULTS = {
    "refused": (None, "connection"),
    "500": (Answer(500), "server_error"),
    "503": (Answer(503), "server_error"),
    "429": (Answer(429), "rate_limited"),
    "cut": (Cut(), "connection"),
    "silence": (Silence(), "timeout"),
    "garbage": (Answer(200, b"{<html>", {"content-type": "application/json"}), "bad_response"),
    "not a completion": (Answer(200, b'{"choices": []}', {"content-type": "application/json"}), "bad_response"),
}


@pytest.mark.parametrize("name", JUDGE_FAULTS)
def test_what_a_judge_fails_at_is_counted_and_stops_the_run_at_the_limit(train, judge_proxy, tmp_path, name):
    fault, reason = JUDGE_FAULTS[name]

    def fail():
        if fault is None:
            judge_proxy.stop()
        else:
            judge_proxy.always[CHAT] = fault

    trainer = train(
        tmp_path, after_the_first_update(fail), llm_judge(judge_proxy), no_verdict_window=10, no_verdict_limit=0.5
    )
    with pytest.raises(JudgeLostError, match=f"Reasons: {reason} "):
        trainer.train()
    if fault is None:
        judge_proxy.start()
    assert [(found.update, found.problem) for found in list_checkpoints(tmp_path)] == [(1, None)]
    assert sum(line.get("judge/review/retries", 0) for line in RunFolder(tmp_path).metrics()) >= 5


def test_a_judge_that_fails_now_and_then_is_asked_again_and_a_run_may_go_on_without(train, judge_proxy, tmp_path):
    trainer = train(
        tmp_path,
        after_the_first_update(lambda: judge_proxy.always.update({CHAT: Answer(503)})),
        llm_judge(judge_proxy),
        no_verdict_window=4,
        judge_failure="continue_on_policy",
        max_steps=3,
        intervention_updates=3,
    )
    judge_proxy.plan(CHAT, Answer(200, b"{"), None, Cut(), None, Answer(429))  # probe and first reviews ask again
    trainer.train()
    assert trainer.state.global_step == 3
    first, second, third = [line for line in RunFolder(tmp_path).metrics() if "loss" in line]
    assert (first["judge/no_verdict"], first["judge/passed_over"]) == (0, 0)
    assert (second["judge/paused"], second["judge/no_verdict/server_error"] >= 4) == (1, True)
    assert (third["judge/paused"], third["judge/passed_over"]) == (0, 4)
