"""Jobs that Temporal knows and this database does not: it was lost, or restored to an older point.

What an open workflow still knows of its job (specification, attempt, placement) becomes its row again, and what the
attempt runs on is reserved again. Until the leader has looked, the ranks of unknown jobs are spared, and their hosts
stay LOST, so that nobody else gets their GPUs. What only this database knew is gone: idempotency keys, earlier events
and usage, and jobs that have ended.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from gpu_platform.domain.attempt import AttemptKey
from gpu_platform.domain.job import JobProgress, JobSpec
from gpu_platform.domain.placement import Placement
from gpu_platform.domain.states import JobState
from gpu_platform.store.allocations import announce, close_reservation, set_running, take_gpus, take_job
from gpu_platform.store.database import insert_new, reading, writing
from gpu_platform.store.events import append_event
from gpu_platform.store.models import job, leader, reservation

SPARED_FOR = timedelta(seconds=60)
"""From the beginning of a leader's term: so long it looks for jobs to restore."""


@dataclass(frozen=True)
class RememberedJob:
    """What a job's open workflow knows."""

    job_id: str
    spec: JobSpec
    state: JobState
    progress: JobProgress
    placement: Placement | None
    """Of attempt ``progress.attempt``; None: it waits."""
    created_at: datetime


@reading
def unknown_jobs(session: Session, job_ids: Collection[str]) -> list[str]:
    """Of ``job_ids`` those without a row."""
    known: set[str] = set()
    ordered = sorted(job_ids)
    for begin in range(0, len(ordered), 500):
        known |= set(session.scalars(select(job.c.id).where(job.c.id.in_(ordered[begin : begin + 500]))))
    return [job_id for job_id in ordered if job_id not in known]


def spared(session: Session, stale: Sequence[AttemptKey], now: datetime) -> list[AttemptKey]:
    """Inside a transaction: of the attempts that hold nothing, those that may be restored soon."""
    if not stale:
        return []
    since = session.scalar(select(leader.c.since))
    if since is not None and now - since > SPARED_FOR:
        return []
    known = set(session.scalars(select(job.c.id).where(job.c.id.in_(sorted({key.job_id for key in stale})))))
    return [key for key in stale if key.job_id not in known]


@writing
def restore_job(session: Session, found: RememberedJob, now: datetime) -> bool:
    """Write the job's row, QUEUED or where it runs, and its reservation. False: it is known meanwhile.

    Raises :class:`ReservationConflict`, with nothing changed, while its hosts have not registered yet, or when a GPU
    is somebody else's.
    """
    progress, placement = found.progress, found.placement
    row = {
        "id": found.job_id,
        "state": JobState.QUEUED.value,
        "attempt": max(0, progress.attempt - 1),
        "namespace": found.spec.namespace,
        "user": found.spec.user,
        "name": found.spec.name,
        "priority": found.spec.priority,
        "user_retries": progress.user_retries,
        "hardware_retries": progress.hardware_retries,
        "preemptions": progress.preemptions,
        "created_at": found.created_at,
        "queued_at": found.created_at,
        "state_at": now,
        "spec": found.spec.model_dump_json(),
    }
    if not insert_new(session, job, row):
        return False
    data = {
        "name": found.spec.name,
        "state": found.state.value,
        "reason": "only Temporal knew it",
    }
    append_event(session, "job.restored", "scheduler", now, job_id=found.job_id, data=data)
    for attempt in range(1, progress.attempt):  # none of them can reserve any more
        close_reservation(session, AttemptKey(job_id=found.job_id, attempt=attempt), now)
    if placement is not None:
        _restore_place(session, found, placement, now)
    return True


def _restore_place(session: Session, found: RememberedJob, placement: Placement, now: datetime) -> None:
    key = AttemptKey(job_id=found.job_id, attempt=found.progress.attempt)
    claim = {"job_id": key.job_id, "attempt": key.attempt, "epoch": placement.epoch, "reserved_at": now}
    insert_new(session, reservation, claim)
    take_job(session, key, placement, now)
    take_gpus(session, key, placement, now, on_lost_hosts=True)
    announce(session, key, placement, now)
    if found.state is JobState.RUNNING:
        set_running(session, key, now)
