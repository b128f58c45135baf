"""Which jobs and arrays wait for which others. Whether a dependency is met is always read from the other's own row.

So nothing must be written when a job ends, and nothing can be lost: whoever looks later finds the same. A job is looked
at by its own workflow (:func:`look`); the leader only says which workflows should look now (:func:`to_be_woken`). An
array whose elements wait for those of another one, each for its own: see ``counterparts.py``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

from pydantic import BaseModel
from sqlalchemy import Row, and_, bindparam, delete, literal, or_, select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.array_ids import is_array_id
from gpu_platform.domain.errors import InvalidRequest, NotFound
from gpu_platform.domain.jobs.array import ArraySpec
from gpu_platform.domain.jobs.dependency import (
    Dependency,
    DependencyKind,
    IfUnmet,
    Standing,
    WatchedJob,
    named,
    standing_of,
    waiting_reason,
)
from gpu_platform.domain.jobs.placement import Reason
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import TERMINAL_JOB_STATES, ArrayState, JobState
from gpu_platform.store.database import insert_all_new, reading, writing
from gpu_platform.store.events import append_event
from gpu_platform.store.jobs import counterparts
from gpu_platform.store.jobs.awaited import array_named, missing_element, states_of
from gpu_platform.store.jobs.owners import missing
from gpu_platform.store.models import dependency, job, job_array

RELEASED = "job.released"
"""Kind of the event: all jobs for which this one waited have ended as it asked for, or somebody ended its hold."""
HELD = "job.held"
"""Kind of the event: somebody holds the job, or a dependency can never be met. It waits until it is released."""
FORGOTTEN_AFTER = timedelta(minutes=10)
"""A job without a row is waited for so long: a database that was lost knows its jobs again sooner."""
_AT_ONCE = 500
_NOT_STARTED = [JobState.PENDING.value, JobState.QUEUED.value]
_TERMINAL = sorted(state.value for state in TERMINAL_JOB_STATES)
_ARRAY_ENDED = sorted(state.value for state in ArrayState if state.is_terminal)
_ARRAY_LIVE = sorted(state.value for state in ArrayState if not state.is_terminal)
_EACH = DependencyKind.EACH.value


class DependencyLook(BaseModel):
    """What a job's workflow finds when it looks whether the job may go on."""

    standing: Standing
    message: str = ""
    """For what it waits, or why it never starts."""
    is_held: bool = False
    """UNMET, but it waits until it is cancelled."""


@reading
def check(session: Session, spec: JobSpec, array: ArraySpec | None = None) -> Reason | None:
    """For what a job, or this array, that is submitted now would wait. None: for no job.

    Raises :class:`NotFound` for a job that is not there, and :class:`InvalidRequest` if a dependency can never be met.
    """
    jobs = _with_states(session, spec.after)
    for one in jobs:
        there = missing_element(session, one.job_id)
        if one.state is None or there is not None:
            raise missing(session, one.job_id, no_such_job(one.job_id, None if there is None else str(there)))
    each = counterparts.after_array(spec)
    if each is not None:
        counterparts.check(session, each, spec, array)
        jobs = [one for one in jobs if one.kind is not DependencyKind.EACH]
    unmet = [one for one in jobs if one.standing is Standing.UNMET]
    if unmet and spec.if_unmet is not IfUnmet.HOLD:
        raise InvalidRequest(
            f"the job would never start: {unmet[0].why_unmet}. Leave the dependency out, or ask for another kind",
            job_id=unmet[0].job_id,
        )
    return waiting_reason(jobs)


def no_such_job(job_id: str, indices: str | None = None) -> NotFound:
    """The refusal of a job that is to run after a job that is not there, or that its user may not see.

    ``indices``: it would be an element of an array that has only these.
    """
    what = "array" if is_array_id(job_id) else "job"
    hint = "" if indices is None else f": the array has the indices {indices[:200]}"
    return NotFound(f"the job is to run after {what} {job_id!r}, and there is no such {what}{hint}", job_id=job_id)


def add(session: Session, job_id: str, spec: JobSpec, now: datetime, array: ArraySpec | None = None) -> None:
    """Inside the transaction of a submission, of a job or of this array: record its dependencies. Raises as
    :func:`check` does."""
    if spec.after:
        # They stay here until the commit: jobs that ended long ago leave the database.
        names = {one.job_id for one in spec.after}
        session.execute(_KEEP_AWAITED, {"awaited": sorted(names)}).all()
        if awaited := {one for one in map(array_named, names) if one is not None}:
            session.execute(_KEEP_ARRAYS, {"awaited": sorted(awaited)}).all()
        check(session, spec, array)
        _record(session, job_id, spec, now)


def forget(session: Session, job_id: str) -> None:
    """Inside a transaction: the job ends without having started, or was withdrawn."""
    session.execute(_FORGET, {"waiter": job_id})


def release(session: Session, job_id: str, now: datetime) -> None:
    """Inside a transaction: the job waits for no other job any more."""
    session.execute(_RELEASE, {"waiter": job_id, "now": now})


def end_hold(session: Session, job_id: str, now: datetime) -> bool:
    """Inside a transaction that locked the job or the array: if it is held because a dependency can never be met, let
    it wait for no other job any more. Returns whether it was.
    """
    rows = _rows_of_one(session, job_id)
    if not rows or rows[0].released_at is not None or standing_of(_watched(session, rows, now)) is not Standing.UNMET:
        return False
    if rows[0].held_at is None and not _is_to_be_held(session, job_id):
        return False  # its workflow is about to cancel it
    release(session, job_id, now)
    session.execute(_TO_QUEUE, {"waiter": job_id, "since": now})
    return True


def _is_to_be_held(session: Session, job_id: str) -> bool:
    text = session.scalar(select(job.c.spec).where(job.c.id == job_id)) or session.scalar(
        select(job_array.c.spec).where(job_array.c.id == job_id)
    )
    return text is not None and JobSpec.model_validate_json(text).if_unmet is IfUnmet.HOLD


def may_go_on(session: Session, job_id: str, now: datetime) -> bool:
    """Inside a transaction that locked a job which got other dependencies in the queue: whether they are met. If they
    never will be, it is held.
    """
    rows = _rows_of_one(session, job_id)
    if not rows or rows[0].released_at is not None:
        return True
    jobs = _watched(session, rows, now)
    if (standing := standing_of(jobs)) is Standing.UNMET and rows[0].held_at is None:
        session.execute(_HOLD, {"waiter": job_id, "now": now})
        why = next(one.why_unmet for one in jobs if one.standing is Standing.UNMET)
        append_event(session, HELD, "control", now, job_id=job_id, data={"reason": why})
    return standing is Standing.MET


@writing
def look(session: Session, job_id: str, now: datetime) -> DependencyLook:
    """Whether the job, or the array, may go on. When its dependencies are met, it is released; if they never will be
    and it asks for that, it is held. Repeating it is a no-op. Raises :class:`NotFound`.
    """
    waiter = session.execute(_LOCK_ARRAY if is_array_id(job_id) else _LOCK_JOB, {"waiter": job_id}).one_or_none()
    if waiter is None:
        raise NotFound(f"there is no {named(job_id)}", job_id=job_id)
    spec = JobSpec.model_validate_json(waiter.spec)
    has_begun = waiter.position > 0 or waiter.state not in (_ARRAY_LIVE if is_array_id(job_id) else _NOT_STARTED)
    rows = _rows_of_one(session, job_id)
    if not rows and not has_begun:
        # This database was restored to a point before the submission: the specification, from Temporal, says it all.
        _record(session, job_id, spec, now)
        rows = _rows_of_one(session, job_id)
    if has_begun or not rows or rows[0].released_at is not None:
        return DependencyLook(standing=Standing.MET)
    jobs = _watched(session, rows, now)
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
    woken = {waiter for waiter, jobs in found.items() if standing_of(jobs) is not Standing.WAITS}
    return sorted(woken | counterparts.to_be_woken(session, now - FORGOTTEN_AFTER, ended))


@reading
def reasons(session: Session, job_ids: Collection[str], now: datetime) -> dict[str, Reason]:
    """Job -> for which jobs it waits. Jobs that wait for none are left out."""
    found = _watched_by(session, job_ids, now)
    told = {waiter: waiting_reason(jobs) for waiter, jobs in found.items()}
    whole = {waiter: reason for waiter, reason in told.items() if reason is not None}
    return counterparts.reasons(session, job_ids) | whole


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
        {
            "job_id": job_id,
            "after_job": one.job_id,
            "after_array": array_named(one.job_id),
            "kind": one.kind.value,
            "recorded_at": now,
        }
        for one in spec.after
    ]
    if rows:
        insert_all_new(session, dependency, rows)  # that of kind `each` may be there


def _with_states(session: Session, after: Sequence[Dependency]) -> list[WatchedJob]:
    states = states_of(session, [one.job_id for one in after])
    return [WatchedJob(one.job_id, one.kind, states.get(one.job_id)) for one in after]


def _watched_by(session: Session, waiters: Collection[str], now: datetime) -> dict[str, list[WatchedJob]]:
    found: dict[str, list[WatchedJob]] = defaultdict(list)
    names = sorted(waiters)
    for begin in range(0, len(names), _AT_ONCE):
        rows = session.execute(_ROWS, {"waiters": names[begin : begin + _AT_ONCE]}).all()
        open_ones = [row for row in rows if row.released_at is None]
        for row, one in zip(open_ones, _watched(session, open_ones, now), strict=True):
            found[row.job_id].append(one)
    return found


def _rows_of_one(session: Session, job_id: str) -> Sequence[Row[Any]]:
    return session.execute(_ROWS, {"waiters": [job_id]}).all()


def _watched(session: Session, rows: Sequence[Row[Any]], now: datetime) -> list[WatchedJob]:
    of_arrays = {row.after_job for row in rows if row.state is None and row.after_array is not None}
    states = states_of(session, of_arrays) if of_arrays else {}
    found: list[WatchedJob] = []
    for row in rows:
        state = states.get(row.after_job) if row.state is None else JobState(row.state)
        is_forgotten = state is None and row.recorded_at < now - FORGOTTEN_AFTER
        found.append(WatchedJob(row.after_job, DependencyKind(row.kind), state, is_forgotten))
    return found


# ---- the statements, compiled once ----

_LOCK_JOB = (
    select(job.c.state, job.c.spec, literal(0).label("position"))
    .where(job.c.id == bindparam("waiter"))
    .with_for_update(key_share=True)
)
_LOCK_ARRAY = (
    select(job_array.c.state, job_array.c.spec, job_array.c.position)
    .where(job_array.c.id == bindparam("waiter"))
    .with_for_update(key_share=True)
)
_KEEP_AWAITED = (
    select(job.c.id)
    .where(job.c.id.in_(bindparam("awaited", expanding=True)))
    .order_by(job.c.id)
    .with_for_update(read=True, key_share=True)
)
_KEEP_ARRAYS = (
    select(job_array.c.id)
    .where(job_array.c.id.in_(bindparam("awaited", expanding=True)))
    .order_by(job_array.c.id)
    .with_for_update(read=True, key_share=True)
)
_ROWS = (
    select(dependency, job.c.state)
    .outerjoin(job, job.c.id == dependency.c.after_job)
    .where(dependency.c.job_id.in_(bindparam("waiters", expanding=True)), dependency.c.kind != _EACH)
    .order_by(dependency.c.job_id, dependency.c.after_job)
)
_waiter, _waiting_array, _awaited_array = job.alias("waiter"), job_array.alias("waiting"), job_array.alias("awaited")
_OPEN = (
    select(dependency.c.job_id)
    .outerjoin(_waiter, _waiter.c.id == dependency.c.job_id)
    .outerjoin(_waiting_array, _waiting_array.c.id == dependency.c.job_id)
    .where(
        or_(_waiter.c.state.in_(_NOT_STARTED), _waiting_array.c.state.in_(_ARRAY_LIVE)),
        dependency.c.released_at.is_(None),
        dependency.c.held_at.is_(None),
        dependency.c.kind != _EACH,
    )
    .distinct()
)
_WAITERS_OF = _OPEN.where(
    or_(
        dependency.c.after_job.in_(bindparam("ended", expanding=True)),
        # An element that has no row has ended with its array.
        dependency.c.after_array.in_(bindparam("ended", expanding=True)),
    )
)
_TOUCHED = (
    _OPEN.outerjoin(job, job.c.id == dependency.c.after_job)
    .outerjoin(_awaited_array, _awaited_array.c.id == dependency.c.after_array)
    .where(
        or_(
            job.c.state.in_(_TERMINAL),
            _awaited_array.c.state.in_(_ARRAY_ENDED),
            and_(job.c.id.is_(None), _awaited_array.c.id.is_(None), dependency.c.recorded_at < bindparam("forgotten")),
        )
    )
)
_OF_WAITER = dependency.c.job_id == bindparam("waiter")
_RELEASE = update(dependency).where(_OF_WAITER, dependency.c.kind != _EACH).values(released_at=bindparam("now"))
_HOLD = update(dependency).where(_OF_WAITER, dependency.c.kind != _EACH).values(held_at=bindparam("now"))
_FORGET = delete(dependency).where(dependency.c.job_id == bindparam("waiter"))
_TO_QUEUE = (
    update(job).where(job.c.id == bindparam("waiter")).values(queued_at=bindparam("since"), retry_at=bindparam("since"))
)
