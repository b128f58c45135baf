"""Arrays of which an older or lost database knows nothing, or too little, as their workflows know them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import bindparam, select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.array_ids import element_id, index_of
from gpu_platform.domain.jobs.array import ArrayShape, ArraySpec
from gpu_platform.domain.jobs.array_steps import RememberedArray
from gpu_platform.domain.jobs.index_set import IndexSet
from gpu_platform.domain.jobs.job import JobProgress, StoppedBy
from gpu_platform.domain.jobs.notify import as_column
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import ArrayState, JobState, check_transition
from gpu_platform.store.database import insert_all_new, insert_new, reading, writing
from gpu_platform.store.events import append_event
from gpu_platform.store.jobs.elements import lock_array, rows_of_ended
from gpu_platform.store.jobs.known_arrays import KnownArray
from gpu_platform.store.models import job, job_array
from gpu_platform.store.restoring.restoring import RememberedJob

RESTORED = "array.restored"
_AT_ONCE = 500


class SubmittedArray(NamedTuple):
    """What was submitted."""

    spec: JobSpec
    array: ArraySpec
    repeats: str | None
    created_at: datetime


class RestoredArray(NamedTuple):
    """What :func:`restore_array` did, and what is left."""

    restored: bool
    """The row was made, or brought up to date."""
    elements: Sequence[RememberedJob]
    """Elements to restore as jobs are: those that wait or may run, and those whose row says that they do."""


@reading
def array_states(session: Session, array_ids: Sequence[str]) -> dict[str, ArrayState]:
    """The states of these arrays, of those that have rows."""
    rows = session.execute(select(job_array.c.id, job_array.c.state).where(job_array.c.id.in_(sorted(array_ids))))
    return {row.id: ArrayState(row.state) for row in rows}


@writing
def restore_array(
    session: Session, array_id: str, given: SubmittedArray, found: RememberedArray, now: datetime
) -> RestoredArray:
    """Write the array's row and those of elements that have ended, or bring them up to date."""
    carried, spec, array = found.carried, given.spec, given.array
    row = {
        "id": array_id,
        "state": ArrayState.RUNNING.value,
        "namespace": spec.namespace,
        "user": spec.user,
        "name": spec.name,
        "kind": spec.kind,
        "spec": spec.model_dump_json(),
        "array": array.model_dump_json(),
        "shape": ArrayShape.of(array, given.repeats).model_dump_json(),
        "size": array.size,
        "created_at": given.created_at,
        "state_at": now,
        "position": 0,
        "notify": as_column(spec.notify),
    }
    is_new = insert_new(session, job_array, row)
    there = lock_array(session, array_id)
    if ArrayState(there.state).is_terminal:
        return RestoredArray(False, [])
    rows = {one.id: JobState(one.state) for one in session.execute(_ELEMENTS, {"array_": array_id})}
    ended, live = _ended(array_id, array, found), _live(array_id, given, found)
    made = sorted(index for index in ended if element_id(array_id, index) not in rows)
    known = KnownArray(array_id, spec, array)
    for begin in range(0, len(made), _AT_ONCE):
        part = made[begin : begin + _AT_ONCE]
        insert_all_new(session, job, rows_of_ended(known, there, {index: ended[index] for index in part}, now))
    behind = [
        RememberedJob(name, known.spec_of(index), state, JobProgress(attempt=1), None, given.created_at)
        for index, state in ended.items()
        if (name := element_id(array_id, index)) in rows and not rows[name].is_terminal
    ]
    values: dict[str, object] = {}
    if carried.position > there.position:
        values["position"] = carried.position
    if there.state == ArrayState.PENDING.value:
        check_transition(f"array {array_id}", ArrayState.PENDING, ArrayState.RUNNING)
        values["state"] = ArrayState.RUNNING.value
    order = carried.kill or carried.cancel
    if order is not None and there.stopped_by is None:
        verb = "kill" if carried.kill else "cancel"
        values["stopped_by"] = StoppedBy(verb=verb, actor=order.actor, reason=order.reason).model_dump_json()
    if values:
        session.execute(update(job_array).where(job_array.c.id == array_id).values(values))
    restored = is_new or bool(values or made or behind)
    if restored:
        data = {"name": spec.name, "position": carried.position, "ended": len(ended), "under_way": len(live)}
        append_event(session, RESTORED, "scheduler", now, job_id=array_id, data=data)
    return RestoredArray(restored, [*behind, *live])


def _ended(array_id: str, array: ArraySpec, found: RememberedArray) -> dict[int, JobState]:
    """Index -> how the element ended. What was made and is not known otherwise was cancelled before it was made."""
    carried = found.carried
    ended = {index: state for state, text in carried.ended_indices.items() for index in IndexSet.parse(text)}
    if found.places:
        under_way = {index_of(key.job_id) for key in carried.waiting}
        under_way |= {index_of(one.key.job_id) for one in carried.running}
        under_way |= {index_of(name) for name in carried.on_their_own}
        indices = array.index_set
        for place in range(min(carried.position, len(indices))):
            if (index := indices[place]) not in under_way:
                ended.setdefault(index, JobState.CANCELLED)
    return ended


def _live(array_id: str, given: SubmittedArray, found: RememberedArray) -> list[RememberedJob]:
    carried, known = found.carried, KnownArray(array_id, given.spec, given.array)

    def remembered(name: str, attempt: int) -> RememberedJob:
        progress = carried.progress.get(name, JobProgress()).model_copy(update={"attempt": attempt})
        spec = known.spec_of(index_of(name))
        return RememberedJob(name, spec, JobState.QUEUED, progress, None, given.created_at)

    waiting = [remembered(key.job_id, key.attempt) for key in carried.waiting]
    running = [
        RememberedJob(
            one.key.job_id,
            known.spec_of(index_of(one.key.job_id)),
            JobState.RUNNING,
            carried.progress.get(one.key.job_id, JobProgress()).model_copy(update={"attempt": one.key.attempt}),
            one.placement,
            given.created_at,
        )
        for one in carried.running
    ]
    return [*running, *waiting]


_ELEMENTS = select(job.c.id, job.c.state).where(job.c.array_id == bindparam("array_"))
