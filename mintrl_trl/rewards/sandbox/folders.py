"""Removing what a program has left, however it was made.

Owns: `remove_folder`. Never follows a link out of the folder, never goes deeper than the interpreter's stack and a
path's length allow: `shutil.rmtree` does, and a program can make thousands of folders inside one another. Invariant:
the time it takes is in proportion to the number of files.
"""

import itertools
import os
from contextlib import suppress


def remove_folder(folder: str | None) -> None:
    """Remove a folder, if there is one; what cannot be removed stays.

    Folders inside it are moved beside it first, so that no path gets long.
    """
    numbers = itertools.count()
    folders = [] if folder is None else [folder]
    while folders:
        current = folders.pop()
        with suppress(OSError):
            os.chmod(current, 0o700)
            with os.scandir(current) as found:
                entries = list(found)
            for entry in entries:
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        os.chmod(entry.path, 0o700)  # only what one may write to can be moved
                        beside = f"{folder}-{next(numbers)}"
                        os.rename(entry.path, beside)
                        folders.append(beside)
                    else:
                        os.unlink(entry.path)
            os.rmdir(current)
