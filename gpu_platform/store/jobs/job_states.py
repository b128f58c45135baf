"""The state of a job, and what changes with it: in one transaction, with the event that reports the change."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import Update, bindparam, select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.jobs.job import Failure
from gpu_platform.domain.states import JobState, check_transition
from gpu_platform.store.database import read_record, read_records
from gpu_platform.store.events import append_event
from gpu_platform.store.jobs import dependencies
from gpu_platform.store.jobs.owners import missing, no_such_job
from gpu_platform.store.jobs.queue import leave_queue
from gpu_platform.store.jobs.work_kinds import end_data, start_data
from gpu_platform.store.models import JobRecord, job


@dataclass(frozen=True, kw_only=True)
class JobUpdate:
    """Columns of a job that change together with its state. A field that is None stays as it is."""

    failure: Failure | None = None
    exit_code: int | None = None
    attempt: int | None = None
    user_retries: int | None = None
    hardware_retries: int | None = None
    preemptions: int | None = None

    def columns(self) -> dict[str, Any]:
        """The columns of the table ``job``."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.failure is not None:
            columns["failure"] = self.failure.model_dump_json()
        return _given(columns)

    def event_data(self) -> dict[str, Any]:
        """The data of the event that reports the change."""
        failure = None if self.failure is None else self.failure.model_dump(mode="json", exclude_none=True)
        return _given({"failure": failure, "exit_code": self.exit_code})


_LOCK_JOB = select(job).where(job.c.id == bindparam("job_id")).with_for_update(key_share=True)
_LOCK_JOBS = (
    select(job)
    .where(job.c.id.in_(bindparam("job_ids", expanding=True)))
    .order_by(job.c.id)
    .with_for_update(key_share=True)
)
_UPDATE_JOB = update(job).where(job.c.id == bindparam("job_id"))

_EVENT_KINDS = {
    JobState.ALLOCATED: "job.placed",
    JobState.STARTING: "job.starting",
    JobState.RUNNING: "job.running",
    JobState.COMPLETED: "job.completed",
    JobState.FAILED: "job.failed",
    JobState.CANCELLED: "job.cancelled",
    JobState.PREEMPTED: "job.preempted",
}


def lock_job(session: Session, job_id: str) -> JobRecord:
    """The job's row; nobody else changes it until the commit. Raises :class:`NotFound`."""
    row = read_record(session, JobRecord, _LOCK_JOB, {"job_id": job_id})
    if row is None:
        raise missing(session, job_id, no_such_job(job_id))
    return row


def lock_jobs(session: Session, job_ids: Collection[str]) -> dict[str, JobRecord]:
    """The rows of these jobs; nobody else changes them until the commit. Raises :class:`NotFound`."""
    rows = {row.id: row for row in read_records(session, JobRecord, _LOCK_JOBS, {"job_ids": list(job_ids)})}
    for job_id in job_ids:
        if job_id not in rows:
            raise missing(session, job_id, no_such_job(job_id))
    return rows


def change_job(
    session: Session,
    row: JobRecord,
    state: JobState,
    now: datetime,
    actor: str,
    columns: dict[str, Any] | None = None,
    data: dict[str, Any] | None = None,
) -> JobRecord:
    """Write state, times and ``columns`` of a locked row, and its event; returns the row as it is now.

    Raises :class:`IllegalTransition`.
    """
    write_jobs(session, {row.id: note_change(session, row, state, now, actor, columns, data)})
    return row


def note_change(
    session: Session,
    row: JobRecord,
    state: JobState,
    now: datetime,
    actor: str,
    columns: dict[str, Any] | None = None,
    data: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """As :func:`change_job`, but the row is not written yet: returns the columns, for :func:`write_jobs`."""
    current = JobState(row.state)
    check_transition(f"job {row.id}", current, state)
    values = dict(columns or {})
    if state is JobState.RUNNING:
        data = {**(data or {}), **start_data(row.kind or row.inferred_kind, row.queued_at, row.started_at, now)}
    elif state.is_terminal:
        ran = row.started_at if current is JobState.RUNNING else None
        took = row.created_at if state is JobState.COMPLETED else None
        data = {**(data or {}), **end_data(row.kind or row.inferred_kind, ran, now, took)}
    if state is not current:
        values |= {"state": state.value, "state_at": now}
        if state is JobState.QUEUED and current in (JobState.PENDING, JobState.PREEMPTED):
            values.setdefault("queued_at", now)
        elif state is JobState.RUNNING:
            values["started_at"] = now
        elif state.is_terminal:
            values["finished_at"] = now
        if state is JobState.COMPLETED:
            values["failure"] = None
    for name, value in values.items():
        setattr(row, name, value)
    if state is not current:
        retries = state is JobState.QUEUED and current.holds_gpus
        kind = "job.retrying" if retries else _EVENT_KINDS.get(state, "job.queued")
        append_event(session, kind, actor, now, job_id=row.id, attempt=row.attempt or None, data=data)
        _wait_no_more(session, row.id, current, state, now)
    return values


def write_jobs(session: Session, columns: Mapping[str, Mapping[str, Any]]) -> None:
    """Inside a transaction: write these columns of jobs: job -> column -> value."""
    alike: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for job_id, values in columns.items():
        if values:
            alike.setdefault(tuple(sorted(values)), []).append({**values, "job_id": job_id})
    for names, rows in alike.items():
        session.execute(_updating(names), rows)


@lru_cache(maxsize=256)
def _updating(names: tuple[str, ...]) -> Update:
    return _UPDATE_JOB.values({name: bindparam(name) for name in names})


def _wait_no_more(session: Session, job_id: str, current: JobState, state: JobState, now: datetime) -> None:
    """The job waits neither for GPUs nor for other jobs any more."""
    if current is JobState.QUEUED:
        leave_queue(session, job_id, now)
    if state.is_terminal and not current.holds_gpus:
        dependencies.forget(session, job_id)


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
