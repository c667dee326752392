"""Test code and program in two processes, so that a program cannot touch the test that judges it.

Owns: objects that stand in the test's process for those of the program (`Remote`), and the lines between the two.
Never lets a value with behaviour cross towards the test: what arrives is plain data, or a `Remote`, which equals only
itself. Invariant: an assertion about values holds only if the values hold, whatever the program defines.

`serve_objects` runs in the program's process: requests on 4, replies on 5. `run_tests` runs in the test's: results on
4, requests on 5, replies on 6, and a line per test: `{"passed": true}` or `{"error": type, "message": text}`.
"""

import ast
import base64
import builtins
import importlib
import io
import json
import operator
import pickle
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType

from .harness import describe, line_sender, load, read_job
from .plain import decode, encode
from .wire import NO_ENTRY_POINT

REQUESTS_IN, REPLIES_OUT = 4, 5
RESULTS, REQUESTS_OUT, REPLIES_IN = 4, 5, 6

_MODULES = {"np": "numpy"} | {name: name for name in ("numpy", "math", "cmath", "statistics", "operator", "re")}
_OPERATIONS: dict[str, Callable] = {
    "call": lambda function, /, *args, **kwargs: function(*args, **kwargs),
    "get": getattr,
    "set": setattr,
    "item": operator.getitem,
    "length": len,
    "truth": bool,
    "iterate": iter,
    "next": next,
}


def serve_objects() -> None:
    """In the program's process: load it, then carry out requests until the test closes the pipe."""
    job = read_job()
    send = line_sender(REPLIES_OUT)
    objects: list[object] = []
    places: dict[int, int] = {}

    def place(value: object) -> object:
        if isinstance(value, ModuleType):
            return {"module": value.__name__}
        index = places.setdefault(id(value), len(objects))
        if index == len(objects):
            objects.append(value)  # kept, so that its id is not used again
        return {"object": index}

    module, failure = None, None
    try:
        module = load(job)
    except BaseException as error:
        failure = describe(error)
    with open(REQUESTS_IN, "rb") as requests:
        for line in requests:
            request = json.loads(line)
            try:
                if failure is not None:
                    reply = failure
                elif "name" in request:
                    name = request["name"]
                    found = name in module.__dict__
                    reply = {"value": encode(module.__dict__[name], place)} if found else {"missing": name}
                else:
                    args, kwargs = _ArgumentReader(request["arguments"], objects).load()
                    reply = {"value": encode(_OPERATIONS[request["operation"]](*args, **kwargs), place)}
            except BaseException as error:
                reply = describe(error)
            send(reply)


def run_tests() -> None:
    """In the test's process: execute each test, with the program's names bound to what stands for them."""
    job = read_job()
    send = line_sender(RESULTS)
    program = _Program()
    namespace: dict[str, object] = {"__name__": "__main__", "__builtins__": builtins}
    try:
        for name in _names(job):
            if name == job["entry_point"] or not hasattr(builtins, name):
                found = program.lookup(name)
                namespace.update(found if name == job["entry_point"] else _without_fakes(found))
        exec(compile(job["setup"], "setup.py", "exec", dont_inherit=True), namespace)
    except BaseException as error:
        for _ in job["tests"]:
            send(describe(error))
        return
    missing = job["entry_point"] is not None and job["entry_point"] not in namespace
    for code in job["tests"]:
        try:
            exec(compile(code, "test.py", "exec", dont_inherit=True), namespace)
            result = {"passed": True}
        except BaseException as error:
            result = describe(error)
            if missing and isinstance(error, NameError):
                result["error"] = NO_ENTRY_POINT
        send(result)


def _names(job: Mapping[str, object]) -> list[str]:
    """Names that setup and tests read. A text that is no Python fails later, as a test."""
    names: dict[str, None] = {}
    for code in (job["setup"], *job["tests"]):
        try:
            tree = ast.parse(code)
        except (SyntaxError, ValueError):
            continue
        names |= {node.id: None for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return list(names)


def _without_fakes(found: dict[str, object]) -> dict[str, object]:
    """What the program has under a name; nothing if the name is a well-known module's, and this is not the module."""
    return {
        name: value
        for name, value in found.items()
        if name not in _MODULES or (isinstance(value, ModuleType) and value.__name__ == _MODULES[name])
    }


class RemoteError(Exception):
    """The program raised an exception that has no counterpart here."""


class ProgramEnded(Exception):  # noqa: N818 - its name is what the trainer gets to see
    """The program's process is gone."""


class _Program:
    """The program, seen from the test's process."""

    def __init__(self):
        self._send = line_sender(REQUESTS_OUT)
        self._replies = open(REPLIES_IN, "rb")  # noqa: SIM115 - open until the process ends

    def lookup(self, name: str) -> dict[str, object]:
        """`{name: what it stands for}`, or nothing if the program does not define it."""
        reply = self._ask({"name": name})
        return {} if "missing" in reply else {name: decode(reply["value"], self._read)}

    def request(self, operation: str, /, *args: object, **kwargs: object) -> object:
        """Carry out an operation in the program's process; an exception there is one here."""
        buffer = io.BytesIO()
        _ArgumentWriter(buffer).dump((args, kwargs))
        arguments = base64.b64encode(buffer.getvalue()).decode()
        return decode(self._ask({"operation": operation, "arguments": arguments})["value"], self._read)

    def _ask(self, request: Mapping[str, object]) -> dict[str, object]:
        try:
            self._send(request)
            line = self._replies.readline()
        except OSError:
            line = b""
        if not line.endswith(b"\n"):
            raise ProgramEnded("the program ended before the test did")
        reply = json.loads(line)
        if reply.get("error") == "SystemExit":
            raise ProgramEnded("the program called sys.exit")
        if "error" in reply:
            known = getattr(builtins, str(reply["error"]), None)
            raised = known if isinstance(known, type) and issubclass(known, Exception) else None
            # An assertion of the program's own is no assertion of the test.
            if raised in (None, AssertionError):
                raise RemoteError(f"{reply['error']}: {reply.get('message')}")
            raise _exception(raised, str(reply.get("message")))
        return reply

    def _read(self, item: Mapping[str, object]) -> object:
        if "module" in item:
            return importlib.import_module(item["module"])
        return Remote(self, int(item["object"]))


def _exception(kind: type[Exception], message: str) -> Exception:
    try:
        return kind(message)
    except TypeError:  # those that want several arguments
        return RemoteError(f"{kind.__name__}: {message}")


class _ArgumentWriter(pickle.Pickler):
    """What goes to the program may be anything: it is untrusted already. A `Remote` goes as what it stands for."""

    def persistent_id(self, value: object) -> int | None:
        return _index(value) if type(value) is Remote else None


class _ArgumentReader(pickle.Unpickler):
    def __init__(self, text: str, objects: list[object]):
        super().__init__(io.BytesIO(base64.b64decode(text)))
        self._objects = objects

    def persistent_load(self, index: int) -> object:
        return self._objects[index]


class Remote:
    """An object of the program's. It equals only itself; everything else about it is asked of the program."""

    __slots__ = ("__index", "__program")

    def __init__(self, program: _Program, index: int):
        object.__setattr__(self, "_Remote__program", program)
        object.__setattr__(self, "_Remote__index", index)

    def __call__(self, /, *args: object, **kwargs: object) -> object:
        return self.__program.request("call", self, *args, **kwargs)

    def __getattr__(self, name: str) -> object:
        return self.__program.request("get", self, name)

    def __setattr__(self, name: str, value: object) -> None:
        self.__program.request("set", self, name, value)

    def __getitem__(self, key: object) -> object:
        return self.__program.request("item", self, key)

    def __len__(self) -> int:
        return self.__program.request("length", self)

    def __bool__(self) -> bool:
        return self.__program.request("truth", self)

    def __iter__(self) -> Iterator:
        return self.__program.request("iterate", self)

    def __next__(self) -> object:
        return self.__program.request("next", self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remote) and _index(other) == _index(self)

    def __hash__(self) -> int:
        return hash(_index(self))


def _index(remote: Remote) -> int:
    return object.__getattribute__(remote, "_Remote__index")
