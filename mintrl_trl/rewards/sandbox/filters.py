"""Two filters that a process puts on itself, without any privilege, and can never take off again.

Owns: which system calls a program may make (seccomp) and which files it may open (Landlock). Never looks at what a
program is. Invariant: a filter that cannot be installed raises `OSError`; nothing is left out in silence.

What is refused, and why:

- new processes and other programs: a fork bomb ends at its first fork. Threads are allowed.
- sockets, other than a connected pair: no network, no service of this machine
- signals, tracing and memory of any other process
- new namespaces and mounts, and parts of the kernel that no test needs and that often had faults
- changing modes, owners and times of files, which Landlock does not cover
- memory outside the address space limit: anonymous files, System V and POSIX segments and queues
"""

import ctypes
import os
import stat
import struct

from .syscalls import CLONE_THREAD, MACHINE, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, number, prctl, syscall

_REFUSED = (
    # new processes and other programs; `clone` is looked at below
    *("fork", "vfork", "execve", "execveat"),
    # sockets
    "socket",
    # other processes
    *("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "tkill", "rt_sigqueueinfo"),
    *("rt_tgsigqueueinfo", "pidfd_open", "pidfd_getfd", "pidfd_send_signal", "kcmp", "setpriority"),
    "sched_setaffinity",
    # namespaces, mounts, kernel
    *("unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "fsopen", "open_tree", "move_mount"),
    *("mount_setattr", "open_by_handle_at", "bpf", "perf_event_open", "userfaultfd", "io_uring_setup"),
    *("add_key", "request_key", "keyctl"),
    # modes, owners, times
    *("chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "mknod", "mknodat"),
    *("utime", "utimes", "utimensat", "futimesat", "setxattr", "lsetxattr", "fsetxattr"),
    # memory that is not counted
    *("memfd_create", "memfd_secret", "shmget", "msgget", "semget", "mq_open"),
)
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000
_LOAD, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_OFFSET, _ARCH_OFFSET, _ARGUMENT_OFFSET = 0, 4, 16
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_SECCOMP_MODE_FILTER = 2
_EPERM, _ENOSYS = 1, 38

# Landlock's file rights, lowest bit first: execute, write_file, read_file, read_dir, remove_dir, remove_file,
# make_char, make_dir, make_reg, make_sock, make_fifo, make_block, make_sym | refer | truncate | ioctl_dev
_EXECUTE, _WRITE, _READ, _LIST = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_DEVICE = 1 << 6 | 1 << 11
_FILE_RIGHTS_BY_VERSION = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_TRUNCATE, _IOCTL = 1 << 14, 1 << 15
_NETWORK_RIGHTS, _SCOPES = 0b11, 0b11  # bind and connect TCP; abstract sockets and signals
_CREATE_RULESET_VERSION, _RULE_PATH_BENEATH = 1, 1
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


class _Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def install_seccomp() -> None:
    """Refuse the system calls of the module's list from now on.

    Raises:
        OSError: The machine is not supported or the kernel has no seccomp.
    """
    if MACHINE not in _AUDIT_ARCH:
        raise OSError(f"no list of system calls for {MACHINE}")
    code = b"".join(struct.pack("<HBBI", *instruction) for instruction in _instructions(os.getpid()))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    prctl(PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(_Program(len(code) // 8, code)))


def _instructions(own_pid: int) -> list[tuple[int, int, int, int]]:
    """The filter as (operation, jump if true, jump if false, operand)."""
    refuse = (_RETURN, 0, 0, _ERRNO | _EPERM)
    allow = (_RETURN, 0, 0, _ALLOW)
    rules = [
        (_LOAD, 0, 0, _ARCH_OFFSET),
        (_JUMP_EQUAL, 1, 0, _AUDIT_ARCH[MACHINE]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_OFFSET),
    ]
    if MACHINE == "x86_64":
        rules += [(_JUMP_GREATER_EQUAL, 0, 1, _X32_BIT), refuse]
    for name in _REFUSED:
        if (call := number(name)) is not None:
            rules += [(_JUMP_EQUAL, 0, 1, call), refuse]
    # The C library falls back to `clone`, whose flags a filter can see.
    rules += [(_JUMP_EQUAL, 0, 1, number("clone3")), (_RETURN, 0, 0, _ERRNO | _ENOSYS)]
    first_argument = (_LOAD, 0, 0, _ARGUMENT_OFFSET)
    rules += [(_JUMP_EQUAL, 0, 4, number("clone")), first_argument, (_JUMP_SET, 0, 1, CLONE_THREAD), allow, refuse]
    for name in ("kill", "tgkill"):
        rules += [(_JUMP_EQUAL, 0, 4, number(name)), first_argument, (_JUMP_EQUAL, 0, 1, own_pid), allow, refuse]
    rules += [(_JUMP_EQUAL, 0, 4, number("prlimit64")), first_argument, (_JUMP_EQUAL, 0, 1, 0), allow, refuse]
    return [*rules, allow]


def install_landlock(readable: list[str], writable: list[str]) -> None:
    """Allow reading below `readable`, everything below `writable`, and no other file from now on.

    Raises:
        OSError: The kernel has no Landlock.
    """
    version = syscall("landlock_create_ruleset", None, 0, _CREATE_RULESET_VERSION)
    every = (1 << _FILE_RIGHTS_BY_VERSION.get(version, 16)) - 1
    attributes = [every, *([_NETWORK_RIGHTS] if version >= 4 else []), *([_SCOPES] if version >= 6 else [])]
    ruleset = syscall(
        "landlock_create_ruleset", (ctypes.c_uint64 * len(attributes))(*attributes), 8 * len(attributes), 0
    )
    try:
        for path in readable:
            _allow(ruleset, path, every & (_EXECUTE | _READ | _LIST))
        for path in _DEVICES:
            _allow(ruleset, path, every & (_READ | _WRITE | _IOCTL))
        for path in writable:
            _allow(ruleset, path, every & ~(_EXECUTE | _MAKE_DEVICE))
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        syscall("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _EXECUTE | _READ | _WRITE | _TRUNCATE | _IOCTL
        rule = struct.pack("=Qi", rights, descriptor)
        syscall("landlock_add_rule", ruleset, _RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)
