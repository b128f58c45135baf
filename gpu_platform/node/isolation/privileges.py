"""Takes from a jailed rank what it may not do even as root: capabilities, new privileges, dangerous system calls.

Which system calls are left is in ``system_calls``. CUDA, NCCL, and debuggers and profilers of one's own processes work.
Kernel: capabilities(7), prctl(2), Documentation/userspace-api/no_new_privs.rst. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
from collections.abc import Sequence

from gpu_platform.node.isolation.filters import seccomp

_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAP_SYS_RESOURCE = 24
_CORE_PATTERN = "/proc/sys/kernel/core_pattern"
_NOT_A_FILE = (b"|", b"@")
"""How a ``core_pattern`` begins that names a program, or (Linux 6.16) a socket."""
_CAPABILITY_VERSION_3 = 0x2008_0522
_libc = ctypes.CDLL(None, use_errno=True)

_SYS_CAPSET = {"x86_64": 126, "aarch64": 91}


def drop_privileges(uid: int | None = None, gid: int | None = None, groups: Sequence[int] = ()) -> None:
    """Drop the privileges of this process and of every program that it executes, for ever.

    With ``uid`` and ``gid`` it becomes that user first, with these ``groups``. Call it last before ``execve``. Raises
    ``OSError``.
    """
    if uid is not None and gid is not None:
        os.setgroups(groups)
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
    seccomp.install()


def hide_memory() -> None:
    """Let nobody but root read or trace this process and its children, until they execute a program (prctl(2)).

    Ranks without a jail run as the same user: they could otherwise read the node worker's secrets from its memory.
    """
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def limit_memlock(limit_bytes: int | None) -> None:
    """Set how much memory this process may lock (None: any amount), or the most that it can be given.

    RDMA and CUDA lock what a card reads and writes.
    """
    known = [limit for limit in (limit_bytes, memlock_bytes()) if limit is not None]
    limit = min(known, default=resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))


def limit_cores() -> None:
    """Let the kernel start no program for a core dump of this process (core(5), ``core_pattern`` with ``|``).

    The kernel starts it as root and outside the jail, with the job's memory as its input. A limit of 1 byte forbids
    that; a limit of 0 does not. Where cores are files they are written as the job's account, inside its jail.
    """
    with open(_CORE_PATTERN, "rb") as file:
        if file.read(1) in _NOT_A_FILE:
            resource.setrlimit(resource.RLIMIT_CORE, (1, 1))


def memlock_bytes() -> int | None:
    """How much memory ranks can be allowed to lock. None: any amount.

    Only a process that has CAP_SYS_RESOURCE may raise its own limit.
    """
    _, most = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if most == resource.RLIM_INFINITY:
        return None
    with open("/proc/self/status") as file:
        [capabilities] = (int(line.split()[1], 16) for line in file if line.startswith("CapEff"))
    return None if capabilities >> _CAP_SYS_RESOURCE & 1 else most


def why_not() -> str | None:
    """Why this machine cannot take privileges away from ranks, for people. None: it can."""
    if platform.machine() not in _SYS_CAPSET:
        return f"dropping privileges is not known on {platform.machine()}"
    return seccomp.why_not()


def groups_of(uid: int, gid: int) -> list[int]:
    """The groups of a user of this host. Never call it inside a jail: the C library may load what the root file system
    there names (nsswitch.conf(5)), and this process is root."""
    try:
        import pwd  # imported only if an account is configured: the spawner stays small

        return os.getgrouplist(pwd.getpwuid(uid).pw_name, gid)
    except KeyError:
        return [gid]


def _fail(what: str) -> None:
    code = ctypes.get_errno()
    raise OSError(code, f"{what}: {os.strerror(code)}")
