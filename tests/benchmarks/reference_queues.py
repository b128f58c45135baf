"""What textbook queues would do with a trace, in a world kinder than ours: one pool of GPUs without hosts.

Run times are known exactly, so a job's start is decided when it arrives and never changes:

- **FCFS**: as early as its GPUs are free, but not before the job ahead of it.
- **conservative backfill**: as early as its GPUs are free for as long as it runs, all earlier jobs having theirs
  (Mu'alem and Feitelson, IEEE TPDS 12(6), 2001).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from gpu_platform.scheduling.simulator.inputs.trace import TraceJob


def fcfs(jobs: Iterable[TraceJob], gpus: int) -> list[float]:
    """Seconds that each job waits, in order of arrival."""
    pool, waits, not_before = _Pool(gpus), [], 0.0
    for job in jobs:
        not_before = pool.reserve(job.gpus.gpus, job.duration_s, max(not_before, job.submit_s))
        waits.append(not_before - job.submit_s)
    return waits


def conservative_backfill(jobs: Iterable[TraceJob], gpus: int) -> list[float]:
    """Seconds that each job waits, in order of arrival."""
    pool = _Pool(gpus)
    return [pool.reserve(job.gpus.gpus, job.duration_s, job.submit_s) - job.submit_s for job in jobs]


class _Pool:
    """Free GPUs from now on: ``free[i]`` from ``at[i]`` until ``at[i + 1]``."""

    def __init__(self, gpus: int) -> None:
        self._at = [0.0]
        self._free = [gpus]

    def reserve(self, gpus: int, duration_s: float, not_before: float) -> float:
        """The start of the earliest hole that is large and long enough; it is filled."""
        past = bisect_right(self._at, not_before) - 1
        i = past
        start = max(not_before, self._at[i])
        while True:
            if self._free[i] < gpus:
                start = self._at[i + 1]
                i += 1
            elif i + 1 == len(self._at) or self._at[i + 1] >= start + duration_s:
                break
            else:
                i += 1
        first, last = self._split(start), self._split(start + duration_s)
        for k in range(first, last):
            self._free[k] -= gpus
        return start

    def _split(self, at_s: float) -> int:
        """Make a step begin at ``at_s``; returns its place."""
        place = bisect_left(self._at, at_s)
        if place == len(self._at) or self._at[place] != at_s:
            self._at.insert(place, at_s)
            self._free.insert(place, self._free[place - 1])
        return place
