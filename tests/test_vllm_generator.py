"""The vLLM generator against a scripted server: what is asked, what comes back, what stops, what is repeated."""

import asyncio
import re
import threading
import time
from contextlib import aclosing

import pytest

from mintrl_trl.errors import GenerationError
from mintrl_trl.generation.server import pause_seconds
from mintrl_trl.generation.vllm import VLLMGenerator
from mintrl_trl.rollouts.doors import SampledToken

from .fake_vllm import CUT, END, HANG, FakeVLLM, Status, events

COMPLETIONS = "/v1/completions"


@pytest.fixture
def server():
    with FakeVLLM() as fake:
        yield fake


def generator(server: FakeVLLM, **settings) -> VLLMGenerator:
    settings = {"end_ids": [END], "vocabulary_size": 1000} | settings
    return VLLMGenerator(server.url, "policy", **settings)


async def read_all(policy: VLLMGenerator, prefix, max_tokens: int = 50, seed: int = 0) -> list[SampledToken]:
    return [token async for token in policy.stream(prefix, max_tokens, seed)]


def collect(policy: VLLMGenerator, prefix, max_tokens: int = 50, seed: int = 0) -> list[SampledToken]:
    async def run():
        try:
            return await read_all(policy, prefix, max_tokens, seed)
        finally:
            await policy.aclose()

    return asyncio.run(run())


def ids(tokens: list[SampledToken]) -> list[int]:
    return [token.id for token in tokens]


async def until(condition, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


# --- What is asked, and what comes back


def test_request_spells_out_every_sampling_setting(server):
    collect(generator(server, end_ids=[1, END], stream_interval=4), (9, 8, 3), max_tokens=7, seed=11)
    (seen,) = server.seen
    assert (seen.method, seen.path) == ("POST", COMPLETIONS)
    seed = seen.body.pop("seed")
    assert seen.body == {
        "model": "policy",
        "prompt": [9, 8, 3],
        "max_tokens": 7,
        "n": 1,
        "stream": True,
        "return_token_ids": True,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "watermarking": False,
        "logprobs": 0,
        "stop_token_ids": [0, 1],
        "ignore_eos": True,
        "stream_interval": 4,
    }
    assert seed == (11 + 3 * 0x9E3779B97F4A7C15) % 2**63


def test_stream_ends_with_the_end_id(server):
    server.script = lambda body: events(body["prompt"], [5, 4, END], logps=[-1.0, -2.0, -0.5])
    assert collect(generator(server), [7]) == [SampledToken(5, -1.0), SampledToken(4, -2.0), SampledToken(END, -0.5)]


def test_stream_ends_at_the_limit(server):
    assert ids(collect(generator(server), [9], max_tokens=3)) == [8, 7, 6]


def test_tokens_come_while_the_server_still_writes(server):
    def script(body):
        first, second, last = events(body["prompt"], [5, 4, END])
        return [first, second, 0.3, last]

    server.script = script

    async def run():
        policy, times = generator(server), []
        started = time.monotonic()
        async for _ in policy.stream([7], 5, 0):
            times.append(time.monotonic() - started)
        await policy.aclose()
        return times

    first, second, last = asyncio.run(run())
    assert second - first < 0.2 < last - second


@pytest.mark.parametrize("seed", [0, 2**63 - 1], ids=["least", "greatest"])
def test_seed_depends_on_where_the_continuation_starts_and_stays_in_range(server, seed):
    policy = generator(server)
    for prefix in ([5], [5], [5, 6]):
        collect(policy, prefix, seed=seed)
    same, again, other = (body["seed"] for body in server.bodies(COMPLETIONS))
    assert same == again != other
    assert all(0 <= value < 2**63 for value in (same, other))


def test_sixteen_prefixes_give_sixteen_answers(server):
    policy = generator(server)

    async def run():
        answers = await asyncio.gather(*(read_all(policy, [99, last]) for last in range(2, 18)))
        await policy.aclose()
        return answers

    answers = asyncio.run(run())
    assert [ids(answer) for answer in answers] == [list(range(last - 1, -1, -1)) for last in range(2, 18)]
    assert sorted(body["prompt"] for body in server.bodies(COMPLETIONS)) == [[99, last] for last in range(2, 18)]


def test_two_processes_share_nothing_but_the_server(server):
    answers = {}

    def rank(number: int) -> None:
        answers[number] = ids(collect(generator(server), [number]))

    threads = [threading.Thread(target=rank, args=(number,)) for number in (4, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert answers == {4: [3, 2, 1, 0], 6: [5, 4, 3, 2, 1, 0]}


def test_connections_are_used_again_on_one_loop_and_made_anew_on_the_next(server):
    policy = generator(server)

    async def run():
        for _ in range(5):
            await read_all(policy, [4])
        await policy.aclose()

    asyncio.run(run())
    assert server.connections == 1
    asyncio.run(run())
    assert server.connections == 2


def test_no_more_requests_are_open_than_allowed(server):
    server.script = lambda body: [0.02, *events(body["prompt"], [END])]
    policy = generator(server, max_concurrency=3)

    async def run():
        await asyncio.gather(*(read_all(policy, [number]) for number in range(2, 12)))
        await policy.aclose()

    asyncio.run(run())
    assert server.most_open_streams == 3


def test_weights_are_asked_for_by_name(server):
    policy = generator(server)
    assert policy.weight_version == ""
    policy.use_weights("update-3", "adapter-3")
    server.adapters["adapter-3"] = "/path"
    collect(policy, [4])
    policy.use_weights("update-4")
    collect(policy, [4])
    assert [body["model"] for body in server.bodies(COMPLETIONS)] == ["adapter-3", "adapter-3"]
    assert policy.weight_version == "update-4"


def test_key_of_the_environment_is_never_sent_and_ours_is_never_shown(server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "of-another-service")
    collect(generator(server), [4])
    policy = generator(server, api_key="of-this-server")
    collect(policy, [4])
    assert [seen.headers["authorization"] for seen in server.seen] == ["Bearer none", "Bearer of-this-server"]
    assert "of-this-server" not in repr(policy) + repr(policy.control)


# --- Stopping


def test_closing_a_stream_stops_the_work_behind_it(server):
    server.script = lambda body: [*events(body["prompt"], [5, 4, 3, 2], finish=None)[:2], HANG]
    policy = generator(server, max_concurrency=1)

    async def run():
        stream = policy.stream([7], 50, 0)
        assert [(await anext(stream)).id for _ in range(2)] == [5, 4]
        assert server.open_streams == 1
        await stream.aclose()
        await until(lambda: server.open_streams == 0)
        server.script = lambda body: events(body["prompt"], [END])
        assert ids(await read_all(policy, [7])) == [END]  # its place is free again
        await policy.aclose()

    asyncio.run(run())
    assert [body["max_tokens"] for body in server.aborted] == [50]


@pytest.mark.parametrize("wait", ["first token", "later token"])
def test_cancelling_a_reader_stops_the_work_behind_it(server, wait):
    head = 0 if wait == "first token" else 1
    server.script = lambda body: [*events(body["prompt"], [5, 4, 3], finish=None)[:head], HANG]
    policy = generator(server)

    async def run():
        task = asyncio.create_task(read_all(policy, [7]))
        await until(lambda: server.open_streams == 1)
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: server.open_streams == 0)
        await policy.aclose()

    asyncio.run(run())
    assert len(server.aborted) == 1


def test_lingering_on_the_last_token_holds_no_place(server):
    policy = generator(server, max_concurrency=1)

    async def run():
        async with aclosing(policy.stream([1], 50, 0)) as stream:
            assert (await anext(stream)).id == END
            assert ids(await read_all(policy, [2])) == [1, END]
        await policy.aclose()

    asyncio.run(run())


def test_close_from_another_thread(server):
    policy = generator(server)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    assert ids(asyncio.run_coroutine_threadsafe(read_all(policy, [2]), loop).result(5)) == [1, END]
    policy.close()
    policy.close()
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    loop.close()


# --- Failing


def test_refusal_carries_the_words_of_the_server_and_is_not_repeated(server):
    server.faults[COMPLETIONS].append(Status(400, "This model's maximum context length is 2048 tokens"))
    message = (
        rf"{server.url}/v1/completions \(policy, 1 prompt ids.* answered 400 after .*maximum context length is 2048"
    )
    with pytest.raises(GenerationError, match=message):
        collect(generator(server), [7])
    assert len(server.seen) == 1


def test_unknown_model_is_named(server):
    policy = generator(server)
    policy.use_weights("update-1", "gone")
    with pytest.raises(GenerationError, match=r"answered 404.*The model `gone` does not exist"):
        collect(policy, [7])


@pytest.mark.parametrize("fault", [Status(503), Status(500), Status(429), CUT], ids=["503", "500", "429", "cut"])
def test_passing_faults_before_the_first_token_are_repeated(server, fault):
    server.faults[COMPLETIONS].append(fault)
    assert ids(collect(generator(server), [4])) == [3, 2, 1, END]
    first, second = server.bodies(COMPLETIONS)
    assert first == second


def test_stream_that_breaks_before_its_first_token_is_repeated(server):
    scripts = iter([[CUT], [{"error": {"message": "KV load failed", "code": 500}}]])
    server.script = lambda body: next(scripts, None) or events(body["prompt"], [END])
    assert ids(collect(generator(server), [4])) == [END]
    assert len(server.seen) == 3


def test_repetition_ends(server):
    server.faults[COMPLETIONS].extend([Status(503, "overloaded")] * 2)
    with pytest.raises(GenerationError, match=r"answered 503.*overloaded"):
        collect(generator(server, max_retries=1), [4])
    assert len(server.seen) == 2


def test_refused_connection_is_named():
    with FakeVLLM() as gone:
        pass
    with pytest.raises(GenerationError, match=rf"{gone.url}/v1/completions .* failed after .*ConnectError"):
        collect(generator(gone, max_retries=1), [4])


def test_pauses_double_up_to_a_cap_and_spread_by_seed():
    assert [pause_seconds(attempt, 1023) for attempt in range(6)] == pytest.approx([0.5, 1, 2, 4, 8, 8], rel=1e-3)
    assert pause_seconds(3, 0) == 2.0


@pytest.mark.parametrize("end", [CUT, b"data: [DONE]\n\n"], ids=["cut", "done"])
def test_stream_that_breaks_after_a_token_is_an_error_and_never_repeated(server, end):
    tail = [CUT] if end is CUT else []
    server.script = lambda body: [*events(body["prompt"], [5, 4, 3], finish=None)[:2], *tail]
    with pytest.raises(GenerationError, match=r"2 tokens, unfinished|failed after"):
        collect(generator(server), [7])
    assert len(server.seen) == 1


def test_echo_of_another_prompt_is_an_error(server):
    server.script = lambda body: events([9, 9], [END])
    with pytest.raises(GenerationError, match="another prompt than was sent: 2 ids for 2; at position 1, 9 for 8"):
        collect(generator(server), [9, 8])


def test_broken_logits_are_an_error(server):
    server.script = lambda body: events(body["prompt"], [5, 4], logps=[float("nan"), -0.5], finish="length")
    with pytest.raises(GenerationError, match="NaN"):
        collect(generator(server), [9], max_tokens=2)


@pytest.mark.parametrize(
    ("hang", "wait"),
    [("request", 0.3 + 0.02 * 10), ("first token", 0.3 + 0.02 * 10), ("later token", 0.3)],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_silent_server_is_an_error_within_the_limit(server, hang, wait):
    if hang == "request":
        server.faults[COMPLETIONS].append(HANG)
    head = 1 if hang == "later token" else 0
    server.script = lambda body: [*events(body["prompt"], [5, 4, 3], finish=None)[:head], HANG]
    policy = generator(server, silence_seconds=0.3, seconds_per_token=0.02)
    started = time.monotonic()
    message = (
        rf"{server.url}/v1/completions .*silent for (\d+\.\d) s \(limit {wait:.1f} s\)\. The request is (\d+\.\d) s old"
    )
    with pytest.raises(GenerationError, match=rf"{message} and gave {head} tokens") as caught:
        collect(policy, [7], max_tokens=10)
    seconds = time.monotonic() - started
    silent, old = map(float, re.search(message, str(caught.value)).groups())
    # The limit is exact; how much later it is noticed is up to the machine, and a server that hangs says nothing ever.
    assert wait - 0.05 <= silent <= old <= seconds + 0.05
    assert seconds < wait + 30.0
    assert len(server.seen) == 1


def test_slow_reader_is_not_a_silent_server(server):
    server.script = lambda body: [step for event in events(body["prompt"], [5, 4, END]) for step in (event, 0.02)]
    policy = generator(server, silence_seconds=0.1)

    async def run():
        tokens = []
        async for token in policy.stream([7], 5, 0):
            tokens.append(token.id)
            await asyncio.sleep(0.15)
        await policy.aclose()
        return tokens

    assert asyncio.run(run()) == [5, 4, END]


@pytest.mark.parametrize(("prefix", "max_tokens"), [([], 5), ([1], 0)], ids=["no prefix", "no tokens"])
def test_nothing_to_continue(server, prefix, max_tokens):
    with pytest.raises(ValueError, match="nothing to continue"):
        collect(generator(server), prefix, max_tokens)
