"""Jobs: from the submission to the terminal state."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import Row, Update, bindparam, delete, func, or_, select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.array_ids import is_array_id
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.jobs.deadline import deadline_refusal
from gpu_platform.domain.jobs.hold import Hold, hold_reason
from gpu_platform.domain.jobs.job import Failure, Job, StoppedBy
from gpu_platform.domain.jobs.notify import as_column
from gpu_platform.domain.jobs.placement import Placement, Reason
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.jobs.work_kind import WorkKind
from gpu_platform.domain.states import TERMINAL_JOB_STATES, JobState, check_transition
from gpu_platform.store.database import Store, change, insert_new, read_record, read_records, reading, writing
from gpu_platform.store.events import append_event
from gpu_platform.store.jobs import dependencies
from gpu_platform.store.jobs.admission import check_possible, check_quotas
from gpu_platform.store.jobs.checkpoints import saved_at
from gpu_platform.store.jobs.idempotency import IdempotencyKey, Taken, take_key
from gpu_platform.store.jobs.owners import missing, no_such_job
from gpu_platform.store.jobs.paging import MAX_PAGE, cursor_of, newest_first, read_index
from gpu_platform.store.jobs.promises import as_told
from gpu_platform.store.jobs.queue import leave_queue
from gpu_platform.store.jobs.queue_view import positions
from gpu_platform.store.jobs.work_kinds import end_data, inferred_kind, kind_data, start_data
from gpu_platform.store.models import JobRecord, event, idempotency, job, queue_entry, waiting_reason
from gpu_platform.tracing import event_data

_WITHDRAWN = "job.withdrawn"
_TERMINAL = sorted(TERMINAL_JOB_STATES)


def record_submission(
    session: Session,
    job_id: str,
    spec: JobSpec,
    *,
    actor: str,
    now: datetime,
    idempotency_key: IdempotencyKey | str | None = None,
    retry_of: str | None = None,
) -> tuple[Job, bool]:
    """Inside a transaction: record a PENDING job. Returns it and whether it is new. ``retry_of``: the job that it runs
    again.

    A key (or id) that was seen with the same specification, or with one that says the same, returns the job it made;
    with another one it raises :class:`IdempotencyConflict`. A new job that the quotas do not allow raises
    :class:`OverQuota`, one that comes after a job that is not there :class:`NotFound`, and one that could never start
    after it, or never end by its deadline, :class:`InvalidRequest`.
    """
    if idempotency_key is not None:
        taken = take_key(session, idempotency_key, spec, job_id, now)
        if taken is not None:
            return _same_submission(session, taken, spec, retry_of)
    inferred = inferred_kind(session, spec)
    row = {
        "id": job_id,
        "state": JobState.PENDING.value,
        "namespace": spec.namespace,
        "user": spec.user,
        "name": spec.name,
        "priority": spec.priority,
        "kind": spec.kind,
        "inferred_kind": inferred,
        "created_at": now,
        "state_at": now,
        "spec": spec.model_dump_json(),
        "held": Hold(actor=actor).model_dump_json() if spec.hold else None,
        "notify": as_column(spec.notify),
        "retry_of": retry_of,
    }
    if not insert_new(session, job, row):
        return _same_submission(session, Taken(job_id, f"job id {job_id!r}"), spec, retry_of)
    check_quotas(session, spec)
    if (refusal := deadline_refusal(spec, now)) is not None:
        raise InvalidRequest(refusal)
    dependencies.add(session, job_id, spec, now)
    if spec.hold:
        append_event(session, dependencies.HELD, actor, now, job_id=job_id, data={"reason": Hold(actor=actor).message})
    data = {"name": spec.name, "gpus": spec.gpu_count, **kind_data(spec.kind or inferred), **event_data()}
    again = {} if retry_of is None else {"retry_of": retry_of}
    append_event(session, "job.submitted", actor, now, job_id=job_id, data=data | again)
    made = Job(id=job_id, spec=spec, state=JobState.PENDING, inferred_kind=inferred, created_at=now, retry_of=retry_of)
    return made, True


submit_job = writing(record_submission)
"""As :func:`record_submission`, in a transaction of its own."""


@writing
def withdraw_submission(session: Session, job_id: str, *, now: datetime | None = None) -> bool:
    """Delete a PENDING job and its key, because its workflow could not be started. False if it went on meanwhile."""
    if not change(session, delete(job).where(job.c.id == job_id, job.c.state == JobState.PENDING.value)):
        return False
    session.execute(delete(idempotency).where(idempotency.c.job_id == job_id))
    dependencies.forget(session, job_id)
    append_event(session, _WITHDRAWN, "service", now or datetime.now(UTC), job_id=job_id)
    return True


@reading
def was_withdrawn(session: Session, job_id: str) -> bool:
    """Did the service take the submission back? A job without a row and without this is lost: see ``restoring``."""
    which = (event.c.job_id == job_id) & (event.c.kind == _WITHDRAWN)
    return session.scalar(select(event.c.seq).where(which).limit(1)) is not None


def admit_job(store: Store, job_id: str, now: datetime) -> Job:
    """PENDING -> QUEUED; a job that is past PENDING stays as it is.

    :raises NotFound: it was withdrawn, or the database is older than the submission; see ``was_withdrawn``.
    :raises ImpossibleRequest: all registered hosts together could never hold it; nothing is changed then.
    :raises OverQuota: its namespace may not ask for it, or has too many jobs waiting; nothing is changed then.
    """
    return job_of(_admit_job(store, job_id, store, now))


@writing
def _admit_job(session: Session, job_id: str, store: Store, now: datetime) -> JobRecord:
    return admit_row(session, job_id, store, now)


def admit_row(session: Session, job_id: str, store: Store, now: datetime) -> JobRecord:
    """Inside a transaction: see :func:`admit_job`. Returns the locked row."""
    row = lock_job(session, job_id)
    if row.state != JobState.PENDING:
        return row
    spec = JobSpec.model_validate_json(row.spec)
    check_quotas(session, spec)
    check_possible(store, session, spec)
    later = spec.begin_at is not None and spec.begin_at > now
    # It comes into the queue at its time. Until then nobody misses it there.
    columns = {"retry_at": spec.begin_at, "queued_at": spec.begin_at} if later else None
    return change_job(session, row, JobState.QUEUED, now, "control", columns)


@reading
def get_job(session: Session, job_id: str) -> Job:
    """One job. If it is QUEUED: with the reason and its place in the queue. If it has GPUs: with its checkpoint.

    Raises :class:`NotFound`.
    """
    row = session.execute(_ONE_WITH_REASON, {"job_id": job_id}).one_or_none()
    if row is None:
        raise missing(session, job_id, no_such_job(job_id))
    [found] = _jobs_with_reasons(session, [row])
    if found.state.holds_gpus and found.placement is not None:
        at = saved_at(session, found.placement.hosts).get(AttemptKey(job_id=job_id, attempt=found.attempt))
        found.checkpoint_at = None if at is None else datetime.fromtimestamp(at, UTC)
    return found


@reading
def list_jobs(
    session: Session,
    *,
    states: Collection[JobState] | None = None,
    namespace: str | None = None,
    user: str | None = None,
    name: str | None = None,
    kind: WorkKind | None = None,
    cursor: str | None = None,
    limit: int = 100,
    visible: Collection[str] | None = None,
) -> tuple[list[Job], str | None]:
    """One page of jobs, newest first, and the cursor of the next page (None: this is the last). Elements of arrays are
    left out. ``visible``: only jobs of these namespaces; None: of all. ``kind``: named or inferred.

    Raises :class:`InvalidRequest` for a wrong cursor.
    """
    query = _WITH_REASON
    if states is not None:
        query = query.where(job.c.state.in_([JobState(state).value for state in states]))
    for column, value in ((job.c.namespace, namespace), (job.c.user, user), (job.c.name, name)):
        if value is not None:
            query = query.where(column == value)
    if kind is not None:
        query = query.where(or_(job.c.kind == kind, job.c.inferred_kind == kind))
    if visible is not None:
        query = query.where(job.c.namespace.in_(sorted(visible)))
    query = newest_first(query.where(job.c.array_id.is_(None)), job, cursor)
    limit = min(limit, MAX_PAGE)
    rows = session.execute(query.limit(limit + 1)).all()
    following = cursor_of(rows[limit - 1]) if len(rows) > limit else None
    return _jobs_with_reasons(session, rows[:limit]), following


@reading
def list_elements(
    session: Session,
    array_id: str,
    *,
    states: Collection[JobState] | None = None,
    cursor: str | None = None,
    limit: int = 100,
    visible: Collection[str] | None = None,
) -> tuple[list[Job], str | None]:
    """One page of the elements of an array that have entered the queue, by index; otherwise as :func:`list_jobs`."""
    query = _WITH_REASON.where(job.c.array_id == array_id, job.c.array_index > read_index(cursor))
    if states is not None:
        query = query.where(job.c.state.in_([JobState(state).value for state in states]))
    if visible is not None:
        query = query.where(job.c.namespace.in_(sorted(visible)))
    limit = min(limit, MAX_PAGE)
    rows = session.execute(query.order_by(job.c.array_index).limit(limit + 1)).all()
    following = str(rows[limit - 1].array_index) if len(rows) > limit else None
    return _jobs_with_reasons(session, rows[:limit]), following


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


@reading
def count_jobs_by_state(session: Session) -> dict[JobState, int]:
    """How many jobs are in each state; every state is a key."""
    counts = {row.state: row.jobs for row in session.execute(_COUNT_BY_STATE)}
    return {state: counts.get(state, 0) for state in JobState}


# ---- the steps, inside a transaction; attempts.py uses them too ----

_LOCK_JOB = select(job).where(job.c.id == bindparam("job_id")).with_for_update(key_share=True)
_LOCK_JOBS = (
    select(job)
    .where(job.c.id.in_(bindparam("job_ids", expanding=True)))
    .order_by(job.c.id)
    .with_for_update(key_share=True)
)
_COUNT_BY_STATE = select(job.c.state, func.count().label("jobs")).group_by(job.c.state)
_UPDATE_JOB = update(job).where(job.c.id == bindparam("job_id"))

_WITH_REASON = (
    select(job, waiting_reason.c.reason)
    .outerjoin(queue_entry, queue_entry.c.job_id == job.c.id)
    .outerjoin(waiting_reason, waiting_reason.c.class_key == queue_entry.c.class_key)
)
_ONE_WITH_REASON = _WITH_REASON.where(job.c.id == bindparam("job_id"))

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


def job_of(row: JobRecord | Row[Any]) -> Job:
    """The job that the row keeps; what other tables say of it (reason, checkpoint) is left out."""
    return Job(
        id=row.id,
        spec=JobSpec.model_validate_json(row.spec),
        state=JobState(row.state),
        attempt=row.attempt,
        placement=None if row.placement is None else Placement.model_validate_json(row.placement),
        failure=None if row.failure is None else Failure.model_validate_json(row.failure),
        stopped_by=None if row.stopped_by is None else StoppedBy.model_validate_json(row.stopped_by),
        exit_code=row.exit_code,
        user_retries=row.user_retries,
        hardware_retries=row.hardware_retries,
        preemptions=row.preemptions,
        inferred_kind=None if row.inferred_kind is None else WorkKind(row.inferred_kind),
        created_at=row.created_at,
        queued_at=row.queued_at,
        retry_at=row.retry_at if row.state == JobState.QUEUED else None,
        started_at=row.started_at,
        finished_at=row.finished_at,
        retry_of=row.retry_of,
    )


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _same_submission(session: Session, taken: Taken, spec: JobSpec, retry_of: str | None) -> tuple[Job, bool]:
    if taken.id is not None and is_array_id(taken.id):
        raise taken.conflict("array", taken.id)
    row = session.execute(_ONE_WITH_REASON, {"job_id": taken.id}).one_or_none()
    if row is None:
        raise taken.withdrawn()
    first = _jobs_with_reasons(session, [row])[0]
    if first.retry_of != retry_of or (first.spec != spec and not taken.says_the_same):
        raise taken.conflict("job", first.id)
    return first, False


def _jobs_with_reasons(session: Session, rows: Sequence[Row[Any]]) -> list[Job]:
    texts = {row.id: row.reason for row in rows if row.state == JobState.QUEUED and row.reason is not None}
    places = positions(session, list(texts))  # all at once: each would count who is ahead of it
    reasons = {one: Reason.model_validate_json(texts[one]).for_job(one, place) for one, place in places.items()}
    found = [job_of(row) for row in rows]
    told = as_told(session, reasons)
    waiting = [one.id for one in found if one.spec.after and one.state is JobState.QUEUED and one.id not in told]
    if waiting:
        told |= dependencies.reasons(session, waiting, datetime.now(UTC))
    told |= {row.id: hold_reason(row.held) for row in rows if row.held is not None and row.state == JobState.QUEUED}
    for one in found:
        one.reason = told.get(one.id)
    return found
