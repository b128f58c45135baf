"""Waits until the lock of a rank is free: whoever had it has released it, or is dead.

The kernel says when a file that was open for writing is closed by its last holder, whichever process that was
(inotify(7), ``IN_CLOSE_WRITE``). So it needs neither the holder's pid nor a message from it, and works for ranks that
an earlier node worker started.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import threading
from collections import defaultdict

from gpu_platform.node.system import records

_IN_CLOSE_WRITE = 0x8
_IN_Q_OVERFLOW = 0x4000
_EVENT = struct.Struct("iIII")
_READ_BYTES = 64 * 1024
_STILL_HELD_S = 0.01
"""The kernel tells of the close of a dead holder's file just before it releases the lock."""
_LOOK_S = 0.25
"""Seconds between two looks at a lock where the kernel cannot tell: no more watches (``/proc/sys/fs/inotify``)."""
_libc = ctypes.CDLL(None, use_errno=True)


async def wait_released(rank_dir: str, name: str = records.LOCK) -> None:
    """Return when nobody holds the lock. If nobody does, or there is no such file, that is at once."""
    while records.is_locked(rank_dir, name):
        closed = _CLOSES.next_close(os.path.join(rank_dir, name))
        if closed is None:
            await asyncio.sleep(_LOOK_S)
            continue
        try:
            # The look after the watch was set: what was closed before it is not told.
            if not records.is_locked(rank_dir, name):
                return
            await closed
        finally:
            _CLOSES.forget(closed)
        if not records.is_locked(rank_dir, name):
            return
        await asyncio.sleep(_STILL_HELD_S)


class _Closes:
    """Closes of files that are told to event loops. One descriptor for this process, which is never closed: the
    kernel takes milliseconds to close one."""

    def __init__(self) -> None:
        self._fd = -1
        self._lock = threading.Lock()
        self._waiting: defaultdict[int, set[asyncio.Future[None]]] = defaultdict(set)
        self._watch_of: dict[asyncio.Future[None], int] = {}
        self._waits_in: defaultdict[asyncio.AbstractEventLoop, int] = defaultdict(int)

    def next_close(self, path: str) -> asyncio.Future[None] | None:
        """A future of the running loop that is done at the next close of the file. :meth:`forget` must follow. None:
        the kernel has no more watches, or there is no such file."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._fd < 0:
                self._fd = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
            watch = _libc.inotify_add_watch(self._fd, os.fsencode(path), _IN_CLOSE_WRITE) if self._fd >= 0 else -1
            if watch < 0:
                return None
            future: asyncio.Future[None] = loop.create_future()
            self._waiting[watch].add(future)
            self._watch_of[future] = watch
            self._waits_in[loop] += 1
            if self._waits_in[loop] == 1:
                loop.add_reader(self._fd, self._take)
        return future

    def forget(self, future: asyncio.Future[None]) -> None:
        """Wait for this close no longer. Called in the loop of the future."""
        loop = future.get_loop()
        with self._lock:
            watch = self._watch_of.pop(future)
            self._waiting[watch].discard(future)
            if not self._waiting[watch]:
                del self._waiting[watch]
                _libc.inotify_rm_watch(self._fd, watch)
            self._waits_in[loop] -= 1
            if not self._waits_in[loop]:
                del self._waits_in[loop]
                loop.remove_reader(self._fd)
        future.cancel()

    def _take(self) -> None:
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:  # another loop was first
            return
        with self._lock:
            told: set[asyncio.Future[None]] = set()
            at = 0
            while at < len(data):
                watch, mask, _, length = _EVENT.unpack_from(data, at)
                at += _EVENT.size + length
                if mask & _IN_Q_OVERFLOW:
                    told.update(self._watch_of)
                else:  # it was closed, or removed
                    told |= self._waiting.get(watch, set())
        running = asyncio.get_running_loop()
        for future in told:
            loop = future.get_loop()
            if loop is running:
                _finish(future)
            else:
                loop.call_soon_threadsafe(_finish, future)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


_CLOSES = _Closes()
