"""What a jail sees of the trees of cgroups: its own cgroups, and not the names and figures of other attempts.

Done by mounts, so that a rank finds its limits where ``/proc/self/cgroup`` says. Standard library only: the spawner
imports it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Sequence

_SYS_OPEN_TREE, _SYS_MOVE_MOUNT = 428, 429
"""The same on every architecture."""
_AT_FDCWD, _OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH = -100, 0x1, 0x04
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 1, 2, 4, 8, 32
_COVER = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
_libc = ctypes.CDLL(None, use_errno=True)


def trees_of_cgroups() -> list[str]:
    """Where trees of cgroups are mounted, v1 and v2, as this process sees them."""
    found: list[str] = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            left, _, right = line.partition(" - ")
            if right.split()[0] in ("cgroup", "cgroup2"):
                found.append(left.split()[4].encode().decode("unicode_escape"))
    return found


def show_only(cgroup: str, trees: Sequence[str]) -> None:
    """Cover what is beside ``cgroup`` (a relative path) in each tree. Call it in the jail's mount namespace.

    Raises ``OSError``.
    """
    root = cgroup.partition("/")[0]
    for tree in trees:
        own, cover = os.path.join(tree, cgroup), os.path.join(tree, root)
        if not os.path.isdir(cover):
            continue
        fd = None
        with contextlib.suppress(FileNotFoundError):  # this tree is not used for the attempt
            fd = _check(_libc.syscall(_SYS_OPEN_TREE, _AT_FDCWD, os.fsencode(own), _OPEN_TREE_CLONE | os.O_CLOEXEC))
        _mount(cover, _COVER)
        if fd is not None:
            os.makedirs(own)
            how = _MOVE_MOUNT_F_EMPTY_PATH
            _check(_libc.syscall(_SYS_MOVE_MOUNT, fd, b"", _AT_FDCWD, os.fsencode(own), how))
            os.close(fd)
        _mount(cover, _COVER | _MS_REMOUNT | _MS_RDONLY)


def _mount(path: str, flags: int) -> None:
    _check(_libc.mount(b"tmpfs", os.fsencode(path), b"tmpfs", flags, b"size=64k,mode=755"))


def _check(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "a mount of cgroups")
    return result
