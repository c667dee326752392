"""Untrusted programs under limits: every one of them tries something, and machine, trainer and others stay well."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mintrl_trl.errors import ConfigError, RewardError
from mintrl_trl.rewards.isolation import CONFINEMENTS
from mintrl_trl.rewards.jobs import Ending, Observation, SandboxError
from mintrl_trl.rewards.process import Launcher, Output, Process, in_memory
from mintrl_trl.rewards.runner import Runner
from mintrl_trl.rewards.sandbox.wire import SCRIPT, Limits

from .sandboxed import FOREVER, call, observe, run_asserts, run_script, script

LIMIT = 0.6  # seconds for a test that is to run into it


@pytest.fixture(scope="module")
def runner():
    with Runner(slots=3, test_seconds=20, row_seconds=40, memory_mb=512, file_mb=4) as runner:
        yield runner


@pytest.fixture(scope="module")
def impatient():
    with Runner(slots=2, test_seconds=LIMIT, row_seconds=4 * LIMIT, memory_mb=512) as impatient:
        impatient.start()
        yield impatient


def named(cases: dict[str, object]) -> dict[str, object]:
    return {"argvalues": list(cases.values()), "ids": list(cases)}


def children_of(pid: int) -> set[int]:
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended since
            continue
        if parent == pid:
            found.add(int(folder.name))
    return found


def descendants(pid: int) -> set[int]:
    children = children_of(pid)
    return children.union(*map(descendants, children))


def wait_until(condition, seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


# A program as a program

STREAMS = {
    "buffer": ('import sys\nsys.stdout.buffer.write(b"1\\n")', "", "1\n"),
    "open-0": ("print(open(0).read().upper())", "ab", "AB\n"),
    "input-to-the-end": ("n = 0\ntry:\n  while 1: n += int(input())\nexcept EOFError: print(n)", "1\n2\n3", "6\n"),
    "main": ('def main():\n  print(1)\nif __name__ == "__main__":\n  main()', "", "1\n"),
    "stdin-buffer": ("import sys\nprint(sum(map(int, sys.stdin.buffer.read().split())))", "1 2\n3", "6\n"),
    "os-read": ("import os\nprint(os.read(0, os.fstat(0).st_size).decode())", "1 2", "1 2\n"),
    "not-ascii": ("import sys\nprint(sys.stdin.readline() + 'ü')", "é", "éü\n"),
    "thread": ("import threading as t, time\nt.Thread(target=lambda: (time.sleep(0.1), print(1))).start()", "", "1\n"),
    "atexit": ("import atexit\natexit.register(print, 1)", "", "1\n"),
    "exit": ("import sys\nprint(1)\nsys.exit()", "", "1\n"),
    "recursion": ("import sys\nsys.setrecursionlimit(10**6)\nf = lambda n: n and f(n - 1)\nprint(f(9000))", "", "0\n"),
    "no-line-end": ("import sys\nsys.stdout.write('1')", "", "1"),
    "class": ("from dataclasses import dataclass\n@dataclass\nclass A:\n  x: int\nprint(A(1).x)", "", "1\n"),
}


@pytest.mark.parametrize(("program", "stdin", "printed"), **named(STREAMS))
def test_script_has_real_streams_and_a_real_end(runner, program, stdin, printed):
    assert run_script(runner, program, stdin) == Observation(Ending.VALUE, printed)


def test_large_input_and_output_pass_whole(runner):
    text = "0123456789" * 200_000
    assert run_script(runner, "print(open(0).read())", text, output_bytes=3 * 10**6).value == text + "\n"


FAILURES = {
    "exception": ("1 / 0", Ending.ERROR, "ZeroDivisionError: division by zero"),
    "exit-code": ("import sys\nprint(1)\nsys.exit(3)", Ending.ERROR, "exit code 3"),
    "crash": ("import ctypes\nctypes.string_at(0)", Ending.ERROR, "killed by SIGSEGV"),
    "syntax": ("def f(:", Ending.SYNTAX, "SyntaxError: invalid syntax"),
    "indentation": ("  x = 1\n y = 2", Ending.SYNTAX, "IndentationError: unexpected indent"),
    "memory": ("x = 'a' * 10**9", Ending.MEMORY_LIMIT, "MemoryError"),
    "surrogate": ("print('\ud800')", Ending.ERROR, "UnicodeEncodeError"),
}


@pytest.mark.parametrize(("program", "ending", "detail"), **named(FAILURES))
def test_failures_of_scripts_are_told_apart(runner, program, ending, detail):
    seen = run_script(runner, program)
    assert seen.ending is ending and detail in seen.detail


# Limits

ENDLESS = {
    "loop": "while True: pass",
    "swallows-everything": "while True:\n  try:\n    while True: pass\n  except BaseException: pass",
    "ignores-signals": "import signal\nfor s in {*range(1, 32)} - {9, 19}: signal.signal(s, 1)\nwhile 1: pass",
    "sleeps": "import time\ntime.sleep(100)",
    "thread": "import threading\nthreading.Thread(target=lambda: [0 for _ in iter(int, 1)]).start()",
    "talks": "import sys\nwhile True: sys.stderr.write('x' * 10000)",
    "one-long-call": "pow(3, 10**9)",
}


@pytest.mark.parametrize("program", **named(ENDLESS))
def test_endless_programs_end_at_the_limit(impatient, program):
    started = time.monotonic()
    assert run_script(impatient, program).ending is Ending.TIMEOUT
    assert time.monotonic() - started < LIMIT + 1


def test_endless_call_ends_at_the_limit_and_the_next_gets_a_new_process(impatient):
    endings = [seen.ending for seen in call(impatient, "def f(n):\n  while n: pass", "[0]", "[1]", "[0]")]
    assert endings == [Ending.VALUE, Ending.TIMEOUT, Ending.VALUE]


def test_all_tests_of_a_row_share_a_limit(impatient):
    started = time.monotonic()
    seen = call(impatient, "import time\ndef f(n): time.sleep(n)", *["[0.4]"] * 9)
    assert time.monotonic() - started < 4 * LIMIT + 1
    assert (seen[0].ending, seen[-1].ending) == (Ending.VALUE, Ending.TIMEOUT)
    assert seen[-1].detail == "no time left for this test"


def test_output_without_end_is_cut(runner):
    assert run_script(runner, 'while True: print("A" * 100000)').ending is Ending.OUTPUT_LIMIT
    assert call(runner, "def f(n): return 'A' * n", "[2000000]")[0].ending is Ending.OUTPUT_LIMIT
    noise = "import sys\nfor _ in range(100): print('A' * 100000, file=sys.stderr)\nprint(1)"
    assert run_script(runner, noise).value == "1\n"  # only the end of standard error is kept


def test_fork_bomb_ends_and_the_next_program_runs(runner):
    isolation = runner.start()
    if isolation.processes_refused:
        assert run_script(runner, "import os\nwhile True: os.fork()").ending is Ending.ERROR
        assert run_script(runner, "import subprocess\nsubprocess.run(['ls'])").ending is Ending.ERROR
    else:  # where nothing holds a bomb, it is said and not tried
        assert "processes_refused" in str(isolation)
    if "namespaces" in isolation.layers:
        threads = "import threading, time\nwhile 1: threading.Thread(target=time.sleep, args=(9,), daemon=True).start()"
        assert "can't start new thread" in run_script(runner, threads).detail
    assert run_script(runner, "print(1)").value == "1\n"


def test_files_are_the_programs_own_and_limited(runner):
    write = "open('left', 'w').write('x')\nimport os\nprint(os.listdir())"
    assert [run_script(runner, write).value for _ in range(2)] == ["['left']\n"] * 2
    seen = run_script(runner, "with open('a', 'wb', 0) as f:\n  while 1: f.write(b'x' * 10**6)")
    assert "No space left on device" in seen.detail or "File too large" in seen.detail


def test_environment_is_empty(monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "abc")
    with Runner(slots=1) as runner:
        seen = run_script(runner, "import os\nprint(sorted(os.environ))")
    assert "SECRET_TOKEN" not in seen.value and "HOME" not in seen.value


def test_order_of_sets_repeats(runner):
    program = "print({'a', 'b', 'c', 'd', 'e'})"
    assert run_script(runner, program).value == run_script(runner, program).value


# The runner itself

GAPS = {
    ("namespaces", "seccomp"): set(),
    ("landlock", "seccomp"): set(),
    ("namespaces",): {"processes_refused"},
    ("seccomp",): {"files_hidden", "files_unwritable"},
    (): {"files_hidden", "files_unwritable", "network_cut", "processes_refused", "others_unreachable"},
}


@pytest.mark.parametrize("layers", CONFINEMENTS, ids=lambda layers: "+".join(layers) or "limits-alone")
def test_each_confinement_keeps_what_it_promises(layers):
    """Where a machine does not offer a layer, the runner says which, and takes nothing else in its place."""
    with Runner(slots=1, confinements=[layers]) as runner:
        try:
            isolation = runner.start()
        except RewardError as error:
            assert layers and f"{' + '.join(layers)}: " in str(error)
        else:
            assert isolation.layers == layers and set(isolation.gaps) == GAPS[layers]
            endings = run_asserts(runner, "def f(x): return x", "assert f(1) == 1", "assert f(1) == 2")
            assert endings == [Ending.VALUE, Ending.ASSERTION]


def test_isolation_can_be_required(caplog):
    with Runner(slots=1, confinements=[()], require_isolation=True) as runner:
        with pytest.raises(ConfigError, match=r"require_isolation.*network_cut"):
            runner.start()
        future = runner.submit(script("print(1)"), lambda *_: True, FOREVER)
        assert isinstance(future.exception(20), ConfigError)
    with caplog.at_level("INFO", "mintrl_trl.rewards"), Runner(slots=1, confinements=[()]) as runner:
        runner.start()
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "network_cut" in record.getMessage()


def test_launcher_finds_the_package_from_a_relative_path(monkeypatch):
    root = str(Path(__file__).parents[1])
    monkeypatch.chdir(root)
    monkeypatch.setattr(sys, "path", ["", *(path for path in sys.path if path not in ("", root))])
    Launcher(()).close()


def test_limit_below_the_trainers_own_memory_works():
    own = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    assert own > 400 * 2**20  # torch is in it
    with Runner(slots=1, memory_mb=400) as runner:
        assert run_script(runner, "import numpy\nprint(1)").value == "1\n"


def test_limit_too_low_for_python_stops_the_run():
    with Runner(slots=1, memory_mb=16, confinements=[()]) as runner:
        with pytest.raises(RewardError, match=r"self-test|could not be started") as caught:
            runner.start()
        assert not isinstance(caught.value, SandboxError)


@pytest.mark.parametrize(("name", "value"), [("slots", -1), ("test_seconds", 0), ("row_seconds", float("nan"))])
def test_settings_that_cannot_work_are_refused(name, value):
    with pytest.raises(ConfigError, match=name):
        Runner(**{name: value})


def test_jobs_run_in_parallel_and_from_several_threads(runner):
    runner.start()
    results = [""] * 6

    def work(index: int) -> None:
        results[index] = run_script(runner, f"import time\ntime.sleep(0.5)\nprint({index})").value

    threads = [threading.Thread(target=work, args=(index,)) for index in range(6)]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [f"{index}\n" for index in range(6)]
    assert time.monotonic() - started < 6 * 0.5


def test_deadline_cuts_what_runs_and_what_waits(impatient):
    seen = []
    started = time.monotonic()
    job = script("import time\ntime.sleep(9)")
    futures = [impatient.submit(job, lambda *all: seen.append(all), started + 0.3) for _ in range(4)]
    assert [future.result(10) for future in futures] == [False] * 4
    assert time.monotonic() - started < 1.3 and not seen


def test_what_was_written_in_time_counts_even_if_it_is_read_late():
    launcher, output = Launcher(()), Output(10**6)
    job = in_memory(b'{"program": "print(10 ** 200)"}')
    descriptors = [launcher.null, output, launcher.null, job]
    with Process(launcher, SCRIPT, Limits(9, 2**29, 2**20), descriptors) as process:
        os.close(job)
        time.sleep(0.5)
        past = time.monotonic() - 1
        while process.status is None and process.step(past):
            pass
    assert (process.status, output.data) == (0, b"1" + b"0" * 200 + b"\n")
    launcher.close()


def test_judge_can_stop_a_job(runner):
    seen = []
    job = script("print(1)", times=5)
    assert runner.submit(job, lambda index, _: seen.append(index) or index < 1, FOREVER).result(20)
    assert seen == [0, 1]


def test_nothing_is_left_running(runner):
    runner.start()
    before = descendants(os.getpid())
    runner.submit(script("while True: pass"), lambda *_: True, time.monotonic() + 0.2).result(10)
    assert run_asserts(runner, "def f(x): return x", "assert f(1) == 1") == [Ending.VALUE]
    assert wait_until(lambda: descendants(os.getpid()) <= before)


def test_lost_launcher_is_replaced_and_the_job_runs_again():
    others = children_of(os.getpid())
    with Runner(slots=1) as runner:
        runner.start()
        (launcher,) = children_of(os.getpid()) - others
        seen = []
        job = script("import time\ntime.sleep(0.5)\nprint(1)")
        future = runner.submit(job, lambda _, observation: seen.append(observation.value) or True, FOREVER)
        time.sleep(0.2)
        os.kill(launcher, signal.SIGKILL)
        assert future.result(30) and seen == ["1\n"]


def test_close_ends_everything_and_later_jobs_start_anew():
    with Runner(slots=1) as runner:
        runner.start()
        running, queued = (runner.submit(script("while 1: pass"), lambda *_: True, FOREVER) for _ in range(2))
        assert wait_until(running.running)
        started = time.monotonic()
        runner.close()
        assert time.monotonic() - started < 5
        assert isinstance(running.exception(1), SandboxError) and queued.cancelled()
        assert observe(runner, script("print(1)")) == [Observation(Ending.VALUE, "1\n")]


def test_programs_do_not_outlive_a_killed_trainer():
    code = (
        "import time\nfrom mintrl_trl.rewards.runner import Runner\nfrom tests.sandboxed import script\n"
        "runner = Runner(slots=1)\nrunner.start()\n"
        "runner.submit(script('while True: pass'), lambda *_: True, time.monotonic() + 60)\n"
        "time.sleep(0.3)\nprint('running', flush=True)\ntime.sleep(60)\n"
    )
    trainer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=Path(__file__).parents[1])
    with trainer:
        assert trainer.stdout.readline() == b"running\n"
        below = descendants(trainer.pid)
        assert len(below) >= 2
        trainer.kill()
    assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below))
