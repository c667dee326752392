"""The self-judge over HTTP: whose weights it asks, what it knows, what its corrections are, what it may spend."""

import json
from functools import partial

import pytest
from peft import LoraConfig

from mintrl_trl import ConfigError, JudgeError, LLMJudge
from mintrl_trl.judges.llm import ReplyForm
from mintrl_trl.reporting.run_folder import RunFolder
from mintrl_trl.rollouts.rollout import Author

from .fake_vllm import FakeVLLM
from .served import COMPLETIONS, MODEL, served_trainers, write
from .tiny_qwen import cached_qwen, qwen_tokenizer

SECRET = "the secret solution"
TOKENIZER = qwen_tokenizer()
WAIT = TOKENIZER(" Wait")["input_ids"]
ROWS = [{"prompt": f"{i}+1=", "privileged_context": SECRET, "answer": f"{i + 1}00"} for i in range(8)]
CHAT, TOKENIZE = "/v1/chat/completions", "/tokenize"


def reject(body):
    """Judge: the first step that may be rejected, as the pattern of the request names it."""
    steps = body["structured_outputs"]["regex"].rsplit('"step": (', 1)[1].split(")")[0]
    return json.dumps({"reason": "no", "decision": "revise", "step": int(steps.split("|")[0])})


def tokenize(body):
    text = body.get("prompt")
    if text is None:
        variables = body.get("chat_template_kwargs", {})
        text = TOKENIZER.apply_chat_template(body["messages"], tokenize=False, add_generation_prompt=True, **variables)
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


def serve(fake):
    fake.script, fake.chat, fake.tokenize, fake.complete = write, reject, tokenize, lambda body: WAIT
    return fake


@pytest.fixture(scope="module", autouse=True)
def model():
    with cached_qwen(MODEL):
        yield


@pytest.fixture
def server():
    with FakeVLLM(MODEL) as fake:
        yield serve(fake)


@pytest.fixture
def make(server, tmp_path):
    with served_trainers(server.url) as make:
        yield partial(make, tmp_path, judge_object=None, rows=ROWS)


def split(server):
    """Completions of the policy and of the judge; the judge's are not streamed."""
    bodies = server.bodies(COMPLETIONS)
    return [body for body in bodies if body.get("stream")], [body for body in bodies if not body.get("stream")]


def test_one_server_has_the_policys_adapter_and_the_judges_initial_weights(server, make, tmp_path):
    trainer = make(judge="self", peft_config=LoraConfig(r=2), anchor="judge")
    trainer.train()
    judge = trainer.judge
    assert judge.wait_for_server is not None  # where the policy waits, it does too
    assert judge.reply_form is ReplyForm.PATTERN
    policy, corrections = split(server)
    adapters = {body["lora_name"] for body in server.bodies("/v1/load_lora_adapter")}
    assert len(adapters) == 2
    assert {body["model"] for body in policy} == adapters
    asked = [*server.bodies(CHAT), *corrections, *server.bodies(TOKENIZE)]
    assert {body["model"] for body in asked} == {MODEL}

    # What the judge knows and the policy does not.
    assert all(SECRET in body["messages"][1]["content"] for body in server.bodies(CHAT)[1:])
    assert all(SECRET in TOKENIZER.decode(body["prompt"]) for body in corrections[1:])
    assert all(SECRET not in TOKENIZER.decode(body["prompt"]) for body in policy)
    assert all(body["chat_template_kwargs"] == {"enable_thinking": False} for body in server.bodies(CHAT))

    spans = [span for record in RunFolder(tmp_path).rollouts() for span in record.spans]
    foreign = [span for span in spans if span.author is Author.INTERVENTION]
    assert {span.text for span in foreign} == {" Wait"}
    assert {span.weight_version for span in foreign} == {MODEL}
    metrics = trainer.state.log_history[0]
    assert metrics["tokens/intervention_with_logps"] == metrics["tokens/intervention"] > 0
    assert metrics["judge/review/calls"] > 0
    assert metrics["judge/correction/completion_tokens"] == len(WAIT) * metrics["judge/correction/calls"]


@pytest.mark.parametrize("way", ["auto", "checkpoint"])
def test_where_the_servers_weights_change_a_second_one_is_asked_for(server, make, way):
    with pytest.raises(ConfigError, match=r"`judge_base_url` is None.*second server with the initial model.*http://"):
        make(judge="self", weight_sync=way)


def test_the_second_server_judges(server, make):
    with FakeVLLM("initial") as second:
        serve(second)
        trainer = make(judge="self", judge_base_url=f"{second.url}/v1", max_steps=1, intervention_updates=1)
        trainer.train()
        trainer.close()
        assert trainer.judge.wait_for_server is None
        assert server.bodies(CHAT) == server.bodies(TOKENIZE) == split(server)[1] == []
        assert {body["model"] for body in second.bodies(CHAT)} == {"initial"}
        assert split(second)[0] == []


def test_a_judge_object_hears_whose_text_it_reads(server, make):
    judge = LLMJudge(MODEL, base_url=f"{server.url}/v1")
    trainer = make(judge_object=judge, max_steps=1, intervention_updates=1)
    trainer.train()
    assert judge.shares_tokenizer
    assert judge.longest_text_tokens == trainer.args.max_prompt_length + min(
        trainer.args.max_reviews * (trainer.args.chunk_tokens + trainer.args.correction_tokens), 24
    )
    assert all(SECRET not in body["messages"][1]["content"] for body in server.bodies(CHAT))


def test_settings_that_a_judge_object_would_not_follow_are_refused(server, make):
    with pytest.raises(ConfigError, match=r"LLMJudge\(budget_tokens=\.\.\.\)"):
        make(judge_object=LLMJudge(MODEL, base_url=f"{server.url}/v1"), judge_budget_tokens=1000)


def test_an_anchor_that_the_judge_cannot_give_is_found_before_training(server, make):
    server.tokenize = None
    server.chat = lambda body: '{"reason": "fine", "decision": "keep"}'
    trainer = make(judge_base_url=f"{server.url}/v1", anchor="judge", peft_config=LoraConfig(r=2))
    with pytest.raises(JudgeError, match="anchor='judge' needs"):
        trainer.train()
    assert split(server)[0] == []


@pytest.mark.filterwarnings("ignore:Could not find a config file:UserWarning")  # of PEFT, which looks on the hub
def test_a_spent_budget_ends_reviews_and_not_the_run_and_outlives_it(server, make, tmp_path):
    options = {"judge": "self", "peft_config": LoraConfig(r=2), "judge_budget_tokens": 60, "save_strategy": "steps"}
    options |= {"save_steps": 1, "intervention_updates": 3}
    trainer = make(max_steps=2, **options)
    trainer.train()
    assert trainer.state.global_step == 2
    assert trainer.judge.exhausted
    first, second = (log for log in trainer.state.log_history if "judge/reviews" in log or "reward" in log)
    assert first["judge/review/calls"] > 0
    assert second.get("judge/review/calls", 0) == 0
    assert second["judge/reviews"] == 0
    asked, spent = len(server.bodies(CHAT)), trainer.judge.spent

    trainer.close()
    again = make(max_steps=3, **options)
    again.train(resume_from_checkpoint=True)
    assert again.judge.spent[0] >= spent[0]
    assert len(server.bodies(CHAT)) == asked + 1  # the easy review with which a run begins
