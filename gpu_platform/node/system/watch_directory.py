"""Waits until something appears in directories: inotify(7), without a library."""

from __future__ import annotations

import ctypes
import os
import select
import struct
from pathlib import Path

_IN_MOVED_TO = 0x80
_IN_Q_OVERFLOW = 0x4000
_EVENT = struct.Struct("iIII")
_libc = ctypes.CDLL(None, use_errno=True)


class DirectoryWatch:
    """Notices files that are renamed into the directories, which must exist. One descriptor serves them all."""

    def __init__(self, *directories: Path) -> None:
        self._fd = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        self._directories: dict[int, Path] = {}
        self._check(self._fd, Path("/proc/sys/fs/inotify"))
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        for directory in directories:
            self.add(directory)

    def add(self, directory: Path) -> None:
        """Watch this directory, too."""
        number = _libc.inotify_add_watch(self._fd, os.fsencode(directory), _IN_MOVED_TO)
        self._check(number, directory)
        self._directories[number] = directory

    def fileno(self) -> int:
        """The descriptor, which is readable when files came."""
        return self._fd

    def wait(self, timeout_s: float) -> bool:
        """Wait for a file. True: one came since the last call. False: the time was up."""
        if not self._poll.poll(timeout_s * 1000):
            return False
        os.read(self._fd, 65536)
        return True

    def take(self) -> set[Path]:
        """The directories into which files came since the last call."""
        found: set[Path] = set()
        try:
            data = os.read(self._fd, 65536)
        except BlockingIOError:
            return found
        at = 0
        while at < len(data):
            number, mask, _, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size + length
            if mask & _IN_Q_OVERFLOW:
                return set(self._directories.values())
            found.add(self._directories[number])
        return found

    def close(self) -> None:
        """Stop watching."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _check(self, result: int, what: Path) -> None:
        if result < 0:
            number = ctypes.get_errno()
            self.close()
            raise OSError(number, os.strerror(number), str(what))
