"""Jobs and arrays that wait until somebody releases them: by hand, or because a dependency can never be met.

A job that is held is QUEUED and has no entry in the queue: nobody places it, and nothing is promised to it. Its
workflow waits as for any placement. When it is released, its workflow is told to ask again. If nobody tells it, the
leader finds that it misses its entry.

The hold is in the job's own row, so that a placement that is on its way finds it there.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.array_ids import is_array_id
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import Forbidden, IllegalTransition, InvalidRequest
from gpu_platform.domain.jobs.hold import Hold
from gpu_platform.domain.states import ArrayState, JobState
from gpu_platform.store.database import writing
from gpu_platform.store.events import append_event
from gpu_platform.store.jobs import dependencies
from gpu_platform.store.jobs.dependencies import HELD, RELEASED
from gpu_platform.store.jobs.elements import lock_array
from gpu_platform.store.jobs.job_states import lock_job
from gpu_platform.store.jobs.queue import leave_queue, leave_queue_of
from gpu_platform.store.models import JobRecord, job, job_array, queue_entry

_WAITING = (JobState.PENDING, JobState.QUEUED)
_WAITING_VALUES = [state.value for state in _WAITING]


@dataclass(frozen=True)
class Asker:
    """Who asks for a hold or its end."""

    actor: str
    is_operator: bool = False
    """The job is somebody else's."""


@writing
def hold(session: Session, job_id: str, by: Asker, reason: str, now: datetime) -> None:
    """Hold a job, or an array with all of its elements that wait and those to come. Repeating it is a no-op, but the
    hold of an operator replaces that of the owner.

    Raises :class:`NotFound`, and :class:`IllegalTransition` for a job that does not wait.
    """
    asked = Hold(actor=by.actor, reason=reason, by_operator=by.is_operator)
    if is_array_id(job_id):
        _hold_array(session, job_id, asked, now)
        return
    row = lock_job(session, job_id)
    if JobState(row.state) not in _WAITING:
        raise IllegalTransition(
            subject=f"job {job_id}",
            current=row.state,
            wanted="held",
            allowed=_WAITING_VALUES,
            message=f"job {job_id} is {row.state}: only a job that waits can be held"
            + (" (preempt it first: jobs preempt)" if JobState(row.state).holds_gpus else ""),
        )
    before = None if row.held is None else Hold.model_validate_json(row.held)
    if before is None or (asked.by_operator and not before.by_operator):
        session.execute(_HOLD_JOB, {"job_": job_id, "hold": asked.model_dump_json()})
        leave_queue(session, job_id, now)
        _announce_hold(session, job_id, asked, now)


@writing
def release(session: Session, job_id: str, by: Asker, now: datetime) -> list[str]:
    """End the hold of a job or an array, also one because of a dependency: then it does not wait for other jobs any
    more. Returns the jobs and arrays whose workflows should look again.

    Raises :class:`NotFound`, :class:`Forbidden` if an operator holds it and the owner asks, and
    :class:`InvalidRequest` if it is not held.
    """
    if is_array_id(job_id):
        return _release_array(session, job_id, by, now)
    row = lock_job(session, job_id)
    held = None if row.held is None or JobState(row.state) not in _WAITING else Hold.model_validate_json(row.held)
    if held is not None and held.of_array:
        raise InvalidRequest(f"job {job_id} is held with its array: release {row.array_id}", job_id=job_id)
    if held is not None:
        _check_may_release(job_id, held, by)
        session.execute(_FREE_JOB, {"job_": job_id, **_place(row, now)})
    elif not (row.state in _WAITING_VALUES and dependencies.end_hold(session, job_id, now)):
        raise InvalidRequest(f"job {job_id} is {row.state}, and it is not held", job_id=job_id)
    append_event(session, RELEASED, by.actor, now, job_id=job_id)
    return [job_id]


def _hold_array(session: Session, array_id: str, asked: Hold, now: datetime) -> None:
    row = lock_array(session, array_id)
    _check_live(array_id, ArrayState(row.state), "held")
    before = None if row.held is None else Hold.model_validate_json(row.held)
    if before is not None and (before.by_operator or not asked.by_operator):
        return
    session.execute(_HOLD_ARRAY, {"job_": array_id, "hold": asked.model_dump_json()})
    of_array = asked.model_copy(update={"of_array": True}).model_dump_json()
    session.execute(_HOLD_ELEMENTS if before is None else _HOLD_ELEMENTS_AGAIN, {"array_": array_id, "hold": of_array})
    entries = session.execute(_ENTRIES, {"array_": array_id}).all()
    leave_queue_of(session, [AttemptKey(job_id=one.job_id, attempt=one.attempt) for one in entries], now)
    _announce_hold(session, array_id, asked, now)


def _release_array(session: Session, array_id: str, by: Asker, now: datetime) -> list[str]:
    row = lock_array(session, array_id)
    _check_live(array_id, ArrayState(row.state), "released")
    if row.held is None:
        if not dependencies.end_hold(session, array_id, now):
            raise InvalidRequest(f"array {array_id} is {row.state}, and it is not held", job_id=array_id)
        append_event(session, RELEASED, by.actor, now, job_id=array_id)
        return [array_id]
    _check_may_release(array_id, Hold.model_validate_json(row.held), by)
    session.execute(_FREE_ARRAY, {"job_": array_id})
    freed = session.scalars(_HELD_ELEMENTS, {"array_": array_id}).all()
    for element in freed:
        session.execute(_FREE_JOB, {"job_": element, "at": now, "since": now})
    append_event(session, RELEASED, by.actor, now, job_id=array_id)
    return list(freed)


def _check_may_release(job_id: str, held: Hold, by: Asker) -> None:
    if held.by_operator and not by.is_operator:
        raise Forbidden(f"{job_id} is held by {held.actor}, an operator: only operators may release it", job_id=job_id)


def _check_live(array_id: str, state: ArrayState, wanted: str) -> None:
    if state.is_terminal:
        message = f"array {array_id} is {state}: there is nothing to be {wanted}"
        raise IllegalTransition(
            subject=f"array {array_id}", current=state.value, wanted=wanted, allowed=[], message=message
        )


def _announce_hold(session: Session, job_id: str, held: Hold, now: datetime) -> None:
    append_event(session, HELD, held.actor, now, job_id=job_id, data={"reason": held.message})


def _place(row: JobRecord, now: datetime) -> dict[str, Any]:
    """Its place in the queue counts from now on, or from the time at which it begins or is tried again."""
    since = now if row.retry_at is None else max(now, row.retry_at)
    return {"at": since, "since": since}


# ---- the statements, compiled once ----

_JOB = update(job).where(job.c.id == bindparam("job_"))
_HOLD_JOB = _JOB.values(held=bindparam("hold"))
_FREE_JOB = _JOB.values(held=None, queued_at=bindparam("since"), retry_at=bindparam("at"))
_ARRAY = update(job_array).where(job_array.c.id == bindparam("job_"))
_HOLD_ARRAY = _ARRAY.values(held=bindparam("hold"))
_FREE_ARRAY = _ARRAY.values(held=None)
_ELEMENTS = update(job).where(job.c.array_id == bindparam("array_"), job.c.state == JobState.QUEUED.value)
_OF_ARRAY = job.c.held.like('%"of_array":true%')
_HOLD_ELEMENTS = _ELEMENTS.where(job.c.held.is_(None)).values(held=bindparam("hold"))
_HOLD_ELEMENTS_AGAIN = _ELEMENTS.where(job.c.held.is_(None) | _OF_ARRAY).values(held=bindparam("hold"))
_HELD_ELEMENTS = (
    select(job.c.id)
    .where(job.c.array_id == bindparam("array_"), job.c.state == JobState.QUEUED.value, _OF_ARRAY)
    .order_by(job.c.array_index)
    .with_for_update(key_share=True)
)
_ENTRIES = (
    select(queue_entry.c.job_id, queue_entry.c.attempt)
    .join(job, job.c.id == queue_entry.c.job_id)
    .where(job.c.array_id == bindparam("array_"), job.c.held.is_not(None))
    .order_by(queue_entry.c.job_id)
)
