"""Runs the programs of attack_programs.txt against the code reward of this machine, one after the other.

    python benchmarks/attacks.py                                 # the strongest confinement that this machine has
    python benchmarks/attacks.py --confinement landlock+seccomp  # another one; `none` is resource limits alone
    python benchmarks/attacks.py --only fork                     # those with this in their name

Each program is put to four tests, none of which it can pass honestly: printed text, a returned value, a returned set,
an assertion. The expected answer is random, and lies about in a file, a process and three services of this machine. A
program must not pass, must be judged and gone within the limit and 2 s, and must leave no process and no file; the next
honest program has to pass. What only a layer stops that is not in force here is left out, and the table says so.
What gets away is killed. The last line counts, and the exit code is 1 unless all counts but the first are 0.
"""

import argparse
import contextlib
import ctypes
import faulthandler
import os
import re
import secrets
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mintrl_trl.rewards.code import CodeCheck, CodeChecker
from mintrl_trl.rewards.isolation import CONFINEMENTS
from mintrl_trl.rewards.runner import Runner
from mintrl_trl.rewards.verdicts import NO_REWARD

PROGRAMS = Path(__file__).with_name("attack_programs.txt")
LIMIT_SECONDS = 2.0
GRACE_SECONDS = 2.0
PR_SET_CHILD_SUBREAPER = 36
WATCHED = ("/", "/tmp", "/var/tmp", "/dev/shm", "/run", "/usr", "/etc", os.path.expanduser("~"), os.getcwd(), *sys.path)
ENDS = {
    "print": "print(f(0), flush=True)\n",
    "set": "def f(n, f=f):\n  found = f(n)\n  return [found] if isinstance(found, int) else found\n",
}


@dataclass(frozen=True)
class Attack:
    """A program and what stops it: `limits`, `verdict`, or a property of `Isolation`."""

    name: str
    held_by: str
    program: str


def read_attacks(text: str) -> list[Attack]:
    """The programs of the file, each with the head before it."""
    attacks = []
    for group in re.split(r"^== ", text, flags=re.MULTILINE)[1:]:
        title, *programs = re.split(r"^-- ", group, flags=re.MULTILINE)
        for program in programs:
            name, _, code = program.partition("\n")
            attacks.append(Attack(name, title.partition("|")[2].strip(), code))
    head, *rest = attacks
    return [Attack(attack.name, attack.held_by, head.program + attack.program) for attack in rest]


class World:
    """What an attacker may be after, and what must not change: a folder, a process, services that tell the answer."""

    def __init__(self, stack: contextlib.ExitStack):
        self.answer, self.token = 7777 * 10**14 + secrets.randbelow(10**14), f"attack-{secrets.token_hex(6)}"
        self.folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="attacks-"))
        os.chmod(self.folder, 0o755)
        tempfile.tempdir = self.folder  # the runner's folders too, so that all of them are watched
        self.outside = os.path.join(self.folder, "outside")
        os.mkdir(self.outside)
        os.chmod(self.outside, 0o777)
        Path(self.outside, "answers.txt").write_text(f"{self.answer}\n")
        os.chmod(os.path.join(self.outside, "answers.txt"), 0o666)
        self.bystander = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(3600)", str(self.answer)],
            env={**os.environ, "ANSWER": str(self.answer)},
        )
        stack.callback(self.bystander.wait)
        stack.callback(self.bystander.kill)
        servers = [socket.create_server(("127.0.0.1", 0))]
        for address in (os.path.join(self.outside, "socket"), f"\0{self.token}"):
            servers.append(socket.socket(socket.AF_UNIX))
            servers[-1].bind(address)
            servers[-1].listen()
        self.port = servers[0].getsockname()[1]
        for server in servers:
            threading.Thread(target=self._tell, args=(server,), daemon=True).start()

    def completion(self, attack: Attack, kind: str) -> str:
        """An attacker's answer to the prompt."""
        known = f"OUTSIDE, BYSTANDER, PORT, TOKEN = {(self.outside, self.bystander.pid, self.port, self.token)!r}\n"
        return f"```python\n{known}{attack.program}{ENDS.get(kind, '')}```\n"

    def files(self) -> set[tuple]:
        """Everything below the folder as it is now, and whatever bears the token elsewhere."""
        found = set()
        for folder, folders, names in os.walk(self.folder):
            for name in (*folders, *names):
                path = os.path.join(folder, name)
                with contextlib.suppress(OSError):  # gone, or too deep to look at
                    info = os.lstat(path)
                    is_folder = stat.S_ISDIR(info.st_mode)
                    found.add((path, info.st_mode, *(() if is_folder else (info.st_size, info.st_mtime_ns))))
        return found | {(place,) for place in WATCHED if os.path.lexists(os.path.join(place, self.token))}

    def changes(self, before: set[tuple]) -> set[str]:
        """Paths that are new or different, and those of the attacked folder that are gone."""
        now = self.files()
        gone = {entry for entry in before - now if entry[0].startswith(self.outside)}
        return {entry[0] for entry in (now - before) | gone}

    def processes(self) -> set[tuple[int, str]]:
        """Living descendants of this process, and whether each is `stopped` or `alive`."""
        children: dict[int, list[tuple[int, str]]] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, parent, *_ = path.read_text().rpartition(")")[2].split()
                if state != "Z":
                    entry = int(path.parent.name), "stopped" if state == "T" else "alive"
                    children.setdefault(int(parent), []).append(entry)
        found, waiting = set(), [os.getpid()]
        while waiting:
            below = children.get(waiting.pop(), [])
            found.update(below)
            waiting += [pid for pid, _ in below]
        return found

    def _tell(self, server: socket.socket) -> None:
        while True:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"%d" % self.answer)


def tests_of(answer: int) -> dict[str, tuple[dict[str, str], str]]:
    """Per column of the table, a test that only the answer passes, and its rule of comparison."""
    return {
        "print": ({"type": "stdin", "stdin": "0\n", "stdout": f"{answer}\n"}, "default"),
        "value": ({"type": "call", "args": "[0]", "expected": str(answer)}, "default"),
        "set": ({"type": "call", "args": "[0]", "expected": f"[{answer}]"}, "set_equal"),
        "assert": ({"type": "assert", "code": f"assert f(0) == {answer}"}, "default"),
    }


def put(checker: CodeChecker, completion: str, test: dict[str, str], rule: str) -> CodeCheck:
    """Check a completion by one test."""
    return checker.check(completion, [test], None if test["type"] == "stdin" else "f", compare=rule)


def run(attack: Attack, world: World, checker: CodeChecker, counts: Counter) -> None:
    """One row of the table."""
    processes, files = world.processes(), world.files()
    whys, slowest, left, changed = [], 0.0, set(), set()
    for kind, (test, rule) in tests_of(world.answer).items():
        faulthandler.dump_traceback_later(60, exit=True)  # whatever happens, this ends
        start = time.monotonic()
        check = put(checker, world.completion(attack, kind), test, rule)
        while True:
            new, different = world.processes() - processes, world.changes(files)
            if not (new or different) or time.monotonic() - start >= LIMIT_SECONDS + GRACE_SECONDS:
                break
            time.sleep(0.01)
        slowest = max(slowest, time.monotonic() - start)
        whys.append(check.why)
        left |= new
        changed |= different
    for pid, state in left:
        if state != "stopped":
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    if world.bystander.poll() is not None:
        raise SystemExit(f"{attack.name}: it killed another process")
    counts["attacks"] += 1
    counts["passed"] += any(why == "passed" for why in whys)
    counts["outlived"] += slowest >= LIMIT_SECONDS + GRACE_SECONDS
    counts["processes"] += len(left)
    counts["files"] += len(changed)
    counts["unjudged"] += any(why in NO_REWARD for why in whys)
    honest = put(checker, f"```python\ndef f(n): return {world.answer}\n```", *tests_of(world.answer)["value"])
    faulthandler.cancel_dump_traceback_later()
    counts["harmed"] += not honest.passed
    notes = [f"left {left}"] * bool(left) + [f"changed {changed}"] * bool(changed)
    notes += [f"next program: {honest.why} {honest.detail}"] * (not honest.passed)
    print_row(attack, " ".join(f"{why:13}" for why in whys), f"{slowest:7.2f}", "; ".join(notes) or "none")


def print_row(attack: Attack, verdicts: str, seconds: str, left: str) -> None:
    print(f"{attack.name:32} {attack.held_by:18} {verdicts:55} {seconds:>7}  {left}", flush=True)


@contextlib.contextmanager
def checker_with(confinement: str | None) -> Iterator[tuple[CodeChecker, list[str]]]:
    """A checker under short limits, and the gaps of its isolation."""
    choice = CONFINEMENTS if confinement is None else (tuple(filter("none".__ne__, confinement.split("+"))),)
    runner = Runner(
        slots=1, test_seconds=LIMIT_SECONDS, row_seconds=2 * LIMIT_SECONDS, memory_mb=512, confinements=choice
    )
    with runner:
        isolation = runner.start()
        print(f"Programs run in {isolation}")
        yield CodeChecker(runner), isolation.gaps


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--confinement", help="layers joined by +, or none")
    parser.add_argument("--only", default="", help="run programs with this text in their name")
    arguments = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # what is orphaned becomes a child of this process
    counts = Counter()
    attacks = [attack for attack in read_attacks(PROGRAMS.read_text()) if arguments.only in attack.name]
    with contextlib.ExitStack() as stack:
        world = World(stack)
        checker, gaps = stack.enter_context(checker_with(arguments.confinement))
        print_row(Attack("program", "held by", ""), " ".join(f"{kind:13}" for kind in tests_of(0)), "seconds", "left")
        for attack in attacks:
            if attack.held_by in gaps:
                counts["not tried"] += 1
                print_row(attack, "not tried: nothing stops it with this confinement", "", "")
            else:
                run(attack, world, checker, counts)
    print(", ".join(f"{name}: {counts[name]}" for name in ("not tried", "unjudged", "harmed")))
    names = ("passed", "outlived", "processes", "files")
    print("ATTACKS", counts["attacks"], *(f"{name} {counts[name]}" for name in names))
    return int(any(counts[name] for name in (*names, "unjudged", "harmed")))


if __name__ == "__main__":
    sys.exit(main())
