import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from mintrl_trl.errors import RewardError
from mintrl_trl.rewards.worker import Failure, Outcome, WorkerPool

TARGETS = "tests.worker_targets"


def make_pool(name, processes=1, **kwargs):
    return WorkerPool(f"{TARGETS}:{name}", processes=processes, memory_mb=512, **kwargs)


@pytest.fixture(scope="module")
def acting():
    """One pool for everything that leaves it usable, which is everything."""
    with make_pool("act", processes=2) as pool:
        yield pool


def act(pool, do, argument=None, seconds=20.0, **kwargs):
    return pool.submit({"do": do, "with": argument}, seconds=seconds, **kwargs).result(timeout=30)


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until_gone(pid, seconds=10.0):
    deadline = time.monotonic() + seconds
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(pid)


def run_script(text, **kwargs):
    return subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=50, cwd=os.getcwd(), **kwargs
    )


def test_value_comes_back(acting):
    assert act(acting, "double", 21) == Outcome(42)


def test_each_request_gets_its_own_result_from_many_threads(acting):
    results = {}

    def ask(number):
        results[number] = act(acting, "double", number).value

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: 2 * number for number in range(40)}


def test_event_loop_runs_on_while_a_request_is_under_way(acting):
    async def ask():
        ticks = 0
        future = asyncio.wrap_future(acting.submit({"do": "sleep", "with": 0.3}, seconds=20))
        while not future.done():
            await asyncio.sleep(0.01)
            ticks += 1
        return await future, ticks

    outcome, ticks = asyncio.run(ask())
    assert outcome == Outcome(0.3)
    assert ticks >= 5


def test_child_is_kept_from_request_to_request():
    with make_pool("process_id") as pool:
        pids = {pool.submit(None, seconds=20).result().value for _ in range(5)}
        assert len(pids) == 1
        assert os.getpid() not in pids


@pytest.mark.parametrize("do", ["swallow_everything", "never_leave_c"])
def test_limit_holds_whatever_the_function_does(acting, do):
    act(acting, "double", 1)
    started = time.monotonic()
    assert act(acting, do, seconds=0.3) == Outcome(failure=Failure.TIMEOUT)
    assert time.monotonic() - started < 15  # a child may have to start first, on a busy machine
    assert act(acting, "double", 4) == Outcome(8)


def test_neighbours_of_a_request_that_times_out_are_unharmed(acting):
    slow = [acting.submit({"do": "never_leave_c"}, seconds=0.5) for _ in range(3)]
    others = [acting.submit({"do": "double", "with": number}, seconds=20) for number in range(5)]
    assert [other.result(timeout=30).value for other in others] == [0, 2, 4, 6, 8]
    assert {future.result(timeout=30).failure for future in slow} == {Failure.TIMEOUT}


def test_request_past_its_deadline_is_not_taken_up(acting):
    started = time.monotonic()
    late = act(acting, "sleep", 5, deadline=time.monotonic() - 1)
    assert late == Outcome(failure=Failure.TIMEOUT)
    cut = act(acting, "sleep", 30, deadline=time.monotonic() + 0.5)
    assert cut == Outcome(failure=Failure.TIMEOUT)
    assert time.monotonic() - started < 20


def test_request_that_kills_its_child_is_tried_twice(acting, tmp_path):
    assert act(acting, "die") == Outcome(failure=Failure.CRASHED)
    assert act(acting, "die_once", str(tmp_path / "marker")) == Outcome("alive")


def test_both_tries_of_a_request_share_its_limit(acting):
    # A second try with a limit of its own would get as far as the first, and die like it.
    assert act(acting, "sleep_and_die", 2.0, seconds=3.0) == Outcome(failure=Failure.TIMEOUT)


def test_function_that_raises_leaves_the_child_usable():
    with make_pool("act") as pool:
        before = act(pool, "process_id")
        assert act(pool, "fail") == Outcome(failure=Failure.CRASHED)
        assert act(pool, "process_id") == before


def test_output_of_the_function_does_not_disturb_the_replies(acting):
    assert act(acting, "print_noise") == Outcome("quiet")
    assert act(acting, "double", "ab") == Outcome("abab")


def test_memory_is_limited(acting):
    assert act(acting, "hoard", 64) == Outcome(64 * 2**20)
    assert act(acting, "hoard", 2048) == Outcome(failure=Failure.CRASHED)


def test_request_that_is_no_json_is_the_callers_error(acting):
    with pytest.raises(TypeError, match="JSON"):
        acting.submit(object(), seconds=5).result(timeout=30)
    assert act(acting, "double", 1) == Outcome(2)


def test_child_that_cannot_start_says_why_and_does_not_score_anything():
    with WorkerPool("tests.no_such_module:f", processes=2, memory_mb=512) as pool:
        futures = [pool.submit(None, seconds=5) for _ in range(50)]
        for future in futures:
            with pytest.raises(RewardError, match=r"No module named 'tests\.no_such_module'"):
                future.result(timeout=30)
        with pytest.raises(RewardError, match="no_such_module"):  # a later request is a new try
            pool.submit(None, seconds=5).result(timeout=30)


def test_child_that_never_gets_ready_is_given_up():
    with (
        WorkerPool("time:sleep", processes=1, memory_mb=512, start_seconds=0.001) as pool,
        pytest.raises(RewardError, match="ready within"),
    ):
        pool.submit(0, seconds=5).result(timeout=30)


def test_close_ends_children_at_once_and_the_pool_can_be_used_again():
    pool = make_pool("act")
    pid = act(pool, "process_id").value
    running = pool.submit({"do": "swallow_everything"}, seconds=60)
    queued = pool.submit({"do": "double", "with": 1}, seconds=60)
    while not running.running():
        time.sleep(0.01)
    pool.close()
    wait_until_gone(pid)
    assert queued.cancelled()
    with pytest.raises(RewardError, match="closed"):
        running.result(timeout=10)
    assert act(pool, "double", 2) == Outcome(4)
    pool.close()
    pool.close()


def test_nothing_starts_before_the_first_request():
    threads = threading.active_count()
    pool = make_pool("double")
    assert threading.active_count() == threads
    pool.close()


def test_script_without_main_guard_runs_once_and_ends_cleanly():
    done = run_script(
        "from mintrl_trl.rewards.worker import WorkerPool\n"
        "print('start')\n"
        "pool = WorkerPool('tests.worker_targets:double', processes=2, memory_mb=512)\n"
        "print(pool.submit(4, seconds=20).result().value)\n"
        "pool.submit(4, seconds=20)\n"
    )
    assert (done.stdout, done.stderr, done.returncode) == ("start\n8\n", "", 0)


def test_forked_copy_of_the_process_uses_children_of_its_own():
    done = run_script(
        "import os, sys, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "from mintrl_trl.rewards.worker import WorkerPool\n"
        "pool = WorkerPool('tests.worker_targets:process_id', processes=1, memory_mb=512)\n"
        "first = pool.submit(0, seconds=20).result().value\n"
        "pid = os.fork()\n"
        "second = pool.submit(0, seconds=20).result(timeout=20).value\n"
        "if pid == 0:\n"
        "    pool.close(); os._exit(0 if second != first else 1)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
        "assert second == first\n"
    )
    assert (done.stderr, done.returncode) == ("", 0)


def test_idle_child_ends_when_its_parent_is_killed():
    done = run_script(
        "import os, signal\n"
        "from mintrl_trl.rewards.worker import WorkerPool\n"
        "pool = WorkerPool('tests.worker_targets:process_id', processes=1, memory_mb=512)\n"
        "print(pool.submit(0, seconds=20).result().value, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    wait_until_gone(int(done.stdout))


def test_busy_child_ends_itself_when_nobody_kills_it():
    done = run_script(
        "from mintrl_trl.rewards import worker\n"
        "worker._ORPHAN_GRACE_SECONDS = 0.1\n"
        "worker.serve_requests('tests.worker_targets:never_leave_c', 2**29)\n",
        input='{"request": 0, "seconds": 0.1}\n',
    )
    assert done.returncode == -signal.SIGALRM
