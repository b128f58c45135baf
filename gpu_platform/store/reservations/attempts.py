"""Steps of an attempt that change its GPUs, its job's state and its place in the queue in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import zip_longest
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
from gpu_platform.store.jobs.job_states import JobUpdate, change_job, lock_job, lock_jobs, note_change, write_jobs
from gpu_platform.store.jobs.jobs import job_of
from gpu_platform.store.jobs.queue import leave_queue_of
from gpu_platform.store.jobs.usage import record_usage
from gpu_platform.store.jobs.work_kinds import start_data
from gpu_platform.store.models import JobRecord, allocation, gpu, job
from gpu_platform.store.reservations.allocations import (
    LOCK_THEIR_GPUS,
    THEIR_GPUS,
    THEIRS_HELD,
    by_number,
    lock_held,
    lock_those_held,
)
from gpu_platform.store.reservations.releasing import Return, close_reservations, give_back
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
    set_running(session, [key], now)


def set_running(session: Session, keys: Sequence[AttemptKey], now: datetime) -> None:
    """Inside a transaction: see :func:`mark_running`, for attempts of different jobs."""
    held = lock_those_held(session, keys)
    rows = {row.id: row for row in session.execute(_LOCK_JOBS, {"job_ids": [key.job_id for key in keys]})}
    for key in keys:
        if key.job_id not in rows:
            raise NotFound(f"there is no job {key.job_id!r}", job_id=key.job_id)
        if key not in held:
            raise ReservationConflict(f"attempt {key} holds no GPUs; it was released or never reserved")
    starting = [key for key in keys if rows[key.job_id].state != JobState.RUNNING]
    for key in starting:
        check_transition(f"job {key.job_id}", JobState(rows[key.job_id].state), JobState.RUNNING)
    for theirs in by_number(starting):
        session.execute(_JOBS_RUNNING, {"job_ids": theirs["key_jobs"], "now": now})
        session.execute(_ALLOCATIONS_RUNNING, {**theirs, "now": now})
        session.execute(LOCK_THEIR_GPUS, theirs)
        session.execute(_GPUS_IN_USE, theirs)
    for key in starting:
        row, where = rows[key.job_id], {"job_id": key.job_id, "attempt": key.attempt}
        if row.state == JobState.ALLOCATED:
            append_event(session, "job.starting", "control", now, **where)
        data = start_data(row.kind or row.inferred_kind, row.queued_at, row.started_at, now)
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
    rows = write_ends(session, [EndedAttempt(key, states, actor, result)], now)
    return job_of(rows[key.job_id])


@dataclass(frozen=True)
class EndedAttempt:
    """How one attempt ends; see :func:`end_attempt`."""

    key: AttemptKey
    states: Sequence[JobState]
    actor: str
    result: AttemptResult


def write_ends(session: Session, ends: Sequence[EndedAttempt], now: datetime) -> dict[str, JobRecord]:
    """Inside a transaction: see :func:`end_attempt`, for attempts of different jobs. Returns the rows of the jobs.

    What raises leaves changes that must be rolled back.
    """
    held = close_reservations(session, [end.key for end in ends], now)
    rows = lock_jobs(session, [end.key.job_id for end in ends])
    current = [end for end in ends if _is_current(rows[end.key.job_id], end, end.key in held)]
    steps = [_pass_through(session, rows[end.key.job_id], end, now) for end in current]
    for alike in zip_longest(*steps, fillvalue={}):  # one state after the other: the database checks each transition
        write_jobs(session, {end.key.job_id: columns for end, columns in zip(current, alike, strict=True)})
    used = record_usage(session, {end.key: end.result.usage for end in ends if end.key in held}, now)
    returns = {end.key: Return(end.result.faulty_gpus, used[end.key]) for end in ends if end.key in held}
    give_back(session, returns, now)
    leave_queue_of(session, [end.key for end in ends], now)
    last = {end.key.job_id: _note_last_state(session, rows[end.key.job_id], end, now) for end in current}
    write_jobs(session, last)
    return rows


def _is_current(row: JobRecord, end: EndedAttempt, held: bool) -> bool:
    """Whether the end of the attempt changes its job. ``held``: it has just given back what it held."""
    key, result, current = end.key, end.result, JobState(row.state)
    if result.placed is not None:
        passed = not held and row.attempt > key.attempt and not current.is_terminal
        if passed or (held and not result.placed):
            raise WorkflowIsOlder(f"attempt {key} has gone on without this workflow")
    is_current = current is not end.states[-1] and not current.is_terminal and row.attempt <= key.attempt
    if is_current and not held:
        _check_row_knows_attempt(row, key, end.states[-1], result)
    return is_current


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


def _pass_through(session: Session, row: JobRecord, end: EndedAttempt, now: datetime) -> list[dict[str, Any]]:
    """The states before the last one. An older workflow may name some that the job has passed already. Returns the
    columns to write for each."""
    states, steps = list(end.states[:-1]), list[dict[str, Any]]()
    if row.state in states:
        states = states[states.index(JobState(row.state)) + 1 :]
    for state in states:
        data = _stop_data(end.result) if state is JobState.PREEMPTED else {}
        steps.append(note_change(session, row, state, now, end.actor, {}, data))
    return steps


def _note_last_state(session: Session, row: JobRecord, end: EndedAttempt, now: datetime) -> dict[str, Any]:
    state, result = end.states[-1], end.result
    columns, data = result.update.columns(), result.update.event_data()
    columns["retry_at"] = None
    if result.retry_in_s is not None:
        columns["retry_at"] = now + timedelta(seconds=result.retry_in_s)
        data["retry_in_s"] = round(result.retry_in_s, 3)
    if result.stopped_by is not None:
        columns["stopped_by"] = result.stopped_by.model_dump_json()
    if state is JobState.CANCELLED:
        data |= _stop_data(result)
    return note_change(session, row, state, now, end.actor, columns, data)


def _stop_data(result: AttemptResult) -> dict[str, Any]:
    return {} if result.stopped_by is None else result.stopped_by.model_dump(include={"verb", "reason"})


# ---- the statements, compiled once ----

_JOBS = job.c.id.in_(bindparam("job_ids", expanding=True))
_LOCK_JOBS = (
    select(job.c.id, job.c.state, job.c.kind, job.c.inferred_kind, job.c.queued_at, job.c.started_at)
    .where(_JOBS)
    .order_by(job.c.id)
    .with_for_update(key_share=True)
)
_JOBS_RUNNING = (
    update(job)
    .where(_JOBS)
    .values(state=JobState.RUNNING.value, started_at=bindparam("now"), state_at=bindparam("now"))
)
_ALLOCATIONS_RUNNING = update(allocation).where(THEIRS_HELD).values(running_at=bindparam("now"))
_GPUS_IN_USE = (
    update(gpu)
    .where(gpu.c.uuid.in_(THEIR_GPUS), gpu.c.state == GpuState.ALLOCATED.value)
    .values(state=next_state(gpu.c.state, {GpuState.ALLOCATED: GpuState.IN_USE}))
)
