"""One run at a time in a folder: a lock that the system takes back when its process ends, however it ends.

It locks a file in the folder against other processes, also on other machines where the file system carries such locks;
where there are none (not on every system) it lets everyone in. Invariant: a killed run never bars its folder.
"""

import os
import socket
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on every system
    fcntl = None

NAME = ".running"


class FolderLock:
    """The lock of a folder, taken by one process at a time. The same process may take it again.

    Args:
        folder (`Path`): The folder; made when the lock is taken.
    """

    def __init__(self, folder: Path):
        self.path = folder / NAME
        self._descriptor: int | None = None

    def take(self) -> str | None:
        """Take the lock, if nobody has it.

        Returns:
            `str`: Who has it, in words; `None` when it is taken.
        """
        if self._descriptor is not None or fcntl is None:
            return None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                holder = os.read(descriptor, 200).decode("utf-8", "replace").strip()
                os.close(descriptor)
                return holder or "another process"
            except OSError:  # a file system without locks
                os.close(descriptor)
                return None
            if _is_there(self.path, descriptor):
                break
            os.close(descriptor)  # its owner removed the file meanwhile
        os.truncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        self._descriptor = descriptor
        return None

    def release(self) -> None:
        """Give the lock back; without effect where it is not held."""
        if self._descriptor is not None:
            self.path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


def _is_there(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
