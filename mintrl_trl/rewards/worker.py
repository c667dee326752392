"""A small pool of killable child processes that run one function on untrusted input.

Owns: starting children lazily, giving each request a wall-clock limit that holds whatever the function does (also
inside C code, where no signal handler and no thread timeout is served), killing and replacing a child that exceeds it,
and ending every child when the interpreter ends. Never forks the calling process (a child is a fresh interpreter that
does not import the user's `__main__`), never lets anything but JSON values cross the pipe, never starts a child before
there is work. Invariant: every submitted request gets exactly one `Outcome`, or an exception that says why no child
could be started.

The pool serves any thread and any event loop: `submit` returns a `concurrent.futures.Future`; in a coroutine await
`asyncio.wrap_future(future)`. Each child is owned by one thread, which sends a request, waits for its reply and is the
only one to read the child's pipe.
"""

import atexit
import contextlib
import importlib
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum

from ..errors import RewardError

logger = logging.getLogger(__name__)

# sys.path travels as an argument, so that the child finds what the parent finds, however the parent was started.
_BOOT = (
    "import sys; sys.path[:] = sys.argv[1].split('\\n'); "
    "from mintrl_trl.rewards.worker import serve_requests; serve_requests(sys.argv[2], int(sys.argv[3]))"
)
_READY = b"ready\n"
_ATTEMPTS = 2  # a child may die for a reason outside the request (the system ran out of memory): try once more
_ORPHAN_GRACE_SECONDS = 5.0  # a child whose parent is gone ends itself this long after its limit


class Failure(Enum):
    """Why a request has no value."""

    TIMEOUT = "timeout"  # the limit passed; the child was killed
    CRASHED = "crashed"  # the child died twice, or the function raised


@dataclass(frozen=True)
class Outcome:
    """The result of one request: a JSON value, or the reason why there is none."""

    value: object = None
    failure: Failure | None = None


@dataclass(frozen=True)
class _Job:
    request: object
    seconds: float
    deadline: float  # on time.monotonic's clock
    future: Future


@dataclass
class _Crew:
    """The running half of a pool: its threads, their queue and their children."""

    jobs: queue.SimpleQueue = field(default_factory=queue.SimpleQueue)
    threads: list[threading.Thread] = field(default_factory=list)
    children: set["_Child"] = field(default_factory=set)
    closed: bool = False
    error: RewardError | None = None  # no child could be started: whatever is still queued gets this at once
    pid: int = field(default_factory=os.getpid)

    def dismiss(self) -> None:
        """Let every thread end once the queue is empty."""
        for _ in self.threads:
            self.jobs.put(None)


class WorkerPool:
    """Run `target` in child processes that can be killed.

    Args:
        target (`str`): `"package.module:function"`. The function takes one JSON value and returns one. Its module is
            imported in the children only.
        processes (`int`): Children at most; they start with the first request.
        memory_mb (`int`): Address space a child may use, where the system supports a limit.
        start_seconds (`float`, defaults to 60.0): Time a child may take to import the target. It does not count
            against a request's limit.
    """

    def __init__(self, target: str, *, processes: int, memory_mb: int, start_seconds: float = 60.0):
        self._target, self._memory_bytes, self._start_seconds = target, memory_mb * 2**20, start_seconds
        self._processes = processes
        self._lock = threading.Lock()
        self._crew: _Crew | None = None

    def submit(self, request: object, *, seconds: float, deadline: float = float("inf")) -> "Future[Outcome]":
        """Queue one request.

        Args:
            request (JSON value): Handed to the target.
            seconds (`float`): Wall-clock limit for this request, counted from when a child takes it up.
            deadline (`float`, *optional*): Moment on `time.monotonic`'s clock after which the request is not taken up
                any more, and at which it is cut off.

        Returns:
            `Future[Outcome]`: Raises `RewardError` when no child could be started.
        """
        job = _Job(request, seconds, deadline, Future())
        with self._lock:
            crew = self._crew
            if crew is None or crew.pid != os.getpid():  # a forked copy has the object but no threads
                crew = self._start_crew()
            elif crew.error is not None:  # a new request is a new try
                crew.dismiss()
                crew = self._start_crew()
            self._crew = crew
            crew.jobs.put(job)
        return job.future

    def close(self) -> None:
        """Kill the children and cancel what is queued. Work submitted later starts new children."""
        with self._lock:
            crew, self._crew = self._crew, None
            if crew is None or crew.pid != os.getpid():
                return
            crew.closed = True
            children = list(crew.children)
        atexit.unregister(self.close)
        crew.dismiss()
        for child in children:
            child.kill()
        for thread in crew.threads:
            thread.join()

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_crew(self) -> _Crew:
        crew = _Crew()
        for index in range(self._processes):
            name = f"mintrl-worker-{index}"
            crew.threads.append(threading.Thread(target=self._work, args=(crew,), name=name, daemon=True))
        for thread in crew.threads:
            thread.start()
        atexit.register(self.close)
        return crew

    def _work(self, crew: _Crew) -> None:
        child: _Child | None = None
        while (job := crew.jobs.get()) is not None:
            if crew.closed:
                job.future.cancel()
            elif not job.future.set_running_or_notify_cancel():
                continue
            elif crew.error is not None:
                job.future.set_exception(crew.error)
            else:
                try:
                    outcome, child = self._run(job, child, crew)
                except Exception as error:  # handed to the one who waits
                    child = None
                    job.future.set_exception(error)
                else:
                    job.future.set_result(outcome)
        if child is not None:
            self._discard(child, crew)

    def _run(self, job: _Job, child: "_Child | None", crew: _Crew) -> tuple[Outcome, "_Child | None"]:
        """Get the outcome of one job. Returns it with the child to go on with; an exception leaves no child behind."""
        left = job.seconds  # of all attempts together
        for _ in range(_ATTEMPTS):
            seconds = min(left, job.deadline - time.monotonic())
            if seconds <= 0:
                return Outcome(failure=Failure.TIMEOUT), child
            if child is None:
                child = self._start_child(crew)
            asked = time.monotonic()
            try:
                outcome = child.ask(job.request, seconds)
            finally:
                left -= time.monotonic() - asked
                if not child.alive:
                    self._discard(child, crew)
            if child.alive:
                return outcome, child
            if outcome.failure is not Failure.CRASHED:
                return outcome, None
            if crew.closed:
                raise RewardError(f"the pool of child processes for {self._target} was closed before the result came")
            logger.warning("a child process for %s died; the request is tried once more", self._target)
            child = None
        return Outcome(failure=Failure.CRASHED), None

    def _start_child(self, crew: _Crew) -> "_Child":
        child, message = None, "nothing"
        try:
            child = _Child(self._target, self._memory_bytes)
        except OSError as error:
            message = str(error)
        else:
            with self._lock:
                crew.children.add(child)
                if crew.closed:
                    child.kill()
            if child.wait_until_ready(self._start_seconds):
                return child
            message = child.error_output() or message
            self._discard(child, crew)
        crew.error = RewardError(
            f"No child process for {self._target} was ready within {self._start_seconds:g} s. It said: {message}"
        )
        raise crew.error

    def _discard(self, child: "_Child", crew: _Crew) -> None:
        child.end()
        with self._lock:
            crew.children.discard(child)


class _Child:
    """One child process, seen from its owning thread. Only `kill` may be called by others."""

    def __init__(self, target: str, memory_bytes: int):
        self.alive = True
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child; closed in `end`
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, "\n".join(sys.path), target, str(memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C in the terminal is the parent's to handle
        )

    def wait_until_ready(self, seconds: float) -> bool:
        line, _ = self._read_line(seconds)
        return line == _READY

    def ask(self, request: object, seconds: float) -> Outcome:
        """Send one request; `alive` is false afterwards, also after an exception, if the child has to be replaced."""
        self.alive = False  # until its reply has been read in full
        message = json.dumps({"request": request, "seconds": seconds}).encode() + b"\n"
        try:
            self._process.stdin.write(message)
            self._process.stdin.flush()
        except OSError:
            return Outcome(failure=Failure.CRASHED)
        line, expired = self._read_line(seconds)
        if not line.endswith(b"\n"):
            return Outcome(failure=Failure.TIMEOUT if expired else Failure.CRASHED)
        reply = json.loads(line)
        self.alive = not expired  # a limit that passed just after the reply has killed the child all the same
        return Outcome(reply["value"]) if "value" in reply else Outcome(failure=Failure.CRASHED)

    def _read_line(self, seconds: float) -> tuple[bytes, bool]:
        """A whole line, or what came before the child died; and whether the limit killed it."""
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            self.kill()

        timer = threading.Timer(seconds, expire)
        timer.daemon = True
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        return line, expired.is_set()

    def error_output(self) -> str:
        """The end of what the child wrote to its standard error."""
        self._process.kill()
        self._process.wait()
        self._errors.seek(0)
        return self._errors.read()[-2000:].decode(errors="replace").strip()

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for file in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(OSError):  # a request that the child never read cannot be flushed any more
                file.close()


def serve_requests(target: str, memory_bytes: int) -> None:
    """The child's side: import the target, then answer one request a line until the parent closes the pipe.

    Replies go to a private copy of standard output; whatever the target prints ends up in standard error. Exceptions
    are reported as such, without their text, which could be as hard to build as the value itself.
    """
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    _limit_memory(memory_bytes)
    module, _, name = target.partition(":")
    function = getattr(importlib.import_module(module), name)
    replies.write(_READY)
    for line in sys.stdin.buffer:
        message = json.loads(line)
        _set_alarm(message["seconds"] + _ORPHAN_GRACE_SECONDS)
        try:
            reply = {"value": function(message["request"])}
        except MemoryError:
            os._exit(1)  # the heap cannot be trusted to recover; the parent starts a fresh child
        except Exception as error:
            reply = {"error": type(error).__name__}
        _set_alarm(0)
        replies.write(json.dumps(reply).encode() + b"\n")


def _limit_memory(memory_bytes: int) -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    except (ImportError, ValueError, OSError):
        pass  # the system has no such limit; the time limit still holds


def _set_alarm(seconds: float) -> None:
    """Let the system end this process after `seconds` even if the parent is gone; 0 clears it."""
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)
