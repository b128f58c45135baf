"""A job's row and its workflow do not agree: one of the two databases was restored to an older point.

:func:`standing` says which one is behind, and a step of the workflow does by that:

=========  ==================================================  ==================================================
standing   what it means                                       what the step does
=========  ==================================================  ==================================================
BEHIND     the row is older, or its workflow waits for it      brings the row up, or waits for the leader (see
                                                               ``restoring``)
HOLDS      the attempt has its place                           is tried again: the row was restored just now
PAST       the attempt is over, so the workflow is older       the workflow stops what it knows and begins again
                                                               from the row
ENDED      the job has ended                                   the workflow ends
=========  ==================================================  ==================================================

A workflow asks for a step of attempt N only when every earlier attempt has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import NotFound
from gpu_platform.domain.states import JobState, check_transition
from gpu_platform.store.database import reading, writing
from gpu_platform.store.events import append_event
from gpu_platform.store.jobs.job_states import lock_job
from gpu_platform.store.jobs.queue import leave_queue
from gpu_platform.store.models import JobRecord, job, reservation
from gpu_platform.store.reservations.allocations import is_held
from gpu_platform.store.reservations.releasing import Return, close_reservation, give_back

RESTORED = "job.restored"
"""Kind of the event: Temporal knew more of the job than this database, which was lost or is an older one."""


class RowStanding(StrEnum):
    """Compares a job's row with one attempt of its workflow; see the module's docstring."""

    BEHIND = "behind"
    HOLDS = "holds"
    PAST = "past"
    ENDED = "ended"


@reading
def standing(session: Session, key: AttemptKey) -> RowStanding:
    """How the job's row stands to the attempt ``key``. Raises :class:`NotFound` for a job without a row."""
    row = session.execute(select(job.c.state, job.c.attempt).where(job.c.id == key.job_id)).one_or_none()
    if row is None:
        raise NotFound(f"there is no job {key.job_id!r}", job_id=key.job_id)
    if JobState(row.state).is_terminal:
        return RowStanding.ENDED
    if is_held(session, key):
        return RowStanding.HOLDS
    return RowStanding.PAST if row.attempt >= key.attempt or _is_known(session, key) else RowStanding.BEHIND


@writing
def follow(session: Session, key: AttemptKey, now: datetime) -> None:
    """A workflow that holds nothing asks for GPUs for ``key``: a row that is BEHIND becomes QUEUED for that attempt.

    Raises :class:`NotFound`.
    """
    row = lock_job(session, key.job_id)
    state = JobState(row.state)
    if not state.is_terminal and state is not JobState.QUEUED and row.attempt < key.attempt:
        raise_attempt(session, row, key.attempt - 1, now)


@writing
def catch_up_to_end(session: Session, key: AttemptKey, state: JobState, now: datetime) -> bool:
    """The attempt ran and ends, but its row is BEHIND: bring the row to ``state`` of this attempt.

    False: the row is not BEHIND. Raises :class:`NotFound`.
    """
    row = lock_job(session, key.job_id)
    if JobState(row.state).is_terminal or row.attempt > key.attempt or _is_known(session, key):
        return False
    raise_attempt(session, row, key.attempt, now)
    pass_through(session, key.job_id, JobState.QUEUED, [JobState.ALLOCATED, state])
    session.execute(update(job).where(job.c.id == key.job_id).values(started_at=row.started_at or now))
    return True


def pass_through(session: Session, job_id: str, current: JobState, states: Sequence[JobState]) -> None:
    """Inside a transaction: write the states that a row has missed, from ``current`` on, without events."""
    for state in states:
        check_transition(f"job {job_id}", current, state)
        session.execute(update(job).where(job.c.id == job_id).values(state=state.value))
        current = state


def raise_attempt(session: Session, row: JobRecord, attempt: int, now: datetime, **columns: object) -> None:
    """Inside a transaction that locked the row: the job is QUEUED, and all attempts up to ``attempt`` are over.

    ``columns``: further columns of the row, e.g. its counters.
    """
    job_id = row.id
    for over in range(1, attempt + 1):
        key = AttemptKey(job_id=job_id, attempt=over)
        if close_reservation(session, key, now):
            give_back(session, {key: Return()}, now)
    leave_queue(session, job_id, now)
    check_transition(f"job {job_id}", JobState(row.state), JobState.QUEUED)
    values = {"state": JobState.QUEUED.value, "attempt": attempt, "state_at": now, "placement": None, **columns}
    session.execute(update(job).where(job.c.id == job_id).values(values))
    data = {"name": row.name, "was": row.state, "reason": "its row was older than its workflow"}
    append_event(session, RESTORED, "control", now, job_id=job_id, attempt=attempt or None, data=data)


def newer(session: Session, attempts: Sequence[AttemptKey]) -> list[AttemptKey]:
    """Inside a transaction: those of ``attempts``, which hosts run, that only a later state of this database knew."""
    query = select(job.c.id, job.c.state, job.c.attempt).where(job.c.id.in_(sorted({key.job_id for key in attempts})))
    rows = {row.id: row for row in session.execute(query)}

    def is_newer(key: AttemptKey) -> bool:
        row = rows.get(key.job_id)
        return row is None or (not JobState(row.state).is_terminal and key.attempt > row.attempt)

    return [key for key in attempts if is_newer(key)]


def _is_known(session: Session, key: AttemptKey) -> bool:
    which = (reservation.c.job_id == key.job_id) & (reservation.c.attempt == key.attempt)
    return session.scalar(select(reservation.c.attempt).where(which)) is not None
