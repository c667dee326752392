"""Event streams of hand-written bytes: which tokens they give, and what is refused."""

import itertools
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mintrl_trl.errors import GenerationError
from mintrl_trl.generation.completion import CompletionReply
from mintrl_trl.generation.server import ServerError
from mintrl_trl.rollouts.doors import SampledToken

from .fake_vllm import END, events

PROMPT = [7, 8, 9]


def reply(max_tokens: int = 4, **settings) -> CompletionReply:
    settings = {"end_ids": frozenset({END, 1}), "vocabulary_size": 100} | settings
    return CompletionReply("POST http://server", PROMPT, max_tokens, **settings)


def encode(*written: dict | str) -> bytes:
    lines = [event if isinstance(event, str) else json.dumps(event, ensure_ascii=False) for event in written]
    return "".join(f"data: {line}\n\n" for line in lines).encode()


def one(ids: list, **choice) -> dict:
    """One event; `choice` overrides what vLLM would write."""
    (event,) = events(PROMPT, ids or [5], size=9, finish=None)
    event["choices"][0] |= {"token_ids": ids} | ({} if ids else {"logprobs": None}) | choice
    return event


def test_end_id_is_the_last_token_and_its_log_probability_comes_with_it():
    read = reply()
    assert read.feed(encode(*events(PROMPT, [5, 6, END], logps=[-1.0, -2.0, -0.25]))) == [
        SampledToken(5, -1.0),
        SampledToken(6, -2.0),
        SampledToken(END, -0.25),
    ]
    assert (read.finished, read.count) == (True, 3)


def test_limit_finishes_without_an_end_id():
    read = reply(max_tokens=2)
    assert [token.id for token in read.feed(encode(*events(PROMPT, [5, 6], finish="length")))] == [5, 6]
    assert read.finished


@given(st.lists(st.integers(0, 400), max_size=12), st.integers(1, 4))
def test_bytes_may_be_cut_anywhere(cuts, size):
    data = encode(*events(PROMPT, [5, 6, 7, END], size=size), {"choices": [], "usage": {}}, "[DONE]")
    places = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    read = reply()
    tokens = [token for a, b in itertools.pairwise(places) for token in read.feed(data[a:b])]
    assert [token.id for token in tokens] == [5, 6, 7, END]


def test_line_separators_inside_text_do_not_end_an_event():
    event = one([5, 6], text="\u2028\u0085\x0b\x0c\x1c\r")
    assert "\u2028" in encode(event).decode()
    assert [token.id for token in reply().feed(encode(event))] == [5, 6]


def test_carriage_returns_comments_and_usage_are_passed_over():
    data = b": ping\r\n\r\n" + encode(one([5])).replace(b"\n", b"\r\n") + b'data: {"choices": []}\n\ndata: [DONE]\n\n'
    assert [token.id for token in reply().feed(data)] == [5]


@pytest.mark.parametrize("later", [[END, 5, 6], [1, 4]], ids=["first end id", "second end id"])
def test_nothing_after_an_end_id_is_taken(later):
    read = reply()
    tokens = read.feed(encode(one([9, *later]), one([8])))
    assert [token.id for token in tokens] == [9, later[0]]
    assert read.finished and read.count == 2


def test_missing_log_probabilities_are_unknown():
    assert reply().feed(encode(one([5], logprobs=None))) == [SampledToken(5, None)]
    assert reply().feed(encode(one([5], logprobs={"token_logprobs": None}))) == [SampledToken(5, None)]


def test_log_probabilities_of_another_distribution_are_unknown_but_still_checked():
    assert reply(reports_logps=False).feed(encode(one([5]))) == [SampledToken(5, None)]
    with pytest.raises(GenerationError, match="NaN"):
        reply(reports_logps=False).feed(encode(one([5], logprobs={"token_logprobs": [None]})))


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (one([5, 6], logprobs={"token_logprobs": [None, -0.5]}), "NaN as a log-probability"),
        (json.dumps(one([5], logprobs={"token_logprobs": [float("nan")]})), "NaN as a log-probability"),
        (one([5], logprobs={"token_logprobs": [3.5]}), "--logprobs-mode processed_logprobs"),
        (one([5, 6], logprobs={"token_logprobs": [-0.5]}), "1 log-probabilities for 2 tokens"),
        (one([5], prompt_token_ids=[7, 8]), "2 ids for 3; at position 2, nothing for 9"),
        (one([5], prompt_token_ids=[7, 3, 9]), "3 ids for 3; at position 1, 3 for 8"),
        (one([5], prompt_token_ids=[]), "0 ids for 3; at position 0, nothing for 7"),
        (one([100]), "no id below 100"),
        (one([-1]), "no id below 100"),
        (one(["5"]), "'5', no id below 100"),
        (one([True]), "True, no id below 100"),
        (one([5], token_ids=None), "return_token_ids"),
        (one([5, 6, 7, 8, 9]), "5 tokens where at most 4 were asked for"),
        (one([5], finish_reason="length"), "1 of 4 tokens .finish_reason 'length'"),
        (one([5], finish_reason="abort"), "finish_reason 'abort'"),
        (one([], finish_reason="abort"), "an end after 0 of 4 tokens"),
        (one([5], finish_reason="stop", stop_reason=5), r"stop_reason 5, last id 5.*end ids \[0, 1\]"),
        ("{not json", "not JSON"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_refused(event, message):
    with pytest.raises(GenerationError, match=f"POST http://server gave.*{message}"):
        reply().feed(encode(event))


@pytest.mark.parametrize(
    ("error", "words", "retryable"),
    [
        ({"message": "KV load failed", "code": 500}, "KV load failed", True),
        ({"message": "bad request", "code": 400}, "bad request", False),
        ("broken", "broken", False),
    ],
    ids=["passing", "lasting", "text"],
)
def test_error_events_carry_the_words_of_the_server(error, words, retryable):
    with pytest.raises(ServerError, match=f"after 1 tokens: {words}") as caught:
        reply().feed(encode(one([5]), {"error": error}))
    assert caught.value.retryable is retryable


def test_no_token_of_a_refused_event_is_handed_out():
    read = reply()
    assert len(read.feed(encode(one([5])))) == 1
    with pytest.raises(GenerationError):
        read.feed(encode(one([6, 200])))
    assert read.count == 1


def test_a_line_that_does_not_end_is_given_up():
    found = reply()
    with pytest.raises(GenerationError, match="a line of more than 16777216 bytes: b'data: x"):
        for _ in range(5):
            found.feed(b"data: " + b"x" * 2**22)


def test_an_error_without_a_status_has_a_name_of_its_own():
    with pytest.raises(ServerError) as caught:
        reply().feed(encode({"error": "broken"}))
    assert caught.value.kind == "error"


@pytest.mark.parametrize("body", [b"<html>please log in</html>\n", b'{"choices": [{"text": "please log in"}]}'])
def test_an_answer_that_is_no_stream_is_shown(body):
    found = reply()
    assert found.feed(body) == []
    assert re.search(r"0 tokens, unfinished; it is no stream of events, but .*please log in", str(found.cut_short()))
    found = reply()
    found.feed(b": ping\n\nevent: x\nid: 1\nretry: 5\ndata")
    assert str(found.cut_short()).endswith("b'data'")
