"""A rank's log on disk: a row of files. The oldest are removed, so that no rank fills the disk.

::

    output.log             bytes 0 to N of everything that was written
    output.log.N           from byte N on; the last one is being written

A file's name says where it begins, so readers need nothing else. An offset always means the same byte, even after
files were removed. Files end at the end of a line. Standard library only: the supervisor imports it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
from _thread import allocate_lock, start_new_thread
from contextlib import suppress
from typing import NamedTuple

from gpu_platform.disk_room import KEPT_BY_OUTPUT, is_full
from gpu_platform.node.system.records import LOG, PRIVATE_FILE

READ_BYTES = 64 * 1024
"""A rank's output is read in pieces of at most this many bytes."""
_PIPE_BYTES = 256 * 1024
_LONGEST_LINE_BYTES = 64 * 1024
"""A line that is longer than this may be cut where a file ends."""
_NOTE_PATIENCE_S = 1.0
_F_SETPIPE_SZ = 1031
_TRIES = 20


class LogBounds(NamedTuple):
    """How large a log may become."""

    file_bytes: int
    files: int
    """At least 2: while a new file is filled, the previous one is kept."""


class LogBytes(NamedTuple):
    """Bytes of a log, where they begin, and how long the log is."""

    data: bytes
    offset: int
    """Where the bytes begin. It is later than the requested offset if the log's beginning was removed."""
    size: int
    """How many bytes were ever written."""


def segments(directory: str) -> list[tuple[int, str]]:
    """(offset of the first byte, path) of each file, in order."""
    found: list[tuple[int, str]] = []
    for name in os.listdir(directory):
        start = name.removeprefix(f"{LOG}.")
        if name == LOG:
            found.append((0, os.path.join(directory, name)))
        elif start != name and start.isdigit():
            found.append((int(start), os.path.join(directory, name)))
    return sorted(found)


def read_log(directory: str, offset: int, limit: int) -> LogBytes:
    """Read up to ``limit`` bytes from ``offset`` (negative: from the end). Raises ``FileNotFoundError``."""
    for _ in range(_TRIES):
        try:
            return _read(directory, offset, limit)
        except _Moved:  # a file was removed while we read, so there is a new oldest one
            continue
    raise OSError(f"{directory}: the log changes faster than it can be read")


class LogWriter:
    """Appends to the log in ``directory``, which begins with the first output. It never raises: bytes that do not fit
    on the disk are lost, and the log says so."""

    def __init__(self, directory: str, bounds: LogBounds) -> None:
        self._directory = directory
        self._bounds = bounds
        self._lock = allocate_lock()
        self._lost = 0
        self._why = ""
        self._at_line_start = True
        there = segments(directory)
        self._start = there[-1][0] if there else 0
        self._fd = -1
        self._size = os.stat(there[-1][1]).st_size if there else 0

    def write(self, data: bytes) -> None:
        """Append to the log. If the disk is full, the bytes are lost and nothing is raised."""
        with self._lock:
            self._write(data)

    def close(self) -> None:
        """Nothing is written after this."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, data: bytes) -> None:
        while data:
            room = max(0, self._bounds.file_bytes - self._size)
            if len(data) <= room:
                return self._append(data)
            cut = data.rfind(b"\n", 0, room) + 1
            if not cut and not self._at_line_start:
                cut = data.find(b"\n", 0, _LONGEST_LINE_BYTES) + 1
            if not cut and not self._size:
                cut = self._bounds.file_bytes
            self._append(data[:cut])
            data = data[cut:]
            try:
                self._rotate()
            except OSError as error:
                return self._lose(len(data), error)
        return None

    def _append(self, data: bytes) -> None:
        if is_full(self._directory, KEPT_BY_OUTPUT, len(data)):
            return self._lose(len(data), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        if self._fd < 0:
            try:
                self._fd = self._open()
            except OSError as error:
                return self._lose(len(data), error)
        if self._lost and data:
            note = f"\ngpu-platform: {self._lost} bytes of output are missing here: {self._why}\n".encode()
            try:
                self._size += os.write(self._fd, note)
            except OSError as error:
                return self._lose(len(data), error)
            self._lost = 0
        left = memoryview(data)
        while left:
            try:
                written = os.write(self._fd, left)
            except OSError as error:
                return self._lose(len(left), error)
            self._size += written
            self._at_line_start = left[written - 1] == 10
            left = left[written:]
        return None

    def _lose(self, size: int, error: OSError) -> None:
        self._lost += size
        self._why = error.strerror or str(error)

    def _rotate(self) -> None:
        before = self._fd, self._start
        self._start += self._size
        try:
            self._fd = self._open()
        except OSError:
            self._start = before[1]
            raise
        if before[0] >= 0:
            os.close(before[0])
        self._size = 0
        for _, path in segments(self._directory)[: -self._bounds.files]:
            os.unlink(path)

    def _open(self) -> int:
        name = LOG if self._start == 0 else f"{LOG}.{self._start}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return os.open(os.path.join(self._directory, name), flags, PRIVATE_FILE)


class LogPump:
    """A pipe that a rank writes to, and a thread that copies what comes out of it to the rank's log."""

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer
        self._out, self.write_end = os.pipe()
        self._over = allocate_lock()
        try:
            fcntl.fcntl(self.write_end, _F_SETPIPE_SZ, _PIPE_BYTES)
        except OSError:  # the user has too many pipes; a smaller one is enough
            return

    def start(self) -> None:
        """Start the thread, in the process that keeps the log."""
        self._over.acquire()
        start_new_thread(self._run, ())

    def note(self, text: str) -> None:
        """Append a line of the platform. It comes after all that the rank wrote before.

        It is lost if the pipe stays full for ``_NOTE_PATIENCE_S``: the disk of the log hangs, and nothing waits for it.
        """
        with suppress(OSError):
            # A description of its own: the rank's stdout must go on blocking.
            fd = os.open(f"/proc/self/fd/{self.write_end}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                poll = select.poll()
                poll.register(fd, select.POLLOUT)
                poll.poll(_NOTE_PATIENCE_S * 1000)
                os.write(fd, f"gpu-platform: {text}\n".encode())
            finally:
                os.close(fd)

    def finish(self, timeout_s: float) -> bool:
        """Wait until every process that wrote to the pipe is gone and all output is in the log, at most
        ``timeout_s``. No note may follow. False: the time was up first."""
        os.close(self.write_end)
        return self._over.acquire(timeout=timeout_s)

    def _run(self) -> None:
        try:
            while data := os.read(self._out, READ_BYTES):
                self._writer.write(data)
        finally:
            os.close(self._out)
            self._writer.close()
            self._over.release()


class _Moved(Exception):
    """A file of the log was removed while it was read."""


def _read(directory: str, offset: int, limit: int) -> LogBytes:
    listed = segments(directory)
    if not listed:
        raise FileNotFoundError(2, "no log", directory)
    last_start, last_path = listed[-1]
    try:
        size = last_start + os.stat(last_path).st_size
    except FileNotFoundError as error:
        raise _Moved from error
    begin = max(offset if offset >= 0 else size + offset, listed[0][0])
    ends = [start for start, _ in listed[1:]] + [size]
    parts: list[bytes] = []
    at, left = begin, limit
    for (start, path), end in zip(listed, ends, strict=True):
        if not start <= at < end or left <= 0:
            continue
        try:
            with open(path, "rb") as file:
                file.seek(at - start)
                part = file.read(min(left, end - at))
        except FileNotFoundError as error:
            raise _Moved from error
        parts.append(part)
        at, left = at + len(part), left - len(part)
    return LogBytes(b"".join(parts), begin, size)
