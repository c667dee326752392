"""The launcher: a small process that forks every program, so that the trainer never has to.

Owns: starting a process on request, killing it when its leash is let go, and reporting how it ended. Never reads a
program, a test or a result: those pass through descriptors that it only hands on. Invariant: no process outlives its
leash, the launcher or the trainer.

A request is one message on the control socket: JSON (`role`, `limits`) with descriptors. The first is the leash, one
end of a socket pair; the others become 0, 1, 2, ... of the new process. On the leash comes one JSON message:
`{"status": wait status, "cpu_seconds": ...}` when the process has ended, or `{"failed": text}` when it could not be
started. A byte sent on the leash, or its closing, kills the process.
"""

import fcntl
import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from .confinement import Confinement
from .folders import remove_folder
from .harness import answer_calls, leave, run_script
from .remote import run_tests, serve_objects
from .wire import CALLS, MAP_USERS, MAPPED, MAX_DESCRIPTORS, MESSAGE_BYTES, READY, SCRIPT, SERVE, TESTS, Limits

ROLES: dict[str, Callable[[], None]] = {
    SCRIPT: run_script,
    CALLS: answer_calls,
    SERVE: serve_objects,
    TESTS: run_tests,
}
_ORPHAN_CHECK_MS = 5000


@dataclass
class _Child:
    pid: int
    leash: socket.socket
    folder: str | None


class Launcher:
    """The loop and its children."""

    def __init__(self, control: socket.socket, confinement: Confinement):
        self._control, self._confinement = control, confinement
        self._children: dict[int, _Child] = {}  # by descriptor of the leash
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._wake, wake_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll.register(self._wake, select.POLLIN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        self._parent = os.getppid()

    def run(self) -> Callable[[], None]:
        """Serve until the trainer is gone.

        Returns:
            `Callable`: In a child, what it is to run. The launcher itself does not return.
        """
        while True:
            for descriptor, _ in self._poll.poll(_ORPHAN_CHECK_MS):
                if descriptor == self._control.fileno():
                    if program := self._serve():
                        return program
                elif descriptor == self._wake:
                    self._reap()
                elif descriptor in self._children:
                    self._kill(self._children[descriptor])
                    self._poll.unregister(descriptor)
            if os.getppid() != self._parent:
                self._stop()

    def _serve(self) -> Callable[[], None] | None:
        message, descriptors, *_ = socket.recv_fds(self._control, MESSAGE_BYTES, MAX_DESCRIPTORS)
        if not message:
            self._stop()
        request = json.loads(message)
        leash = socket.socket(fileno=descriptors[0])
        folder = None
        try:
            folder = self._confinement.make_folder()
            pid = self._confinement.fork()
        except OSError as error:
            leash.send(json.dumps({"failed": str(error)}).encode())
            leash.close()
            remove_folder(folder)
            pid = None
        if pid == 0:
            return self._become(request, leash, descriptors[1:], folder)
        if pid is not None:
            self._children[leash.fileno()] = _Child(pid, leash, folder)
            self._poll.register(leash, select.POLLIN)
        for descriptor in descriptors[1:]:
            os.close(descriptor)
        return None

    def _become(
        self, request: dict, leash: socket.socket, descriptors: list[int], folder: str | None
    ) -> Callable[[], None]:
        """In the child: its descriptors, its session, its confinement."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for socket_object in (self._control, *(child.leash for child in self._children.values())):
            socket_object.detach()  # or their end would close descriptors that are the program's by then
        kept = [*descriptors, leash.detach()]
        leash_end = len(descriptors)
        try:
            os.setsid()
            copies = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, len(kept)) for descriptor in kept]
            for place, copy in enumerate(copies):
                os.dup2(copy, place)
            os.closerange(len(kept), os.sysconf("SC_OPEN_MAX"))
            self._confinement.enclose(Limits(**request["limits"]), folder)
        except BaseException as error:
            with suppress(OSError):
                os.write(leash_end, json.dumps({"failed": f"{type(error).__name__}: {error}"}).encode())
            os._exit(1)
        os.close(leash_end)
        return ROLES[request["role"]]

    def _kill(self, child: _Child) -> None:
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError):
                kill(child.pid, signal.SIGKILL)

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._wake, 4096)
        with suppress(ChildProcessError):
            while True:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if pid == 0:
                    return
                self._report(pid, status, usage.ru_utime + usage.ru_stime)

    def _report(self, pid: int, status: int, cpu_seconds: float) -> None:
        child = next((child for child in self._children.values() if child.pid == pid), None)
        if child is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)  # what it started and left behind, without process namespaces
        with suppress(KeyError):
            self._poll.unregister(child.leash)
        del self._children[child.leash.fileno()]
        with suppress(OSError):
            child.leash.send(json.dumps({"status": status, "cpu_seconds": cpu_seconds}).encode())
        child.leash.close()
        remove_folder(child.folder)

    def _stop(self) -> NoReturn:
        for child in self._children.values():
            self._kill(child)
        self._confinement.remove_folders()
        os._exit(0)


def serve(control_descriptor: int, settings: str) -> Callable[[], None]:
    """Start confinement, tell the trainer, and serve.

    Args:
        control_descriptor (`int`): The launcher's end of a SOCK_SEQPACKET pair.
        settings (`str`): JSON: `layers`, `visible`, `folder`.
    """
    control = socket.socket(fileno=control_descriptor)

    def map_users() -> None:
        control.send(MAP_USERS)
        if control.recv(MESSAGE_BYTES) != MAPPED:
            raise OSError("users could not be mapped")

    try:
        confinement = Confinement(**json.loads(settings), map_users=map_users)
    except OSError as error:
        control.send(str(error).encode())
        sys.exit(1)
    gc.freeze()
    launcher = Launcher(control, confinement)
    control.send(READY)
    program = launcher.run()

    def run_and_leave() -> None:
        program()
        if program is not run_script:
            leave()

    return run_and_leave
