"""What a forked process does once it is confined: run a program, or call its functions.

Owns: the program's module, its standard streams, and one line of JSON per call. Never knows an expected result, so
nothing that a program reads or writes here can turn a wrong value into a right one. Invariant: a line is written only
after the call it belongs to; a call without a line has failed.

Descriptor 3 holds the job. `run_script` works on 0, 1 and 2 as any program does. `answer_calls` writes to 4, one line
per call: `{"value": ...}` in the form of `plain.py`, or `{"error": type, "message": text}`.

Functions and classes that are called or tested find the names of `_USUAL_NAMES` without importing them, where the
program does not bind them itself: solutions are written on pages that do so, and the graders of DeepCoder and
LiveCodeBench put such imports first. They are no names of the program's own: who asks it for `gcd` has to be given its
`gcd`. Whole programs get nothing but Python's own.
"""

import ast
import builtins
import io
import json
import os
import sys
from collections.abc import Callable, Mapping
from types import ModuleType

from .plain import encode

JOB, RESULTS = 3, 4
FILE_NAME = "solution.py"
MODULE_NAME = "solution"  # not "__main__": what a program does when it is started itself is no part of its functions
_MESSAGE_CHARS = 300

_USUAL_NAMES = """
import bisect, collections, copy, datetime, functools, heapq, itertools, json, math, operator, random, re, string, sys
from bisect import *
from collections import *
from copy import *
from datetime import *
from functools import *
from heapq import *
from itertools import *
from json import *
from math import *
from operator import *
from random import *
from re import *
from statistics import *
from string import *
from typing import *
"""
_CLASS_RECURSION_LIMIT = 50_000
_usual = ModuleType("builtins")
exec(_USUAL_NAMES, _usual.__dict__)  # before the fork, so that no program has to wait for these imports
_usual.__dict__.update(builtins.__dict__)  # last: `from math import *` hides `pow`


class NoEntryPoint(Exception):  # noqa: N818 - its name is what the trainer gets to see
    """The program does not define the function that the tests call."""


def run_script() -> None:
    """Run the job's program as `python solution.py` does, exit code and threads included."""
    program = read_job()["program"]
    # ruff: noqa: SIM115 - open until the process ends
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False, buffering=1)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    sys.argv = [FILE_NAME]
    module = _new_module("__main__")
    exec(compile(program, FILE_NAME, "exec", dont_inherit=True), module.__dict__)


def answer_calls() -> None:
    """Load the job's program and make its calls one after the other."""
    job = read_job()
    send = line_sender(RESULTS)
    try:
        module = load(job)
    except BaseException as error:  # also SystemExit: it must not look like a good end
        for _ in job["calls"]:
            send(describe(error))
        return
    for call in job["calls"]:
        send(_answer(module, job["entry_point"], call))


def read_job() -> dict:
    """The job, which nobody can read after this."""
    with open(JOB, "rb") as file:
        return json.load(file)


def line_sender(descriptor: int) -> Callable[[Mapping[str, object]], None]:
    """A function that writes one JSON line to a pipe, whole or not at all unless the process ends."""
    pipe = io.FileIO(descriptor, "w")

    def send(line: Mapping[str, object]) -> None:
        rest = memoryview(json.dumps(line).encode() + b"\n")
        while rest:
            rest = rest[pipe.write(rest) :]

    return send


def load(job: Mapping[str, object]) -> ModuleType:
    """Execute the job's program as a module, with the usual names within its reach.

    Raises:
        BaseException: Whatever the program raises.
    """
    module = _new_module(MODULE_NAME)
    module.__dict__["__builtins__"] = _usual
    if "." in (job["entry_point"] or ""):
        sys.setrecursionlimit(_CLASS_RECURSION_LIMIT)
    exec(compile(job["program"], FILE_NAME, "exec", dont_inherit=True), module.__dict__)
    return module


def find_function(module: ModuleType, entry_point: str) -> Callable:
    """The function of that name, or the method of a new object.

    Raises:
        NoEntryPoint: The program has no such function.
    """
    owner, _, name = entry_point.rpartition(".")
    try:
        if owner:
            return getattr(getattr(module, owner)(), name)
        return module.__dict__[name]
    except (AttributeError, KeyError) as error:
        raise NoEntryPoint(entry_point) from error


def describe(error: BaseException) -> dict[str, str]:
    """Name and message of an exception, even if its `__str__` fails."""
    try:
        message = str(error)[:_MESSAGE_CHARS]
    except BaseException:
        message = ""
    return {"error": type(error).__name__, "message": message}


def _answer(module: ModuleType, entry_point: str, call: Mapping[str, str]) -> dict[str, object]:
    try:
        function = find_function(module, entry_point)
        args = ast.literal_eval(call.get("args", "[]"))
        kwargs = ast.literal_eval(call.get("kwargs", "{}"))
        return {"value": encode(function(*args, **kwargs))}
    except BaseException as error:  # also SystemExit and KeyboardInterrupt: the next call is still to be made
        return describe(error)


def _new_module(name: str) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(__builtins__=builtins, __file__=FILE_NAME)
    sys.modules[name] = module
    return module


def leave() -> None:
    """End at once, without waiting for threads that the program left behind."""
    os._exit(0)
