"""Submits what a step of a pipeline needs: one job, or one array with an element for each of its items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, bindparam, insert, select
from sqlalchemy.orm import Session

from gpu_platform.domain.array_ids import element_id
from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.jobs.array import ArraySpec, OnFailure, ParameterTable
from gpu_platform.domain.jobs.artifacts import Artifacts
from gpu_platform.domain.jobs.derived_ids import derived_array_id, derived_job_id
from gpu_platform.domain.jobs.index_set import IndexSet
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.pipelines.pipeline import Step
from gpu_platform.domain.pipelines.readiness import MOST_INPUT_BYTES, NewJob
from gpu_platform.domain.states import JobState
from gpu_platform.store.database import undone_alone
from gpu_platform.store.jobs import watches
from gpu_platform.store.jobs.arrays import record_array
from gpu_platform.store.jobs.jobs import record_submission
from gpu_platform.store.models import pipeline, pipeline_job


def submit_step(session: Session, row: Row[Any], jobs: Sequence[NewJob], now: datetime) -> set[str]:
    """Inside a transaction: submit these jobs of one step of the pipeline ``row``, or take earlier ones that did the
    same. Returns the array that has them, if there is one.

    Ids follow from where the step stands, so that a repeat makes no second job.
    """
    new = [one for one in jobs if not _taken_from_cache(session, row, one)]
    if not new:
        return set()
    step = new[0].step
    if step.for_each is None:
        _submit_job(session, row, new[0], now)
        return set()
    array_id = derived_array_id("pipeline", row.id, step.name, row.tries)
    directory = f"{row.id}/{step.name}/{array_id}"
    refusal = None
    try:
        spec, array = as_array(step, new, Artifacts(output=directory, inputs=new[0].inputs))
        with undone_alone(session):
            record_array(session, array_id, spec, array, actor=row.actor, now=now, idempotency_key=None)
            watches.watch(session, array_id, row.id)
    except (InvalidRequest, ValueError) as refused:
        refusal = f"it was refused: {refused}"
    lines = [
        {
            **_line(row, one),
            "job_id": None if refusal is not None else element_id(array_id, one.index),
            "refusal": refusal,
            "directory": f"{directory}-{one.index}",
        }
        for one in new
    ]
    session.execute(insert(pipeline_job), lines)
    return set() if refusal is not None else {array_id}


def as_array(step: Step, jobs: Sequence[NewJob], artifacts: Artifacts) -> tuple[JobSpec, ArraySpec]:
    """The array whose elements are these jobs of a step with ``for_each``. Raises ``ValueError``.

    What differs from job to job becomes a parameter. So does what has braces: they mean nothing to a pipeline.
    """
    columns: dict[str, list[str]] = {}
    texts, indices = jobs[0].texts, [one.index for one in jobs]
    command = [
        _shared(columns, f"command_{place}", texts.column(part, indices))
        for place, part in enumerate(texts.command_parts)
    ]
    env = {
        name: _shared(columns, f"env_{place}", texts.column(part, indices))
        for place, (name, part) in enumerate(texts.env_parts.items())
    }
    fields: dict[str, Any] = {
        **step.job.model_dump(exclude_unset=True),
        "command": command,
        "env": env,
        "artifacts": artifacts,
    }
    if step.job.workdir is not None:
        same = step.job.workdir
        fields["workdir"] = _shared(columns, "workdir", [same] * len(jobs) if "{" in same else same)
    inputs = sum(len(one) for paths in artifacts.inputs.values() for one in paths)
    array = ArraySpec(
        indices=str(IndexSet.of(indices)),
        at_once=min(step.at_once, max(1, MOST_INPUT_BYTES // max(inputs, 1))),
        on_failure=OnFailure.NO_MORE,
        parameters=_table(columns, indices),
        count=jobs[0].total,
    )
    return type(step.job).model_validate(fields), array


def _shared(columns: dict[str, list[str]], name: str, texts: list[str] | str) -> str:
    """The text that all jobs share, or the place of a parameter."""
    if isinstance(texts, str):
        return texts
    columns[name] = texts
    return f"{{{name}}}"


def _table(columns: Mapping[str, list[str]], indices: Sequence[int]) -> ParameterTable | None:
    """The parameters of each index from 0 on. Indices that the array has not get the row of another one."""
    if not columns:
        return None
    own = dict(zip(indices, zip(*columns.values(), strict=True), strict=True))
    filler = own[indices[0]]
    rows = tuple(own.get(index, filler) for index in range(max(indices) + 1))
    return ParameterTable(names=tuple(columns), rows=rows)


def _submit_job(session: Session, row: Row[Any], new: NewJob, now: datetime) -> None:
    job_id = derived_job_id("pipeline", row.id, new.step.name, new.index, row.tries)
    line = {**_line(row, new), "directory": f"{row.id}/{new.step.name}/{job_id}"}
    try:
        fields = {
            **new.step.job.model_dump(exclude_unset=True),
            "command": new.command,
            "env": new.env,
            "artifacts": Artifacts(output=line["directory"], inputs=new.inputs),
        }
        with undone_alone(session):
            spec = type(new.step.job).model_validate(fields)
            record_submission(session, job_id, spec, actor=row.actor, now=now)
            watches.watch(session, job_id, row.id)
        line["job_id"] = job_id
    except (InvalidRequest, ValueError) as refused:
        line["refusal"] = f"it was refused: {refused}"
    session.execute(insert(pipeline_job), line)


def _taken_from_cache(session: Session, row: Row[Any], new: NewJob) -> bool:
    """True if an earlier job did the same, whose result was taken."""
    if new.cache_key is None or not row.uses_cache:
        return False
    known = {"key": new.cache_key, "namespace": row.namespace, "user": row.user}
    earlier = session.execute(_CACHED, known).first()
    if earlier is None or not (earlier.output_read or not new.step.output_used):
        return False
    same = {name: getattr(earlier, name) for name in ("job_id", "state", "directory", "output_read", "output")}
    session.execute(insert(pipeline_job), {**_line(row, new), **same, "cached": True})
    return True


def _line(row: Row[Any], new: NewJob) -> dict[str, Any]:
    """The columns of a job that was just submitted."""
    line: dict[str, Any] = {"pipeline_id": row.id, "step": new.step.name, "number": new.index, "tries": row.tries}
    line |= {"superseded": False, "cached": False, "cache_key": new.cache_key}
    return line | dict.fromkeys(("output", "problem", "state", "refusal", "job_id")) | {"output_read": False}


_CACHED = (
    select(pipeline_job)
    .join(pipeline, pipeline.c.id == pipeline_job.c.pipeline_id)
    .where(
        pipeline_job.c.cache_key == bindparam("key"),
        pipeline_job.c.state == JobState.COMPLETED.value,
        pipeline_job.c.problem.is_(None),
        pipeline_job.c.superseded.is_(False),
        pipeline.c.namespace == bindparam("namespace"),
        pipeline.c.user == bindparam("user"),
    )
    .order_by(pipeline.c.created_at.desc())
    .limit(1)
)
