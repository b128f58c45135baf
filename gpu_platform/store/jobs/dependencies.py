"""Which jobs wait for which others. Whether a dependency is met is always read from the other job's own row.

So nothing must be written when a job ends, and nothing can be lost: whoever looks later finds the same. A job is looked
at by its own workflow (:func:`look`); the leader only says which workflows should look now (:func:`to_be_woken`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

from pydantic import BaseModel
from sqlalchemy import Row, bindparam, delete, insert, or_, select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.errors import InvalidRequest, NotFound
from gpu_platform.domain.jobs.dependency import (
    Dependency,
    DependencyKind,
    IfUnmet,
    Standing,
    WatchedJob,
    standing_of,
    waiting_reason,
)
from gpu_platform.domain.jobs.placement import Reason
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import TERMINAL_JOB_STATES, JobState
from gpu_platform.store.database import reading, writing
from gpu_platform.store.events import append_event
from gpu_platform.store.models import dependency, job

RELEASED = "job.released"
"""Kind of the event: all jobs for which this one waited have ended as it asked for."""
HELD = "job.held"
"""Kind of the event: a dependency can never be met, and the job waits until it is cancelled."""
FORGOTTEN_AFTER = timedelta(minutes=10)
"""A job without a row is waited for so long: a database that was lost knows its jobs again sooner."""
_AT_ONCE = 500
_NOT_STARTED = [JobState.PENDING.value, JobState.QUEUED.value]
_TERMINAL = sorted(state.value for state in TERMINAL_JOB_STATES)


class DependencyLook(BaseModel):
    """What a job's workflow finds when it looks whether the job may go on."""

    standing: Standing
    message: str = ""
    """For what it waits, or why it never starts."""
    is_held: bool = False
    """UNMET, but it waits until it is cancelled."""


@reading
def check(session: Session, spec: JobSpec) -> Reason | None:
    """For what a job that is submitted now would wait. None: for no job.

    Raises :class:`NotFound` for a job that is not there, and :class:`InvalidRequest` if a dependency can never be met.
    """
    jobs = _with_states(session, spec.after)
    if unknown := [one.job_id for one in jobs if one.state is None]:
        raise no_such_job(unknown[0])
    unmet = [one for one in jobs if one.standing is Standing.UNMET]
    if unmet and spec.if_unmet is not IfUnmet.HOLD:
        raise InvalidRequest(
            f"the job would never start: {unmet[0].why_unmet}. Leave the dependency out, or ask for another kind",
            job_id=unmet[0].job_id,
        )
    return waiting_reason(jobs)


def no_such_job(job_id: str) -> NotFound:
    """The refusal of a job that is to run after a job that is not there, or that its user may not see."""
    return NotFound(f"the job is to run after job {job_id!r}, and there is no such job", job_id=job_id)


def add(session: Session, job_id: str, spec: JobSpec, now: datetime) -> None:
    """Inside the transaction of a submission: record its dependencies. Raises as :func:`check` does."""
    if spec.after:
        check(session, spec)
        _record(session, job_id, spec, now)


def forget(session: Session, job_id: str) -> None:
    """Inside a transaction: the job ends without having started, or was withdrawn."""
    session.execute(_FORGET, {"waiter": job_id})


def release(session: Session, job_id: str, now: datetime) -> None:
    """Inside a transaction: the job waits for no other job any more."""
    session.execute(_RELEASE, {"waiter": job_id, "now": now})


@writing
def look(session: Session, job_id: str, now: datetime) -> DependencyLook:
    """Whether the job may go on. When its dependencies are met, it is released; if they never will be and it asks for
    that, it is held. Repeating it is a no-op. Raises :class:`NotFound`.
    """
    waiter = session.execute(_LOCK_WAITER, {"waiter": job_id}).one_or_none()
    if waiter is None:
        raise NotFound(f"there is no job {job_id!r}", job_id=job_id)
    spec = JobSpec.model_validate_json(waiter.spec)
    rows = session.execute(_ROWS, {"waiters": [job_id]}).all()
    if not rows and waiter.state in _NOT_STARTED:
        # This database was restored to a point before the submission: the specification, from Temporal, says it all.
        _record(session, job_id, spec, now)
        rows = session.execute(_ROWS, {"waiters": [job_id]}).all()
    if waiter.state not in _NOT_STARTED or not rows or rows[0].released_at is not None:
        return DependencyLook(standing=Standing.MET)
    jobs = [_watched(row, now) for row in rows]
    standing, reason = standing_of(jobs), waiting_reason(jobs)
    if standing is Standing.MET:
        release(session, job_id, now)
        # Its place in the queue counts from now on, and until then nobody misses it there.
        begin = now if spec.begin_at is None else max(now, spec.begin_at)
        session.execute(_TO_QUEUE, {"waiter": job_id, "since": begin})
        append_event(session, RELEASED, "control", now, job_id=job_id)
        return DependencyLook(standing=standing)
    assert reason is not None, "what is not met has a reason"
    if standing is Standing.WAITS:
        return DependencyLook(standing=standing, message=reason.message)
    why = next(one.why_unmet for one in jobs if one.standing is Standing.UNMET)
    if spec.if_unmet is not IfUnmet.HOLD:
        return DependencyLook(standing=standing, message=why)
    if rows[0].held_at is None:
        session.execute(_HOLD, {"waiter": job_id, "now": now})
        append_event(session, HELD, "control", now, job_id=job_id, data={"reason": why})
    return DependencyLook(standing=standing, message=why, is_held=True)


@reading
def to_be_woken(session: Session, now: datetime, ended: Collection[str] | None = None) -> list[str]:
    """Jobs that wait no longer, or in vain. Their workflows have not seen it yet.

    ``ended``: only those that wait for one of these jobs. None: all.
    """
    touched: set[str] = set()
    if ended is None:
        touched.update(session.scalars(_TOUCHED, {"forgotten": now - FORGOTTEN_AFTER}))
    else:
        names = sorted(ended)
        for begin in range(0, len(names), _AT_ONCE):
            touched.update(session.scalars(_WAITERS_OF, {"ended": names[begin : begin + _AT_ONCE]}))
    found = _watched_by(session, touched, now)
    return sorted(waiter for waiter, jobs in found.items() if standing_of(jobs) is not Standing.WAITS)


@reading
def reasons(session: Session, job_ids: Collection[str], now: datetime) -> dict[str, Reason]:
    """Job -> for which jobs it waits. Jobs that wait for none are left out."""
    found = _watched_by(session, job_ids, now)
    told = {waiter: waiting_reason(jobs) for waiter, jobs in found.items()}
    return {waiter: reason for waiter, reason in told.items() if reason is not None}


_open_row = dependency.alias("open_row")
IS_WAITING = (
    select(_open_row.c.job_id).where(_open_row.c.job_id == job.c.id, _open_row.c.released_at.is_(None)).exists()
)
"""A condition on ``job``: it waits for other jobs, so that nobody misses it in the queue."""
HAS_WAITERS = (
    select(_open_row.c.job_id).where(_open_row.c.after_job == job.c.id, _open_row.c.released_at.is_(None)).exists()
)
"""A condition on ``job``: other jobs wait for it."""


def _record(session: Session, job_id: str, spec: JobSpec, now: datetime) -> None:
    rows = [
        {"job_id": job_id, "after_job": one.job_id, "kind": one.kind.value, "recorded_at": now} for one in spec.after
    ]
    if rows:
        session.execute(insert(dependency), rows)


def _with_states(session: Session, after: Sequence[Dependency]) -> list[WatchedJob]:
    names = [one.job_id for one in after]
    states: dict[str, JobState] = {row.id: JobState(row.state) for row in session.execute(_STATES, {"names": names})}
    return [WatchedJob(one.job_id, one.kind, states.get(one.job_id)) for one in after]


def _watched_by(session: Session, waiters: Collection[str], now: datetime) -> dict[str, list[WatchedJob]]:
    found: dict[str, list[WatchedJob]] = defaultdict(list)
    names = sorted(waiters)
    for begin in range(0, len(names), _AT_ONCE):
        for row in session.execute(_ROWS, {"waiters": names[begin : begin + _AT_ONCE]}):
            if row.released_at is None:
                found[row.job_id].append(_watched(row, now))
    return found


def _watched(row: Row[Any], now: datetime) -> WatchedJob:
    state = None if row.state is None else JobState(row.state)
    is_forgotten = state is None and row.recorded_at < now - FORGOTTEN_AFTER
    return WatchedJob(row.after_job, DependencyKind(row.kind), state, is_forgotten)


# ---- the statements, compiled once ----

_STATES = select(job.c.id, job.c.state).where(job.c.id.in_(bindparam("names", expanding=True)))
_LOCK_WAITER = select(job.c.state, job.c.spec).where(job.c.id == bindparam("waiter")).with_for_update(key_share=True)
_ROWS = (
    select(dependency, job.c.state)
    .outerjoin(job, job.c.id == dependency.c.after_job)
    .where(dependency.c.job_id.in_(bindparam("waiters", expanding=True)))
    .order_by(dependency.c.job_id, dependency.c.after_job)
)
_waiter = job.alias("waiter")
_OPEN = (
    select(dependency.c.job_id)
    .join(_waiter, _waiter.c.id == dependency.c.job_id)
    .where(_waiter.c.state.in_(_NOT_STARTED), dependency.c.released_at.is_(None), dependency.c.held_at.is_(None))
    .distinct()
)
_WAITERS_OF = _OPEN.where(dependency.c.after_job.in_(bindparam("ended", expanding=True)))
_TOUCHED = _OPEN.outerjoin(job, job.c.id == dependency.c.after_job).where(
    or_(job.c.state.in_(_TERMINAL), job.c.id.is_(None) & (dependency.c.recorded_at < bindparam("forgotten")))
)
_RELEASE = update(dependency).where(dependency.c.job_id == bindparam("waiter")).values(released_at=bindparam("now"))
_HOLD = update(dependency).where(dependency.c.job_id == bindparam("waiter")).values(held_at=bindparam("now"))
_FORGET = delete(dependency).where(dependency.c.job_id == bindparam("waiter"))
_TO_QUEUE = (
    update(job).where(job.c.id == bindparam("waiter")).values(queued_at=bindparam("since"), retry_at=bindparam("since"))
)
