"""A disk that hangs: whoever writes to it waits in the kernel, uninterruptibly, until it works again."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

_FIFREEZE, _FITHAW = 0xC004_5877, 0xC004_5878


class HangingDisk:
    """A file system of its own at ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)

    @contextmanager
    def hangs(self) -> Iterator[None]:
        """Every write hangs inside the block (ioctl FIFREEZE)."""
        fcntl.ioctl(self._fd, _FIFREEZE, 0)
        try:
            yield
        finally:
            fcntl.ioctl(self._fd, _FITHAW, 0)

    def close(self) -> None:
        """Work again, if it hangs."""
        with suppress(OSError):
            fcntl.ioctl(self._fd, _FITHAW, 0)
        os.close(self._fd)


@contextmanager
def hanging_disk(place: Path) -> Iterator[HangingDisk]:
    """Make one below ``place``. Skips the test where none can be mounted."""
    image, path = place / "disk.img", place / "disk"
    path.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    for command in (["mkfs.ext4", "-q", "-F", str(image)], ["mount", "-o", "loop", str(image), str(path)]):
        try:
            done = subprocess.run(command, capture_output=True, check=False)
        except FileNotFoundError:
            pytest.skip(f"{command[0]} is not installed")
        if done.returncode != 0:
            pytest.skip(f"no file system can be mounted here: {done.stderr.decode().strip()}")
    disk = HangingDisk(path)
    try:
        yield disk
    finally:
        disk.close()
        subprocess.run(["umount", "-l", path], check=True)
