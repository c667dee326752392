"""Decoding in process: the tokens are those of the obvious decoder whatever the batch; rows join, leave, fail alone."""

import asyncio
import gc
import math
import random

import pytest
import torch

from mintrl_trl.errors import GenerationError
from mintrl_trl.generation.local import LocalGenerator
from mintrl_trl.rollouts.doors import SampledToken

from .generation_oracle import MODELS, VOCABULARY, collect, collect_all, decode_alone, score_alone, tiny_llama


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return MODELS[request.param]().double()


@pytest.fixture
def make(model):
    made = []

    def build(other=None, **options):
        made.append(LocalGenerator(other or model, **{"end_ids": (), **options}))
        return made[-1]

    yield build
    for generator in made:
        generator.close()


def random_requests(count, seed=0, longest_prefix=30, longest=25):
    """(prefix, max_tokens, seed) with prefixes of unlike lengths, some of them shared."""
    rng = random.Random(seed)
    prefixes = [[rng.randrange(3, VOCABULARY) for _ in range(rng.randint(1, longest_prefix))] for _ in range(count)]
    return [(rng.choice(prefixes), rng.randint(1, longest), rng.getrandbits(62)) for _ in range(count)]


def assert_same(found, expected, tolerance=1e-9):
    for (ids, logps), (expected_ids, expected_logps) in zip(found, expected, strict=True):
        assert ids == expected_ids
        assert logps == pytest.approx(expected_logps, abs=tolerance)


@pytest.mark.parametrize("options", [{}, {"max_batch": 3}, {"prefill_tokens": 2}], ids=str)
def test_tokens_are_those_of_a_decoder_without_batch_and_cache(model, make, options):
    requests = random_requests(12, longest_prefix=20, longest=16)
    expected = [decode_alone(model, *request) for request in requests]
    assert_same(asyncio.run(collect_all(make(**options), requests)), expected)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", MODELS)
def test_tokens_do_not_depend_on_the_batch_in_float32(name, attention):
    model = MODELS[name]()
    model.set_attn_implementation(attention)
    requests = random_requests(12, seed=1)
    generator = LocalGenerator(model, end_ids=())
    together = asyncio.run(collect_all(generator, requests))
    generator.close()
    assert_same(together, [decode_alone(model, *request) for request in requests], tolerance=1e-4)


@pytest.mark.parametrize("seed", range(2))
def test_streams_scores_and_closings_of_both_kinds_of_weights_at_once(seed):
    rng = random.Random(seed)
    models = {"policy": tiny_llama(seed).double(), "base": tiny_llama(seed + 100).double()}
    generator = LocalGenerator(
        models["policy"],
        base_model=models["base"],
        end_ids=[7, 8],
        pad_id=rng.randrange(VOCABULARY),
        max_batch=rng.choice([2, 5, 16]),
        prefill_tokens=rng.choice([1, 8, 1024]),
    )

    async def one(prefix, max_tokens, request_seed):
        await asyncio.sleep(0.1 * rng.random())
        weights, patience = rng.choice(["policy", "base"]), rng.choice([1, 5, 99])
        if rng.random() < 0.3:
            continuation = [rng.randrange(VOCABULARY) for _ in range(rng.randint(0, 9))]
            found = await generator.score(prefix, continuation, weights=weights)
            assert found == pytest.approx(score_alone(models[weights], prefix, continuation))
            return
        stream, ids = generator.stream(prefix, max_tokens, request_seed, weights=weights), []
        async for token in stream:
            ids += [token.id, *(more.id for more in stream.take())]
            if len(ids) >= patience:
                await stream.aclose()
        expected, _ = decode_alone(models[weights], prefix, max_tokens, request_seed, end_ids=[7, 8])
        assert ids == expected[: len(ids)] and len(ids) >= min(patience, len(expected))

    async def everything():
        async with asyncio.TaskGroup() as tasks:
            for request in random_requests(30, seed):
                tasks.create_task(one(*request))

    with generator.active():
        asyncio.run(everything())
    assert generator.idle and generator.num_rows == 0
    generator.close()


def test_rows_that_join_late_and_leave_early_change_nothing(model, make):
    generator = make(max_batch=5)
    requests = random_requests(12, seed=2)
    expected = [decode_alone(model, *request) for request in requests]

    async def one(index):
        await asyncio.sleep(0.004 * (index % 5))
        stream, tokens = generator.stream(*requests[index]), []
        async for token in stream:
            tokens.append(token)
            if index % 3 == 0 and len(tokens) == 3:
                await stream.aclose()
        return [token.id for token in tokens], [token.logp for token in tokens]

    async def everything():
        return await asyncio.gather(*map(one, range(len(requests))))

    for (ids, logps), (expected_ids, expected_logps) in zip(asyncio.run(everything()), expected, strict=True):
        assert ids == expected_ids[: len(ids)]
        assert logps == pytest.approx(expected_logps[: len(ids)])


def test_a_request_in_pieces_gives_the_same_tokens(make):
    generator = make()
    prefix, seed = [5, 9, 3, 17], 1234

    async def pieces():
        whole, _ = await collect(generator, prefix, 24, seed)
        pieced = []
        for length in (1, 7, 3, 13):
            ids, _ = await collect(generator, prefix + pieced, length, seed)
            pieced += ids
        return whole, pieced

    whole, pieced = asyncio.run(pieces())
    assert whole == pieced and len(whole) == 24


def test_passes_and_their_tokens_are_counted(make):
    generator = make()
    asyncio.run(collect(generator, [1, 2, 3], 4, 7))
    assert generator.work() == (4, 3 + 3)  # the prompt gives the first token
    assert generator.counters() == {"passes/policy": 4.0, "positions/policy": 6.0}


def test_seeds_differ_and_repeat(make):
    generator = make()
    found = asyncio.run(collect_all(generator, [([4, 5], 20, seed) for seed in (1, 2, 1)]))
    assert found[0] == found[2] and found[0][0] != found[1][0]


def test_first_tokens_follow_the_models_distribution(model, make):
    count, prefix, temperature = 4000, [7, 8, 9], 0.6
    found = asyncio.run(collect_all(make(temperature=temperature), [(prefix, 1, seed) for seed in range(count)]))
    with torch.no_grad():
        probabilities = (model(torch.tensor([prefix])).logits[0, -1] / temperature).softmax(-1)
    counts = torch.bincount(torch.tensor([ids[0] for ids, _ in found]), minlength=VOCABULARY)
    chi_square = ((counts - count * probabilities) ** 2 / (count * probabilities)).sum().item()
    assert chi_square < 82.8  # 0.1 % point with 46 degrees of freedom; the rarest token is expected about 40 times
    assert [logps[0] for _, logps in found] == pytest.approx(
        [math.log(probabilities[ids[0]]) for ids, _ in found], abs=1e-9
    )


def test_a_stream_ends_after_any_end_id(model, make):
    end_ids = {11, 12, 13, 14, 15, 16}
    requests = [([3, 4], 60, seed) for seed in range(20)]
    expected = [decode_alone(model, *request, end_ids=end_ids) for request in requests]
    found = asyncio.run(collect_all(make(end_ids=end_ids), requests))
    assert_same(found, expected)
    assert sum(ids[-1] in end_ids for ids, _ in found) > 15
    assert not any(end_ids & set(ids[:-1]) for ids, _ in found)


def test_closing_a_stream_drops_its_row_at_once(make):
    generator = make()

    async def run():
        streams = [generator.stream([5, 6], 200, seed) for seed in range(4)]
        for stream in streams:
            assert isinstance(await anext(stream), SampledToken)
        assert generator.num_rows == 4
        await streams[0].aclose()
        await streams[0].aclose()
        assert [token async for token in streams[0]] == [] and streams[0].take() == []
        for _ in range(3):
            await anext(streams[1])
            streams[1].take()
        assert generator.num_rows == 3
        del streams[2]  # dropping a stream closes it
        gc.collect()
        await streams[1].aclose()
        while generator.num_rows > 1:
            await anext(streams[-1])
        assert generator.num_rows == 1
        await streams[-1].aclose()

    asyncio.run(run())
    generator.pause()
    assert generator.num_rows == 0 and generator.idle


def test_closing_a_waiting_request_drops_it(make):
    generator = make(max_batch=1)

    async def run():
        first, second = generator.stream([5], 30, 1), generator.stream([5], 30, 2)
        await anext(first)
        waiting = asyncio.ensure_future(anext(second))
        await asyncio.sleep(0.005)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await second.aclose()
        return len([token async for token in first]), generator.num_rows

    assert asyncio.run(run()) == (29, 0)


def test_take_returns_what_is_there_without_waiting(model, make):
    generator = make()

    async def run():
        stream = generator.stream([5, 6, 7], 40, 3)
        assert stream.take() == []
        tokens = [await anext(stream)]
        while len(tokens) < 40:
            await asyncio.sleep(0.001)
            tokens += stream.take()
        assert [token async for token in stream] == []
        return [token.id for token in tokens]

    assert asyncio.run(run()) == decode_alone(model, [5, 6, 7], 40, 3)[0]


def test_a_step_wakes_a_loop_once_however_many_rows(make):
    generator, wakes = make(), 0

    async def run():
        nonlocal wakes
        loop = asyncio.get_running_loop()
        original = loop.call_soon_threadsafe

        def counting(*arguments, **options):
            nonlocal wakes
            wakes += 1
            return original(*arguments, **options)

        loop.call_soon_threadsafe = counting
        await collect_all(generator, [([5, 6], 20, seed) for seed in range(30)])

    asyncio.run(run())
    assert 0 < wakes <= 25  # 20 tokens, and at most a few more for rows that joined later


def test_a_row_that_is_not_finite_fails_alone():
    model = tiny_llama().double()
    healthy = [([5, 6], 30, 1), ([5, 6, 7, 8, 9, 10], 30, 3)]
    expected = [decode_alone(model, *request) for request in healthy]
    poison = next(token for token in range(11, VOCABULARY) if not any(token in ids for ids, _ in expected))
    with torch.no_grad():
        model.get_input_embeddings().weight[poison] = math.nan
    generator = LocalGenerator(model, end_ids=())

    async def run():
        requests = [healthy[0], ([poison, 6, 7], 30, 2), healthy[1]]
        return await asyncio.gather(*(collect(generator, *request) for request in requests), return_exceptions=True)

    first, failed, second = asyncio.run(run())
    assert_same([first, second], expected)
    assert isinstance(failed, GenerationError) and "not finite" in str(failed)
    assert_same([asyncio.run(collect(generator, *healthy[1]))], [expected[1]])  # also in the slot it leaves
    generator.close()


def test_an_error_in_the_model_reaches_every_reader_and_the_engine_lives_on(model, make):
    generator, calls = make(), 0
    expected = decode_alone(model, [5, 6], 10, 1)

    def break_from_the_third_call_on(module, arguments, options):  # a request that joins late meets it, too
        nonlocal calls
        calls += 1
        if calls >= 3:
            raise RuntimeError("no memory left")

    hook = model.register_forward_pre_hook(break_from_the_third_call_on, with_kwargs=True)

    async def both():
        return await asyncio.gather(*(collect(generator, [5, 6], 10, s) for s in (1, 2)), return_exceptions=True)

    errors = asyncio.run(both())
    hook.remove()
    assert all(isinstance(error, GenerationError) and "no memory left" in str(error) for error in errors)
    assert all(isinstance(error.__cause__, RuntimeError) for error in errors) and errors[0] is not errors[1]
    assert_same([asyncio.run(collect(generator, [5, 6], 10, 1))], [expected])


def test_a_loop_that_dies_leaves_nothing_behind(make):
    generator = make()
    loop = asyncio.new_event_loop()
    stream = generator.stream([5, 6], 200, 1)
    loop.run_until_complete(anext(stream))
    loop.close()
    ids, _ = asyncio.run(collect(generator, [5, 6], 3, 2))
    assert len(ids) == 3
    generator.pause()
    assert generator.idle


@pytest.mark.parametrize(
    ("prefix", "max_tokens", "seed", "message"),
    [
        ([], 5, 1, "need one or more ids"),
        ([5, VOCABULARY], 5, 1, f"among them \\[{VOCABULARY}\\]"),
        ([-1], 5, 1, "from 0 to 46"),
        ([5.0], 5, 1, "among them \\[5.0\\]"),
        ([5], 0, 1, "at least one"),
        ([5], 600, 1, "positions"),
        ([5], 5, 2**63, "64 bits"),
    ],
    ids=["empty", "too large", "negative", "not an integer", "no tokens", "too long", "seed"],
)
def test_requests_that_cannot_be_served_are_refused(make, prefix, max_tokens, seed, message):
    with pytest.raises(GenerationError, match=message):
        make().stream(prefix, max_tokens, seed)


def test_two_readers_of_one_stream_are_refused(make):
    generator = make()

    async def run():
        stream = generator.stream([5, 6], 5, 1)
        results = await asyncio.gather(anext(stream), anext(stream), return_exceptions=True)
        await stream.aclose()
        return results

    token, error = asyncio.run(run())
    assert isinstance(token, SampledToken) and "one reader" in str(error)
