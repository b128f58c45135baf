"""Workflows that wait for the end of jobs and arrays, besides their own: firings of schedules, and pipelines.

As with dependencies, nothing is written when a job ends. Who must be told follows from the job's own state.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import bindparam, delete, or_, select
from sqlalchemy.orm import Session

from gpu_platform.domain.states import TERMINAL_JOB_STATES, ArrayState
from gpu_platform.store.database import insert_new, reading, writing
from gpu_platform.store.models import job, job_array, job_watch

_AT_ONCE = 500


def watch(session: Session, job_id: str, workflow_id: str) -> None:
    """Inside a transaction: the workflow is told when the job, or the array, has ended."""
    insert_new(session, job_watch, {"job_id": job_id, "workflow_id": workflow_id})


def seen(session: Session, workflow_id: str, job_ids: Collection[str]) -> None:
    """Inside a transaction: the workflow has seen that these jobs have ended."""
    names = sorted(job_ids)
    for begin in range(0, len(names), _AT_ONCE):
        session.execute(_SEEN, {"workflow_id": workflow_id, "job_ids": names[begin : begin + _AT_ONCE]})


@writing
def forget(session: Session, workflow_id: str) -> None:
    """There is no such workflow any more. If it comes back, its first step says again for which jobs it waits."""
    session.execute(delete(job_watch).where(job_watch.c.workflow_id == workflow_id))


@reading
def to_be_told(session: Session, ended: Collection[str] | None = None) -> list[str]:
    """Workflows that wait for a job that has ended. ``ended``: only for one of these jobs. None: for any."""
    if ended is None:
        return list(session.scalars(_ALL))
    found: set[str] = set()
    names = sorted(ended)
    for begin in range(0, len(names), _AT_ONCE):
        found.update(session.scalars(_OF_JOBS, {"ended": names[begin : begin + _AT_ONCE]}))
    return sorted(found)


_ALL = (
    select(job_watch.c.workflow_id)
    .outerjoin(job, job.c.id == job_watch.c.job_id)
    .outerjoin(job_array, job_array.c.id == job_watch.c.job_id)
    .where(
        or_(
            job.c.state.in_(sorted(TERMINAL_JOB_STATES)),
            job_array.c.state.in_(sorted(state.value for state in ArrayState if state.is_terminal)),
        )
    )
    .distinct()
    .order_by(job_watch.c.workflow_id)
)
_OF_JOBS = _ALL.where(job_watch.c.job_id.in_(bindparam("ended", expanding=True)))
_SEEN = delete(job_watch).where(
    job_watch.c.workflow_id == bindparam("workflow_id"), job_watch.c.job_id.in_(bindparam("job_ids", expanding=True))
)
