"""Writes log lines without waiting for whoever reads them: no process stands still because its log does.

A log is a pipe, a terminal or a file. A pipe whose reader stands still is full after 64 KiB, a disk may hang, and then
a write never returns. So one thread writes, and everybody else only adds to a bounded queue. What does not fit is lost,
is counted, and the log says so when it is written again.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from typing import IO

import structlog

MOST_BYTES = 4 << 20
"""So much waits at most: some ten thousand lines."""
FLUSH_S = 1.0
"""The end of a process waits so long for its last lines."""

log = structlog.get_logger(__name__)


class LineHandler(logging.Handler):
    """A handler of :mod:`logging` that never blocks. Lines are written in order, by a daemon thread."""

    def __init__(self, stream: IO[str], most_bytes: int = MOST_BYTES) -> None:
        super().__init__()
        self._lines = _Lines(stream, most_bytes)

    def emit(self, record: logging.LogRecord) -> None:
        """Add the line to the queue."""
        try:
            line = self.format(record)
        except Exception as error:  # a value that cannot be written must not end whoever logs it
            line = f"a log line of {record.name} cannot be written: {error!r}"
        self._lines.add(line + "\n")

    def flush(self) -> None:
        """Wait until all is written, at most ``FLUSH_S``."""
        self._lines.wait_written(FLUSH_S)


class _Lines:
    """The queue and its thread."""

    def __init__(self, stream: IO[str], most_bytes: int) -> None:
        self._stream = stream
        self._most_bytes = most_bytes
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[str] = deque()
        self._bytes = 0
        self._lost = 0
        self._thread: threading.Thread | None = None

    def add(self, line: str) -> None:
        with self._changed:
            if self._bytes + len(line) > self._most_bytes:
                self._lost += 1
                return
            self._waiting.append(line)
            self._bytes += len(line)
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_for_ever, name="log", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait_written(self, patience_s: float) -> None:
        until = time.monotonic() + patience_s
        with self._changed:
            while self._bytes and (left_s := until - time.monotonic()) > 0:
                self._changed.wait(left_s)

    def _write_for_ever(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                text = "".join(self._waiting)
                self._waiting.clear()
            _write(self._stream, text)
            with self._changed:
                self._bytes -= len(text)
                lost, self._lost = self._lost, 0
                self._changed.notify_all()
            if lost:
                log.warning("log.lines_lost", lines=lost, reason="whatever takes this log stood still")


def _write(stream: IO[str], text: str) -> None:
    try:
        fd = stream.fileno()
    except (OSError, ValueError, AttributeError):  # a stream of a test
        _write_to(stream, text)
        return
    data = memoryview(text.encode(errors="backslashreplace"))
    try:
        while data:
            data = data[os.write(fd, data) :]
    except OSError:  # nobody reads it any more, or the disk is full: there is no place to say so
        return


def _write_to(stream: IO[str], text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):
        return
