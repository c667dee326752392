"""One program at work: as a script, as functions to call, or under test code.

Owns: laying out the processes of each kind of test and turning what they write into observations. Never compares
anything with an expected result. Invariant: every stimulus that is reached gets exactly one observation, within its
limit.
"""

import contextlib
import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .jobs import Ending, Job, Observation, Stimulus, TestKind
from .process import Launcher, Output, Process, in_memory
from .sandbox.plain import decode
from .sandbox.wire import CALLS, NO_ENTRY_POINT, PROGRAM_ENDED, SCRIPT, SERVE, TESTS, Limits

_ENDINGS = {
    "SyntaxError": Ending.SYNTAX,
    "IndentationError": Ending.SYNTAX,
    "TabError": Ending.SYNTAX,
    "SystemExit": Ending.EXITED,
    "MemoryError": Ending.MEMORY_LIMIT,
    NO_ENTRY_POINT: Ending.NO_ENTRY_POINT,
    PROGRAM_ENDED: Ending.EXITED,
}
_DETAIL_CHARS = 300
_STDERR_BYTES = 4096
_LINE_BYTES = 2**17  # one read, and the line around a value


@dataclass(frozen=True)
class Clock:
    """Limits on the wall clock.

    Args:
        test_seconds (`float`): For one test.
        deadline (`float`): For all of them, on `time.monotonic`'s clock.
    """

    test_seconds: float
    deadline: float

    def next_test(self) -> float:
        """The moment by which a test that starts now has to end."""
        return min(self.deadline, time.monotonic() + self.test_seconds)


def observe(launcher: Launcher, job: Job, limits: Limits, clock: Clock) -> Iterator[Observation]:
    """Run a job, one observation per stimulus. Closing the iterator kills what runs.

    Raises:
        SandboxError: A process could not be started.
    """
    position = 0
    while position < len(job.stimuli):
        kind, alike = next(itertools.groupby(job.stimuli[position:], key=lambda stimulus: stimulus.kind))
        if time.monotonic() >= clock.deadline:
            yield Observation(Ending.TIMEOUT, detail="no time left for this test")
            position += 1
            continue
        # A process that ends early leaves the rest to a new one, so that each test counts for itself.
        for observation in _RUNNERS[kind](launcher, job, list(alike), limits, clock):
            yield observation
            position += 1


def run_script(
    launcher: Launcher, program: str, stdin: str, limits: Limits, deadline: float, output_bytes: int
) -> Observation:
    """Run a whole program once; the value is what it printed."""
    stdout, stderr = Output(output_bytes), Output(_STDERR_BYTES, keep_end=True)
    with contextlib.ExitStack() as stack:
        given = _in_memory(stack, stdin.encode("utf-8", "surrogatepass"))
        source = _in_memory(stack, _json({"program": program}))
        process = stack.enter_context(Process(launcher, SCRIPT, limits, [given, stdout, stderr, source]))
        while process.status is None and not stdout.too_much:
            if not process.step(deadline):
                return Observation(Ending.TIMEOUT)
    if stdout.too_much:
        return Observation(Ending.OUTPUT_LIMIT, detail=f"more than {output_bytes} bytes")
    if process.status == 0:
        return Observation(Ending.VALUE, stdout.data.decode("utf-8", "replace"))
    said = stderr.data.decode("utf-8", "replace").strip().rpartition("\n")[2][-_DETAIL_CHARS:]
    ending = _ENDINGS.get(said.partition(":")[0], Ending.ERROR)
    return Observation(ending, detail=said or _end_of(process.status))


def _scripts(
    launcher: Launcher, job: Job, stimuli: Sequence[Stimulus], limits: Limits, clock: Clock
) -> Iterator[Observation]:
    yield run_script(launcher, job.program, stimuli[0].text, limits, clock.next_test(), stimuli[0].output_bytes)


def _calls(
    launcher: Launcher, job: Job, stimuli: Sequence[Stimulus], limits: Limits, clock: Clock
) -> Iterator[Observation]:
    calls = [{"kwargs" if stimulus.by_keyword else "args": stimulus.text} for stimulus in stimuli]
    results = Output(_LINE_BYTES + max(stimulus.output_bytes for stimulus in stimuli))
    with contextlib.ExitStack() as stack:
        source = _in_memory(stack, _json({"program": job.program, "entry_point": job.entry_point, "calls": calls}))
        descriptors = [*[launcher.null] * 3, source, results]
        process = stack.enter_context(Process(launcher, CALLS, limits, descriptors))
        yield from _lines(process, results, len(stimuli), clock, _value)


def _tests(
    launcher: Launcher, job: Job, stimuli: Sequence[Stimulus], limits: Limits, clock: Clock
) -> Iterator[Observation]:
    codes = [stimulus.text for stimulus in stimuli]
    results = Output(_LINE_BYTES)
    with contextlib.ExitStack() as stack:
        source = _in_memory(stack, _json({"program": job.program, "entry_point": job.entry_point}))
        tests = _in_memory(stack, _json({"setup": job.setup, "tests": codes, "entry_point": job.entry_point}))
        pipes = [descriptor for _ in range(2) for descriptor in os.pipe2(os.O_CLOEXEC)]
        requests_in, requests_out, replies_in, replies_out = pipes
        quiet = [launcher.null] * 3
        try:
            program = Process(launcher, SERVE, limits, [*quiet, source, requests_in, replies_out])
            stack.enter_context(program)
            tester = Process(launcher, TESTS, limits, [*quiet, tests, results, requests_out, replies_in])
            stack.enter_context(tester)
        finally:
            for descriptor in pipes:
                os.close(descriptor)
        for observation in _lines(tester, results, len(stimuli), clock, _passed):
            if observation.ending is Ending.EXITED and program.status is None:
                program.step(time.monotonic() + 1.0)  # raises if it never ran
            yield observation


_RUNNERS: dict[TestKind, Callable[..., Iterator[Observation]]] = {
    TestKind.STDIN: _scripts,
    TestKind.CALL: _calls,
    TestKind.ASSERT: _tests,
}


def _lines(
    process: Process, results: Output, count: int, clock: Clock, read: Callable[[dict], Observation]
) -> Iterator[Observation]:
    """Observations from lines of JSON, until one is missing."""
    for _ in range(count):
        deadline = clock.next_test()
        while b"\n" not in results.data:
            if results.too_much:
                yield Observation(Ending.OUTPUT_LIMIT, detail=f"more than {results.limit_bytes} bytes")
                return
            if process.status is not None:
                yield Observation(Ending.EXITED, detail=_end_of(process.status))
                return
            if not process.step(deadline):
                yield Observation(Ending.TIMEOUT)
                return
        line, _, results.data = results.data.partition(b"\n")
        try:
            yield read(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            yield Observation(Ending.ERROR, detail=f"the result cannot be read: {error}"[:_DETAIL_CHARS])


def _value(line: dict) -> Observation:
    return Observation(Ending.VALUE, decode(line["value"])) if "value" in line else _error(line)


def _passed(line: dict) -> Observation:
    if line.get("passed") is True:
        return Observation(Ending.VALUE)
    if line["error"] == "AssertionError":
        return Observation(Ending.ASSERTION, detail=str(line.get("message", ""))[:_DETAIL_CHARS])
    return _error(line)


def _error(line: dict) -> Observation:
    name, message = str(line["error"]), str(line.get("message", ""))
    ending = _ENDINGS.get(name, Ending.ERROR)
    return Observation(ending, detail=f"{name}: {message}"[:_DETAIL_CHARS])


def _end_of(status: int) -> str:
    if status >= 0:
        return f"exit code {status}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-status).name}"
    return f"killed by signal {-status}"


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _in_memory(stack: contextlib.ExitStack, text: bytes) -> int:
    descriptor = in_memory(text)
    stack.callback(os.close, descriptor)
    return descriptor
