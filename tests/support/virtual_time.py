"""A scheduler, a store that accepts everything, and a clock that jumps to the next thing that happens."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.scheduler import Decision, Scheduler
from tests.builders import cluster


class VirtualTime:
    """``duration(row)`` in seconds is how long a job really runs, at most its time limit."""

    def __init__(self, machines: cluster, scheduler: Scheduler, duration: Callable[[PlacementRequest], float]) -> None:
        self.machines, self.scheduler, self.duration = machines, scheduler, duration
        self.now = 0.0
        self.started: dict[str, float] = {}
        self.ended: dict[str, float] = {}
        self.running: dict[str, Placement] = {}
        self.last = Decision()
        self._ends: list[tuple[float, str]] = []

    def submit(self, *rows: PlacementRequest) -> None:
        for row in rows:
            self.scheduler.add(row)
        self.decide()

    def decide(self) -> None:
        self.last = self.scheduler.decide(self.now)
        for row, placement in self.last.placements:
            for part in placement.slices:
                self.machines.busy(part.host, *part.gpu_indices)
            self._apply(placement)
            self.scheduler.confirm(row.job_id, row.attempt)
            self.started[row.job_id], self.running[row.job_id] = self.now, placement
            heapq.heappush(self._ends, (self.now + self.duration(row), row.job_id))

    def step(self) -> bool:
        """To the next moment at which jobs end; False if none runs."""
        if not self._ends:
            return False
        self.now = self._ends[0][0]
        while self._ends and self._ends[0][0] <= self.now:
            _, job_id = heapq.heappop(self._ends)
            self._end(job_id)
        self.decide()
        return True

    def end(self, job_id: str) -> None:
        """Now, before its time."""
        self._ends = [(at, other) for at, other in self._ends if other != job_id]
        heapq.heapify(self._ends)
        self._end(job_id)
        self.decide()

    def _end(self, job_id: str) -> None:
        placement = self.running.pop(job_id)
        self.ended[job_id] = self.now
        for part in placement.slices:
            self.machines.free(part.host, *part.gpu_indices)
        self._apply(placement)

    def _apply(self, placement: Placement) -> None:
        self.scheduler.upsert_gpus([self.machines.gpu_rows[uuid] for uuid in placement.gpu_uuids])
