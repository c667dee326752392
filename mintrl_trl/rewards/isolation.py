"""How well programs are kept apart from the machine: chosen, tested and said at start-up.

Owns: the order in which confinements are tried, the self-test, and `Isolation`, which reports what a probe program
could and could not do rather than what was asked for. Never lets a launcher be used that does not run `print(1)` and
`import numpy` under the very limits that programs will have. Invariant: what `Isolation` claims was observed.
"""

import json
import logging
import os
import socket
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib.util import find_spec

from .jobs import Ending, Observation, SandboxError
from .process import Launcher
from .programs import run_script
from .sandbox.wire import LANDLOCK, NAMESPACES, SECCOMP, Limits

logger = logging.getLogger(__name__)

# Strongest first. The last one is resource limits alone.
CONFINEMENTS = ((NAMESPACES, SECCOMP), (LANDLOCK, SECCOMP), (NAMESPACES,), (SECCOMP,), ())
_PROBE_SECONDS = 20.0
_PROBE = """
import json, os, socket, sys
given = json.loads(sys.stdin.read())

def possible(attempt):
    try:
        attempt()
    except Exception:
        return False
    return True

def fork():
    if os.fork() == 0:
        os._exit(0)
    os.wait()

print(json.dumps({
    "files_hidden": not possible(lambda: open(given["file"]).read()),
    "files_unwritable": not possible(lambda: open(given["file"], "r+").close()),
    "network_cut": not possible(lambda: socket.create_connection(("127.0.0.1", given["port"]), 1).close()),
    "processes_refused": not possible(fork),
    "others_unreachable": not possible(lambda: os.kill(given["pid"], 0)),
}))
"""


@dataclass(frozen=True)
class Isolation:
    """What a program cannot do, as observed.

    Args:
        files_hidden (`bool`): It cannot read the files of the user who trains.
        files_unwritable (`bool`): It cannot change them.
        network_cut (`bool`): It reaches no network, not even this machine.
        processes_refused (`bool`): It can start no process, so it cannot fork without end.
        others_unreachable (`bool`): It can signal no process of the user's.
        layers (`tuple[str, ...]`): How this is done; empty for resource limits alone.
    """

    files_hidden: bool
    files_unwritable: bool
    network_cut: bool
    processes_refused: bool
    others_unreachable: bool
    layers: tuple[str, ...] = ()

    @property
    def gaps(self) -> list[str]:
        """Names of what is not kept apart; empty when everything is."""
        return [field.name for field in fields(self) if field.name != "layers" and not getattr(self, field.name)]

    def __str__(self) -> str:
        how = " + ".join((*self.layers, "resource limits"))
        return f"{how}; open: {', '.join(self.gaps) or 'nothing that is tested'}"


def start_isolated(
    limits: Limits, confinements: Sequence[tuple[str, ...]] = CONFINEMENTS
) -> tuple[Launcher, Isolation]:
    """Start a launcher with the strongest confinement that passes the self-test.

    Args:
        limits (`Limits`): Those that programs will have.
        confinements (`Sequence[tuple[str, ...]]`, *optional*): Sets of layers to try, strongest first.

    Returns:
        `tuple[Launcher, Isolation]`: Ready to use, and what the probe found.

    Raises:
        SandboxError: None passes. The message says why, for each.
    """
    reasons = []
    for layers in confinements:
        launcher = None
        try:
            launcher = Launcher(layers)
            found = _self_test(launcher, layers, limits)
        except SandboxError as error:
            reasons.append(f"{' + '.join(layers) or 'limits alone'}: {error}")
            if launcher is not None:
                launcher.close()
            continue
        for reason in reasons:
            logger.info("Not used for programs: %s", reason)
        return launcher, found
    raise SandboxError("Programs cannot be run here. " + "; ".join(reasons))


def _self_test(launcher: Launcher, layers: tuple[str, ...], limits: Limits) -> Isolation:
    for program in ("print(1)", "import numpy; print(1)"):
        if "numpy" in program and find_spec("numpy") is None:
            continue
        seen = _run(launcher, program, "", limits)
        if (seen.ending, seen.value) != (Ending.VALUE, "1\n"):
            raise SandboxError(f"self-test `{program}`: {seen.ending} {seen.detail}")
    with tempfile.NamedTemporaryFile() as file, socket.create_server(("127.0.0.1", 0)) as server:
        given = {"file": file.name, "port": server.getsockname()[1], "pid": os.getpid()}
        seen = _run(launcher, _PROBE, json.dumps(given), limits)
    try:
        return Isolation(**json.loads(seen.value), layers=layers)
    except (TypeError, ValueError) as error:
        raise SandboxError(f"self-test probe: {seen.ending} {seen.detail}") from error


def _run(launcher: Launcher, program: str, stdin: str, limits: Limits) -> Observation:
    return run_script(launcher, program, stdin, limits, time.monotonic() + _PROBE_SECONDS, 2**16)
