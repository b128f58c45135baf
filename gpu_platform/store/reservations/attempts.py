"""Steps of an attempt that change its GPUs, its job's state and its place in the queue in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from gpu_platform.domain.errors import IllegalTransition, ReservationConflict, WorkflowIsOlder
from gpu_platform.domain.jobs.attempt import AttemptKey
from gpu_platform.domain.jobs.job import Job, StoppedBy
from gpu_platform.domain.jobs.usage import RankUsage
from gpu_platform.domain.states import JOB_TRANSITIONS, JobState
from gpu_platform.store.database import writing
from gpu_platform.store.jobs.jobs import JobUpdate, change_job, job_of, lock_job
from gpu_platform.store.jobs.queue import leave_queue
from gpu_platform.store.jobs.usage import record_usage
from gpu_platform.store.reservations.allocations import close_reservation, give_back, lock_held


@writing
def mark_starting(session: Session, key: AttemptKey, now: datetime) -> Job:
    """Every host of the gang is prepared: ALLOCATED -> STARTING. Repeating it is a no-op, later as well.

    Raises :class:`ReservationConflict` (the attempt does not hold GPUs), :class:`NotFound`, :class:`IllegalTransition`.
    """
    held = lock_held(session, key)
    row = lock_job(session, key.job_id)
    if not held:
        raise ReservationConflict(f"attempt {key} holds no GPUs; it was released or never reserved")
    if row["state"] == JobState.RUNNING:
        return job_of(row)
    return job_of(change_job(session, row, JobState.STARTING, now, "workflow"))


@dataclass(frozen=True, kw_only=True)
class AttemptResult:
    """How an attempt ended: what is written with the job's next state."""

    update: JobUpdate = field(default_factory=JobUpdate)
    quarantine: Mapping[str, str] = field(default_factory=dict)
    """GPU uuid -> why it must not be used again before it is checked."""
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
    held = close_reservation(session, key, now)
    row = lock_job(session, key.job_id)
    current = JobState(row["state"])
    if result.placed is not None:
        passed = not held and row["attempt"] > key.attempt and not current.is_terminal
        if passed or (held and not result.placed):
            raise WorkflowIsOlder(f"attempt {key} has gone on without this workflow")
    is_current = current is not states[-1] and not current.is_terminal and row["attempt"] <= key.attempt
    if is_current and not held:
        _check_row_knows_attempt(row, key, states[-1], result)
    if is_current:
        row = _pass_through(session, row, states[:-1], now, actor, result)
    if held:
        give_back(session, key, now, result.quarantine)
        record_usage(session, key, result.usage, now)
    leave_queue(session, key.job_id, now, key.attempt)
    if is_current:
        row = _write_last_state(session, row, states[-1], now, actor, result)
    return job_of(row)


def _check_row_knows_attempt(row: dict[str, Any], key: AttemptKey, wanted: JobState, result: AttemptResult) -> None:
    """Refuse an attempt that ran, but that the row does not know yet: see ``older_rows``."""
    current = JobState(row["state"])
    if row["attempt"] < key.attempt and (result.usage or current.holds_gpus):
        raise IllegalTransition(
            subject=f"job {key.job_id}",
            current=row["state"],
            wanted=f"{wanted} of attempt {key.attempt}",
            allowed=sorted(JOB_TRANSITIONS[current]),
        )


def _pass_through(
    session: Session,
    row: dict[str, Any],
    states: Sequence[JobState],
    now: datetime,
    actor: str,
    result: AttemptResult,
) -> dict[str, Any]:
    """Write the states before the last one. An older workflow may name some that the job has passed already."""
    if row["state"] in states:
        states = states[states.index(JobState(row["state"])) + 1 :]
    for state in states:
        row = change_job(session, row, state, now, actor, {}, _stop_data(result) if state is JobState.PREEMPTED else {})
    return row


def _write_last_state(
    session: Session, row: dict[str, Any], state: JobState, now: datetime, actor: str, result: AttemptResult
) -> dict[str, Any]:
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
