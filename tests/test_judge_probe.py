"""What a judge finds out about its endpoint, what it does with it, and how it explains what is wrong."""

import asyncio

import pytest

from mintrl_trl.errors import JudgeError
from mintrl_trl.generation.vocabulary import TokenizerVocabulary
from mintrl_trl.judges.llm import LLMJudge, ReplyForm
from mintrl_trl.judges.prompts import Prompts
from mintrl_trl.rollouts.doors import KEEP, Correction, Revise, TokenText
from mintrl_trl.rollouts.rollout import Problem

from .byte_level import smollm2_tokenizer
from .chat_endpoint import KEEP_TEXT, Endpoint, VLLMEndpoint
from .tiny_qwen import qwen_tokenizer

PROBLEM = Problem("What is 60 + 58?", privileged_context="by adding", answer="118")


def vocabulary(tokenizer=None):
    tokenizer = tokenizer or qwen_tokenizer()
    return TokenizerVocabulary(tokenizer, {tokenizer.eos_token_id}, len(tokenizer))


def asked(endpoint, scenario=None, *, prepared=None, longest=1000, needs_logps=False, model="judge", **options):
    """Probe a judge at an endpoint, then run `scenario(judge)`; gives the judge and what came of the scenario."""

    async def no_pause(seconds):
        pass

    async def run():
        async with endpoint:
            judge = LLMJudge(model, base_url=endpoint.url, sleep=no_pause, **options)
            if prepared is not None:
                judge.prepare(prepared, longest, needs_logps=needs_logps)
            try:
                await judge.probe()
                return judge, await scenario(judge) if scenario else None
            finally:
                await judge.aclose()

    return asyncio.run(run())


async def review(judge):
    return await judge.review(PROBLEM, ["a", "b", "c"], 1, seed=5)


def test_a_vllm_server_holds_replies_to_a_pattern():
    endpoint = VLLMEndpoint()
    judge, verdict = asked(endpoint, review)
    assert verdict == KEEP
    assert judge.reply_form is ReplyForm.PATTERN
    body = endpoint.bodies("/v1/chat/completions")[-1]
    assert "(2|3)" in body["structured_outputs"]["regex"]
    assert "response_format" not in body
    assert (body["top_k"], body["watermarking"], body["repetition_penalty"]) == (-1, False, 1.0)
    assert body["seed"] == 5
    assert not judge.shares_tokenizer  # nobody said what the policy's is


def test_an_endpoint_without_forms_and_seeds_is_asked_without():
    endpoint = Endpoint()
    endpoint.refused = {
        "response_format": "This response_format type is unavailable now",
        "seed": "Unsupported parameter: 'seed' is not supported",
    }
    endpoint.text = lambda body: f"Looks right to me.\n```json\n{KEEP_TEXT}\n```"
    endpoint.usage = {"prompt_tokens": 100, "completion_tokens": 10, "prompt_cache_hit_tokens": 64}
    judge, verdict = asked(endpoint, review, prepared=vocabulary())
    assert verdict == KEEP
    assert judge.chat.left_out == {"response_format", "seed"}
    bodies = endpoint.bodies("/v1/chat/completions")
    assert [("response_format" in body, "seed" in body) for body in bodies] == [
        (True, True),
        (False, True),
        (False, False),
        (False, False),
    ]
    assert "top_k" not in bodies[-1]  # vLLM's own fields go to vLLM alone
    assert judge.shares_tokenizer is False
    assert judge.account.usage["review"].cached_tokens == 128


def test_an_endpoint_that_knows_the_limit_by_another_name():
    endpoint = Endpoint()
    words = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    endpoint.refused = {"max_tokens": words, "top_p": "Unsupported parameter: 'top_p'"}
    _, verdict = asked(endpoint, review, max_tokens=300)
    assert verdict == KEEP
    body = endpoint.bodies("/v1/chat/completions")[-1]
    assert body["max_completion_tokens"] == 300
    assert "max_tokens" not in body
    assert "top_p" not in body


def test_what_a_refusal_only_seems_to_name_is_sent_again():
    endpoint = Endpoint()
    endpoint.models = ("other",)
    endpoint.routes["POST", "/v1/chat/completions"] = lambda body: (400, {"error": "no credit; request: seed, top_p"})
    with pytest.raises(JudgeError, match="no credit"):
        asked(endpoint)
    bodies = endpoint.bodies("/v1/chat/completions")
    assert "seed" in bodies[0]
    assert len(bodies) <= 6


def test_a_form_that_breaks_the_model_is_given_up():
    endpoint = Endpoint()
    endpoint.text = lambda body: "{" if "response_format" in body else KEEP_TEXT
    judge, verdict = asked(endpoint, review)
    assert verdict == KEEP
    assert judge.reply_form is ReplyForm.FREE
    endpoint = Endpoint()
    endpoint.text = lambda body: "{" if "response_format" in body else KEEP_TEXT
    with pytest.raises(JudgeError, match="stronger model"):
        asked(endpoint, constrain_reply=True)
    endpoint = VLLMEndpoint()
    endpoint.refused = {"structured_outputs": "Failed to transform regex into a grammar"}
    judge, _ = asked(endpoint)
    assert judge.reply_form is ReplyForm.FREE


def test_a_server_that_is_busy_at_the_start_does_not_lose_its_form():
    endpoint = VLLMEndpoint()
    endpoint.routes["POST", "/v1/chat/completions"] = lambda body: (429, {"error": "busy"})
    with pytest.raises(JudgeError, match="max_concurrent_reviews"):
        asked(endpoint, max_retries=0)
    assert len(endpoint.bodies("/v1/chat/completions")) == 1


def test_what_the_user_decided_stays():
    endpoint = VLLMEndpoint()
    judge, _ = asked(endpoint, review, prepared=vocabulary(), constrain_reply=False, shares_tokenizer=False)
    assert judge.reply_form is ReplyForm.FREE
    assert "structured_outputs" not in endpoint.bodies("/v1/chat/completions")[-1]
    assert not judge.shares_tokenizer
    assert endpoint.bodies("/v1/completions") == []
    endpoint = Endpoint()
    endpoint.refused = {"response_format": "response_format is unknown"}
    with pytest.raises(JudgeError, match="Remove judge_constrain_reply"):
        asked(endpoint, constrain_reply=True)


THINKING_OFF = {"chat_template_kwargs": {"enable_thinking": False}}


def test_a_shared_tokenizer_is_found_and_corrections_continue_the_very_ids():
    async def intervene(judge):
        # Ids that no tokenizer would make of this text.
        accepted = TokenText("Wait", tuple(tokenizer.convert_tokens_to_ids(list("Wait"))))
        first = await judge.intervene(PROBLEM, accepted, Revise(0, "wrong"), 64, seed=3)
        return first, await judge.intervene(PROBLEM, TokenText(""), Revise(0, "wrong"), 1, seed=3)

    endpoint, tokenizer = VLLMEndpoint(), qwen_tokenizer()
    extra_body = THINKING_OFF | {"top_p": 0.9}
    judge, (correction, beginning) = asked(endpoint, intervene, prepared=vocabulary(), extra_body=extra_body)
    assert judge.shares_tokenizer
    ids = tuple(endpoint.continuation)
    assert correction == Correction(ids=ids, logps=(-0.25,) * len(ids))
    assert beginning == Correction(ids=ids[:1], logps=(-0.25,))

    *_, first, second = endpoint.bodies("/v1/completions")
    messages = Prompts().intervention(Problem(PROBLEM.question), "Wait", "wrong", prefill=True)[:-1]
    opened = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    assert opened.endswith("<think>\n\n</think>\n\n")
    assert first["prompt"] == [*tokenizer(opened)["input_ids"], *tokenizer.convert_tokens_to_ids(list("Wait"))]
    assert (first["max_tokens"], first["seed"], first["temperature"], first["logprobs"]) == (64, 3, 1.0, 0)
    assert first["return_token_ids"] is True
    assert first["watermarking"] is False
    assert {
        body["top_p"] for path in ("chat/completions", "completions") for body in endpoint.bodies(f"/v1/{path}")
    } == {0.9}
    assert "chat_template_kwargs" not in first
    assert tokenizer.decode(second["prompt"]).endswith("</think>\n\n")
    assert judge.account.usage["correction"].calls == 3  # one of them the probe's


def test_control_tokens_of_the_policy_are_shown_as_text():
    async def intervene(judge):
        mark = tokenizer.convert_tokens_to_ids("<|im_start|>")
        accepted = TokenText("Wait", (*tokenizer("Wait")["input_ids"], mark))
        return await judge.intervene(PROBLEM, accepted, Revise(0), 64, seed=3)

    endpoint, tokenizer = VLLMEndpoint(), qwen_tokenizer()
    chat = endpoint.routes["POST", "/v1/chat/completions"]

    def with_ids(body):
        status, answer = chat(body)
        if body.get("return_token_ids"):
            answer["choices"][0] |= {"message": {"content": " Wait"}, "token_ids": endpoint.continuation}
        return status, answer

    endpoint.routes["POST", "/v1/chat/completions"] = with_ids
    _, correction = asked(endpoint, intervene, prepared=vocabulary())
    assert correction == Correction(ids=tuple(endpoint.continuation))
    assert len(endpoint.bodies("/v1/completions")) == 1  # the probe's
    assert "<solution>\nWait\n</solution>" in endpoint.bodies("/v1/chat/completions")[-1]["messages"][1]["content"]


def test_log_probabilities_of_another_temperature_are_unknown():
    async def intervene(judge):
        return await judge.intervene(PROBLEM, TokenText(""), Revise(0), 64, seed=3)

    _, correction = asked(VLLMEndpoint(), intervene, prepared=vocabulary(), temperature=0.6)
    assert correction.ids is not None
    assert correction.logps is None


def test_a_judge_that_has_to_give_log_probabilities_and_does_not_is_found_before_training():
    asked(VLLMEndpoint(), prepared=vocabulary(), needs_logps=True)
    for options in ({"temperature": 0.6}, {"shares_tokenizer": False}):
        with pytest.raises(JudgeError, match="anchor='judge' needs"):
            asked(VLLMEndpoint(), prepared=vocabulary(), needs_logps=True, **options)
    endpoint = VLLMEndpoint()

    def without_logps(body):
        status, answer = endpoint.complete(body)
        answer["choices"][0]["logprobs"] = None
        return status, answer

    endpoint.routes["POST", "/v1/completions"] = without_logps
    with pytest.raises(JudgeError, match="sends none"):
        asked(endpoint, prepared=vocabulary(), needs_logps=True)


def test_another_tokenizer_gives_text():
    async def intervene(judge):
        return await judge.intervene(PROBLEM, TokenText("Wait", (1, 2)), Revise(0), 64, seed=3)

    endpoint = VLLMEndpoint()
    endpoint.text = lambda body: KEEP_TEXT if "structured_outputs" in body else "Check that."
    judge, correction = asked(endpoint, intervene, prepared=vocabulary(smollm2_tokenizer()))
    assert judge.shares_tokenizer is False
    assert correction == Correction(text=" Check that.")
    assert endpoint.bodies("/v1/completions") == []
    with pytest.raises(JudgeError, match="another tokenizer than the policy"):
        asked(VLLMEndpoint(), prepared=vocabulary(smollm2_tokenizer()), shares_tokenizer=True)


def test_a_server_without_ids_is_found_before_training():
    endpoint = VLLMEndpoint()
    endpoint.sends_ids = False
    with pytest.raises(JudgeError, match="judge_shares_tokenizer: false"):
        asked(endpoint, prepared=vocabulary())
    endpoint = Endpoint()
    with pytest.raises(JudgeError, match="no correction as token ids"):
        asked(endpoint, prepared=vocabulary(), shares_tokenizer=True)


def test_no_such_model_names_those_that_are_there():
    endpoint = VLLMEndpoint(models=("Qwen/Qwen3-4B", "policy-v7"))
    with pytest.raises(
        JudgeError,
        match=r"for model 'Qwen/Qwen3-8B': The model `\S+` does not exist\. It serves 'Qwen/Qwen3-4B', 'policy-v7'",
    ):
        asked(endpoint, model="Qwen/Qwen3-8B")


def test_too_little_room_names_every_part():
    with pytest.raises(JudgeError) as caught:
        asked(VLLMEndpoint(max_model_len=2048), prepared=vocabulary(), longest=2000, max_tokens=512)
    message = str(caught.value)
    for part in ("2048 tokens", "2612", "2000 of question", "100 of instructions", "512 of reply", "--max-model-len"):
        assert part in message
    asked(VLLMEndpoint(max_model_len=2612), prepared=vocabulary(), longest=2000, max_tokens=512)
    asked(VLLMEndpoint(max_model_len=2048))  # nobody said how long texts become


def test_a_reasoning_parser_is_named():
    endpoint = VLLMEndpoint()
    endpoint.text, endpoint.reasoning = lambda body: None, "Okay, the user"
    with pytest.raises(JudgeError, match="--reasoning-parser"):
        asked(endpoint)


def test_a_gateway_in_trouble_is_not_taken_for_vllm():
    endpoint = Endpoint()
    endpoint.routes["POST", "/tokenize"] = lambda body: (502, "bad gateway")
    judge, _ = asked(endpoint, prepared=vocabulary(), max_retries=1)
    assert judge.reply_form is ReplyForm.SCHEMA
    assert len(endpoint.bodies("/tokenize")) == 2
    endpoint = Endpoint()
    endpoint.routes["POST", "/tokenize"] = lambda body: (200, {"hello": "world"})
    judge, _ = asked(endpoint)
    assert judge.reply_form is ReplyForm.SCHEMA


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": None, "completion_tokens": 3}])
def test_a_budget_that_could_never_be_spent_is_refused(usage):
    endpoint = Endpoint()
    endpoint.usage = usage
    assert asked(endpoint, review)[1] == KEEP
    with pytest.raises(JudgeError, match=r"does not say how many tokens.*judge_budget_tokens"):
        asked(endpoint, budget_tokens=1000)
