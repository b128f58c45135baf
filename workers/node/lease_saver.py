"""Writes the host's lease to its disk, and lets nobody wait for that: a disk that hangs must not end the lease."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from gpu_platform.hosts.system.lease_file import Lease, LeaseRecord
from gpu_platform.hosts.system.records import boot_clock_s

log = structlog.get_logger()

HANGS_S = 5.0
"""A disk that takes longer for some hundred bytes hangs: the host takes no more work."""


class LeaseSaver:
    """A :class:`LeaseRecord` before another one, which is on a disk. One thread writes, the newest lease."""

    def __init__(
        self,
        record: LeaseRecord,
        show: Callable[[Lease], None] = lambda lease: None,
        clock: Callable[[], float] = boot_clock_s,
    ) -> None:
        """``show``: gives the lease to whoever reads it in memory, at once. ``clock``: seconds that only grow."""
        self._record, self._show, self._clock = record, show, clock
        self._changed = threading.Condition()
        self._next: Lease | None = None
        self._began_s: float | None = None
        self._thread: threading.Thread | None = None

    def read(self) -> Lease | None:
        """See :class:`LeaseRecord`. Call it once, at the start: it reads the disk."""
        return self._record.read()

    def write(self, lease: Lease) -> None:
        """Show the lease now, and write it soon. Never blocks."""
        self._show(lease)
        with self._changed:
            self._next = lease
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_for_ever, name="lease-file", daemon=True)
                self._thread.start()
            self._changed.notify()

    def why_stuck(self) -> str | None:
        """Why this host must get no new work: its disk does not take the lease. None: it does, as far as is known."""
        began_s = self._began_s
        if began_s is None or self._clock() - began_s < HANGS_S:
            return None
        return f"the disk of its records has not answered for {HANGS_S:g} s: ranks that run go on, and none starts"

    def _write_for_ever(self) -> None:
        while True:
            with self._changed:
                while (lease := self._next) is None:
                    self._changed.wait()
                self._next = None
            self._began_s = self._clock()
            try:
                self._record.write(lease)
            except OSError as error:
                # The disk is full: ranks end with the lease that is on disk, unless it is renewed in time.
                log.error("lease.not_written", error=str(error))
            finally:
                self._began_s = None
