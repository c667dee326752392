"""A view of the machine that holds Python and nothing else: Linux namespaces.

Owns: the launcher's own user, mount, network, IPC and host name namespaces, a root directory made for programs, and
the namespaces that each program gets for itself. Needs no privilege where the system lets users create user
namespaces. Never changes anything outside the namespaces. Invariant: what `enter` bound into the new root is
read-only, and the old root is gone.

A program is process 1 of its own process namespace: it sees no other process, and when it ends or is killed, the
kernel kills whatever it has started. Its folder, `/tmp` unless Python lies there, is in memory, of limited size, and
disappears with it.
"""

import os
import signal
from collections.abc import Callable, Iterator

from . import syscalls as sys_calls

USER = 65534  # "nobody": whom programs run as where the launcher may choose
_ORPHAN_CHECK_SECONDS = 5.0
_ROOT = "/sys"  # exists everywhere, and nothing in it is shown to programs: the place to build the new root
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


class Namespaces:
    """The launcher's namespaces. Made once; the making cannot be undone.

    Args:
        visible (`list[str]`): Folders and files that programs may read.
        map_users (`Callable`): Called once the user namespace exists. Whoever is outside of it has to write the maps of
            users and groups before it returns.

    Raises:
        OSError: The system does not allow it.
    """

    def __init__(self, visible: list[str], map_users: Callable[[], None]):
        sys_calls.unshare(
            sys_calls.CLONE_NEWUSER
            | sys_calls.CLONE_NEWNS
            | sys_calls.CLONE_NEWNET
            | sys_calls.CLONE_NEWIPC
            | sys_calls.CLONE_NEWUTS
            | sys_calls.CLONE_NEWPID
        )
        map_users()
        _move_into_process_namespace()
        with open("/proc/self/uid_map") as file:
            self._user = USER if len(file.readlines()) > 1 else None
        self._own_processes = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._folder = "/scratch" if any(path.startswith("/tmp/") for path in visible) else "/tmp"
        _build_root(visible, self._folder)

    def fork(self) -> int:
        """`os.fork` into a new process namespace; the child is its process 1."""
        sys_calls.unshare(sys_calls.CLONE_NEWPID)
        pid = None
        try:
            pid = os.fork()
        finally:
            if pid != 0:
                sys_calls.setns(self._own_processes, sys_calls.CLONE_NEWPID)
        return pid

    def furnish(self, folder_bytes: int) -> None:
        """In the child: a folder and a `/proc` of its own, and no way back to the launcher's rights."""
        sys_calls.unshare(sys_calls.CLONE_NEWNS | sys_calls.CLONE_NEWIPC)
        flags = sys_calls.MS_NOSUID | sys_calls.MS_NODEV
        sys_calls.mount("tmpfs", self._folder, "tmpfs", flags, f"mode=1777,size={folder_bytes},nr_inodes=4096")
        try:
            sys_calls.mount("proc", "/proc", "proc", flags | sys_calls.MS_NOEXEC)
        except OSError:  # not allowed where the outer /proc is masked, as in most containers: then there is none
            sys_calls.mount("tmpfs", "/proc", "tmpfs", flags | sys_calls.MS_RDONLY, "size=0")
        os.chdir(self._folder)
        if self._user is not None:
            os.setgroups([])
            os.setresgid(self._user, self._user, self._user)
            os.setresuid(self._user, self._user, self._user)


def user_maps(user: int, group: int) -> list[dict[str, str]]:
    """What whoever is outside has to write into which file of `/proc/<launcher>`: choices, the best one first.

    Root maps itself and a second user without rights, whom programs become. Anyone else, and root in some containers,
    can map only themselves.
    """
    alone = {"setgroups": "deny", "uid_map": f"{user} {user} 1\n", "gid_map": f"{group} {group} 1\n"}
    both = {"uid_map": f"0 0 1\n{USER} {USER} 1\n", "gid_map": f"0 0 1\n{USER} {USER} 1\n"}
    return [both, alone] if user == 0 else [alone]


def _move_into_process_namespace() -> None:
    """Go on as process 1 of the new process namespace; this process stays behind and lives as long as that one.

    Only whoever lives in a process namespace of their own may make one for each child and come back.
    """
    trainer = os.getppid()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        sys_calls.prctl(sys_calls.PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # the control socket too: it must close with the launcher
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if os.getppid() != trainer:
            os.kill(pid, signal.SIGKILL)
        signal.sigtimedwait({signal.SIGCHLD}, _ORPHAN_CHECK_SECONDS)
    os._exit(0)


def _build_root(visible: list[str], folder: str) -> None:
    sys_calls.mount(None, "/", None, sys_calls.MS_REC | sys_calls.MS_PRIVATE)
    sys_calls.mount("tmpfs", _ROOT, "tmpfs", sys_calls.MS_NOSUID | sys_calls.MS_NODEV, "mode=755,size=1m")
    for path in _to_bind(visible):
        _bind(path, sys_calls.MOUNT_ATTR_RDONLY | sys_calls.MOUNT_ATTR_NOSUID | sys_calls.MOUNT_ATTR_NODEV)
    for path in filter(os.path.exists, _DEVICES):
        _bind(path, sys_calls.MOUNT_ATTR_NOSUID)
    _bind("/proc", sys_calls.MOUNT_ATTR_NOSUID)  # each program mounts its own over it
    os.mkdir(_ROOT + folder)
    for name, target in (("fd", "self/fd"), ("stdin", "self/fd/0"), ("stdout", "self/fd/1"), ("stderr", "self/fd/2")):
        os.symlink(f"/proc/{target}", f"{_ROOT}/dev/{name}")
    sys_calls.set_mount_attributes(_ROOT, sys_calls.MOUNT_ATTR_RDONLY, recursive=False)
    os.chdir(_ROOT)
    sys_calls.syscall("pivot_root", b".", b".")
    sys_calls.unmount(".")
    os.chdir("/")


def _to_bind(visible: list[str]) -> Iterator[str]:
    """Each path with what it leads to, without those that lie in one that came before; top-level links are copied."""
    done: list[str] = []
    for path in visible:
        if os.path.islink(path) and os.path.dirname(path) == "/":
            os.symlink(os.readlink(path), _ROOT + path)
            path = os.path.realpath(path)
        for place in dict.fromkeys((os.path.abspath(path), os.path.realpath(path))):
            if os.path.exists(place) and not any(place == other or place.startswith(f"{other}/") for other in done):
                done.append(place)
                yield place


def _bind(path: str, attributes: int) -> None:
    target = _ROOT + path
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
    sys_calls.mount(path, target, None, sys_calls.MS_BIND | sys_calls.MS_REC)
    sys_calls.set_mount_attributes(target, attributes, recursive=True)
