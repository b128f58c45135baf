"""Schedules: what is submitted for whom, and what each firing made. When they fire is known to Temporal alone."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Collection
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Row, bindparam, delete, func, insert, select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.errors import InvalidRequest, NotFound, OverQuota
from gpu_platform.domain.jobs.derived_ids import derived_job_id
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.schedule import (
    MAX_OF_A_NAMESPACE,
    MAX_OF_A_USER,
    SHOWN_RUNS,
    Schedule,
    ScheduleRequest,
    ScheduleRun,
    SubmittedSchedule,
)
from gpu_platform.domain.states import JobState
from gpu_platform.store.database import change, insert_new, reading, undone_alone, writing
from gpu_platform.store.events import append_event
from gpu_platform.store.jobs import watches
from gpu_platform.store.jobs.jobs import get_job, record_submission
from gpu_platform.store.jobs.paging import rows_of_page
from gpu_platform.store.models import event, job, schedule, schedule_run


class ScheduleTerms(NamedTuple):
    """What Temporal must know of a schedule."""

    id: str
    revision: int
    request: ScheduleRequest
    paused: bool


@writing
def create(session: Session, schedule_id: str, request: ScheduleRequest, *, actor: str, now: datetime) -> Schedule:
    """Record a schedule. Its job names the namespace and the user. Raises :class:`OverQuota` if they have too many."""
    spec = request.job
    _check_room(session, schedule.c.user == spec.user, f"user {spec.user}", MAX_OF_A_USER)
    of_namespace = schedule.c.namespace == spec.namespace
    _check_room(session, of_namespace, f"namespace {spec.namespace}", MAX_OF_A_NAMESPACE)
    row = {
        "id": schedule_id,
        "namespace": spec.namespace,
        "user": spec.user,
        "actor": actor,
        "name": spec.name,
        "request": request.model_dump_json(),
        "paused": request.paused,
        "note": "",
        "created_at": now,
        "revision": 1,
        "applied": 0,
    }
    session.execute(insert(schedule), row)
    append_event(session, "schedule.created", actor, now, data={"schedule": schedule_id, "name": spec.name})
    return _schedule(session.execute(_ONE, {"id": schedule_id}).one())


def _check_room(session: Session, owned: ColumnElement[bool], whose: str, most: int) -> None:
    there = session.execute(select(func.count()).select_from(schedule).where(owned)).scalar_one()
    if there >= most:
        raise OverQuota(f"{whose} has {there} schedules, and {most} are the most: delete some of them")


@reading
def get(session: Session, schedule_id: str) -> Schedule:
    """One schedule, with its newest firings. Raises :class:`NotFound`."""
    row = session.execute(_ONE, {"id": schedule_id}).one_or_none()
    if row is None:
        raise no_such_schedule(schedule_id)
    found = _schedule(row)
    found.runs = [
        ScheduleRun(
            due_at=run.due_at,
            job_id=run.job_id,
            state=None if run.state is None else JobState(run.state),
            refusal=run.refusal,
        )
        for run in session.execute(_RUNS, {"id": schedule_id})
    ]
    return found


@reading
def list_schedules(
    session: Session, visible: Collection[str] | None, namespace: str | None, cursor: str | None, limit: int
) -> tuple[list[Schedule], str | None]:
    """One page of schedules of the namespaces ``visible`` (None: all), oldest first, and the cursor of the next page.

    Raises :class:`InvalidRequest` for a wrong cursor.
    """
    query = select(schedule).order_by(schedule.c.id)
    if visible is not None:
        query = query.where(schedule.c.namespace.in_(sorted(visible)))
    if namespace is not None:
        query = query.where(schedule.c.namespace == namespace)
    if cursor is not None:
        query = query.where(schedule.c.id > _read_cursor(cursor))
    rows, more = rows_of_page(session, query, limit, lambda row: len(row.request))
    following = base64.urlsafe_b64encode(rows[-1].id.encode()).decode() if more else None
    return [_schedule(row) for row in rows], following


@writing
def set_paused(session: Session, schedule_id: str, paused: bool, note: str, *, actor: str, now: datetime) -> None:
    """Pause or resume. Raises :class:`NotFound`."""
    values = {"paused": paused, "note": note, "revision": schedule.c.revision + 1}
    if not change(session, update(schedule).where(schedule.c.id == schedule_id).values(values)):
        raise no_such_schedule(schedule_id)
    kind = "schedule.paused" if paused else "schedule.resumed"
    append_event(session, kind, actor, now, data={"schedule": schedule_id, "reason": note})


@writing
def remove(session: Session, schedule_id: str, *, actor: str, now: datetime) -> None:
    """Forget the schedule and its firings. Its jobs stay. Raises :class:`NotFound`."""
    if not change(session, delete(schedule).where(schedule.c.id == schedule_id)):
        raise no_such_schedule(schedule_id)
    session.execute(delete(schedule_run).where(schedule_run.c.schedule_id == schedule_id))
    append_event(session, "schedule.deleted", actor, now, data={"schedule": schedule_id})


@reading
def terms_of(session: Session, schedule_id: str) -> ScheduleTerms | None:
    """What Temporal must know. None: the schedule was deleted."""
    row = session.execute(_ONE, {"id": schedule_id}).one_or_none()
    if row is None:
        return None
    return ScheduleTerms(row.id, row.revision, ScheduleRequest.model_validate_json(row.request), row.paused)


@writing
def note_applied(session: Session, schedule_id: str, revision: int) -> None:
    """Temporal has this revision."""
    session.execute(update(schedule).where(schedule.c.id == schedule_id).values(applied=revision))


@reading
def ids(session: Session) -> set[str]:
    """All schedules."""
    return set(session.scalars(select(schedule.c.id)))


@reading
def paused(session: Session) -> dict[str, bool]:
    """All schedules -> are they paused?"""
    return {row.id: row.paused for row in session.execute(select(schedule.c.id, schedule.c.paused))}


@reading
def was_deleted(session: Session, schedule_id: str) -> bool:
    """Did somebody delete it? One without a row and without this is lost."""
    deleted = session.scalars(select(event.c.data).where(event.c.kind == "schedule.deleted"))
    return any(json.loads(data).get("schedule") == schedule_id for data in deleted)


@reading
def submitted(session: Session, schedule_id: str) -> SubmittedSchedule | None:
    """What Temporal keeps of it. None: it has no row."""
    row = session.execute(_ONE, {"id": schedule_id}).one_or_none()
    if row is None:
        return None
    request = ScheduleRequest.model_validate_json(row.request)
    return SubmittedSchedule(request=request, actor=row.actor, created_at=row.created_at)


@writing
def restore(
    session: Session, schedule_id: str, found: SubmittedSchedule, *, paused: bool, revision: int, now: datetime
) -> bool:
    """Write the row of a schedule that only Temporal knows. False: it has a row."""
    spec = found.request.job
    row = {
        "id": schedule_id,
        "namespace": spec.namespace,
        "user": spec.user,
        "actor": found.actor,
        "name": spec.name,
        "request": found.request.model_dump_json(),
        "paused": paused,
        "note": "",
        "created_at": found.created_at,
        "revision": revision,
        "applied": revision,
    }
    if not insert_new(session, schedule, row):
        return False
    append_event(session, "schedule.restored", "scheduler", now, data={"schedule": schedule_id, "name": spec.name})
    return True


@reading
def not_applied(session: Session) -> list[str]:
    """Schedules of which Temporal has an older revision, or none."""
    return list(session.scalars(select(schedule.c.id).where(schedule.c.applied != schedule.c.revision)))


@writing
def record_firing(session: Session, schedule_id: str, workflow_id: str, due_at: datetime, now: datetime) -> Job | None:
    """Record the job of a firing, once. ``workflow_id``: the workflow of the firing, which is told when the job ends.

    None: there is no job, because the schedule was deleted, or a quota refused it; the firing then says why.
    """
    row = session.execute(_ONE.with_for_update(), {"id": schedule_id}).one_or_none()
    if row is None:
        return None
    which = (schedule_run.c.schedule_id == schedule_id) & (schedule_run.c.workflow_id == workflow_id)
    earlier = session.execute(select(schedule_run.c.job_id).where(which)).one_or_none()
    if earlier is not None:
        return None if earlier.job_id is None else get_job(session, earlier.job_id)
    spec = ScheduleRequest.model_validate_json(row.request).job
    made, refusal = None, None
    try:
        with undone_alone(session):
            job_id = derived_job_id("schedule", workflow_id)
            made, _ = record_submission(session, job_id, spec, actor=row.actor, now=now)
            watches.watch(session, job_id, workflow_id)
    except InvalidRequest as refused:
        refusal = refused.message
    run = {"schedule_id": schedule_id, "workflow_id": workflow_id, "due_at": due_at}
    session.execute(insert(schedule_run), {**run, "job_id": None if made is None else made.id, "refusal": refusal})
    data = {"schedule": schedule_id, "name": row.name} | ({} if refusal is None else {"reason": refusal})
    kind = "schedule.fired" if refusal is None else "schedule.refused"
    append_event(session, kind, row.actor, now, job_id=None if made is None else made.id, data=data)
    return made


@writing
def look_at_job(session: Session, job_id: str, workflow_id: str) -> JobState | None:
    """The state of a firing's job. While it has not ended, its workflow is told of the end. None: it is not known."""
    state = session.scalar(select(job.c.state).where(job.c.id == job_id))
    if state is not None and JobState(state).is_terminal:
        watches.seen(session, workflow_id, [job_id])
    else:
        watches.watch(session, job_id, workflow_id)
    return None if state is None else JobState(state)


def no_such_schedule(schedule_id: str) -> NotFound:
    """The error for a schedule that is not there, or that one may not see."""
    return NotFound(f"there is no schedule {schedule_id!r}", schedule_id=schedule_id)


_ONE = select(schedule).where(schedule.c.id == bindparam("id"))
_RUNS = (
    select(schedule_run, job.c.state)
    .outerjoin(job, job.c.id == schedule_run.c.job_id)
    .where(schedule_run.c.schedule_id == bindparam("id"))
    .order_by(schedule_run.c.due_at.desc(), schedule_run.c.workflow_id.desc())
    .limit(SHOWN_RUNS)
)


def _schedule(row: Row[Any]) -> Schedule:
    return Schedule(
        id=row.id,
        namespace=row.namespace,
        user=row.user,
        request=ScheduleRequest.model_validate_json(row.request),
        paused=row.paused,
        note=row.note,
        created_at=row.created_at,
    )


def _read_cursor(cursor: str) -> str:
    try:
        return base64.b64decode(cursor, altchars=b"-_", validate=True).decode()
    except (ValueError, binascii.Error):
        problem = f"{cursor[:80]!r} is not a cursor of this list; leave it out to begin with the first page"
        raise InvalidRequest(problem) from None
