"""Runs untrusted programs on this machine, in parallel, each under limits and as well confined as the machine allows.

Owns: the launcher's life, the slots in which jobs run, and the retry after the launcher was lost. Never compares
results, never runs a line of a program in the trainer. Invariant: every submitted job gets its observations, or a
`SandboxError` that says why nothing can be known.

A program runs in a process of its own (whole programs: one for each test; functions: one for all tests of a row),
in a session of its own, forked from a small launcher process, with an empty environment, a folder of its own, and
limits on wall clock, CPU time, address space, file size and output. Test code has another such process to itself. On
top of that comes the strongest confinement that passes a self-test at start-up (`isolation.py`), and is logged then.

| confinement | where | adds |
|---|---|---|
| namespaces + seccomp | users may create namespaces | no network, no files but Python's, no process but itself |
| landlock + seccomp | Linux 5.13 or newer, also in most containers | much the same, by refusing instead of hiding |
| seccomp | older Linux | no network, no new processes; the user's files stay open to it |
| limits alone | otherwise | nothing: a program can do what the user can |

What this does not protect against: faults in the kernel or in Python that a program uses to break out; side channels;
load on CPU, memory bandwidth and, below the limits, memory, by many programs at once. Without namespaces: many small
files filling the disk until the program ends, and many threads (as root no limit by user binds; memory bounds them).
It is a guard against clumsy, greedy and cheating programs, not a jail for an attacker. Where that matters, run the
trainer in a container or virtual machine of its own, or pass a `Sandbox` that runs programs elsewhere.
"""

import atexit
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field

from ..errors import ConfigError, RewardError
from .isolation import CONFINEMENTS, Isolation, start_isolated
from .jobs import Job, Observation, SandboxError
from .process import Launcher
from .programs import Clock, observe
from .sandbox.wire import Limits

logger = logging.getLogger(__name__)

TEST_SECONDS = 6.0
ROW_SECONDS = 20.0
MEMORY_MB = 1024
FILE_MB = 32
_ATTEMPTS = 2  # the launcher may be lost for a reason outside the job (the system ran out of memory): try once more


@dataclass(frozen=True)
class _Task:
    job: Job
    judge: Callable[[int, Observation], bool]
    deadline: float
    future: "Future[bool]"


@dataclass
class _Crew:
    """The running half of a runner."""

    tasks: queue.SimpleQueue = field(default_factory=queue.SimpleQueue)
    threads: list[threading.Thread] = field(default_factory=list)
    launcher: Launcher | None = None
    closed: bool = False
    pid: int = field(default_factory=os.getpid)


class Runner:
    """A `Sandbox` on this machine. It starts with the first job, or with `start`.

    Args:
        slots (`int`, *optional*): Jobs at once; defaults to this process's share of the CPUs.
        test_seconds (`float`, defaults to 6.0): Wall clock for one test.
        row_seconds (`float`, defaults to 20.0): Wall clock for all tests of a job.
        memory_mb (`int`, defaults to 1024): Address space of a program.
        file_mb (`int`, defaults to 32): Size of a file that a program writes; with namespaces, of all its files.
        require_isolation (`bool`, defaults to `False`): Refuse to run where the self-test finds a gap.
        confinements (`Sequence[tuple[str, ...]]`, *optional*): Sets of layers to try, strongest first; see
            `sandbox.confinement`.
    """

    def __init__(
        self,
        *,
        slots: int | None = None,
        test_seconds: float = TEST_SECONDS,
        row_seconds: float = ROW_SECONDS,
        memory_mb: int = MEMORY_MB,
        file_mb: int = FILE_MB,
        require_isolation: bool = False,
        confinements: Sequence[tuple[str, ...]] = CONFINEMENTS,
    ):
        for name, value in (("slots", slots), ("test_seconds", test_seconds), ("row_seconds", row_seconds)):
            if value is not None and not value > 0:
                raise ConfigError(name, value, "a number above 0", f"leave `{name}` out for its default")
        self._slots = slots or _default_slots()
        self._test_seconds, self._row_seconds = test_seconds, row_seconds
        self._limits = Limits(int(row_seconds) + 2, memory_mb * 2**20, file_mb * 2**20)
        self._require_isolation, self._confinements = require_isolation, confinements
        self._lock = threading.Lock()
        self._start_lock = threading.Lock()
        self._crew: _Crew | None = None
        self._isolation: Isolation | None = None

    def start(self) -> Isolation:
        """Start now rather than with the first job.

        Returns:
            `Isolation`: What the self-test found.

        Raises:
            RewardError: No confinement passes the self-test.
            ConfigError: `require_isolation` is set and there is a gap.
        """
        self._living_launcher(self._current_crew())
        return self._isolation

    def submit(self, job: Job, judge: Callable[[int, Observation], bool], deadline: float) -> "Future[bool]":
        """See `Sandbox.submit`."""
        task = _Task(job, judge, deadline, Future())
        self._current_crew().tasks.put(task)
        return task.future

    def close(self) -> None:
        """Kill what runs and cancel what is queued. A job submitted later starts anew."""
        with self._lock:
            crew, self._crew = self._crew, None
            if crew is None or crew.pid != os.getpid():
                return
            crew.closed = True
        atexit.unregister(self.close)
        for _ in crew.threads:
            crew.tasks.put(None)
        with self._start_lock:
            if crew.launcher is not None:
                crew.launcher.close()
        for thread in crew.threads:
            thread.join()

    def __enter__(self) -> "Runner":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _current_crew(self) -> _Crew:
        with self._lock:
            if self._crew is None or self._crew.pid != os.getpid():  # a forked copy has the object but no threads
                crew = self._crew = _Crew()
                for index in range(self._slots):
                    name = f"mintrl-runner-{index}"
                    crew.threads.append(threading.Thread(target=self._work, args=(crew,), name=name, daemon=True))
                for thread in crew.threads:
                    thread.start()
                atexit.register(self.close)
            return self._crew

    def _work(self, crew: _Crew) -> None:
        while (task := crew.tasks.get()) is not None:
            if crew.closed:
                task.future.cancel()
            elif task.future.set_running_or_notify_cancel():
                try:
                    finished = self._run(task, crew)
                except Exception as error:  # handed to the one who waits
                    task.future.set_exception(error)
                else:
                    task.future.set_result(finished)

    def _run(self, task: _Task, crew: _Crew) -> bool:
        for attempt in range(_ATTEMPTS):
            if time.monotonic() >= task.deadline:
                return False
            launcher = self._living_launcher(crew)
            clock = Clock(self._test_seconds, min(task.deadline, time.monotonic() + self._row_seconds))
            try:
                with closing(observe(launcher, task.job, self._limits, clock)) as observations:
                    for index, observation in enumerate(observations):
                        if time.monotonic() >= task.deadline:
                            return False
                        if not task.judge(index, observation):
                            break
                return True
            except (SandboxError, OSError) as error:
                if attempt + 1 == _ATTEMPTS or crew.closed:
                    raise SandboxError(str(error)) from error
                logger.warning("A program could not be run (%s); trying once more", error)
        raise AssertionError("unreachable")

    def _living_launcher(self, crew: _Crew) -> Launcher:
        with self._start_lock:
            if crew.closed:
                raise SandboxError("the runner was closed")
            if crew.launcher is None or not crew.launcher.alive:
                if crew.launcher is not None:
                    crew.launcher.close()
                crew.launcher = None
                launcher, isolation = self._start_launcher()
                crew.launcher, self._isolation = launcher, isolation
            return crew.launcher

    def _start_launcher(self) -> tuple[Launcher, Isolation]:
        if sys.platform != "linux":
            raise RewardError(f"programs can be run on Linux only, not on {sys.platform}; pass a Sandbox of your own")
        try:
            launcher, isolation = start_isolated(self._limits, self._confinements)
        except SandboxError as error:
            if self._isolation is None:  # it never worked: no fault to be borne, but a machine that cannot do it
                raise RewardError(str(error)) from error
            raise
        if isolation.gaps and self._require_isolation:
            launcher.close()
            fix = "allow unprivileged user namespaces, or Landlock, on this machine; or set `require_isolation: false`"
            raise ConfigError("require_isolation", True, f"False here, since programs run in {isolation}", fix)
        level = logging.WARNING if isolation.gaps else logging.INFO
        logger.log(level, "Programs run in %s. %d at once.", isolation, self._slots)
        return launcher, isolation


def _default_slots() -> int:
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cpus // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
