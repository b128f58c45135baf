"""Whose jobs, arrays, schedules and pipelines these are: namespace and user. They never change."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import Table, bindparam, select
from sqlalchemy.orm import Session

from gpu_platform.domain.array_ids import array_of, is_array_id
from gpu_platform.domain.errors import NotFound
from gpu_platform.domain.jobs.readable_by import ReadableBy
from gpu_platform.store.database import reading
from gpu_platform.store.models import archived_job, job, job_array, pipeline, schedule

_AT_ONCE = 500
_OWNERS = select(job.c.id, job.c.namespace, job.c.user).where(job.c.id.in_(bindparam("job_ids", expanding=True)))
_OF_ARRAYS = select(job_array.c.id, job_array.c.namespace, job_array.c.user).where(
    job_array.c.id.in_(bindparam("array_ids", expanding=True))
)
_OF_ARCHIVED = select(archived_job).where(archived_job.c.job_id.in_(bindparam("job_ids", expanding=True)))


class Owner(NamedTuple):
    """The namespace and the user of a job, an array, a schedule or a pipeline."""

    namespace: str
    user: str


def is_shared(session: Session, job_id: str) -> bool:
    """True if the job, or the array of the element, says that its namespace may read what it leaves behind.

    False for a job that is only in the archive: its output and its checkpoints are gone.
    """
    found = session.execute(select(job.c.spec).where(job.c.id == job_id)).scalar_one_or_none()
    if found is None:
        query = select(job_array.c.spec).where(job_array.c.id == (array_of(job_id) or job_id))
        found = session.execute(query).scalar_one_or_none()
    return found is not None and json.loads(found).get("readable_by") == ReadableBy.NAMESPACE


@reading
def owners_of(session: Session, ids: Collection[str]) -> dict[str, Owner]:
    """Job or array -> whose it is, also of those in the archive. What does not exist is left out.

    An element that has not entered the queue has no row yet: it is its array's owner's.
    """
    wanted = list(ids)
    found: dict[str, Owner] = {}
    for start in range(0, len(wanted), _AT_ONCE):
        part = wanted[start : start + _AT_ONCE]
        for row in session.execute(_OWNERS, {"job_ids": part}):
            found[row.id] = Owner(row.namespace, row.user)
        arrays = {one: array_of(one) or one for one in part if one not in found and is_array_id(array_of(one) or one)}
        rows = session.execute(_OF_ARRAYS, {"array_ids": sorted(set(arrays.values()))}).all() if arrays else []
        of_arrays = {row.id: Owner(row.namespace, row.user) for row in rows}
        found |= {one: of_arrays[array] for one, array in arrays.items() if array in of_arrays}
        if rest := [one for one in part if one not in found]:
            archived = session.execute(_OF_ARCHIVED, {"job_ids": rest})
            found |= {row.job_id: Owner(row.namespace, row.user) for row in archived}
    return found


def no_such_job(job_id: str) -> NotFound:
    """The error for a job that does not exist, or that one may not see: the same words in both cases."""
    hint = ""
    if is_array_id(job_id):
        hint = f"; if {job_id} is an array, name one of its elements, e.g. {job_id}.0"
    elif array_of(job_id) is not None:
        hint = "; an element of an array is there once it has entered the queue"
    return NotFound(f"there is no job {job_id!r}{hint}", job_id=job_id)


def no_such_array(array_id: str) -> NotFound:
    """The error for an array that does not exist, or that one may not see."""
    return NotFound(f"there is no array {array_id!r}", array_id=array_id)


def archive_name(number: int) -> str:
    """The name of the archive's file with this number."""
    return f"jobs-{number:08}.jsonl.gz"


def missing(session: Session, wanted: str, error: NotFound) -> NotFound:
    """The error for a job, an array or a pipeline without a row: ``error``, unless it is in the archive."""
    row = session.execute(_OF_ARCHIVED, {"job_ids": [wanted]}).one_or_none()
    if row is None:
        return error
    file = archive_name(row.number)
    return NotFound(
        f"{wanted} ended long ago and was moved to the archive on {row.archived_at:%Y-%m-%d}: it is in the file {file} "
        "of the schedulers' directory scheduler.job_archive; ask an operator for it",
        archived=file,
    )


@reading
def owner_of_schedule(session: Session, schedule_id: str) -> Owner | None:
    """Whose schedule it is. None: there is none."""
    return _owner(session, schedule, schedule_id)


@reading
def owner_of_pipeline(session: Session, pipeline_id: str) -> Owner | None:
    """Whose pipeline it is, or was before it was archived. None: there is none."""
    found = _owner(session, pipeline, pipeline_id)
    return found if found is not None else owners_of(session, [pipeline_id]).get(pipeline_id)


def _owner(session: Session, table: Table, wanted: str) -> Owner | None:
    row = session.execute(select(table.c.namespace, table.c.user).where(table.c.id == wanted)).one_or_none()
    return None if row is None else Owner(row.namespace, row.user)
