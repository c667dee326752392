"""Places: the most urgent is next, and none is lost, whoever is cancelled."""

import asyncio

import pytest

from mintrl_trl.rollouts.loop import BackgroundLoop
from mintrl_trl.rollouts.places import Places


@pytest.fixture
def loop():
    loop = BackgroundLoop()
    yield loop
    loop.close()


async def holding(places, name, rank, order, release):
    async with places.taken(rank):
        order.append(name)
        await release.wait()


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


def test_the_lowest_rank_is_next_and_the_first_to_come_among_equals(loop):
    async def run():
        places, order, release = Places(1), [], asyncio.Event()
        ranks = {"first": 9, "b": 2, "c": 1, "d": 2, "e": 1}
        tasks = [asyncio.create_task(holding(places, name, lambda r=r: r, order, release)) for name, r in ranks.items()]
        await settle()
        assert order == ["first"]
        release.set()
        await asyncio.gather(*tasks)
        return order

    assert loop.run(run()) == ["first", "c", "e", "b", "d"]


def test_ranks_are_asked_for_when_a_place_becomes_free(loop):
    async def run():
        places, order, release, ranks = Places(1), [], asyncio.Event(), {"first": 0, "b": 1, "c": 2}
        tasks = [asyncio.create_task(holding(places, name, lambda n=name: ranks[n], order, release)) for name in ranks]
        await settle()
        ranks["b"] = 3
        release.set()
        await asyncio.gather(*tasks)
        return order

    assert loop.run(run()) == ["first", "c", "b"]


@pytest.mark.parametrize("count", [1, 3])
def test_no_more_places_are_taken_than_there_are(loop, count):
    async def run():
        places, taken, most = Places(count), 0, 0

        async def one():
            nonlocal taken, most
            async with places.taken(lambda: 0):
                taken += 1
                most = max(most, taken)
                await asyncio.sleep(0)
                taken -= 1

        await asyncio.gather(*(one() for _ in range(20)))
        return most

    assert loop.run(run()) == count


@pytest.mark.parametrize("when", ["waiting", "its turn has come", "holding"])
def test_a_cancelled_place_is_passed_on(loop, when):
    async def run():
        places, order, release, never = Places(1), [], asyncio.Event(), asyncio.Event()

        async def hold_first():
            await holding(places, "first", lambda: 0, order, release)
            if when == "its turn has come":  # and it has not run since
                cancelled.cancel()

        first = asyncio.create_task(hold_first())
        cancelled = asyncio.create_task(holding(places, "cancelled", lambda: 1, order, never))
        last = asyncio.create_task(holding(places, "last", lambda: 2, order, release))
        await settle()
        if when == "waiting":
            cancelled.cancel()
        release.set()
        await settle()
        if when == "holding":
            cancelled.cancel()
        await asyncio.gather(first, cancelled, last, return_exceptions=True)
        assert cancelled.cancelled()
        async with asyncio.timeout(1), places.taken(lambda: 0):
            return order

    assert loop.run(run()) == (["first", "cancelled", "last"] if when == "holding" else ["first", "last"])
