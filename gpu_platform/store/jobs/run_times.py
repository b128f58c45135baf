"""How long earlier jobs ran, and what they were: what the prediction of run times learns from."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.store.database import reading
from gpu_platform.store.models import job

AT_ONCE = 1000
"""Rows of one query."""


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A job whose program ended by itself at the first attempt. A later attempt may have gone on from a checkpoint."""

    job_id: str
    spec: JobSpec
    run_s: float


@dataclass(frozen=True, slots=True)
class JobProgram:
    """What a job is called and runs."""

    name: str
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CompletedRun:
    """A job that completed, for the prediction of how long others take."""

    kind: tuple[str, str, str]
    """Namespace, name and shape: runs of one kind should take equally long."""
    hosts: list[str]
    duration_s: float


@reading
def ended_runs(
    session: Session, job_ids: Collection[str] | None = None, *, limit: int = 2000, known: Collection[str] = ()
) -> list[EndedRun]:
    """The runs of the newest ``limit`` jobs, or of ``job_ids``, in the order in which they ended; without ``known``."""
    if job_ids is None:
        # For each state alone: of two at once, the database would sort all that ever ended.
        each = [session.execute(_ENDED.where(job.c.state == state).limit(limit)).all() for state in _ENDS]
        rows = sorted((row for rows in each for row in rows), key=lambda row: (row.created_at, row.id))[-limit:]
    else:
        rows = session.execute(_ENDED.where(job.c.id.in_(job_ids), job.c.state.in_(_ENDS)).limit(limit)).all()
    found = [row for row in rows if row.id not in known]
    return [
        EndedRun(
            row.id,
            JobSpec.model_validate_json(row.spec),
            (row.finished_at - row.started_at).total_seconds(),
        )
        for row in sorted(found, key=lambda row: (row.finished_at, row.id))
    ]


@reading
def completed_runs(session: Session, job_ids: Collection[str] | None = None, limit: int = 5000) -> list[CompletedRun]:
    """Runs that completed at the first attempt, oldest first: the newest ``limit``, or those of ``job_ids``."""
    query = _COMPLETED if job_ids is None else _COMPLETED.where(job.c.id.in_(job_ids))
    return [
        CompletedRun(
            (row.namespace, row.name, JobSpec.model_validate_json(row.spec).gpus.model_dump_json()),
            Placement.model_validate_json(row.placement).hosts,
            (row.finished_at - row.started_at).total_seconds(),
        )
        for row in reversed(session.execute(query.limit(limit)).all())
    ]


@reading
def programs(session: Session, job_ids: Collection[str]) -> dict[str, JobProgram]:
    """Job -> its program. Unknown jobs are left out."""
    found = {}
    ordered = sorted(job_ids)
    for start in range(0, len(ordered), AT_ONCE):
        some = ordered[start : start + AT_ONCE]
        for row in session.execute(select(job.c.id, job.c.name, job.c.spec).where(job.c.id.in_(some))):
            found[row.id] = JobProgram(row.name, tuple(json.loads(row.spec).get("command", ())))
    return found


_ENDS = (JobState.COMPLETED.value, JobState.FAILED.value)
_ENDED = (
    select(job.c.id, job.c.spec, job.c.created_at, job.c.started_at, job.c.finished_at)
    .where(
        job.c.attempt == 1,
        job.c.hardware_retries == 0,
        job.c.started_at.is_not(None),
        job.c.finished_at.is_not(None),
    )
    .order_by(job.c.created_at.desc(), job.c.id.desc())
)
_COMPLETED = (
    select(job.c.namespace, job.c.name, job.c.spec, job.c.placement, job.c.started_at, job.c.finished_at)
    .where(
        job.c.state == JobState.COMPLETED.value,
        job.c.attempt == 1,
        job.c.started_at.is_not(None),
        job.c.placement.is_not(None),
    )
    .order_by(job.c.created_at.desc(), job.c.id.desc())
)
