"""Judges from samples whether an attempt makes progress. No I/O, and no clock of its own.

An attempt hangs if for its hang limit *all* of its GPUs were at 0 % with their memory unchanged, and *none* of its
living ranks used CPU time, read or wrote, or printed anything. It idles if its GPUs alone were at 0 %. A GPU whose
utilisation cannot be read (MIG) never counts as idle: to miss a hang is better than to kill a healthy job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpu_platform.node.accounting.counters import Counters

BUSY_CPUS = 0.02
"""A rank that uses fewer CPU seconds per second makes no progress. Threads that only poll use less."""
BUSY_IO_BYTES_PER_S = 1024
"""A rank that reads and writes fewer bytes per second makes no progress. The heartbeat of an experiment tracker
needs less."""


class Stall(StrEnum):
    """How an attempt makes no progress. The values are the kinds of the reports."""

    HANGS = "hang"
    IDLE_WARNING = "idle_warning"
    IDLES = "idle"


@dataclass
class Watchdog:
    """Finds out that one attempt on this host makes no progress. Limits are in seconds. None: not watched for that."""

    hang_limit_s: float | None
    idle_limit_s: float | None
    _since_s: float | None = None
    """The first sample with a living rank. The limits count from there at the earliest."""
    _sampled_at_s: float = 0.0
    _ranks_moved_at_s: float = 0.0
    _last: dict[int, Counters] = field(default_factory=dict[int, Counters])
    _reported: set[Stall] = field(default_factory=set[Stall])

    def look(
        self, now_s: float, ranks: Mapping[int, Counters], gpus_busy_at_s: float, gpus_moved_at_s: float
    ) -> dict[Stall, float]:
        """The stalls that begin now, each with the seconds for which there was no progress.

        ``ranks``: counters of ranks that live. ``gpus_busy_at_s`` and ``gpus_moved_at_s``: when one of its GPUs last
        computed, or last did anything. All times are on one monotonic clock.
        """
        if not ranks:
            return {}
        if self._since_s is None:
            self._since_s = self._ranks_moved_at_s = now_s
        elif self._moved(ranks, now_s - self._sampled_at_s):
            self._ranks_moved_at_s = now_s
        self._last, self._sampled_at_s = dict(ranks), now_s
        idle_s = now_s - max(self._since_s, gpus_busy_at_s)
        still_s = now_s - max(self._since_s, self._ranks_moved_at_s, gpus_moved_at_s)
        found: dict[Stall, float] = {}
        if self.hang_limit_s is not None and still_s >= self.hang_limit_s:
            found[Stall.HANGS] = still_s
        if self.idle_limit_s is not None:
            if idle_s < self.idle_limit_s / 2:
                self._reported.discard(Stall.IDLE_WARNING)
            elif idle_s >= self.idle_limit_s:
                found[Stall.IDLES] = idle_s
            else:
                found[Stall.IDLE_WARNING] = idle_s
        new = {kind: seconds for kind, seconds in found.items() if kind not in self._reported}
        self._reported |= new.keys()
        return new

    def _moved(self, ranks: Mapping[int, Counters], elapsed_s: float) -> bool:
        if elapsed_s <= 0:
            return False
        for rank, now in ranks.items():
            before = self._last.get(rank)
            if before is None or now.output_bytes != before.output_bytes:
                return True
            if now.cpu_s - before.cpu_s > BUSY_CPUS * elapsed_s:
                return True
            # The bytes of a process that ended leave the sum, so a smaller sum is a change too.
            if abs(now.io_bytes - before.io_bytes) > BUSY_IO_BYTES_PER_S * elapsed_s:
                return True
        return False
