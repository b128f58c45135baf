"""How much room a disk has. Standard library only: the supervisor imports it."""

from __future__ import annotations

import os

_FULL_BYTES = 256 << 10


def is_full(path: str | None) -> bool:
    """True if the disk of ``path`` has no room for others than root. A large write fails before the last block is
    used."""
    if path is None:
        return False
    try:
        disk = os.statvfs(path)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < max(_FULL_BYTES, disk.f_blocks * disk.f_frsize // 1000)
