"""Waits until something appears in a directory: inotify(7), without a library."""

from __future__ import annotations

import ctypes
import os
import select
from pathlib import Path

_IN_MOVED_TO = 0x80
_libc = ctypes.CDLL(None, use_errno=True)


class DirectoryWatch:
    """Notices files that are renamed into ``directory``, which must exist."""

    def __init__(self, directory: Path) -> None:
        self._fd = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self._fd < 0 or _libc.inotify_add_watch(self._fd, os.fsencode(directory), _IN_MOVED_TO) < 0:
            number = ctypes.get_errno()
            self.close()
            raise OSError(number, os.strerror(number), str(directory))
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    def wait(self, timeout_s: float) -> bool:
        """Wait for a file. True: one came since the last call. False: the time was up."""
        if not self._poll.poll(timeout_s * 1000):
            return False
        os.read(self._fd, 65536)
        return True

    def close(self) -> None:
        """Stop watching."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
