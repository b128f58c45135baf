"""Steps of an attempt that change its GPUs, its job's state and its place in the queue in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import bindparam, select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import IllegalTransition, NotFound, ReservationConflict, WorkflowIsOlder
from gpu_platform.domain.jobs.job import Job, StoppedBy
from gpu_platform.domain.jobs.usage import RankUsage
from gpu_platform.domain.states import JOB_TRANSITIONS, GpuState, JobState, check_transition
from gpu_platform.store.database import writing
from gpu_platform.store.events import append_event
from gpu_platform.store.jobs.jobs import JobUpdate, change_job, job_of, lock_job
from gpu_platform.store.jobs.queue import leave_queue
from gpu_platform.store.jobs.usage import record_usage
from gpu_platform.store.jobs.work_kinds import start_data
from gpu_platform.store.models import JobRecord, allocation, gpu, job
from gpu_platform.store.reservations.allocations import LOCK_HELD_GPUS, OUR_HELD_GPUS, OURS, lock_held
from gpu_platform.store.reservations.releasing import close_reservation, give_back
from gpu_platform.store.transitions import next_state


@writing
def mark_starting(session: Session, key: AttemptKey, now: datetime) -> Job:
    """Every host of the gang is prepared: ALLOCATED -> STARTING. Repeating it is a no-op, later as well.

    Raises :class:`ReservationConflict` (the attempt does not hold GPUs), :class:`NotFound`, :class:`IllegalTransition`.
    """
    held = lock_held(session, key)
    row = lock_job(session, key.job_id)
    if not held:
        raise ReservationConflict(f"attempt {key} holds no GPUs; it was released or never reserved")
    if row.state == JobState.RUNNING:
        return job_of(row)
    return job_of(change_job(session, row, JobState.STARTING, now, "workflow"))


@writing
def mark_running(session: Session, key: AttemptKey, now: datetime) -> None:
    """Every rank has a process: the job is RUNNING, its GPUs are IN_USE. Repeating it is a no-op.

    A job that was ALLOCATED until now (on one host) gets the event of STARTING, too.

    Raises :class:`NotFound`, :class:`ReservationConflict` (the attempt does not hold GPUs), :class:`IllegalTransition`.
    """
    set_running(session, key, now)


def set_running(session: Session, key: AttemptKey, now: datetime) -> None:
    """Inside a transaction: see :func:`mark_running`."""
    if not lock_held(session, key):
        if session.execute(_LOCK_JOB, {"key_job": key.job_id}).one_or_none() is None:
            raise NotFound(f"there is no job {key.job_id!r}", job_id=key.job_id)
        raise ReservationConflict(f"attempt {key} holds no GPUs; it was released or never reserved")
    row = session.execute(_LOCK_JOB, {"key_job": key.job_id}).one()
    if row.state == JobState.RUNNING:
        return
    check_transition(f"job {key.job_id}", JobState(row.state), JobState.RUNNING)
    session.execute(_JOB_RUNNING, {"key_job": key.job_id, "now": now})
    ours = {"key_job": key.job_id, "key_attempt": key.attempt}
    session.execute(_ALLOCATIONS_RUNNING, {**ours, "now": now})
    session.execute(LOCK_HELD_GPUS, ours)
    session.execute(_GPUS_IN_USE, ours)
    where = {"job_id": key.job_id, "attempt": key.attempt}
    if row.state == JobState.ALLOCATED:
        append_event(session, "job.starting", "control", now, **where)
    kind = row.kind or row.inferred_kind
    data = start_data(kind, row.queued_at, row.started_at, now)
    append_event(session, "job.running", "control", now, data=data, **where)


@dataclass(frozen=True, kw_only=True)
class AttemptResult:
    """How an attempt ended: what is written with the job's next state."""

    update: JobUpdate = field(default_factory=JobUpdate)
    faulty_gpus: Mapping[str, str] = field(default_factory=dict)
    """GPU uuid -> why it becomes DEGRADED: it must not be used again before it is checked."""
    usage: Sequence[RankUsage] = ()
    retry_in_s: float | None = None
    """A job that is QUEUED again asks for GPUs only after so many seconds."""
    stopped_by: StoppedBy | None = None
    """Who stopped it; written to the event of the state that it led to."""
    placed: bool | None = None
    """Whether the workflow that ends the attempt knew its placement. None: no workflow ends it."""


_NO_RESULT = AttemptResult()


@writing
def end_attempt(
    session: Session,
    key: AttemptKey,
    states: Sequence[JobState],
    *,
    now: datetime,
    actor: str,
    result: AttemptResult = _NO_RESULT,
) -> Job:
    """Release what the attempt holds and move the job through ``states``, e.g. ``[PREEMPTED, QUEUED]``.

    One transaction: nobody ever sees a finished job that holds GPUs. Repeating it is a no-op. A job that has ended in
    another state keeps that state, but what the attempt held is released. Raises :class:`NotFound`,
    :class:`IllegalTransition` and :class:`WorkflowIsOlder`; then nothing was released.
    """
    return write_end(session, key, states, now=now, actor=actor, result=result)


def write_end(
    session: Session,
    key: AttemptKey,
    states: Sequence[JobState],
    *,
    now: datetime,
    actor: str,
    result: AttemptResult = _NO_RESULT,
) -> Job:
    """Inside a transaction: see :func:`end_attempt`. What raises leaves changes that must be rolled back."""
    held = close_reservation(session, key, now)
    row = lock_job(session, key.job_id)
    current = JobState(row.state)
    if result.placed is not None:
        passed = not held and row.attempt > key.attempt and not current.is_terminal
        if passed or (held and not result.placed):
            raise WorkflowIsOlder(f"attempt {key} has gone on without this workflow")
    is_current = current is not states[-1] and not current.is_terminal and row.attempt <= key.attempt
    if is_current and not held:
        _check_row_knows_attempt(row, key, states[-1], result)
    if is_current:
        row = _pass_through(session, row, states[:-1], now, actor, result)
    if held:
        used = record_usage(session, key, result.usage, now)
        give_back(session, key, now, result.faulty_gpus, used)
    leave_queue(session, key.job_id, now, key.attempt)
    if is_current:
        row = _write_last_state(session, row, states[-1], now, actor, result)
    return job_of(row)


def _check_row_knows_attempt(row: JobRecord, key: AttemptKey, wanted: JobState, result: AttemptResult) -> None:
    """Refuse an attempt that ran, but that the row does not know yet: see ``older_rows``."""
    current = JobState(row.state)
    if row.attempt < key.attempt and (result.usage or current.holds_gpus):
        raise IllegalTransition(
            subject=f"job {key.job_id}",
            current=row.state,
            wanted=f"{wanted} of attempt {key.attempt}",
            allowed=sorted(JOB_TRANSITIONS[current]),
        )


def _pass_through(
    session: Session,
    row: JobRecord,
    states: Sequence[JobState],
    now: datetime,
    actor: str,
    result: AttemptResult,
) -> JobRecord:
    """Write the states before the last one. An older workflow may name some that the job has passed already."""
    if row.state in states:
        states = states[states.index(JobState(row.state)) + 1 :]
    for state in states:
        row = change_job(session, row, state, now, actor, {}, _stop_data(result) if state is JobState.PREEMPTED else {})
    return row


def _write_last_state(
    session: Session, row: JobRecord, state: JobState, now: datetime, actor: str, result: AttemptResult
) -> JobRecord:
    columns, data = result.update.columns(), result.update.event_data()
    columns["retry_at"] = None
    if result.retry_in_s is not None:
        columns["retry_at"] = now + timedelta(seconds=result.retry_in_s)
        data["retry_in_s"] = round(result.retry_in_s, 3)
    if result.stopped_by is not None:
        columns["stopped_by"] = result.stopped_by.model_dump_json()
    if state is JobState.CANCELLED:
        data |= _stop_data(result)
    return change_job(session, row, state, now, actor, columns, data)


def _stop_data(result: AttemptResult) -> dict[str, Any]:
    return {} if result.stopped_by is None else result.stopped_by.model_dump(include={"verb", "reason"})


# ---- the statements, compiled once ----

_LOCK_JOB = (
    select(job.c.state, job.c.kind, job.c.inferred_kind, job.c.queued_at, job.c.started_at)
    .where(job.c.id == bindparam("key_job"))
    .with_for_update(key_share=True)
)
_JOB_RUNNING = (
    update(job)
    .where(job.c.id == bindparam("key_job"))
    .values(state=JobState.RUNNING.value, started_at=bindparam("now"), state_at=bindparam("now"))
)
_ALLOCATIONS_RUNNING = (
    update(allocation).where(OURS, allocation.c.released_at.is_(None)).values(running_at=bindparam("now"))
)
_GPUS_IN_USE = (
    update(gpu)
    .where(gpu.c.uuid.in_(OUR_HELD_GPUS), gpu.c.state == GpuState.ALLOCATED.value)
    .values(state=next_state(gpu.c.state, {GpuState.ALLOCATED: GpuState.IN_USE}))
)
