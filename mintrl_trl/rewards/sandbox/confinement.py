"""What stands around every program, put together from the layers that the machine allows.

Owns: the order in which layers are put on, and resource limits. Never decides which layers to use: the trainer tries
them, strongest first (`rewards.runner`). Invariant: a layer that was asked for is in force, or no program runs.

| layer | what it does |
|---|---|
| `namespaces` | own processes, files, network and user; see `namespaces.py` |
| `landlock` | no files but Python's and the program's own folder; see `filters.py` |
| `seccomp` | no new processes, no sockets, no touching other processes; see `filters.py` |
| always | limits on CPU time, address space, file size and open files; no core dumps, no capabilities, own session |
"""

import contextlib
import os
import resource
import signal
import tempfile
from collections.abc import Callable, Iterable

from .filters import install_landlock, install_seccomp
from .folders import remove_folder
from .namespaces import Namespaces
from .syscalls import PR_SET_DUMPABLE, PR_SET_PDEATHSIG, drop_capabilities, prctl
from .wire import LANDLOCK, NAMESPACES, SECCOMP, Limits

# What Python and its libraries read, beside Python's own folders
_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives")
_OPEN_FILES = 256
_TASKS = 512  # processes and threads of all programs together, where they have a user of their own


class Confinement:
    """The layers in use and what they share between programs.

    Args:
        layers (`Iterable[str]`): Of `"namespaces"`, `"landlock"` and `"seccomp"`.
        visible (`list[str]`): Folders, besides the system's libraries, that programs may read.
        folder (`str`, *optional*): Where programs get their folders; not needed with `namespaces`.
        map_users (`Callable`): See `Namespaces`.

    Raises:
        OSError: A layer is not to be had.
    """

    def __init__(self, layers: Iterable[str], visible: list[str], folder: str | None, map_users: Callable[[], None]):
        self._layers, self._folder = frozenset(layers), folder
        self._visible = [*_SYSTEM, *visible, *_SYSTEM_FILES]
        self._namespaces = Namespaces(self._visible, map_users) if NAMESPACES in self._layers else None

    def make_folder(self) -> str | None:
        """A new folder for one program, where it does not make its own."""
        return None if self._namespaces else tempfile.mkdtemp(dir=self._folder)

    def remove_folders(self) -> None:
        """Remove the folders of all programs."""
        remove_folder(self._folder)

    def fork(self) -> int:
        """`os.fork`, into a process namespace where there are any."""
        return self._namespaces.fork() if self._namespaces else os.fork()

    def enclose(self, limits: Limits, folder: str | None) -> None:
        """In the child: put on every layer. Whatever runs afterwards is confined.

        Raises:
            OSError: A layer could not be put on.
        """
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # when memory runs out, the system ends this and not the trainer
        if self._namespaces:
            self._namespaces.furnish(limits.file_bytes)
            _limit("RLIMIT_NPROC", _TASKS)
        else:
            os.chdir(folder)
        drop_capabilities()
        # After the last change of user, which takes both off.
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        prctl(PR_SET_DUMPABLE, 0)
        _limit("RLIMIT_CORE", 0)
        _limit("RLIMIT_NOFILE", _OPEN_FILES)
        _limit("RLIMIT_FSIZE", limits.file_bytes)
        _limit("RLIMIT_CPU", limits.cpu_seconds)
        _limit("RLIMIT_AS", limits.memory_bytes)
        if LANDLOCK in self._layers:
            install_landlock(self._visible, [folder] if folder else [])
        if SECCOMP in self._layers:
            install_seccomp()


def _limit(name: str, value: int) -> None:
    kind = getattr(resource, name)
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))
