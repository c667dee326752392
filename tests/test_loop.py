"""The background loop: results, errors, interrupts and a clean end."""

import asyncio
import signal
import threading
import time
from concurrent.futures import CancelledError

import pytest

from mintrl_trl.rollouts.loop import BackgroundLoop, shared_loop


@pytest.fixture
def loop():
    loop = BackgroundLoop()
    yield loop
    loop.close()


def test_run_returns_and_raises(loop):
    async def fail():
        raise KeyError("lost")

    assert loop.run(asyncio.sleep(0, 5)) == 5
    with pytest.raises(KeyError, match="lost"):
        loop.run(fail())


def test_a_loop_may_be_handed_over_and_is_closed_with_it():
    own = asyncio.new_event_loop()
    loop = BackgroundLoop(loop=own)

    async def running():
        return asyncio.get_running_loop()

    assert loop.run(running()) is own
    loop.close()
    assert own.is_closed()


def test_run_works_where_a_loop_is_running_already(loop):
    """As in a notebook cell."""

    async def cell():
        return loop.run(asyncio.sleep(0, "answer"))

    with asyncio.Runner() as runner:
        assert runner.run(cell()) == "answer"


def test_run_refuses_its_own_thread(loop):
    async def inner():
        with pytest.raises(RuntimeError, match="own thread"):
            loop.run(asyncio.sleep(0))
        return "refused"

    assert loop.run(inner()) == "refused"


def test_interrupt_cancels_the_coroutine(loop):
    ended = threading.Event()

    async def wait():
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    def interrupt():
        time.sleep(0.05)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        loop.run(wait())
    assert ended.wait(5)
    assert loop.run(asyncio.sleep(0, "alive")) == "alive"


def test_exit_in_a_task_reaches_its_waiter_and_spares_the_loop(loop):
    async def leave():
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        loop.run(leave())
    assert loop.run(asyncio.sleep(0, "alive")) == "alive"


def test_close_ends_everything():
    loop = BackgroundLoop()
    events = []

    async def wait():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            events.append("cleaned up")

    async def spawn():
        events.append(asyncio.create_task(wait()))
        await asyncio.sleep(0)

    loop.run(spawn())
    loop.close()
    loop.close()
    assert events[0].cancelled() and events[1:] == ["cleaned up"]
    assert loop.closed
    with pytest.raises(RuntimeError, match="closed"):
        loop.run(asyncio.sleep(0))


def test_close_lets_waiters_go():
    loop = BackgroundLoop()
    outcome = []

    def wait():
        try:
            loop.run(asyncio.sleep(60))
        except CancelledError as error:
            outcome.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.05)
    loop.close()
    waiter.join(5)
    assert len(outcome) == 1


def test_close_does_not_wait_for_ever():
    loop = BackgroundLoop()
    release = threading.Event()

    async def block():
        release.wait(5)

    async def spawn():
        asyncio.get_running_loop().call_soon(asyncio.ensure_future, block())

    loop.run(spawn())
    started = time.perf_counter()
    loop.close(timeout_seconds=0.05)
    assert time.perf_counter() - started < 2
    release.set()


def test_shared_loop_is_one_and_is_replaced_once_closed():
    first = shared_loop()
    assert shared_loop() is first
    first.close()
    second = shared_loop()
    assert second is not first
    assert second.run(asyncio.sleep(0, 1)) == 1
