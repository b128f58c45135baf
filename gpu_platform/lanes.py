"""Threads of one kind of call that may never return: a disk, a driver, a name server, a database that stands still.

A pool that many share is full as soon as enough calls hang, and then those wait that would not hang: that is how a slow
disk ends a lease. So each promise has a lane: its own few threads, and a time after which nobody waits. A call that
hangs keeps a thread of its lane, and nothing else; the lane works again when the call returns.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Generic, TypeVar

import structlog

T = TypeVar("T")

log = structlog.get_logger(__name__)


class Stuck(TimeoutError):
    """The call, or one before it in its lane, has not returned in time. It may still do what it was to do."""


class Lane:
    """Runs calls in threads of its own."""

    def __init__(self, what: str, *, threads: int = 1, patience_s: float) -> None:
        """``what`` the calls do, for the names of the threads and for people. ``patience_s``: nobody waits longer."""
        self._what = what
        self._patience_s = patience_s
        self._threads = ThreadPoolExecutor(threads, what)

    async def run(self, call: Callable[[], T], patience_s: float | None = None) -> T:
        """What ``call`` returns. Raises :class:`Stuck` after ``patience_s`` seconds (None: those of the lane). A call
        that has not begun by then never does."""
        limit_s = self._patience_s if patience_s is None else patience_s
        context = contextvars.copy_context()
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.get_running_loop().run_in_executor(self._threads, context.run, call)
        except TimeoutError as error:
            if isinstance(error, Stuck):
                raise
            raise Stuck(f"{self._what} has not answered for {limit_s:g} s") from None

    def close(self) -> None:
        """Begin no more calls. Does not wait for those that run."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class LastKnown(Generic[T]):
    """A value that is read again by whoever asks for it, in a thread of its own. While a read hangs, the value is the
    one that was read last."""

    def __init__(self, first: T, what: str, *, patience_s: float, fresh_s: float = 0.0) -> None:
        """``first``: the value until one was read. ``patience_s``: who begins a read waits no longer. ``fresh_s``: a
        value that was read so lately is not read again."""
        self._value = first
        self._what = what
        self._patience_s = patience_s
        self._fresh_s = fresh_s
        self._lock = threading.Lock()
        self._read_s = -math.inf
        self._began_s: float | None = None
        self._error: Exception | None = None

    def read(self, read: Callable[[], T]) -> T:
        """The newest value. Raises what ``read`` raises if it does so in time. Thread-safe."""
        with self._lock:
            now_s = time.monotonic()
            if self._began_s is not None or now_s - self._read_s < self._fresh_s:
                return self._value
            self._began_s = now_s
        thread = threading.Thread(target=self._run, args=(read,), name=self._what, daemon=True)
        thread.start()
        thread.join(self._patience_s)
        if (error := self._error) is not None and not thread.is_alive():
            raise error
        return self._value

    def hangs_s(self) -> float:
        """For how long the read has not returned that is under way. 0.0: there is none."""
        began_s = self._began_s
        return 0.0 if began_s is None else time.monotonic() - began_s

    def _run(self, read: Callable[[], T]) -> None:
        self._error = None
        try:
            self._value = read()
            self._read_s = time.monotonic()
        except Exception as error:
            self._error = error
        finally:
            self._began_s = None


class InOrder:
    """Runs calls one after another in one thread: writes to a disk. Who gives one waits for it, but not for long."""

    def __init__(self, what: str, *, patience_s: float) -> None:
        self._threads = ThreadPoolExecutor(1, what)
        self._what = what
        self._patience_s = patience_s
        self._unfinished: Future[None] | None = None
        """The oldest call that was not waited for until its end."""

    def do(self, call: Callable[[], None]) -> bool:
        """Run ``call`` and wait. True: it is done. False: it takes too long, or one before it does; it is done later,
        and an error of it goes to the log. Raises what ``call`` raises. Thread-safe."""
        future = self._threads.submit(call)
        hangs = self._unfinished is not None and not self._unfinished.done()
        try:
            future.result(0.0 if hangs else self._patience_s)
        except FutureTimeout:
            if future.done():  # its own error
                raise
            self._unfinished = self._unfinished if hangs else future
            future.add_done_callback(self._tell)
            return False
        return True

    def later(self, call: Callable[[], None]) -> None:
        """Run ``call`` after all that were given before, and do not wait."""
        self._threads.submit(call).add_done_callback(self._tell)

    def _tell(self, future: Future[None]) -> None:
        if (error := future.exception()) is not None:
            log.error("lane.late_error", lane=self._what, error=repr(error))
