"""A line of a forward run: waiting jobs that it need not tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.queueing.job_queue import JobQueue
from gpu_platform.scheduling.queueing.queue_order import QueueSortKey


@dataclass(slots=True)
class Line:
    """Waiting jobs that ask for the same, with the same time limit or assumed limit, in order."""

    jobs: Sequence[QueueSortKey]
    kind: int
    """The number of the set of GPUs that they may use."""
    request: PlacementRequest
    """The job at its head."""
    place: int = 0
    """Where that is in ``jobs``."""

    def advance(self, queue: JobQueue) -> bool:
        """Let the next job that still waits step to the head. False: there is none."""
        for place in range(self.place + 1, len(self.jobs)):
            request = queue.get(self.jobs[place][2])
            if request is not None:
                self.place, self.request = place, request
                return True
        return False
