"""Threads of one kind of call that may never return: a disk, a driver, a name server, a database that stands still.

A pool that many share is full as soon as enough calls hang, and then those wait that would not hang: that is how a slow
disk ends a lease. So each promise has a lane: its own few threads, and a time after which nobody waits. A call that
hangs keeps a thread of its lane, and nothing else; the lane works again when the call returns.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


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
        """What ``call`` returns. Raises :class:`Stuck` after ``patience_s`` seconds (None: those of the lane); a call that
        has not begun by then never does."""
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
