"""Measures how long jobs stay without GPUs after a fault, for the metric. It only reads the change feed.

The time starts when a fault is recorded on a GPU of the job, or when a host of the job is lost; at the latest when the
attempt is ended because of its hardware. It stops when the next attempt runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.events import Event
from gpu_platform.domain.jobs.blame import FailureKind
from workers.scheduler.metrics import RECOVERY_SECONDS

ENDED = frozenset({"job.completed", "job.failed", "job.cancelled"})


class RecoveryTimes:
    """Measures how long jobs need to run again after a fault.

    ``holders`` returns the attempts that hold a GPU or a share of it, by the GPU's uuid.
    """

    def __init__(self, holders: Callable[[str], Iterable[AttemptKey]]) -> None:
        self._holders = holders
        self._failed_at: dict[AttemptKey, datetime] = {}
        self._waiting_since: dict[str, datetime] = {}

    def record(self, event: Event) -> None:
        """Take one event of the feed. Events must come in order, each once."""
        job_id = event.job_id or ""
        if event.kind == "gpu.fault" and event.gpu_uuid:
            self._record_fault(self._holders(event.gpu_uuid), event.at)
        elif event.kind == "host.lost":
            keys = (text.rpartition("#") for text in event.data.get("attempts", []))
            affected_attempts = (AttemptKey(job_id=job, attempt=int(attempt)) for job, _, attempt in keys)
            self._record_fault(affected_attempts, event.at)
        elif event.kind == "job.retrying" and event.attempt is not None:
            failed_at = self._failed_at.pop(AttemptKey(job_id=job_id, attempt=event.attempt), event.at)
            if (event.data.get("failure") or {}).get("kind") == FailureKind.HARDWARE:
                self._waiting_since.setdefault(job_id, failed_at)
        elif event.kind == "job.running" and job_id in self._waiting_since:
            RECOVERY_SECONDS.observe((event.at - self._waiting_since.pop(job_id)).total_seconds())
        elif event.kind in ENDED:
            self._waiting_since.pop(job_id, None)
            if event.attempt is not None:
                self._failed_at.pop(AttemptKey(job_id=job_id, attempt=event.attempt), None)

    def _record_fault(self, affected_attempts: Iterable[AttemptKey], at: datetime) -> None:
        for key in affected_attempts:
            self._failed_at.setdefault(key, at)
