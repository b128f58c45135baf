"""How much room the disk of the host's records has."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


class DiskRoom(NamedTuple):
    """All in bytes."""

    size: int
    free: int
    reserve: int
    """With less free space than this the host starts nothing new."""

    @classmethod
    def of(cls, directory: Path, reserve_mib: int | None) -> DiskRoom:
        """The room of the disk on which ``directory`` is. ``reserve_mib`` None: 5 % of the disk, 1 GiB at most. Raises
        ``OSError``."""
        disk = os.statvfs(directory)
        size, free = disk.f_frsize * disk.f_blocks, disk.f_frsize * disk.f_bavail
        return cls(size, free, min(size // 20, 1 << 30) if reserve_mib is None else reserve_mib << 20)
