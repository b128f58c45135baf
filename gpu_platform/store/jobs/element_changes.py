"""Changes of an array, or of some of its elements, while they wait.

Elements in the queue are changed as jobs are (see ``changes.py``): their rows say what they ask for now, they leave the
queue, and until they ask again no reservation of theirs succeeds. So an element that has just started keeps its values,
and the answer says so. Elements that have not entered the queue get their values when they do: the array's row keeps
them, and whoever makes elements holds its lock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.array_ids import element_id
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import IllegalTransition, InvalidRequest
from gpu_platform.domain.jobs.changes import JobChanges, LimitChange
from gpu_platform.domain.jobs.dependency import DependencyKind
from gpu_platform.domain.jobs.element_changes import ElementValues, UnchangedElements
from gpu_platform.domain.jobs.index_set import IndexSet
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import ArrayState, JobState
from gpu_platform.store.database import Store, reading, writing
from gpu_platform.store.events import append_event
from gpu_platform.store.jobs import dependencies
from gpu_platform.store.jobs.changes import UPDATED, check_limit, check_no_ring, shown
from gpu_platform.store.jobs.element_values import changes_of
from gpu_platform.store.jobs.elements import count_elements, lock_array
from gpu_platform.store.jobs.job_states import write_jobs
from gpu_platform.store.jobs.known_arrays import KnownArray, known_array
from gpu_platform.store.jobs.queue import ASKS, leave_queue_together
from gpu_platform.store.models import JobArrayRecord, dependency, job, job_array

ARRAY_UPDATED = "array.updated"
"""Kind of the event. Its data are the fields that changed: name -> [old, new], and which elements were meant."""


@dataclass(frozen=True)
class ElementsChanged:
    """What a change led to."""

    ask_again: list[str] = field(default_factory=list[str])
    """These elements have left the queue: who drives them should ask for a placement again."""
    to_come: int = 0
    """So many elements get the values when they enter the queue."""
    same: int = 0
    """So many elements that wait had the values before."""
    unchanged: list[UnchangedElements] = field(default_factory=list[UnchangedElements])
    whole: bool = False
    """Only what the whole array comes after was changed."""


def change_elements(
    store: Store, array_id: str, named: IndexSet | None, wanted: JobChanges, actor: str, now: datetime
) -> ElementsChanged:
    """Change priority and time limit of all elements of an array that wait, and of those to come; or only of those in
    ``named``, which are indices of the array. And what the whole array comes after, as long as it waits for others.

    Raises :class:`NotFound`, :class:`IllegalTransition` if nothing of it waits, :class:`InvalidRequest` if it cannot
    be so, and :class:`OverQuota`.
    """
    return _change(store, known_array(store, array_id), named, wanted, actor, now)


@reading
def spec_to_come(session: Session, known: KnownArray, index: int) -> JobSpec | None:
    """What an element runs that has not entered the queue, with what was changed. None: it never will enter it."""
    row = session.execute(_TO_COME, {"array_": known.array_id}).one_or_none()
    if row is None or row.stopped_by is not None or ArrayState(row.state).is_terminal:
        return None
    if index not in known.array.index_set:
        return None
    return changes_of(row.changed).values_of(index).applied_to(known.spec_of(index))


@writing
def _change(
    session: Session, known: KnownArray, named: IndexSet | None, wanted: JobChanges, actor: str, now: datetime
) -> ElementsChanged:
    row = lock_array(session, known.array_id)
    if wanted.after is not None:
        _change_dependencies(session, row, wanted, actor, now)
    values, changes = ElementValues.of(wanted), changes_of(row.changed)
    if values.is_empty:
        return ElementsChanged(whole=True)
    before = changes.whole.applied_to(known.spec)
    after = _applied(known.array_id, wanted, before)
    if values.limit is not None:
        check_limit(session, f"array {known.array_id}", after, now)
    waiting = [
        one
        for one in session.execute(_WAITING, {"array_": known.array_id}).all()
        if named is None or one.array_index in named
    ]
    to_come, others = _others(session, known, row, named, {one.array_index for one in waiting})
    if not waiting and not to_come:
        raise _nothing_waits(known.array_id, row, others)
    _change_rows(session, known.array_id, waiting, values, actor, now)
    changed = [one.id for one in waiting if _differs(one, values)]
    if to_come:
        text = None if named is None else str(IndexSet.of(to_come))
        if text is not None and values.limit is not None and known.spec.deadline_at is not None:
            raise InvalidRequest(
                f"array {known.array_id} has a deadline: its elements that have not entered the queue have one time "
                "limit. Change that of the whole array",
                job_id=known.array_id,
            )
        try:
            changes = changes.changed_once_more(text, values)
        except ValueError as error:
            raise InvalidRequest(f"array {known.array_id} cannot be changed so: {error}") from None
    if changed or to_come:
        session.execute(_SET_CHANGED, {"array_": known.array_id, "changed_": changes.model_dump_json()})
        data = {name: shown(before, after, name) for name in sorted(wanted.model_fields_set)}
        data |= {"elements": None if named is None else str(named)[:200], "changed": len(changed) + len(to_come)}
        append_event(session, ARRAY_UPDATED, actor, now, job_id=known.array_id, data=data)
    return ElementsChanged(changed, len(to_come), len(waiting) - len(changed), others)


def _change_dependencies(session: Session, row: JobArrayRecord, wanted: JobChanges, actor: str, now: datetime) -> None:
    """Inside a transaction that locked the array: it comes after other jobs and arrays than before."""
    before = JobSpec.model_validate_json(session.execute(_SPEC, {"array_": row.id}).scalar_one())
    after = _applied(row.id, wanted, before)
    if any(one.kind is DependencyKind.EACH for one in (*before.after, *after.after)):
        raise InvalidRequest(
            f"the elements of array {row.id} come each after one of another array, or would: that is decided when it "
            "is submitted (--after-array)",
            job_id=row.id,
        )
    if row.position or session.scalar(_WAITS_FOR, {"array_": row.id}) is None:
        raise IllegalTransition(
            subject=f"array {row.id}",
            current=row.state,
            wanted="changed",
            allowed=[],
            message=f"array {row.id} waits for no other job: its elements have entered the queue, or may at any "
            "moment. Submit it again with --after, or hold it (jobs hold)",
        )
    if before.after != after.after:
        check_no_ring(session, row.id, [one.job_id for one in after.after])
        dependencies.forget(session, row.id)
        dependencies.add(session, row.id, after, now)
        session.execute(_SET_SPEC, {"array_": row.id, "spec_": after.model_dump_json()})
        append_event(session, ARRAY_UPDATED, actor, now, job_id=row.id, data={"after": shown(before, after, "after")})


def _others(
    session: Session, known: KnownArray, row: JobArrayRecord, named: IndexSet | None, waiting: Collection[int]
) -> tuple[Sequence[int] | range, list[UnchangedElements]]:
    """Elements to come (of the whole array only how many), and those that do not wait any more."""
    stops = row.stopped_by is not None or ArrayState(row.state).is_terminal
    if named is None:
        counts = count_elements(session, known.array_id)
        missing = row.size - sum(counts.values())
        to_come = range(0 if stops else missing)
        if stops and missing:
            counts[JobState.CANCELLED] = counts.get(JobState.CANCELLED, 0) + missing
        started = session.execute(_STARTED, {"array_": known.array_id}).all()
        by_state = _by_state({one.array_index: JobState(one.state) for one in started})
        ended = {state: number for state, number in counts.items() if state.is_terminal and number}
        return to_come, [
            *(UnchangedElements.of(state, len(found), found) for state, found in by_state.items()),
            *(UnchangedElements.of(state, number) for state, number in ended.items()),
        ]
    states = {
        one.array_index: JobState(one.state)
        for one in session.execute(_STATES, {"array_": known.array_id})
        if one.array_index in named
    }
    by_state = _by_state({index: state for index, state in states.items() if index not in waiting})
    new = [index for index in named if index not in states]
    found = [UnchangedElements.of(state, len(indices), indices) for state, indices in by_state.items()]
    if stops and new:
        found.append(UnchangedElements.of(JobState.CANCELLED, len(new), new))
    return [] if stops else new, found


def _by_state(states: Mapping[int, JobState]) -> dict[JobState, list[int]]:
    found: dict[JobState, list[int]] = {}
    for index, state in sorted(states.items()):
        found.setdefault(state, []).append(index)
    return found


def _change_rows(
    session: Session, array_id: str, waiting: Sequence[Any], values: ElementValues, actor: str, now: datetime
) -> None:
    """Elements that have rows, wait, and have other values: they leave the queue and ask anew."""
    columns: dict[str, dict[str, Any]] = {}
    for one in waiting:
        if not _differs(one, values):
            continue
        old = JobSpec.model_validate_json(one.spec)
        new = values.applied_to(old)
        columns[one.id] = {"spec": new.model_dump_json(), "priority": new.priority, "asks_anew": ASKS}
        if values.limit is not None:
            columns[one.id]["changed_limit"] = values.limit.model_dump_json()
        names = [name for name in ("priority", "time_limit_s") if getattr(old, name) != getattr(new, name)]
        append_event(session, UPDATED, actor, now, job_id=one.id, data={name: shown(old, new, name) for name in names})
    write_jobs(session, columns)
    leave_queue_together(session, [AttemptKey(job_id=job_id, attempt=0) for job_id in columns], now)


def _differs(row: Any, values: ElementValues) -> bool:
    if values.priority is not None and row.priority != values.priority:
        return True
    if values.limit is None:
        return False
    if row.changed_limit is not None:
        return LimitChange.model_validate_json(row.changed_limit) != values.limit
    return JobSpec.model_validate_json(row.spec).time_limit_s != values.limit.time_limit_s


def _applied(array_id: str, wanted: JobChanges, before: JobSpec) -> JobSpec:
    try:
        return wanted.applied_to(before)
    except ValueError as error:
        raise InvalidRequest(f"array {array_id} cannot be changed so: {error}", job_id=array_id) from None


def _nothing_waits(array_id: str, row: JobArrayRecord, others: Sequence[UnchangedElements]) -> IllegalTransition:
    if len(others) == 1 and others[0].count == 1 and others[0].indices:
        one = element_id(array_id, int(others[0].indices))
        what = f"job {one} is {others[0].state}: an element can be changed only while it waits"
    else:
        listed = "; ".join(f"{one.why} ({one.state})" for one in others)
        what = f"array {array_id} is {row.state}, and none of these elements waits: {listed}"
    return IllegalTransition(
        subject=f"array {array_id}",
        current=row.state,
        wanted="changed",
        allowed=[JobState.PENDING.value, JobState.QUEUED.value],
        message=what,
    )


# ---- the statements, compiled once ----

_OF_ARRAY = job.c.array_id == bindparam("array_")
_WAITING = (
    select(job.c.id, job.c.array_index, job.c.spec, job.c.priority, job.c.changed_limit)
    .where(_OF_ARRAY, job.c.state == JobState.QUEUED.value)
    .order_by(job.c.id)
    .with_for_update(key_share=True)
)
_STATES = select(job.c.array_index, job.c.state).where(_OF_ARRAY)
_STARTED = _STATES.where(
    job.c.state.in_([state.value for state in JobState if not state.is_terminal and state is not JobState.QUEUED])
)
_SPEC = select(job_array.c.spec).where(job_array.c.id == bindparam("array_"))
_TO_COME = select(job_array.c.state, job_array.c.stopped_by, job_array.c.changed).where(
    job_array.c.id == bindparam("array_")
)
_SET_SPEC = update(job_array).where(job_array.c.id == bindparam("array_")).values(spec=bindparam("spec_"))
_SET_CHANGED = update(job_array).where(job_array.c.id == bindparam("array_")).values(changed=bindparam("changed_"))
_WAITS_FOR = (
    select(dependency.c.job_id)
    .where(dependency.c.job_id == bindparam("array_"), dependency.c.released_at.is_(None))
    .limit(1)
)
