"""Counts starts, ends, waits, run times and GPU-seconds by kind of work. It only reads the change feed."""

from __future__ import annotations

from activities.leader.metrics import GPU_SECONDS, JOBS_ENDED, JOBS_STARTED, RUN_SECONDS, WAIT_SECONDS
from gpu_platform.domain.events import Event
from gpu_platform.store.jobs.work_kinds import UNKNOWN

_ENDS = {"job.completed": "COMPLETED", "job.failed": "FAILED", "job.cancelled": "CANCELLED"}


def count(event: Event) -> None:
    """Take one event of the feed, each once. Events of older releases say neither kinds nor times."""
    data = event.data
    if event.kind == "job.running":
        kind = data.get("kind", UNKNOWN)
        JOBS_STARTED.labels(kind=kind).inc()
        if "waited_s" in data:
            WAIT_SECONDS.labels(kind=kind).observe(data["waited_s"])
    elif event.kind in _ENDS:
        kind = data.get("kind", UNKNOWN)
        JOBS_ENDED.labels(kind=kind, state=_ENDS[event.kind]).inc()
        if "ran_s" in data:
            RUN_SECONDS.labels(kind=kind).observe(data["ran_s"])
    elif event.kind == "gang.released" and "gpu_s" in data:
        GPU_SECONDS.labels(kind=data.get("kind", UNKNOWN)).inc(data["gpu_s"])
