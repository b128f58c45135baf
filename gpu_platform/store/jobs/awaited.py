"""What is known of jobs, arrays and elements for which others wait."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from gpu_platform.domain.array_ids import array_of, index_of, is_array_id
from gpu_platform.domain.jobs.array import ArrayShape, ArraySpec
from gpu_platform.domain.jobs.index_set import IndexSet
from gpu_platform.domain.states import ArrayState, JobState
from gpu_platform.store.models import job, job_array

_AT_ONCE = 500


def array_named(job_id: str) -> str | None:
    """The array that this id names, or of which it names an element. None: it names a job."""
    return job_id if is_array_id(job_id) else array_of(job_id)


def states_of(session: Session, ids: Collection[str]) -> dict[str, JobState]:
    """Job, array or element -> its state. What does not exist is left out.

    An element that has no row is PENDING; once its array has ended it will never have one, and is CANCELLED.
    """
    wanted = sorted(set(ids))
    found: dict[str, JobState] = {}
    for begin in range(0, len(wanted), _AT_ONCE):
        for row in session.execute(_JOBS, {"names": wanted[begin : begin + _AT_ONCE]}):
            found[row.id] = JobState(row.state)
    rest = {one: array for one in wanted if one not in found and (array := array_named(one)) is not None}
    arrays = sorted(set(rest.values()))
    states: dict[str, ArrayState] = {}
    for begin in range(0, len(arrays), _AT_ONCE):
        for row in session.execute(_ARRAYS, {"names": arrays[begin : begin + _AT_ONCE]}):
            states[row.id] = ArrayState(row.state)
    for one, array_id in rest.items():
        state = states.get(array_id)
        if state is None:
            continue
        if one == array_id:
            found[one] = JobState(state.value)
        else:
            found[one] = JobState.CANCELLED if state.is_terminal else JobState.PENDING
    return found


def indices_of(session: Session, array_id: str) -> IndexSet | None:
    """The indices of an array. None: there is no such array."""
    shape = session.scalar(select(job_array.c.shape).where(job_array.c.id == array_id))
    if shape is None:
        return None
    shown = ArrayShape.model_validate_json(shape).indices
    if not shown.endswith("…"):
        return IndexSet.parse(shown)
    whole = session.execute(select(job_array.c.array).where(job_array.c.id == array_id)).scalar_one()
    return ArraySpec.model_validate_json(whole).index_set


def missing_element(session: Session, job_id: str) -> IndexSet | None:
    """The indices that the array has, if ``job_id`` names an element that it has not. None: it has it, or is none."""
    array_id = array_of(job_id)
    if array_id is None or session.scalar(select(job.c.id).where(job.c.id == job_id)) is not None:
        return None
    there = indices_of(session, array_id)
    return None if there is None or index_of(job_id) in there else there


_JOBS = select(job.c.id, job.c.state).where(job.c.id.in_(bindparam("names", expanding=True)))
_ARRAYS = select(job_array.c.id, job_array.c.state).where(job_array.c.id.in_(bindparam("names", expanding=True)))
