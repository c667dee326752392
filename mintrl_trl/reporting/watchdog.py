"""Says what an update hangs in, where nothing else would: rewards, bringing weights to servers, other processes.

A thread looks at what the training loop is at every now and then; the loop never waits for it and never knows of it. It
writes to the log and nowhere else. The rollouts themselves are watched by `live.py`, which knows their calls.
"""

import logging
import threading
from collections.abc import Callable, Mapping

logger = logging.getLogger(__name__)

_LOOKS_PER_STALL = 8  # so a warning comes at most an eighth late


class Watchdog:
    """Warn, once for each time, of a stage that lasts longer than it should, for as long as the `with` block lasts.

    Args:
        stage (`Callable[[], tuple[str, float] | None]`): What is being done, and for how many seconds already; `None`:
            nothing that is watched. Called from another thread.
        stall_seconds (`float`): How long a stage may last.
        names (`Mapping[str, str]`): Stages to watch, and what each waits for, in words.
        label (`Callable[[], str]`): The update, first in the warning.
        enabled (`bool`, *optional*, defaults to `True`): `False` starts no thread.
    """

    def __init__(
        self,
        stage: Callable[[], tuple[str, float] | None],
        stall_seconds: float,
        names: Mapping[str, str],
        label: Callable[[], str],
        *,
        enabled: bool = True,
    ):
        self._stage, self._stall_seconds, self._names, self._label = stage, stall_seconds, names, label
        self._enabled = enabled
        self._warned: str | None = None  # the stage that the last warning was about, while it lasts
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        if self._enabled:
            self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        if self._enabled:
            self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(self._stall_seconds / _LOOKS_PER_STALL):
            self.look()

    def look(self) -> None:
        """Warn if there is reason to."""
        name, seconds = self._stage() or ("", 0.0)
        if seconds < self._stall_seconds or name not in self._names:
            self._warned = None
        elif name != self._warned:
            self._warned = name
            logger.warning(
                "%s: nothing has moved for %.0f s; waiting for %s.", self._label(), seconds, self._names[name]
            )
