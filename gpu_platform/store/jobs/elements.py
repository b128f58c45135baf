"""Elements of arrays: made in the order of their indices, as many at once as their array asks for, and queued."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from sqlalchemy import bindparam, func, select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.array_ids import element_id
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import NotFound
from gpu_platform.domain.jobs.array import OnFailure
from gpu_platform.domain.jobs.element_changes import ElementValues
from gpu_platform.domain.jobs.hold import Hold
from gpu_platform.domain.jobs.index_set import IndexSet
from gpu_platform.domain.jobs.job import StoppedBy
from gpu_platform.domain.placing.placement_request import TO_ARRAY, PlacementRequest
from gpu_platform.domain.states import ArrayState, JobState, check_transition
from gpu_platform.store.database import Store, insert_all_new, read_record, reading, writing
from gpu_platform.store.events import append_event
from gpu_platform.store.jobs import counterparts, queue
from gpu_platform.store.jobs.counterparts import ReadyElements
from gpu_platform.store.jobs.dependencies import FORGOTTEN_AFTER
from gpu_platform.store.jobs.element_values import asked_instead, changes_of
from gpu_platform.store.jobs.known_arrays import KnownArray, known_array, no_such_array
from gpu_platform.store.jobs.work_kinds import inferred_kind, kind_data
from gpu_platform.store.models import JobArrayRecord, job, job_array, queue_entry

_AT_ONCE = 500
LOST_AFTER_S = 600.0
"""An array's workflow waits so long for what the database does not know. A database that was put back by mistake may be
replaced in that time; rows of arrays do not come back by themselves."""


@dataclass(frozen=True)
class MadeElements:
    """Elements that got their rows."""

    keys: list[AttemptKey]
    """The first attempts of those that are QUEUED."""
    skipped: int
    """How many are CANCELLED from the beginning."""
    position: int
    """So many elements of the array have rows now."""
    left: int
    """How many have none yet, and will get one."""
    held: bool = False
    """They wait to be released."""
    may_differ: bool = False
    """Elements of the array were changed since its submission."""


def make_elements(
    session: Session, known: KnownArray, first: int, count: int, skipped: IndexSet | None, now: datetime
) -> MadeElements:
    """Inside a transaction: elements get their rows: ``count`` of them, from place ``first`` on. They are QUEUED, or
    CANCELLED if their index is in ``skipped``.

    Repeated, it returns the same elements. An array that was stopped makes no more. Raises :class:`NotFound`, also if
    the database is an older copy that does not know the elements before ``first``.
    """
    row = lock_array(session, known.array_id)
    if row.position < first:
        raise _older_than(known.array_id)
    stopped = ArrayState(row.state).is_terminal or row.stopped_by is not None
    until = min(first + count, row.position if stopped else row.size)
    _make(session, known, row, until, skipped, now)
    indices = [known.array.index_set[place] for place in range(first, until)]
    queued = [index for index in indices if skipped is None or index not in skipped]
    return MadeElements(
        keys=[AttemptKey(job_id=element_id(known.array_id, index), attempt=1) for index in queued],
        skipped=len(indices) - len(queued),
        position=until,
        left=0 if stopped else row.size - until,
        held=row.held is not None,
        may_differ=row.changed is not None,
    )


def make_chosen(
    session: Session, known: KnownArray, queued: IndexSet, cancelled: IndexSet, first: int, now: datetime
) -> MadeElements:
    """As :func:`make_elements`, for elements that are named: ``queued`` become QUEUED, ``cancelled`` CANCELLED."""
    row = lock_array(session, known.array_id)
    if row.position < first:
        raise _older_than(known.array_id)
    stopped = ArrayState(row.state).is_terminal or row.stopped_by is not None
    wanted = sorted({*queued, *cancelled})
    names = {element_id(known.array_id, index): index for index in wanted}
    there = {names[name] for name in states_of(session, [*names])}
    new = [] if stopped else [index for index in wanted if index not in there]
    kind = inferred_kind(session, known.spec)
    rows = _element_rows(known, row, new, kind, now, cancelled)
    why = counterparts.why_unmet(session, known.spec, [index for index in new if index in cancelled])
    for one in rows:
        if (reason := why.get(one["array_index"])) is not None:
            by = StoppedBy(verb="cancel", actor="dependency", reason=reason)
            one["stopped_by"] = by.model_dump_json()
        else:
            one["stopped_by"] = None
    if rows:
        insert_all_new(session, job, rows)
        session.execute(_ADVANCE, {"array_": known.array_id, "to": row.position + len(rows)})
        _announce(session, known, row, rows, now)
    made = [index for index in wanted if not stopped or index in there]
    keys = [AttemptKey(job_id=element_id(known.array_id, index), attempt=1) for index in made if index in queued]
    position = row.position + len(rows)
    left = 0 if stopped else row.size - position
    has = {"held": row.held is not None, "may_differ": row.changed is not None}
    return MadeElements(keys, len(made) - len(keys), position, left, **has)


def _make(
    session: Session, known: KnownArray, row: JobArrayRecord, until: int, skipped: IndexSet | None, now: datetime
) -> None:
    indices = [known.array.index_set[place] for place in range(row.position, until)]
    if not indices:
        return
    kind = inferred_kind(session, known.spec)
    rows = _element_rows(known, row, indices, kind, now, () if skipped is None else skipped)
    insert_all_new(session, job, rows)  # one may be there: a database that was lost got it back from its own workflow
    session.execute(_ADVANCE, {"array_": known.array_id, "to": until})
    _announce(session, known, row, rows, now)


def _announce(
    session: Session, known: KnownArray, array: JobArrayRecord, rows: Sequence[dict[str, Any]], now: datetime
) -> None:
    """The events of elements that are new."""
    about = {"name": array.name, "gpus": known.spec.gpu_count}
    for one in rows:
        data = {**about, **kind_data(one["kind"] or one["inferred_kind"])}
        append_event(session, "job.submitted", array.user, now, job_id=one["id"], data=data)
        if one["state"] == JobState.CANCELLED:
            append_event(session, "job.cancelled", array.user, now, job_id=one["id"], data={"verb": "cancel"})


def queue_elements(
    session: Session,
    known: KnownArray,
    since: Mapping[AttemptKey, datetime],
    now: datetime,
    differ: Mapping[AttemptKey, ElementValues] = MappingProxyType({}),
) -> None:
    """Inside a transaction: elements that are QUEUED wait for a placement. The leader answers their array's workflow.

    ``since``: their places in the queue. Elements with the same time come one after the other, so that a job that is
    submitted meanwhile waits only for those before it. ``differ``: what was changed of some since the submission.
    """
    request = replace(PlacementRequest.from_spec(known.spec, "", 1, 0.0).with_class_key(), task_token=TO_ARRAY)
    entry = queue.entry_of(request, enqueued_at=now)
    rows: list[dict[str, Any]] = []
    for number, (key, joined) in enumerate(since.items()):
        at = joined + timedelta(microseconds=number)
        own = asked_instead(differ[key]) if key in differ else {}
        rows.append({**entry, **own, "job_id": key.job_id, "attempt": key.attempt, "enqueued_at": at})
        append_event(session, "queue.added", "control", now, job_id=key.job_id, attempt=key.attempt)
    insert_all_new(session, queue_entry, rows)


def lock_array(session: Session, array_id: str) -> JobArrayRecord:
    """The array's row without what was submitted; nobody else changes it until the commit. Raises
    :class:`NotFound`."""
    row = read_record(session, JobArrayRecord, _LOCK, {"array_": array_id})
    if row is None:
        raise no_such_array(array_id)
    return row


@writing
def begin_array(session: Session, array_id: str, now: datetime) -> bool:
    """PENDING -> RUNNING; a no-op later. False: the array has ended. Raises :class:`NotFound`."""
    row = lock_array(session, array_id)
    state = ArrayState(row.state)
    if state is ArrayState.PENDING:
        _write_state(session, row, ArrayState.RUNNING, now, "control")
    return not state.is_terminal


@writing
def stop_array(session: Session, array_id: str, by: StoppedBy, now: datetime) -> None:
    """Make no more elements. Repeating it is a no-op. Raises :class:`NotFound`."""
    row = lock_array(session, array_id)
    if row.stopped_by is None and not ArrayState(row.state).is_terminal:
        session.execute(_STOP, {"array_": array_id, "by": by.model_dump_json()})


@writing
def end_array(session: Session, array_id: str, now: datetime) -> dict[JobState, int]:
    """All elements have ended, or will never be made: write the array's end. Returns how many elements are in each
    state. Repeating it is a no-op. Raises :class:`NotFound`.

    It is FAILED if one has failed, CANCELLED if it was stopped or elements were cancelled or not made, else COMPLETED.
    """
    row = lock_array(session, array_id)
    counts = count_elements(session, array_id)
    if (missing := row.size - sum(counts.values())) > 0:
        counts[JobState.CANCELLED] = counts.get(JobState.CANCELLED, 0) + missing
    if not ArrayState(row.state).is_terminal:
        _write_state(session, row, _outcome(row, counts), now, "workflow", dict(counts))
    return counts


@reading
def count_elements(session: Session, array_id: str) -> dict[JobState, int]:
    """How many elements that have rows are in each state."""
    return {JobState(row.state): row.jobs for row in session.execute(_COUNT, {"array_": array_id})}


@reading
def open_elements(session: Session, array_id: str) -> list[str]:
    """The elements that have rows and have not ended."""
    return list(session.scalars(_OPEN, {"array_": array_id}))


def stops_by_itself(store: Store, array_id: str) -> bool:
    """True if the array was to stop at the first failure of an element, and one has failed."""
    known = known_array(store, array_id)
    return known.array.on_failure is OnFailure.STOP and bool(count_elements(store, array_id).get(JobState.FAILED))


@reading
def position_of(session: Session, array_id: str) -> int:
    """How many elements of the array have been made."""
    return session.scalar(select(job_array.c.position).where(job_array.c.id == array_id)) or 0


@reading
def states_of(session: Session, job_ids: Sequence[str]) -> dict[str, JobState]:
    """The states of these jobs, of those that have rows."""
    found: dict[str, JobState] = {}
    for begin in range(0, len(job_ids), _AT_ONCE):
        rows = session.execute(_STATES, {"names": job_ids[begin : begin + _AT_ONCE]})
        found |= {row.id: JobState(row.state) for row in rows}
    return found


@writing
def ready_elements(
    session: Session, known: KnownArray, since: int, room: int, skipped: IndexSet | None, now: datetime
) -> ReadyElements:
    """Which elements of an array that waits for each element of another one may be made now; see
    :func:`counterparts.ready`."""
    lock_array(session, known.array_id)
    indices, forgotten = known.array.index_set, now - FORGOTTEN_AFTER
    terms = {"since": since, "room": room, "skipped": skipped, "now": now, "forgotten": forgotten}
    return counterparts.ready(session, known.array_id, known.spec, indices, **terms)


def _outcome(row: JobArrayRecord, counts: dict[JobState, int]) -> ArrayState:
    if counts.get(JobState.FAILED):
        return ArrayState.FAILED
    if row.stopped_by is not None or counts.get(JobState.CANCELLED):
        return ArrayState.CANCELLED
    return ArrayState.COMPLETED


def _write_state(
    session: Session,
    row: JobArrayRecord,
    state: ArrayState,
    now: datetime,
    actor: str,
    counts: dict[JobState, int] | None = None,
) -> None:
    check_transition(f"array {row.id}", ArrayState(row.state), state)
    ended = now if state.is_terminal else None
    session.execute(_STATE, {"array_": row.id, "state_": state.value, "now": now, "ended": ended})
    data = {name.value: number for name, number in (counts or {}).items()}
    append_event(session, f"array.{state.value.lower()}", actor, now, job_id=row.id, data=data)


def _older_than(array_id: str) -> NotFound:
    message = f"the database does not know all elements of array {array_id} that were made: it is older than the array"
    return NotFound(message, array_id=array_id)


def _hold_of(row: JobArrayRecord) -> str | None:
    """The hold that new elements of the array get."""
    if row.held is None:
        return None
    return Hold.model_validate_json(row.held).model_copy(update={"of_array": True}).model_dump_json()


def _element_rows(
    known: KnownArray,
    row: JobArrayRecord,
    indices: Sequence[int],
    kind: str | None,
    now: datetime,
    cancelled: Container[int],
) -> list[dict[str, Any]]:
    """The rows of new elements. ``row``: the array's. Those in ``cancelled`` are CANCELLED from the beginning."""
    held, changes = _hold_of(row), changes_of(row.changed)
    made: list[dict[str, Any]] = []
    for index in indices:
        values = changes.values_of(index)
        one = _element_row(known, index, values, kind, now, None if index in cancelled else held)
        if index in cancelled:
            one |= {"state": JobState.CANCELLED.value, "queued_at": None, "finished_at": now}
        made.append(one)
    return made


def rows_of_ended(
    known: KnownArray, row: JobArrayRecord, ended: Mapping[int, JobState], now: datetime
) -> list[dict[str, Any]]:
    """The rows of elements of which nothing is known but how they ended: index -> state."""
    rows = _element_rows(known, row, [*ended], None, now, ())
    return [{**one, "state": ended[one["array_index"]].value, "finished_at": now, "attempt": 1} for one in rows]


def _element_row(
    known: KnownArray, index: int, values: ElementValues, kind: str | None, now: datetime, held: str | None
) -> dict[str, Any]:
    spec = values.applied_to(known.spec_of(index))
    return {
        "id": element_id(known.array_id, index),
        "state": JobState.QUEUED.value,
        "attempt": 0,
        "namespace": spec.namespace,
        "user": spec.user,
        "name": spec.name,
        "priority": spec.priority,
        "kind": spec.kind,
        "inferred_kind": kind,
        "created_at": now,
        "state_at": now,
        "queued_at": now,
        "finished_at": None,
        "spec": spec.model_dump_json(),
        "array_id": known.array_id,
        "array_index": index,
        "held": held,
        "changed_limit": None if values.limit is None else values.limit.model_dump_json(),
    }


# ---- the statements, compiled once ----

_STATES = select(job.c.id, job.c.state).where(job.c.id.in_(bindparam("names", expanding=True)))
# Without what was submitted, which may be large.
_LOCK = (
    select(*[column for column in job_array.c if column.name not in ("spec", "array", "shape")])
    .where(job_array.c.id == bindparam("array_"))
    .with_for_update()
)
_OF_ARRAY = update(job_array).where(job_array.c.id == bindparam("array_"))
_ADVANCE = _OF_ARRAY.values(position=bindparam("to"))
_STOP = _OF_ARRAY.values(stopped_by=bindparam("by"))
_STATE = _OF_ARRAY.values(state=bindparam("state_"), state_at=bindparam("now"), finished_at=bindparam("ended"))
_COUNT = (
    select(job.c.state, func.count().label("jobs")).where(job.c.array_id == bindparam("array_")).group_by(job.c.state)
)
_OPEN = (
    select(job.c.id)
    .where(
        job.c.array_id == bindparam("array_"),
        job.c.state.in_([state.value for state in JobState if not state.is_terminal]),
    )
    .order_by(job.c.array_index)
)
