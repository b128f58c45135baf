"""Forgetting: rows that nobody needs any more, a few at a time, so that no transaction is long.

What goes, once it is older than the retention: idempotency keys, dependencies and reservations (with their allocations)
of jobs that have ended and for which no job waits, keys of arrays and pipelines that have ended, firings of
schedules, and the identities of faults (:func:`prune`); usage of jobs that are in the archive (:func:`prune_usage`).
Jobs themselves: ``archiving.py``; events: ``events.py``.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Table, delete, select
from sqlalchemy.orm import Session

from gpu_platform.domain.states import TERMINAL_JOB_STATES
from gpu_platform.store.database import change, writing
from gpu_platform.store.jobs.dependencies import HAS_WAITERS
from gpu_platform.store.models import (
    allocation,
    checkpoint,
    dependency,
    fault,
    idempotency,
    job,
    job_array,
    job_token,
    pipeline,
    reservation,
    schedule_run,
    usage,
)

BATCH = 500
_ENDED = job.c.state.in_(sorted(TERMINAL_JOB_STATES)) & ~HAS_WAITERS


@writing
def prune(session: Session, before: datetime) -> dict[str, int]:
    """Delete old rows: of each kind those of at most BATCH jobs. Table -> rows deleted. Repeat until nothing goes.

    A late ``reserve`` of an attempt whose tombstone is gone still loses: its job has ended.
    """
    gone: dict[str, int] = {}
    old = select(reservation.c.job_id).join(job, job.c.id == reservation.c.job_id)
    old = old.where(_ENDED, job.c.finished_at < before, reservation.c.released_at.is_not(None))
    job_ids = session.scalars(old.distinct().limit(BATCH)).all()
    for table in (allocation, reservation):
        gone[table.name] = _forget(session, table, table.c.job_id.in_(job_ids) & table.c.released_at.is_not(None))
    gone[checkpoint.name] = _forget(session, checkpoint, checkpoint.c.job_id.in_(job_ids))
    gone[job_token.name] = _forget(session, job_token, job_token.c.job_id.in_(job_ids))
    of_ended = select(idempotency.c.key).join(job, job.c.id == idempotency.c.job_id)
    keys = [*session.scalars(of_ended.where(_ENDED, job.c.finished_at < before).limit(BATCH))]
    of_arrays = select(idempotency.c.key).join(job_array, job_array.c.id == idempotency.c.job_id)
    keys += session.scalars(of_arrays.where(job_array.c.finished_at < before).limit(BATCH)).all()
    of_pipelines = select(idempotency.c.key).join(pipeline, pipeline.c.id == idempotency.c.job_id)
    keys += session.scalars(of_pipelines.where(pipeline.c.finished_at < before).limit(BATCH)).all()
    gone[idempotency.name] = _forget(session, idempotency, idempotency.c.key.in_(keys))
    waited = select(dependency.c.job_id).join(job, job.c.id == dependency.c.job_id)
    waiters = session.scalars(waited.where(_ENDED, job.c.finished_at < before).distinct().limit(BATCH)).all()
    waiting = select(dependency.c.job_id).join(job_array, job_array.c.id == dependency.c.job_id)
    arrays = session.scalars(waiting.where(job_array.c.finished_at < before).distinct().limit(BATCH)).all()
    gone[dependency.name] = _forget(session, dependency, dependency.c.job_id.in_([*waiters, *arrays]))
    faults = session.scalars(select(fault.c.fault_id).where(fault.c.at < before).limit(BATCH)).all()
    gone[fault.name] = _forget(session, fault, fault.c.fault_id.in_(faults))
    runs = session.scalars(select(schedule_run.c.workflow_id).where(schedule_run.c.due_at < before).limit(BATCH)).all()
    gone[schedule_run.name] = _forget(session, schedule_run, schedule_run.c.workflow_id.in_(runs))
    return {name: rows for name, rows in gone.items() if rows}


@writing
def prune_usage(session: Session, before: datetime, limit: int) -> int:
    """Delete about ``limit`` rows of usage of attempts that ended before this time, if their jobs are in the archive.
    Returns how many; fewer than ``limit``: there are no more."""
    # A scalar: with NOT EXISTS, PostgreSQL compares all usage with all jobs for each batch.
    its_job = select(job.c.id).where(job.c.id == usage.c.job_id).scalar_subquery()
    oldest = select(usage.c.job_id).where(usage.c.ended_at < before, its_job.is_(None))
    ids = session.scalars(oldest.order_by(usage.c.ended_at).limit(limit)).all()
    return _forget(session, usage, usage.c.job_id.in_(ids) & (usage.c.ended_at < before)) if ids else 0


def _forget(session: Session, table: Table, condition: object) -> int:
    return change(session, delete(table).where(condition))  # type: ignore[arg-type]
