"""When a disk is full, and how that is said: the one rule of all processes, and the one wording.

A disk is full for somebody if less of it is free than he keeps for others. Whoever is needed least keeps the most::

    pulls of images            keep 1 GiB
    whatever begins on a host  keeps ``node.disk_reserve_mib``; 5 % of the disk, 1 GiB at most
    output of ranks            keeps a sixteenth of the disk, 64 MiB at most
    records of how ranks end   keep nothing

Who writes and fails asks about the error: a full disk passes when there is room, and is never the fault of what was
written. Standard library only, because the supervisor imports it. It imports nothing of the platform.
"""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

_FULL = (errno.ENOSPC, errno.EDQUOT)
_BROKEN = (errno.EROFS, errno.EIO)
_MIB = 1 << 20


class Kept(NamedTuple):
    """What somebody keeps free for others: a part of the disk, within bounds, in bytes."""

    most: int
    divisor: int = 1
    """A part of 1 / ``divisor``."""
    least: int = 0

    def of(self, size: int) -> int:
        """In bytes, of a disk of this size."""
        return min(max(size // self.divisor, self.least), self.most)


KEPT_BY_PULLS = Kept(1 << 30)
KEPT_BY_OUTPUT = Kept(64 * _MIB, 16)
KEPT_BY_PROGRAMS = Kept(1 << 30, 1000, 256 << 10)
"""What a program leaves free, whose large write fails before the last block is used."""


def kept_by_starts(reserve_mib: int | None) -> Kept:
    """For whatever begins on a host. ``reserve_mib``: ``node.disk_reserve_mib``."""
    return Kept(1 << 30, 20) if reserve_mib is None else Kept(reserve_mib * _MIB)


class DiskRoom(NamedTuple):
    """The room of a disk. All in bytes."""

    size: int
    free: int
    """For others than root."""
    kept: int
    """For others than who asks."""

    @classmethod
    def of(cls, place: str | os.PathLike[str] | int, kept: Kept) -> DiskRoom:
        """The room of the disk on which ``place`` is, a path or a descriptor. Raises ``OSError``."""
        disk = os.statvfs(place)
        size = disk.f_frsize * disk.f_blocks
        return cls(size, disk.f_frsize * disk.f_bavail, kept.of(size))

    def is_full(self, wanted: int = 0) -> bool:
        """True if ``wanted`` bytes do not fit beside what is kept."""
        return self.free < self.kept + wanted

    def why(self, wanted: int = 0) -> str:
        """Why it is full, for people."""
        needs = f", and {_mib(wanted)} are needed" if wanted else ""
        return f"{self.free // _MIB} MiB are free, and {_mib(self.kept)} are kept for others{needs}"


def is_full(place: str, kept: Kept, wanted: int = 0) -> bool:
    """True if the disk of ``place`` is full for who keeps this much. False if nobody can say it."""
    try:
        return DiskRoom.of(place, kept).is_full(wanted)
    except OSError:
        return False


def fails_because_full(error: BaseException) -> bool:
    """True for what is raised because a disk, or the quota on it, is used up."""
    return isinstance(error, OSError) and error.errno in _FULL


def is_fault_of_disk(number: int | None) -> bool:
    """True for the errno of a disk that is full, read-only or broken, whatever is written."""
    return number in _FULL or number in _BROKEN


def says_full(text: str) -> bool:
    """True if another program says of an error that a disk is full."""
    return any(os.strerror(number).lower() in text.lower() for number in _FULL)


def told(whose: str, why: str = "") -> str:
    """The one wording of "the disk is full". ``whose``: what is on it, and where."""
    return f"the disk of {whose} is full{f' ({why})' if why else ''}: make room there"


def told_of_error(whose: str, error: OSError) -> str:
    """The same for a write that failed. A disk that is read-only or broken is told from a full one."""
    why = error.strerror or str(error)
    return told(whose, why) if fails_because_full(error) else f"the disk of {whose} takes nothing ({why}): mend it"


def _mib(size: int) -> str:
    return f"{-(-size // _MIB)} MiB"
