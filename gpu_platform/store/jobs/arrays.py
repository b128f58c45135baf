"""Arrays: from the submission to what lists show of them. Their elements are made in ``elements.py``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sqlalchemy import Row, delete, func, select
from sqlalchemy.orm import Session

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.jobs.array import Array, ArrayShape, ArraySpec, check_elements
from gpu_platform.domain.jobs.deadline import deadline_refusal
from gpu_platform.domain.jobs.hold import Hold, hold_reason
from gpu_platform.domain.jobs.job import StoppedBy
from gpu_platform.domain.jobs.notify import as_column
from gpu_platform.domain.jobs.placement import Reason
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.jobs.work_kind import WorkKind
from gpu_platform.domain.states import ArrayState, JobState
from gpu_platform.store.database import change, insert_new, reading, writing
from gpu_platform.store.events import append_event
from gpu_platform.store.jobs import dependencies
from gpu_platform.store.jobs.admission import check_quotas
from gpu_platform.store.jobs.element_values import changes_of
from gpu_platform.store.jobs.idempotency import IdempotencyKey, Taken, take_key
from gpu_platform.store.jobs.owners import missing, no_such_array
from gpu_platform.store.jobs.paging import cursor_of, newest_first, only, rows_of_page
from gpu_platform.store.models import idempotency, job, job_array
from gpu_platform.tracing import event_data


class WholeArray(NamedTuple):
    """Everything that was submitted."""

    spec: JobSpec
    array: ArraySpec


def record_array(
    session: Session,
    array_id: str,
    spec: JobSpec,
    array: ArraySpec,
    *,
    actor: str,
    now: datetime,
    idempotency_key: IdempotencyKey | str | None,
    repeats: str | None = None,
) -> tuple[Array, bool]:
    """Inside a transaction: record a PENDING array. Returns it and whether it is new. ``repeats``: the array
    whose elements it runs again.

    As :func:`gpu_platform.store.jobs.jobs.submit_job`: a key that was seen returns the array that it made, or raises
    :class:`IdempotencyConflict`. What cannot run raises :class:`OverQuota` or :class:`InvalidRequest`, and one that
    comes after a job that is not there :class:`NotFound`.
    """
    if idempotency_key is not None:
        taken = take_key(session, idempotency_key, array_id, now)
        if taken is not None:
            return _same_submission(session, taken, spec, array)
    _check(session, spec, array, now)
    row = {
        "id": array_id,
        "state": ArrayState.PENDING.value,
        "namespace": spec.namespace,
        "user": spec.user,
        "name": spec.name,
        "kind": spec.kind,
        "spec": spec.model_dump_json(),
        "array": array.model_dump_json(),
        "shape": ArrayShape.of(array, repeats).model_dump_json(),
        "size": array.size,
        "created_at": now,
        "state_at": now,
        "held": Hold(actor=actor).model_dump_json() if spec.hold else None,
        "notify": as_column(spec.notify),
    }
    if not insert_new(session, job_array, row):
        return _same_submission(session, Taken(array_id, f"array id {array_id!r}"), spec, array)
    dependencies.add(session, array_id, spec, now, array)
    if spec.hold:
        append_event(
            session, dependencies.HELD, actor, now, job_id=array_id, data={"reason": Hold(actor=actor).message}
        )
    data = {"name": spec.name, "elements": array.size, "gpus": spec.gpu_count, "repeats": repeats, **event_data()}
    append_event(session, "array.submitted", actor, now, job_id=array_id, data=data)
    return _shown(session, [_read(session, array_id)])[0], True


submit_array = writing(record_array)
"""As :func:`record_array`, in a transaction of its own."""


@writing
def withdraw_array(session: Session, array_id: str, *, now: datetime) -> bool:
    """Delete a PENDING array and its key, because its workflow could not be started. False if it went on meanwhile."""
    pending = (job_array.c.id == array_id) & (job_array.c.state == ArrayState.PENDING.value)
    if not change(session, delete(job_array).where(pending)):
        return False
    session.execute(delete(idempotency).where(idempotency.c.job_id == array_id))
    dependencies.forget(session, array_id)
    append_event(session, "array.withdrawn", "service", now, job_id=array_id)
    return True


@reading
def get_array(session: Session, array_id: str) -> Array:
    """One array, with how many of its elements are in each state. Raises :class:`NotFound`."""
    return _shown(session, [_read(session, array_id)])[0]


@reading
def read_whole(session: Session, array_id: str) -> WholeArray:
    """What was submitted, with all parameters and what was changed for all elements. Raises :class:`NotFound`."""
    columns = select(job_array.c.spec, job_array.c.array, job_array.c.changed)
    row = session.execute(columns.where(job_array.c.id == array_id)).one_or_none()
    if row is None:
        raise missing(session, array_id, no_such_array(array_id))
    spec = changes_of(row.changed).whole.applied_to(JobSpec.model_validate_json(row.spec))
    return WholeArray(spec, ArraySpec.model_validate_json(row.array))


@reading
def list_arrays(
    session: Session,
    *,
    states: Collection[ArrayState] | None = None,
    namespace: str | None = None,
    user: str | None = None,
    name: str | None = None,
    kind: WorkKind | None = None,
    cursor: str | None = None,
    limit: int = 100,
    visible: Collection[str] | None = None,
) -> tuple[list[Array], str | None]:
    """One page of arrays, newest first, and the cursor of the next page: as ``list_jobs``. ``kind``: as was named."""
    chosen = {"states": states, "namespace": namespace, "user": user, "name": name, "visible": visible}
    query = only(select(*_COLUMNS), job_array, **chosen)
    if kind is not None:
        query = query.where(job_array.c.kind == kind)
    rows, more = rows_of_page(session, newest_first(query, job_array, cursor), limit, lambda row: len(row.spec))
    return _shown(session, rows), cursor_of(rows[-1]) if more else None


@reading
def open_arrays(session: Session) -> list[str]:
    """The arrays that have not ended, oldest first."""
    live = [state.value for state in ArrayState if not state.is_terminal]
    query = select(job_array.c.id).where(job_array.c.state.in_(live))
    return list(session.scalars(query.order_by(job_array.c.created_at, job_array.c.id)))


@reading
def is_open(session: Session, array_id: str) -> bool:
    """True if there is such an array, and it has not ended."""
    state = session.scalar(select(job_array.c.state).where(job_array.c.id == array_id))
    return state is not None and not ArrayState(state).is_terminal


@reading
def indices_in(session: Session, array_id: str, states: Collection[JobState]) -> list[int]:
    """The indices of the elements that have a row and are in one of these states, in ascending order."""
    wanted = (job.c.array_id == array_id) & job.c.state.in_([state.value for state in states])
    return list(session.scalars(select(job.c.array_index).where(wanted).order_by(job.c.array_index)))


# Without the parameters, which may be large.
_COLUMNS = [column for column in job_array.c if column.name != "array"]


def pending_arrays(session: Session, array_ids: Collection[str]) -> list[Array]:
    """Inside a transaction: those of these arrays that are PENDING."""
    query = select(*_COLUMNS).where(
        job_array.c.id.in_(sorted(array_ids)), job_array.c.state == ArrayState.PENDING.value
    )
    return _shown(session, session.execute(query).all())


def _check(session: Session, spec: JobSpec, array: ArraySpec, now: datetime) -> None:
    """Before its row is written: the quota would count its elements twice."""
    try:
        check_elements(spec, array)
    except ValueError as error:
        raise InvalidRequest(f"elements of the array could not run: {error}") from None
    if (refusal := deadline_refusal(spec, now)) is not None:
        raise InvalidRequest(refusal)
    check_quotas(session, spec, array.size)


def _read(session: Session, array_id: str) -> Row[Any]:
    row = session.execute(select(*_COLUMNS).where(job_array.c.id == array_id)).one_or_none()
    if row is None:
        raise missing(session, array_id, no_such_array(array_id))
    return row


def _same_submission(session: Session, taken: Taken, spec: JobSpec, array: ArraySpec) -> tuple[Array, bool]:
    where = select(job_array.c.spec, job_array.c.array).where(job_array.c.id == taken.id)
    first = session.execute(where).one_or_none()
    if taken.id is None or first is None:
        if taken.id is not None and session.scalar(select(job.c.id).where(job.c.id == taken.id)) is not None:
            raise taken.conflict("job", taken.id)
        raise taken.withdrawn()
    says_the_same = taken.says_the_same or JobSpec.model_validate_json(first.spec) == spec
    if not says_the_same or ArraySpec.model_validate_json(first.array) != array:
        raise taken.conflict("array", taken.id)
    return _shown(session, [_read(session, taken.id)])[0], False


def _shown(session: Session, rows: Sequence[Row[Any]]) -> list[Array]:
    counted: dict[str, dict[JobState, int]] = {row.id: {} for row in rows}
    query = select(job.c.array_id, job.c.state, func.count().label("elements"))
    query = query.where(job.c.array_id.in_(list(counted))).group_by(job.c.array_id, job.c.state)
    for row in session.execute(query):
        counted[row.array_id] |= {JobState(row.state): row.elements}
    live = [row.id for row in rows if not ArrayState(row.state).is_terminal]
    told = dependencies.reasons(session, live, datetime.now(UTC)) if live else {}
    told |= {row.id: hold_reason(row.held) for row in rows if row.held is not None and row.id in live}
    return [_array_of(row, counted[row.id], told.get(row.id)) for row in rows]


def _array_of(row: Row[Any], counts: Mapping[JobState, int], reason: Reason | None) -> Array:
    is_over = row.stopped_by is not None or ArrayState(row.state).is_terminal
    return Array(
        id=row.id,
        spec=changes_of(row.changed).whole.applied_to(JobSpec.model_validate_json(row.spec)),
        array=ArrayShape.model_validate_json(row.shape),
        state=ArrayState(row.state),
        size=row.size,
        counts=_with_missing(counts, row.size, 0 if is_over else row.size - row.position),
        stopped_by=None if row.stopped_by is None else StoppedBy.model_validate_json(row.stopped_by),
        created_at=row.created_at,
        finished_at=row.finished_at,
        reason=reason,
    )


def _with_missing(counts: Mapping[JobState, int], size: int, to_come: int) -> dict[JobState, int]:
    """The counts with the elements that have no row: ``to_come`` of them are PENDING, the others were CANCELLED."""
    missing = size - sum(counts.values())
    found = {state: counts.get(state, 0) for state in JobState}
    found[JobState.PENDING] += min(to_come, missing)
    found[JobState.CANCELLED] += max(0, missing - to_come)
    return {state: number for state, number in found.items() if number}
