"""What the trainer and the launcher agree on. Loaded by both, so it holds words and numbers only."""

from dataclasses import dataclass

# Messages on the control socket while the launcher starts
MAP_USERS, MAPPED, READY = b"map users", b"mapped", b"ready"
MESSAGE_BYTES = 4096
MAX_DESCRIPTORS = 8

# What a process can be
SCRIPT, CALLS, SERVE, TESTS = "script", "calls", "serve", "tests"

# Layers of confinement
NAMESPACES, LANDLOCK, SECCOMP = "namespaces", "landlock", "seccomp"

# Names of exceptions that mean something to the trainer
NO_ENTRY_POINT, PROGRAM_ENDED = "NoEntryPoint", "ProgramEnded"


@dataclass(frozen=True)
class Limits:
    """Limits of one process.

    Args:
        cpu_seconds (`int`): CPU time.
        memory_bytes (`int`): Address space.
        file_bytes (`int`): Size of one file; with namespaces, of all files together.
    """

    cpu_seconds: int
    memory_bytes: int
    file_bytes: int
