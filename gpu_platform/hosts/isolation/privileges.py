"""Takes from a jailed rank what it may not do even as root: capabilities, new privileges, dangerous system calls.

The filter lists what is refused, much like the default profiles of container runtimes. CUDA, NCCL, and debuggers and
profilers of one's own processes work. Kernel: capabilities(7), seccomp(2),
Documentation/userspace-api/{no_new_privs,seccomp_filter}.rst. Standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from functools import cache

_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x2008_0522
_libc = ctypes.CDLL(None, use_errno=True)

_ARCHITECTURES = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
_X32_BIT = 0x4000_0000
_CLONE, _CLONE3 = {"x86_64": 56, "aarch64": 220}, 435
_CLONE_NEW_ANY = 0x7E02_0000
"""All CLONE_NEW… flags of clone(2). A rank with its own user namespace would have every capability in it."""
_SYS_CAPSET = {"x86_64": 126, "aarch64": 91}

_REFUSED: dict[str, tuple[int | None, int | None]] = {
    # name: (x86_64, aarch64)
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "syslog": (103, 116),
    "iopl": (172, None),
    "ioperm": (173, None),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "userfaultfd": (323, 282),
}


def drop_privileges(uid: int | None = None, gid: int | None = None) -> None:
    """Drop the privileges of this process and of every program that it executes, for ever.

    With ``uid`` and ``gid`` it becomes that user first, with the user's groups. Call it last before ``execve``. Raises
    ``OSError``.
    """
    if uid is not None and gid is not None:
        os.setgroups(_groups(uid, gid))
        os.setresgid(gid, gid, gid)
    capability = 0
    while _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1  # EINVAL comes after the last capability that this kernel knows
    if capability == 0:
        _fail("prctl(PR_CAPBSET_DROP)")
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    if uid is not None:
        os.setresuid(uid, uid, uid)
    header = struct.pack("<II", _CAPABILITY_VERSION_3, 0)
    if _libc.syscall(_SYS_CAPSET[platform.machine()], header, bytes(24)) != 0:
        _fail("capset")
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        _fail("prctl(PR_SET_NO_NEW_PRIVS)")
    refuse_dangerous_calls()


def refuse_dangerous_calls() -> None:
    """Install the system call filter (seccomp(2)). It holds for this process and all its children."""
    code = _filter(platform.machine())
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("<HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    if _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0) != 0:
        _fail("prctl(PR_SET_SECCOMP)")


def is_supported() -> bool:
    """True if the system call filter knows this machine's architecture."""
    return platform.machine() in _ARCHITECTURES


@cache
def _filter(machine: str) -> bytes:
    """The filter in classic BPF over ``struct seccomp_data``: number at 0, architecture at 4, arguments from 16."""
    column = list(_ARCHITECTURES).index(machine)
    numbers = sorted(row[column] for row in _REFUSED.values() if row[column] is not None)  # type: ignore[type-var]
    refuse, allow = 0x0005_0000 | errno.EPERM, 0x7FFF_0000
    unknown = 0x0005_0000 | errno.ENOSYS
    code = [
        _statement(0x20, 4),
        _jump(0x15, _ARCHITECTURES[machine], 1, 0),
        _statement(0x06, refuse),  # 32-bit calls on a 64-bit kernel have other numbers and would pass
        _statement(0x20, 0),
        _jump(0x35, _X32_BIT, 0, 1),
        _statement(0x06, refuse),
        _jump(0x15, _CLONE3, 0, 1),
        _statement(
            0x06, unknown
        ),  # clone3's flags are in memory, where the filter cannot read them; libraries then use clone
        _jump(0x15, _CLONE[machine], 0, 4),
        _statement(0x20, 16),
        _jump(0x45, _CLONE_NEW_ANY, 0, 1),
        _statement(0x06, refuse),
        _statement(0x06, allow),
    ]
    for number in numbers:
        assert number is not None
        code += [_jump(0x15, number, 0, 1), _statement(0x06, refuse)]
    return b"".join([*code, _statement(0x06, allow)])


def _statement(code: int, value: int) -> bytes:
    """One ``struct sock_filter``."""
    return struct.pack("<HBBI", code, 0, 0, value)


def _jump(code: int, value: int, if_true: int, if_false: int) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def _groups(uid: int, gid: int) -> list[int]:
    try:
        import pwd  # imported only if an account is configured: the spawner stays small

        return os.getgrouplist(pwd.getpwuid(uid).pw_name, gid)
    except KeyError:
        return [gid]


def _fail(what: str) -> None:
    code = ctypes.get_errno()
    raise OSError(code, f"{what}: {os.strerror(code)}")
