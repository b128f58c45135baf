"""Changes of a job that waits. The row is the truth: the leader reads it with the job's entry in the queue, and the
job's workflow with the reservation.

The job leaves the queue and asks for a placement again, so that what the leader decides for the old request is refused:
``asks_anew`` stands in the row until it asks. If its workflow is not told, the leader finds that it misses its entry.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.errors import Forbidden, IllegalTransition, InvalidRequest, OverQuota
from gpu_platform.domain.jobs.changes import JobChanges, LimitChange
from gpu_platform.domain.jobs.deadline import changed_limit_refusal
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.store.database import reading, writing
from gpu_platform.store.events import append_event
from gpu_platform.store.jobs import dependencies
from gpu_platform.store.jobs.job_states import lock_job
from gpu_platform.store.jobs.queue import AFTER, ASKS, leave_queue
from gpu_platform.store.leadership.leader import current_quotas
from gpu_platform.store.models import JobRecord, dependency, job
from gpu_platform.store.window_holders import check_longer_limit

UPDATED = "job.updated"
"""Kind of the event. Its data are the fields that changed: name -> [old, new]."""
_FIELDS = ("priority", "time_limit_s", "after", "reservation")
_WAITING = (JobState.PENDING.value, JobState.QUEUED.value)


@writing
def change_waiting(session: Session, job_id: str, changes: JobChanges, actor: str, now: datetime) -> bool:
    """Change a job that waits. Returns False if it was like that before.

    Raises :class:`NotFound`, :class:`IllegalTransition` if it does not wait, :class:`InvalidRequest` if it cannot be
    so, and :class:`OverQuota` if its namespace does not allow it.
    """
    row = lock_job(session, job_id)
    _check_waits(row)
    before = JobSpec.model_validate_json(row.spec)
    try:
        after = changes.applied_to(before)
    except ValueError as error:
        raise InvalidRequest(f"job {job_id} cannot be changed so: {error}", job_id=job_id) from None
    names = [name for name in _FIELDS if getattr(before, name) != getattr(after, name)]
    if not names:
        return False
    values: dict[str, Any] = {"spec": after.model_dump_json(), "priority": after.priority, "asks_anew": ASKS}
    if "time_limit_s" in names:
        check_limit(session, f"job {job_id}", after, now)
        values["changed_limit"] = LimitChange(time_limit_s=after.time_limit_s).model_dump_json()
    if "after" in names or row.asks_anew == AFTER:
        values["asks_anew"] = AFTER
    if "after" in names:
        check_no_ring(session, job_id, [one.job_id for one in after.after])
        dependencies.forget(session, job_id)
        dependencies.add(session, job_id, after, now)
    session.execute(update(job).where(job.c.id == job_id).values(**values))
    leave_queue(session, job_id, now)
    append_event(session, UPDATED, actor, now, job_id=job_id, data={one: shown(before, after, one) for one in names})
    return True


@dataclass(frozen=True)
class Changer:
    """Who changes a job."""

    actor: str
    is_operator: bool = False


@writing
def change_running(
    session: Session, job_id: str, changes: JobChanges, by: Changer, now: datetime
) -> LimitChange | None:
    """Change the priority or the time limit of a job that runs. Returns its time limit if that was given, also if it
    was the same before: its workflow must be told.

    Raises :class:`NotFound`, :class:`IllegalTransition`, :class:`InvalidRequest`, :class:`Forbidden` and
    :class:`InUse`.
    """
    row = lock_job(session, job_id)
    before = JobSpec.model_validate_json(row.spec)
    if row.state != JobState.RUNNING:
        raise IllegalTransition(
            subject=f"job {job_id}",
            current=row.state,
            wanted="changed",
            allowed=[*_WAITING, JobState.RUNNING.value],
            message=f"job {job_id} is {row.state}: "
            + ("it has ended" if JobState(row.state).is_terminal else "it is being started: ask again in a moment"),
        )
    if other := changes.model_fields_set - {"priority", "time_limit_s"}:
        raise IllegalTransition(
            subject=f"job {job_id}",
            current=row.state,
            wanted="changed",
            allowed=[*_WAITING],
            message=f"job {job_id} runs: {', '.join(sorted(other))} can be changed only while it waits",
        )
    try:
        after = changes.applied_to(before)
    except ValueError as error:
        raise InvalidRequest(f"job {job_id} cannot be changed so: {error}", job_id=job_id) from None
    names = [name for name in _FIELDS if getattr(before, name) != getattr(after, name)]
    values: dict[str, Any] = {"spec": after.model_dump_json(), "priority": after.priority}
    limit = LimitChange(time_limit_s=after.time_limit_s) if "time_limit_s" in changes.model_fields_set else None
    if "time_limit_s" in names:
        assert limit is not None
        _check_running_limit(session, row, before, after, by, now)
        values["changed_limit"] = limit.model_dump_json()
    if names:
        session.execute(update(job).where(job.c.id == job_id).values(**values))
        data = {name: shown(before, after, name) for name in names}
        append_event(session, UPDATED, by.actor, now, job_id=job_id, attempt=row.attempt, data=data)
    return limit


@reading
def allows_limit(session: Session, job_id: str, limit: LimitChange) -> bool:
    """Tell whether a host may be told of this limit: the job has it, or got another one since."""
    text = session.scalar(_LIMIT, {"job_id": job_id})
    if text is None:
        return False
    found = LimitChange.model_validate_json(text).time_limit_s
    return found == limit.time_limit_s or (found is None or (limit.time_limit_s or math.inf) <= found)


def _check_running_limit(
    session: Session, row: JobRecord, before: JobSpec, after: JobSpec, by: Changer, now: datetime
) -> None:
    """Shorter: the owner or an operator. Longer: an operator, or the owner up to what the namespace allows."""
    if row.array_id is not None:
        raise InvalidRequest(
            f"job {row.id} is an element of {row.array_id}, and has started: its time limit can be changed only while "
            "it waits",
            job_id=row.id,
        )
    if (refusal := changed_limit_refusal(after, now, row.started_at or now)) is not None:
        raise InvalidRequest(f"job {row.id} cannot be changed so: {refusal}", job_id=row.id)
    new, old = (math.inf if spec.time_limit_s is None else spec.time_limit_s for spec in (after, before))
    if new <= old:
        return
    longest = current_quotas(session).longest_s(after.namespace)
    if not by.is_operator and (longest is None or new > longest):
        what = "no longest time" if longest is None else f"at most {longest} s"
        raise Forbidden(
            f"a longer limit of a job that runs may delay others: the quota of namespace {after.namespace} allows "
            f"{what}, and beyond that an operator may do it",
            job_id=row.id,
        )
    check_longer_limit(session, row.id, after)


@reading
def changed_limit(session: Session, job_id: str) -> LimitChange | None:
    """The time limit that a job got while it waited. None: it has that of its submission."""
    text = session.scalar(_LIMIT, {"job_id": job_id})
    return None if text is None else LimitChange.model_validate_json(text)


def _check_waits(row: JobRecord) -> None:
    if row.array_id is not None:
        raise InvalidRequest(f"job {row.id} is an element: it is changed with its array {row.array_id}", job_id=row.id)
    if row.state not in _WAITING:
        raise IllegalTransition(
            subject=f"job {row.id}",
            current=row.state,
            wanted="changed",
            allowed=list(_WAITING),
            message=f"job {row.id} is {row.state}: only a job that waits or runs can be changed"
            + (": it has just been started, ask again in a moment" if JobState(row.state).holds_gpus else ""),
        )


def check_limit(session: Session, whose: str, spec: JobSpec, now: datetime) -> None:
    """Inside a transaction: raise :class:`InvalidRequest` if a job that waits cannot have this time limit because of
    its deadline, and :class:`OverQuota` if its namespace does not allow it."""
    if (refusal := changed_limit_refusal(spec, now)) is not None:
        raise InvalidRequest(f"{whose} cannot be changed so: {refusal}")
    if refusal := current_quotas(session).refusal(spec.namespace, spec.time_limit_s, 0, 0, 0):
        raise OverQuota(refusal, namespace=spec.namespace)


def check_no_ring(session: Session, job_id: str, after: list[str]) -> None:
    """Inside a transaction: raise :class:`InvalidRequest` if one of these jobs waits for the job itself, directly or
    not.

    Each job on the way is locked before its dependencies are read, and whoever changes them locks it as well. So of two
    changes that would make a ring together, the second sees the first: one of them waits, or the database ends one as a
    deadlock and it is tried again.
    """
    seen: set[str] = set()
    next_ones = set(after)
    while next_ones:
        session.execute(_LOCK, {"ids": sorted(next_ones)}).all()
        if job_id in next_ones:
            raise InvalidRequest(f"job {job_id} would wait for itself: one that it is to come after waits for it")
        seen |= next_ones
        found = session.execute(_OPEN, {"waiters": sorted(next_ones)}).all()
        next_ones = {one for row in found for one in (row.after_job, row.after_array) if one is not None} - seen


def shown(before: JobSpec, after: JobSpec, name: str) -> list[Any]:
    """A field before and after a change, for its event."""
    return [_shown(before, name), _shown(after, name)]


def _shown(spec: JobSpec, name: str) -> Any:
    value = getattr(spec, name)
    return [f"{one.job_id} ({one.kind.value})" for one in value] if name == "after" else value


_LIMIT = select(job.c.changed_limit).where(job.c.id == bindparam("job_id"))
_LOCK = (
    select(job.c.id)
    .where(job.c.id.in_(bindparam("ids", expanding=True)))
    .order_by(job.c.id)
    .with_for_update(key_share=True)
)
_OPEN = select(dependency.c.after_job, dependency.c.after_array).where(
    dependency.c.job_id.in_(bindparam("waiters", expanding=True)), dependency.c.released_at.is_(None)
)
