"""Counts what the change feed says of jobs and hosts: each fact once, since only the leader counts.

What it remembers of a job that has not ended is gone when another process leads: then the placement, launch or lost
work of that moment is not measured.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from gpu_platform.domain.events import Event
from gpu_platform.domain.jobs.blame import FailureKind
from gpu_platform.domain.jobs.work_kind import WorkKind
from gpu_platform.domain.states import TERMINAL_JOB_STATES
from gpu_platform.store.jobs.work_kinds import UNKNOWN
from workers.scheduler.metrics import (
    CHECKPOINT_AGE_SECONDS,
    COMPLETION_SECONDS,
    GPU_SECONDS,
    HOSTS_LOST,
    JOBS_ENDED,
    JOBS_FAILED,
    JOBS_RETRIED,
    JOBS_STARTED,
    JOBS_SUBMITTED,
    LAUNCH_SECONDS,
    PLACEMENT_SECONDS,
    RUN_SECONDS,
    WAIT_SECONDS,
)

PREEMPTED = "preempted"
NO_FAILURE = "none"
"""The reason of an attempt that is repeated although nothing failed, e.g. because its reservation was refused."""
# All series begin at 0, so that the first count is an increase, and not a new series, which `increase` does not see.
for _reason in FailureKind:
    JOBS_FAILED.labels(reason=_reason.value)
for _reason in (*FailureKind, PREEMPTED, NO_FAILURE):
    JOBS_RETRIED.labels(reason=_reason)
for _of_kind in (*WorkKind, UNKNOWN):
    for _metric in (JOBS_SUBMITTED, JOBS_STARTED, GPU_SECONDS, WAIT_SECONDS, RUN_SECONDS, COMPLETION_SECONDS):
        _metric.labels(kind=_of_kind)
    for _state in TERMINAL_JOB_STATES:
        JOBS_ENDED.labels(kind=_of_kind, state=_state)


class FeedMetrics:
    """Takes the events of the feed, in order and each once, and checkpoints that hosts report."""

    def __init__(self) -> None:
        self._asked_at: dict[str, datetime] = {}
        self._placed_at: dict[str, datetime] = {}
        self._saved_at: dict[str, datetime] = {}

    def record(self, event: Event) -> None:
        """Take one event."""
        count = _COUNTED.get(event.kind)
        if count is not None:
            count(self, event)

    def checkpoint_saved(self, job_id: str, written_at: float) -> None:
        """A running attempt of the job has a newer complete checkpoint. ``written_at``: Unix seconds."""
        self._saved_at[job_id] = datetime.fromtimestamp(written_at, UTC)

    def _submitted(self, event: Event) -> None:
        JOBS_SUBMITTED.labels(kind=_kind(event)).inc()

    def _asked(self, event: Event) -> None:
        self._asked_at[event.job_id or ""] = event.at

    def _placed(self, event: Event) -> None:
        job_id = event.job_id or ""
        _observe(PLACEMENT_SECONDS, self._asked_at.pop(job_id, None), event.at)
        self._placed_at[job_id] = event.at

    def _running(self, event: Event) -> None:
        kind = _kind(event)
        JOBS_STARTED.labels(kind=kind).inc()
        if "waited_s" in event.data:
            WAIT_SECONDS.labels(kind=kind).observe(event.data["waited_s"])
        _observe(LAUNCH_SECONDS, self._placed_at.pop(event.job_id or "", None), event.at)

    def _retrying(self, event: Event) -> None:
        JOBS_RETRIED.labels(reason=PREEMPTED if event.kind == "job.preempted" else _reason_of(event)).inc()
        self._placed_at.pop(event.job_id or "", None)
        _observe(CHECKPOINT_AGE_SECONDS, self._saved_at.pop(event.job_id or "", None), event.at)

    def _ended(self, event: Event) -> None:
        kind, job_id = _kind(event), event.job_id or ""
        JOBS_ENDED.labels(kind=kind, state=event.kind.removeprefix("job.").upper()).inc()
        if "ran_s" in event.data:
            RUN_SECONDS.labels(kind=kind).observe(event.data["ran_s"])
        saved_at = self._saved_at.pop(job_id, None)
        if event.kind == "job.completed":
            if "took_s" in event.data:
                COMPLETION_SECONDS.labels(kind=kind).observe(event.data["took_s"])
        elif event.kind == "job.failed":
            JOBS_FAILED.labels(reason=_reason_of(event)).inc()
            _observe(CHECKPOINT_AGE_SECONDS, saved_at, event.at)
        self._asked_at.pop(job_id, None)
        self._placed_at.pop(job_id, None)

    def _withdrawn(self, event: Event) -> None:
        self._asked_at.pop(event.job_id or "", None)

    def _released(self, event: Event) -> None:
        if "gpu_s" in event.data:
            GPU_SECONDS.labels(kind=_kind(event)).inc(event.data["gpu_s"])

    def _host_lost(self, event: Event) -> None:
        HOSTS_LOST.inc()


_COUNTED: dict[str, Callable[[FeedMetrics, Event], None]] = {
    "job.submitted": FeedMetrics._submitted,
    "job.withdrawn": FeedMetrics._withdrawn,
    "queue.added": FeedMetrics._asked,
    "job.placed": FeedMetrics._placed,
    "job.running": FeedMetrics._running,
    "job.retrying": FeedMetrics._retrying,
    "job.preempted": FeedMetrics._retrying,
    "job.completed": FeedMetrics._ended,
    "job.failed": FeedMetrics._ended,
    "job.cancelled": FeedMetrics._ended,
    "gang.released": FeedMetrics._released,
    "host.lost": FeedMetrics._host_lost,
}


def _kind(event: Event) -> str:
    return event.data.get("kind", UNKNOWN)


def _reason_of(event: Event) -> str:
    failure: dict[str, Any] = event.data.get("failure") or {}
    return failure.get("kind", NO_FAILURE)


def _observe(histogram: Any, since: datetime | None, until: datetime) -> None:
    if since is not None:
        histogram.observe(max(0.0, (until - since).total_seconds()))
