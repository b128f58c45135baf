"""How long jobs are away after a fault: read off the change feed, for the metric.

The clock starts when a fault is recorded on a GPU of the job or a host of it is lost, at the latest when the attempt is
given up for its hardware, and stops when the next attempt runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from activities.leader.metrics import RECOVERY_SECONDS
from gpu_platform.domain.attempt import AttemptKey
from gpu_platform.domain.job import FailureKind, JobEvent

ENDED = frozenset({"job.completed", "job.failed", "job.cancelled"})


class RecoveryTimes:
    """``holders``: the jobs that have a GPU, or parts of it."""

    def __init__(self, holders: Callable[[str], Iterable[AttemptKey]]) -> None:
        self._holders = holders
        self._struck: dict[AttemptKey, datetime] = {}
        self._away: dict[str, datetime] = {}

    def take(self, event: JobEvent) -> None:
        job_id = event.job_id or ""
        if event.kind == "gpu.fault" and event.gpu_uuid:
            self._strike(self._holders(event.gpu_uuid), event.at)
        elif event.kind == "host.lost":
            keys = (text.rpartition("#") for text in event.data.get("attempts", []))
            self._strike((AttemptKey(job_id=job, attempt=int(attempt)) for job, _, attempt in keys), event.at)
        elif event.kind == "job.retrying" and event.attempt is not None:
            struck = self._struck.pop(AttemptKey(job_id=job_id, attempt=event.attempt), event.at)
            if (event.data.get("failure") or {}).get("kind") == FailureKind.HARDWARE:
                self._away.setdefault(job_id, struck)
        elif event.kind == "job.running" and job_id in self._away:
            RECOVERY_SECONDS.observe((event.at - self._away.pop(job_id)).total_seconds())
        elif event.kind in ENDED:
            self._away.pop(job_id, None)
            if event.attempt is not None:
                self._struck.pop(AttemptKey(job_id=job_id, attempt=event.attempt), None)

    def _strike(self, keys: Iterable[AttemptKey], at: datetime) -> None:
        for key in keys:
            self._struck.setdefault(key, at)
