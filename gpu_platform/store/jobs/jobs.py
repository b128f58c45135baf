"""Jobs: from the submission to the terminal state."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Row, bindparam, delete, func, or_, select
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
from gpu_platform.domain.states import JobState
from gpu_platform.store.database import Store, change, insert_new, reading, writing
from gpu_platform.store.events import append_event
from gpu_platform.store.jobs import dependencies
from gpu_platform.store.jobs.admission import check_possible, check_quotas
from gpu_platform.store.jobs.checkpoints import saved_at
from gpu_platform.store.jobs.idempotency import IdempotencyKey, Taken, take_key
from gpu_platform.store.jobs.job_states import change_job, lock_job
from gpu_platform.store.jobs.owners import missing, no_such_job
from gpu_platform.store.jobs.paging import cursor_of, newest_first, only, read_index, rows_of_page
from gpu_platform.store.jobs.promises import as_told
from gpu_platform.store.jobs.queue_view import positions
from gpu_platform.store.jobs.work_kinds import inferred_kind, kind_data
from gpu_platform.store.models import JobRecord, event, idempotency, job, queue_entry, waiting_reason
from gpu_platform.tracing import event_data

_WITHDRAWN = "job.withdrawn"


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
        taken = take_key(session, idempotency_key, job_id, now)
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
    """Did the service take the submission of the job or array back? One without a row and without this is lost: see
    ``restoring``."""
    which = (event.c.job_id == job_id) & (event.c.kind.in_([_WITHDRAWN, "array.withdrawn"]))
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
    chosen = {"states": states, "namespace": namespace, "user": user, "name": name, "visible": visible}
    query = only(_WITH_REASON, job, **chosen)
    if kind is not None:
        query = query.where(or_(job.c.kind == kind, job.c.inferred_kind == kind))
    query = newest_first(query.where(job.c.array_id.is_(None)), job, cursor)
    rows, more = rows_of_page(session, query, limit, _size)
    return _jobs_with_reasons(session, rows), cursor_of(rows[-1]) if more else None


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
    query = only(query, job, states=states, visible=visible)
    rows, more = rows_of_page(session, query.order_by(job.c.array_index), limit, _size)
    return _jobs_with_reasons(session, rows), str(rows[-1].array_index) if more else None


@reading
def count_jobs_by_state(session: Session) -> dict[JobState, int]:
    """How many jobs are in each state; every state is a key."""
    counts = {row.state: row.jobs for row in session.execute(_COUNT_BY_STATE)}
    return {state: counts.get(state, 0) for state in JobState}


def _size(row: Row[Any]) -> int:
    return len(row.spec)


_COUNT_BY_STATE = select(job.c.state, func.count().label("jobs")).group_by(job.c.state)
_WITH_REASON = (
    select(job, waiting_reason.c.reason)
    .outerjoin(queue_entry, queue_entry.c.job_id == job.c.id)
    .outerjoin(waiting_reason, waiting_reason.c.class_key == queue_entry.c.class_key)
)
_ONE_WITH_REASON = _WITH_REASON.where(job.c.id == bindparam("job_id"))


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
