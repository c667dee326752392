"""System calls that confinement needs and Python does not offer.

Owns: their numbers on the machines that are supported, and turning a failed call into `OSError`. Decides nothing.
"""

import ctypes
import os
import platform

MACHINE = platform.machine()

# name: number on (x86_64, aarch64); None where the machine does not have it
NUMBERS = {
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chmod": (90, None),
    "chown": (92, None),
    "chroot": (161, 51),
    "clone": (56, 220),
    "clone3": (435, 435),
    "execve": (59, 221),
    "execveat": (322, 281),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "fork": (57, None),
    "fsetxattr": (190, 7),
    "fsopen": (430, 430),
    "futimesat": (261, None),
    "io_uring_setup": (425, 425),
    "kcmp": (312, 272),
    "keyctl": (250, 219),
    "kill": (62, 129),
    "landlock_add_rule": (445, 445),
    "landlock_create_ruleset": (444, 444),
    "landlock_restrict_self": (446, 446),
    "lchown": (94, None),
    "lsetxattr": (189, 6),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pivot_root": (155, 41),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "request_key": (249, 218),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "sched_setaffinity": (203, 122),
    "semget": (64, 190),
    "setns": (308, 268),
    "setpriority": (141, 140),
    "setxattr": (188, 5),
    "shmget": (29, 194),
    "socket": (41, 198),
    "tgkill": (234, 131),
    "tkill": (200, 130),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "utime": (132, None),
    "utimensat": (280, 88),
    "utimes": (235, None),
    "vfork": (58, None),
}

CLONE_THREAD = 0x00010000
CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_RDONLY = 2, 4, 8, 1
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
_LINUX_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def number(name: str) -> int | None:
    """Number of a system call here; `None` where this machine does not have it or is not supported."""
    column = {"x86_64": 0, "aarch64": 1}.get(MACHINE)
    return None if column is None else NUMBERS[name][column]


def syscall(name: str, *arguments: object) -> int:
    """Make a system call. Integers are passed as longs; anything else as ctypes passes it.

    Raises:
        OSError: It failed, or does not exist on this machine.
    """
    call = number(name)
    if call is None:
        raise OSError(f"{name} is not known on {MACHINE}")
    return _checked(name, _libc.syscall(ctypes.c_long(call), *map(_argument, arguments)))


def prctl(option: int, *arguments: object) -> int:
    """`prctl(2)`; arguments not given are 0."""
    padded = (*arguments, 0, 0, 0, 0)[:4]
    return _checked("prctl", _libc.prctl(option, *map(_argument, padded)))


def unshare(flags: int) -> None:
    """Leave the namespaces in `flags` for new ones."""
    _checked("unshare", _libc.unshare(flags))


def setns(descriptor: int, flags: int) -> None:
    """Join the namespace behind `descriptor`."""
    _checked("setns", _libc.setns(descriptor, flags))


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """`mount(2)`."""
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    result = _libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])
    _checked(f"mount {target}", result)


def unmount(target: str) -> None:
    """Detach what is mounted at `target`."""
    _checked(f"umount {target}", _libc.umount2(os.fsencode(target), MNT_DETACH))


def set_mount_attributes(target: str, attributes: int, *, recursive: bool) -> None:
    """Add attributes (`MOUNT_ATTR_*`) to a mount, or to all mounts below it too. Linux 5.12 or newer."""
    request = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)  # to set, to clear, propagation, user namespace
    flags = _AT_RECURSIVE if recursive else 0
    syscall("mount_setattr", _AT_FDCWD, os.fsencode(target), flags, request, ctypes.sizeof(request))


def drop_capabilities() -> None:
    """Give up every capability for good, also for programs started later."""
    header = (ctypes.c_uint32 * 2)(_LINUX_CAPABILITY_VERSION_3, 0)
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            break  # past the last one of this kernel, or nothing to drop
    _checked("capset", _libc.capset(header, (ctypes.c_uint32 * 6)()))


def _argument(value: object) -> object:
    return ctypes.c_long(value) if isinstance(value, int) else value


def _checked(what: str, result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result
