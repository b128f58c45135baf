"""When GPUs become free in a forward run: jobs end that run now, and jobs that start in the run."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray


class ComingEnds:
    """The ends that are still to come, in order."""

    def __init__(self, ends: NDArray[np.float64]) -> None:
        """``ends``: by host index and GPU, when it becomes free. Only finite times are ends."""
        hosts, positions = np.nonzero(np.isfinite(ends))
        order = np.argsort(ends[hosts, positions], kind="stable")
        self._ends = ends[hosts, positions][order]
        self._ending = hosts[order], positions[order]
        self._next = 0
        self._started: list[tuple[float, int, Mapping[int, int]]] = []
        """A heap of the ends of jobs that started in the run: (end, number, host index -> GPUs)."""
        self._count = 0

    @property
    def next_at(self) -> float:
        """The time of the next end. Infinity: nobody ends any more."""
        started, ends = self._started, self._ends
        return min(
            started[0][0] if started else math.inf, float(ends[self._next]) if self._next < len(ends) else math.inf
        )

    def add(self, end: float, gpus: Mapping[int, int]) -> None:
        """Note that a job starts, and has ``gpus`` (host index -> GPUs) until ``end``."""
        self._count += 1
        heapq.heappush(self._started, (end, self._count, gpus))

    def take(self, at: float) -> dict[int, int]:
        """Return the GPUs that become free by ``at``, by host index. They do not come again."""
        freed: dict[int, int] = {}
        while self._started and self._started[0][0] <= at:
            for host, gpus in heapq.heappop(self._started)[2].items():
                freed[host] = freed.get(host, 0) | gpus
        last = int(np.searchsorted(self._ends, at, side="right"))
        for place in range(self._next, last):
            host = int(self._ending[0][place])
            freed[host] = freed.get(host, 0) | 1 << int(self._ending[1][place])
        self._next = last
        return freed
