"""Which line of a program raises, found by running it once more.

Owns: the script that runs a program with one stimulus and prints where it failed, and the reading of what it prints.
It runs in a sandbox like any program, and the program may print whatever it likes: the answer is a hint for a judge,
nothing that a reward may rest on. Invariant: a number that is given is a line of the program.
"""

import json

from ..rewards.jobs import Ending, Job, Observation, Stimulus, TestKind

_SCRIPT = """
import ast, json, sys, traceback
job = json.loads({job!r})
names = {{"__name__": job["module"]}}
try:
    exec(compile(job["program"], job["file"], "exec"), names)
    if job["kind"] == "call":
        owner, _, name = job["entry_point"].rpartition(".")
        function = getattr(names[owner](), name) if owner else names[name]
        given = ast.literal_eval(job["text"])
        function(**given) if job["by_keyword"] else function(*given)
    elif job["kind"] == "assert":
        exec(job["setup"], names)
        exec(job["text"], names)
except BaseException as error:
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == job["file"]]
    if isinstance(error, SyntaxError) and error.filename == job["file"]:
        lines = [error.lineno]
    print("\\n" + json.dumps([type(error).__name__, *lines[-1:]]))
"""
_FILE = "solution.py"


def tracing_job(job: Job, number: int) -> Job:
    """The job that runs a program with one of its stimuli and prints which line raises."""
    stimulus = job.stimuli[number]
    whole = stimulus.kind is TestKind.STDIN
    settings = {
        "program": job.program,
        "file": _FILE,
        "module": "__main__" if whole else "solution",
        "kind": stimulus.kind,
        "text": stimulus.text,
        "by_keyword": stimulus.by_keyword,
        "entry_point": job.entry_point,
        "setup": job.setup,
    }
    script = Stimulus(TestKind.STDIN, stimulus.text if whole else "", output_bytes=stimulus.output_bytes)
    return Job(_SCRIPT.format(job=json.dumps(settings)), (script,))


def failing_line(observation: Observation, error: str, num_lines: int) -> int | None:
    """Read what the script printed.

    Args:
        observation (`Observation`): Of the script.
        error (`str`): The error that the program raised in its test, beginning with its name.
        num_lines (`int`): Lines of the program.

    Returns:
        `int`, *optional*: The line, from 1; `None` where no line of the program is named, or another error came up.
    """
    if observation.ending is not Ending.VALUE or not isinstance(observation.value, str):
        return None
    try:
        name, line = json.loads(observation.value.strip().rpartition("\n")[2])
    except (ValueError, TypeError, RecursionError):
        return None
    right = type(line) is int and 1 <= line <= num_lines and name == error.partition(":")[0]
    return line if right else None
