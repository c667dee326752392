"""The launcher and its processes, seen from the trainer.

Owns: starting the launcher, handing it work, and reading what a process writes, up to a limit and a moment. Never forks
the trainer, never waits without a limit, never keeps more output than asked for. Invariant: a process that is not
read from any more is dead or dying.
"""

import contextlib
import fcntl
import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from .jobs import SandboxError
from .sandbox.folders import remove_folder
from .sandbox.namespaces import user_maps
from .sandbox.wire import MAP_USERS, MAPPED, MESSAGE_BYTES, NAMESPACES, READY, Limits

# sys.path travels as an argument, so that the launcher finds this package; programs get the interpreter's own path.
# Its entries are relative to the trainer's folder, "" above all, which is not the launcher's.
_BOOT = (
    "import sys; own = sys.path[:]; sys.path[:] = sys.argv[1].split('\\n'); "
    "from mintrl_trl.rewards.sandbox.launcher import serve; "
    "sys.path[:] = own + [p for p in sys.argv[2].split('\\n') if p not in own]; "
    "serve(int(sys.argv[3]), sys.argv[4])()"
)
# Nothing of the trainer's environment. A fixed hash seed gives the same order of sets, and verdict, each time.
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
}
_START_SECONDS = 60.0
_END_SECONDS = 5.0
_CHUNK_BYTES = 2**16
_LATE_READS = 64  # what was written in time counts, even if this thread gets to read it late


class Launcher:
    """A running launcher process.

    Args:
        layers (`Sequence[str]`): Layers of confinement; see `sandbox.confinement`.

    Raises:
        SandboxError: It does not start, or cannot have these layers here. The message says why.
    """

    def __init__(self, layers: Sequence[str]):
        with contextlib.ExitStack() as stack:
            try:
                self._start(layers, stack)
                self._wait_until_ready()
            except OSError as error:
                raise SandboxError(f"no launcher for programs: {error}") from error
            self._stack = stack.pop_all()

    def _start(self, layers: Sequence[str], stack: contextlib.ExitStack) -> None:
        libraries = _library_folders()
        visible = list(dict.fromkeys([sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, *libraries]))
        folder = None
        if NAMESPACES not in layers:  # with them, folders are in memory
            folder = tempfile.mkdtemp(prefix="mintrl-programs-")
            stack.callback(remove_folder, folder)
        settings = json.dumps({"layers": list(layers), "visible": visible, "folder": folder})
        self._errors = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
        self.null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        stack.callback(os.close, self.null)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stack.callback(self._control.close)
        with theirs:
            paths = "\n".join(map(os.path.abspath, sys.path))
            arguments = [paths, "\n".join(libraries), str(theirs.fileno()), settings]
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-B", "-X", "utf8", "-c", _BOOT, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                cwd="/",
                env=_ENVIRONMENT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C in the terminal is the trainer's to handle
            )
        stack.callback(self._stop)

    def start(self, role: str, limits: Limits, descriptors: Sequence[int]) -> socket.socket:
        """Start a process.

        Args:
            role (`str`): What it runs; see `sandbox.launcher`.
            limits (`Limits`): Its limits; the wall clock is the caller's to watch.
            descriptors (`Sequence[int]`): What it gets as 0, 1, 2, ...

        Returns:
            `socket.socket`: Its leash.

        Raises:
            SandboxError: The launcher is gone.
        """
        leash, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                request = json.dumps({"role": role, "limits": asdict(limits)}).encode()
                socket.send_fds(self._control, [request], [theirs.fileno(), *descriptors])
            except OSError as error:
                leash.close()
                raise SandboxError(f"the launcher is gone: {error}") from error
        return leash

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def close(self) -> None:
        """Kill all programs and the launcher. Closing twice does no harm."""
        self._stack.close()

    def _stop(self) -> None:
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)  # it ends, and everything with it
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait_until_ready(self) -> None:
        self._control.settimeout(_START_SECONDS)
        message = self._hear()
        if message == MAP_USERS:
            self._map_users()
            self._control.send(MAPPED)
            message = self._hear()
        self._control.settimeout(None)
        if message != READY:
            self._stop()
            self._errors.seek(0)
            said = message or self._errors.read()[-2000:]
            raise SandboxError(said.decode(errors="replace").strip() or "the launcher ended without a word")

    def _hear(self) -> bytes:
        with contextlib.suppress(ConnectionError):  # its last words are in `_errors`
            return self._control.recv(MESSAGE_BYTES)
        return b""

    def _map_users(self) -> None:
        choices = user_maps(os.geteuid(), os.getegid())
        for maps in choices:
            try:
                for name, text in maps.items():
                    with open(f"/proc/{self._process.pid}/{name}", "w") as file:
                        file.write(text)
                return
            except OSError:
                if maps is choices[-1]:
                    raise


@dataclass
class Output:
    """What a process writes to one descriptor.

    Args:
        limit_bytes (`int`): More than this is too much.
        keep_end (`bool`, defaults to `False`): Whether to keep only the end instead; then nothing is too much.
    """

    limit_bytes: int
    keep_end: bool = False
    data: bytes = b""
    too_much: bool = False

    def add(self, chunk: bytes) -> None:
        """Take in what was read."""
        self.data += chunk
        if len(self.data) > self.limit_bytes:
            self.too_much = not self.keep_end
            self.data = self.data[-self.limit_bytes :] if self.keep_end else self.data[: self.limit_bytes]


class Process:
    """A process in the sandbox. Use it as a context manager: leaving kills it.

    Args:
        launcher (`Launcher`): Who starts it.
        role (`str`): What it runs.
        limits (`Limits`): Its limits.
        descriptors (`Sequence[int | Output]`): What it gets as 0, 1, 2, ...; an `Output` is filled by `step`.
    """

    def __init__(self, launcher: Launcher, role: str, limits: Limits, descriptors: Sequence[int | Output]):
        self.status: int | None = None  # exit code, or minus the signal, once it has ended
        self._late_reads = _LATE_READS
        self._outputs: dict[int, Output] = {}
        self._selector = selectors.DefaultSelector()
        write_ends = []
        try:
            given = []
            for descriptor in descriptors:
                if isinstance(descriptor, Output):
                    read_end, write_end = os.pipe2(os.O_CLOEXEC)
                    os.set_blocking(read_end, False)
                    self._outputs[read_end] = descriptor
                    write_ends.append(write_end)
                    descriptor = write_end
                given.append(descriptor)
            self._leash = launcher.start(role, limits, given)
        except BaseException:
            self._close_outputs()
            raise
        finally:
            for write_end in write_ends:
                os.close(write_end)
        for descriptor in (*self._outputs, self._leash):
            self._selector.register(descriptor, selectors.EVENT_READ)

    def step(self, deadline: float) -> bool:
        """Wait for something to read, or for the end, and take it in.

        Returns:
            `bool`: False if the moment `deadline` came first.

        Raises:
            SandboxError: The process could not be started, or the launcher is gone.
        """
        timeout = deadline - time.monotonic()
        if timeout <= 0:
            self._late_reads -= 1
            if self._late_reads < 0:
                return False
        ready = self._selector.select(max(timeout, 0))
        for key, _ in ready:
            if key.fileobj is self._leash:
                self._end()
            else:
                self._read(key.fd)
        return bool(ready)

    def _read(self, descriptor: int) -> bool:
        try:
            chunk = os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if chunk:
            self._outputs[descriptor].add(chunk)
        else:
            self._selector.unregister(descriptor)
        return bool(chunk)

    def _end(self) -> None:
        try:
            message = self._leash.recv(MESSAGE_BYTES)
        except OSError:
            message = b""
        report = json.loads(message or '{"failed": "the launcher is gone"}')
        if "failed" in report:
            raise SandboxError(f"a program could not be started: {report['failed']}")
        self._selector.unregister(self._leash)
        for descriptor, output in self._outputs.items():
            while descriptor in self._selector.get_map() and not output.too_much and self._read(descriptor):
                pass
        self.status = os.waitstatus_to_exitcode(report["status"])

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._leash.shutdown(socket.SHUT_RDWR)  # also ends a copy of it in a forked child of the trainer
        self._leash.close()
        self._close_outputs()

    def _close_outputs(self) -> None:
        self._selector.close()
        for descriptor in self._outputs:
            os.close(descriptor)


def in_memory(text: bytes) -> int:
    """A descriptor to read `text` from, which nobody can change.

    Raises:
        SandboxError: There is no memory for it.
    """
    try:
        descriptor = os.memfd_create("mintrl", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with open(descriptor, "wb", closefd=False) as file:
            file.write(text)
        os.lseek(descriptor, 0, os.SEEK_SET)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    except OSError as error:
        raise SandboxError(f"a program's input could not be stored: {error}") from error
    return descriptor


def _library_folders() -> list[str]:
    """Folders with installed packages, and nothing of the user's own code."""
    names = ("site-packages", "dist-packages")
    return [os.path.abspath(path) for path in sys.path if os.path.basename(path.rstrip("/")) in names]
