"""Jobs that lost hosts or GPUs and have no new place yet. Other jobs may be moved for them: see ``recovery``."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.scheduling.preempting.claims import RETURN_S
from gpu_platform.scheduling.queueing.job_queue import JobQueue

HEAL_PATIENCE_S = 30.0
"""A reset with its check takes less than this. Moving other jobs costs them their grace and unsaved work."""
GATHER_S = 2.0
"""After several hosts were lost, jobs of low priority wait this long, until the lost jobs are back in the queue."""


@dataclass
class _Loss:
    """What a job lost."""

    not_before: float = -math.inf
    """Other jobs are moved for it only after this time, because its own GPUs may be repaired sooner."""
    gpus: set[str] = field(default_factory=set)
    seen: float = -math.inf
    """When it last held something or waited. In between it does neither."""


class DisplacedJobs:
    """Knows which jobs lost hosts or GPUs, and from when on others may be moved for them."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._losses: dict[str, _Loss] = {}
        self._lost_at: list[float] = []
        """When hosts were lost, within the last GATHER_S."""
        self._gather_until = -math.inf
        self._returning: dict[str, int] = {}
        """Jobs that lost hosts and are not in the queue yet, with their priorities."""

    def __bool__(self) -> bool:
        return bool(self._losses)

    def hosts_lost(self, jobs: Iterable[RunningRow], now: float) -> None:
        """Note that these jobs were on a lost host. They will wait again, and other jobs may be moved for them at
        once.
        """
        for job in jobs:
            self._losses[job.job_id] = _Loss(seen=now)
            self._returning[job.job_id] = job.priority
        self._lost_at = [*(at for at in self._lost_at if now - at < GATHER_S), now]
        if len(self._lost_at) > 1:
            self._gather_until = now + GATHER_S

    def gpu_broke(self, jobs: Iterable[RunningRow], gpu_uuid: str, now: float, *, heals: bool) -> None:
        """Note that a GPU of these jobs left service. ``heals``: it may be back soon, so other jobs are moved only
        later.
        """
        for job in jobs:
            known = self._losses.get(job.job_id)
            if known is None:
                known = self._losses[job.job_id] = _Loss(now + HEAL_PATIENCE_S, seen=now)
            known.gpus.add(gpu_uuid)
        if not heals:
            for loss in self._losses.values():
                if gpu_uuid in loss.gpus:
                    loss.not_before = -math.inf

    def hold_back_priority(self, now: float) -> float:
        """Return a priority: jobs of this priority or lower are not served yet.

        Jobs that lost several hosts together come back into the queue one by one, as their ranks end. If they were
        served as they come, the quickest would get the rest of the cluster, and not the most important and oldest.
        """
        if now >= self._gather_until:
            self._returning.clear()
            return -math.inf
        for job_id in [job_id for job_id in self._returning if job_id in self._queue]:
            del self._returning[job_id]
        return max(self._returning.values(), default=-math.inf)

    def due(self, now: float) -> list[PlacementRequest]:
        """Return those that wait and for which others may be moved now."""
        if self.hold_back_priority(now) != -math.inf:
            return []
        due = [job_id for job_id, loss in self._losses.items() if loss.not_before <= now]
        return [request for job_id in due if (request := self._queue.get(job_id))]

    def placed(self, job_id: str) -> None:
        """Note that the job has a place, or does not wait any more."""
        self._losses.pop(job_id, None)

    def forget_settled(self, holding: Iterable[RunningRow], now: float) -> None:
        """Forget jobs that ended meanwhile. ``holding``: the jobs that hold something."""
        held = {row.job_id for row in holding} if self._losses else set[str]()
        for job_id, loss in self._losses.items():
            if job_id in held or job_id in self._queue:
                loss.seen = now
        self._losses = {job: loss for job, loss in self._losses.items() if now - loss.seen < RETURN_S}
