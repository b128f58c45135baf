"""Cleans up after a workflow that is gone: it ends jobs that no workflow drives, and releases their GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import Session

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.job import Failure, Job
from gpu_platform.domain.states import JobState
from gpu_platform.store.database import reading, writing
from gpu_platform.store.events import append_event
from gpu_platform.store.jobs.job_states import JobUpdate, change_job, lock_job
from gpu_platform.store.jobs.jobs import job_of
from gpu_platform.store.jobs.queue import leave_queue
from gpu_platform.store.models import allocation, job, reservation
from gpu_platform.store.reservations.releasing import Return, close_reservation, give_back

BEGUN_AGAIN = "job.begun_again"
"""Kind of the event: Temporal had lost the job's workflow, and it was started again from the job's row."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job as one look saw it. If two looks are equal, nothing happened to the job between them."""

    job_id: str
    state: JobState
    attempt: int
    state_at: datetime


@dataclass(frozen=True, slots=True)
class HeldAttempt:
    """An attempt that holds GPUs, and the hosts on which it does."""

    key: AttemptKey
    hosts: tuple[str, ...]


@reading
def live_jobs(session: Session) -> dict[str, JobState]:
    """The states of all jobs that are not terminal, oldest first."""
    query = select(job.c.id, job.c.state).where(job.c.state.in_(_LIVE)).order_by(job.c.created_at, job.c.id)
    return {row.id: JobState(row.state) for row in session.execute(query)}


@reading
def job_row(session: Session, job_id: str) -> JobRow | None:
    """The job as it is now; None: there is no row."""
    row = session.execute(_ROW.where(job.c.id == job_id)).one_or_none()
    return None if row is None else _job_row(row)


@reading
def held_without_owner(session: Session) -> list[HeldAttempt]:
    """Attempts that hold GPUs although their job has ended, waits, is at a later attempt, or is not known.

    An attempt ends in the transaction that writes the job's next state, so no job gets here on its way.
    """
    return _held_attempts(session, or_(job.c.id.is_(None), ~_IN_ORDER))


@reading
def held_of_job(session: Session, job_id: str) -> list[HeldAttempt]:
    """The attempts of the job that hold GPUs."""
    return _held_attempts(session, allocation.c.job_id == job_id)


@writing
def end_orphan(
    session: Session, key: AttemptKey, state: JobState, *, actor: str, failure: Failure | None, now: datetime
) -> bool:
    """Release what the attempt held. Its job ends in ``state``, unless it has ended or has a later attempt.

    For a job that no workflow drives. While another attempt of the job holds GPUs, the job does not end: False, and the
    caller ends that attempt first. Repeating it is a no-op.
    """
    if close_reservation(session, key, now):
        give_back(session, {key: Return()}, now)
    if session.scalar(select(job.c.id).where(job.c.id == key.job_id)) is None:
        return True
    row = lock_job(session, key.job_id)
    if JobState(row.state).is_terminal or row.attempt > key.attempt:
        return True
    if _held_attempts(session, allocation.c.job_id == key.job_id):
        return False
    update = JobUpdate(failure=failure)
    change_job(session, row, state, now, actor, update.columns(), update.event_data())
    return True


@writing
def begin_again(session: Session, job_id: str, now: datetime) -> tuple[Job, int]:
    """Prepare a job whose workflow was lost for a new one. Returns the job and the number of its last attempt.

    The lost workflow may have a step under way that reserves the next attempt: it is refused until the new workflow
    asks for GPUs (``queue.enqueue``), which has the same number. Should it come between that and the answer, then the
    new workflow finds that the attempt holds GPUs, and takes over once more. The job leaves the queue. Attempts that
    hold GPUs go on holding them. Raises :class:`NotFound`.
    """
    row = lock_job(session, job_id)
    state = JobState(row.state)
    reserved = (reservation.c.job_id == job_id) & reservation.c.reserved_at.is_not(None)
    highest = select(func.max(reservation.c.attempt)).where(reserved)
    last = max(row.attempt, session.scalar(highest) or 0)
    if state.is_terminal:
        return job_of(row), last
    if state is not JobState.PENDING:
        close_reservation(session, AttemptKey(job_id=job_id, attempt=last + 1), now)
        leave_queue(session, job_id, now)
    data = {"state": state.value, "reason": "Temporal does not know how far it came"}
    append_event(session, BEGUN_AGAIN, "control", now, job_id=job_id, attempt=row.attempt or None, data=data)
    return job_of(row), last


def _held_attempts(session: Session, condition: ColumnElement[bool]) -> list[HeldAttempt]:
    query = (
        select(allocation.c.job_id, allocation.c.attempt, allocation.c.host)
        .outerjoin(job, job.c.id == allocation.c.job_id)
        .where(allocation.c.released_at.is_(None), condition)
        .distinct()
        .order_by(allocation.c.job_id, allocation.c.attempt, allocation.c.host)
    )
    found: dict[AttemptKey, list[str]] = {}
    for row in session.execute(query):
        found.setdefault(AttemptKey(job_id=row.job_id, attempt=row.attempt), []).append(row.host)
    return [HeldAttempt(key, tuple(hosts)) for key, hosts in found.items()]


def _job_row(row: Any) -> JobRow:
    return JobRow(row.id, JobState(row.state), row.attempt, row.state_at)


_LIVE = [state.value for state in JobState if not state.is_terminal]
_ROW = select(job.c.id, job.c.state, job.c.attempt, job.c.state_at)
_IN_ORDER = and_(
    job.c.state.in_([state.value for state in JobState if state.holds_gpus]), job.c.attempt == allocation.c.attempt
)
