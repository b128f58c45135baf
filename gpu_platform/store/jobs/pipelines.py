"""Pipelines: what was accepted, and what became of their jobs. The next step of one is a single transaction."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Row, bindparam, func, insert, or_, select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.array_ids import array_of
from gpu_platform.domain.errors import IllegalTransition, InvalidRequest, NotFound
from gpu_platform.domain.jobs.array import Array
from gpu_platform.domain.jobs.artifacts import (
    MAX_OUTPUT_BYTES,
    MAX_OUTPUTS_BYTES,
    OutputRequest,
    StepOutput,
    checked_output,
)
from gpu_platform.domain.jobs.job import Job, StoppedBy
from gpu_platform.domain.packing import pack
from gpu_platform.domain.pipelines.pipeline import (
    Pipeline,
    PipelineSpec,
    StepJob,
    StepState,
    StepStatus,
    SubmittedPipeline,
)
from gpu_platform.domain.pipelines.readiness import JobOfStep, NewJob, PipelineDecision, decide
from gpu_platform.domain.states import JobState, PipelineState, check_transition
from gpu_platform.store.database import insert_new, reading, writing
from gpu_platform.store.events import append_event
from gpu_platform.store.jobs import watches
from gpu_platform.store.jobs.arrays import pending_arrays
from gpu_platform.store.jobs.awaited import states_of
from gpu_platform.store.jobs.idempotency import IdempotencyKey, Taken, take_key
from gpu_platform.store.jobs.jobs import get_job
from gpu_platform.store.jobs.owners import missing
from gpu_platform.store.jobs.paging import rows_of_page
from gpu_platform.store.jobs.pipeline_steps import submit_step
from gpu_platform.store.models import job, pipeline, pipeline_job

SUBMITTED_AT_ONCE = 50
"""How many jobs and arrays one transaction submits. The next one goes on."""
_AT_ONCE = 500


@dataclass
class Advance:
    """What is to be done outside the database after a step of a pipeline."""

    state: PipelineState
    steps: dict[str, StepState] = field(default_factory=dict[str, StepState])
    start: list[Job | Array] = field(default_factory=list["Job | Array"])
    """Jobs and arrays whose workflows must be started."""
    read: list[tuple[OutputRequest, list[str]]] = field(default_factory=list[tuple[OutputRequest, list[str]]])
    """Outputs, and the hosts that can read them, the one of rank 0 first."""
    cancel: list[str] = field(default_factory=list[str])
    """Jobs and arrays."""
    more: bool = False
    """There is more to do at once."""


@writing
def create(
    session: Session,
    pipeline_id: str,
    spec: PipelineSpec,
    *,
    actor: str,
    uses_cache: bool,
    now: datetime,
    idempotency_key: IdempotencyKey | None = None,
) -> tuple[Pipeline, bool]:
    """Record a pipeline. Returns it and whether it is new.

    A key that was seen with a request that says the same returns the pipeline that it made; with another one it raises
    :class:`IdempotencyConflict`.
    """
    if idempotency_key is not None:
        taken = take_key(session, idempotency_key, pipeline_id, now)
        if taken is not None:
            return _same_submission(session, taken), False
    row = {
        "id": pipeline_id,
        "namespace": spec.namespace,
        "user": spec.user,
        "actor": actor,
        "name": spec.name,
        "spec": spec.model_dump_json(),
        "state": PipelineState.RUNNING.value,
        "tries": 0,
        "uses_cache": uses_cache,
        "created_at": now,
    }
    session.execute(insert(pipeline), row)
    append_event(session, "pipeline.submitted", actor, now, data={"pipeline": pipeline_id, "name": spec.name})
    return _pipeline(_one(session, pipeline_id), []), True


def _same_submission(session: Session, taken: Taken) -> Pipeline:
    if taken.id is None:
        raise taken.withdrawn()
    if not taken.says_the_same:
        raise taken.conflict("pipeline" if taken.id.startswith("p-") else "job or array", taken.id)
    return _pipeline(_one(session, taken.id), _records(session, taken.id))


@reading
def get(session: Session, pipeline_id: str) -> Pipeline:
    """One pipeline with the states of its steps. Raises :class:`NotFound`."""
    return _pipeline(_one(session, pipeline_id), _records(session, pipeline_id))


@reading
def list_pipelines(
    session: Session, visible: Collection[str] | None, namespace: str | None, before: str | None, limit: int
) -> tuple[list[Pipeline], str | None]:
    """One page of pipelines of the namespaces ``visible`` (None: all), newest first, without their steps, and what is
    ``before`` of the next page (None: this is the last). ``before``: only those with a smaller id."""
    query = select(pipeline).order_by(pipeline.c.id.desc())
    if visible is not None:
        query = query.where(pipeline.c.namespace.in_(sorted(visible)))
    if namespace is not None:
        query = query.where(pipeline.c.namespace == namespace)
    if before is not None:
        query = query.where(pipeline.c.id < before)
    rows, more = rows_of_page(session, query, limit, lambda row: len(row.spec))
    return [_pipeline(row, None) for row in rows], rows[-1].id if more else None


@reading
def submitted(session: Session, pipeline_id: str) -> SubmittedPipeline | None:
    """What its workflow keeps of it. None: there is no such pipeline."""
    row = session.execute(_ONE, {"id": pipeline_id}).one_or_none()
    if row is None:
        return None
    about = {name: getattr(row, name) for name in ("actor", "uses_cache", "tries", "created_at")}
    return SubmittedPipeline(packed=pack(row.spec), **about)


@reading
def unknown(session: Session, pipeline_ids: Collection[str]) -> list[str]:
    """Those of these pipelines that have no row."""
    known = session.scalars(select(pipeline.c.id).where(pipeline.c.id.in_(pipeline_ids)))
    return sorted(set(pipeline_ids) - set(known))


@writing
def restore(session: Session, pipeline_id: str, spec: PipelineSpec, found: SubmittedPipeline, now: datetime) -> bool:
    """Write the row of a pipeline that only Temporal knows. Its next step finds the jobs by their ids, which follow
    from where their steps stand. False: it has a row."""
    row = {
        "id": pipeline_id,
        "namespace": spec.namespace,
        "user": spec.user,
        "actor": found.actor,
        "name": spec.name,
        "spec": spec.model_dump_json(),
        "state": PipelineState.RUNNING.value,
        "tries": found.tries,
        "uses_cache": found.uses_cache,
        "created_at": found.created_at,
    }
    if not insert_new(session, pipeline, row):
        return False
    append_event(session, "pipeline.restored", "scheduler", now, data={"pipeline": pipeline_id, "name": spec.name})
    return True


@reading
def open_ones(session: Session) -> list[str]:
    """Pipelines that have not ended."""
    return list(session.scalars(select(pipeline.c.id).where(pipeline.c.state == PipelineState.RUNNING.value)))


@reading
def is_directory_of(session: Session, pipeline_id: str, job_id: str, directory: str) -> bool:
    """True if the job belongs to the pipeline and writes there."""
    which = (pipeline_job.c.pipeline_id == pipeline_id) & (pipeline_job.c.job_id == job_id)
    return directory in session.scalars(select(pipeline_job.c.directory).where(which)).all()


@reading
def pipeline_of(session: Session, job_id: str) -> str | None:
    """The newest pipeline of which the job is a step. None: there is none."""
    return session.scalar(select(func.max(pipeline_job.c.pipeline_id)).where(pipeline_job.c.job_id == job_id))


@writing
def advance(session: Session, pipeline_id: str, now: datetime) -> Advance:
    """Do what can be done now: note what has ended, submit what is ready, write down the end. It may be repeated at
    any time. Raises :class:`NotFound`."""
    row = _one(session, pipeline_id, lock=True)
    if row.state != PipelineState.RUNNING:
        return Advance(PipelineState(row.state))
    records = _records(session, pipeline_id)
    spec = PipelineSpec.model_validate_json(row.spec)
    _note_ended(session, pipeline_id, records)
    decision = decide(spec, [record for record, _ in records], cancelled=row.stopped_by is not None)
    done = Advance(decision.state, {name: one.state for name, one in decision.steps.items()})
    if decision.state is not PipelineState.RUNNING:
        check_transition(f"pipeline {pipeline_id}", PipelineState(row.state), decision.state)
        values = {"state": decision.state.value, "finished_at": now}
        session.execute(update(pipeline).where(pipeline.c.id == pipeline_id).values(values))
        data = {"pipeline": pipeline_id, "name": row.name}
        append_event(session, f"pipeline.{decision.state.value.lower()}", "control", now, data=data)
        return done
    by_step: dict[str, list[NewJob]] = defaultdict(list)
    for new in decision.submit:
        by_step[new.step.name].append(new)
    submitted = [submit_step(session, row, new, now) for new in [*by_step.values()][:SUBMITTED_AT_ONCE]]
    done.more = bool(decision.submit) or decision.more
    pending = session.scalars(_PENDING, {"pipeline_id": pipeline_id}).all()
    arrays = {array for record, _ in records if record.is_live and (array := array_of(record.job_id or ""))}
    done.start = [get_job(session, name) for name in pending]
    done.start += pending_arrays(session, arrays.union(*submitted))
    done.read = [_to_read(session, record) for record in decision.read]
    done.cancel = sorted({array_of(one.job_id) or one.job_id for one in decision.cancel if one.job_id is not None})
    return done


@writing
def note_output(session: Session, pipeline_id: str, job_id: str, output: StepOutput) -> None:
    """Write down what a job of the pipeline wrote, as its host says, if all outputs together are not too large."""
    output = _kept(session, pipeline_id, checked_output(output))
    which = (pipeline_job.c.pipeline_id == pipeline_id) & (pipeline_job.c.job_id == job_id)
    values = {"output_read": True, "output": output.text, "problem": output.problem}
    session.execute(update(pipeline_job).where(which, pipeline_job.c.output_read.is_(False)).values(values))


def _kept(session: Session, pipeline_id: str, output: StepOutput) -> StepOutput:
    """What is kept of an output. A host says what it is, so it is read here once before others depend on it."""
    if output.text is None:
        return output
    if len(output.text) > MAX_OUTPUT_BYTES:
        return StepOutput(problem=f"its output is larger than {MAX_OUTPUT_BYTES} bytes: write large results into files")
    try:
        json.loads(output.text)
    except (ValueError, RecursionError) as error:
        return StepOutput(problem=f"its output cannot be read: {error}")
    there = session.execute(_OUTPUT_BYTES, {"pipeline_id": pipeline_id}).scalar_one()
    if there + len(output.text) > MAX_OUTPUTS_BYTES:
        return StepOutput(
            problem=f"its output has {len(output.text)} bytes, those of the pipeline's other jobs {there}, and at most "
            f"{MAX_OUTPUTS_BYTES} are allowed together: write large results into files"
        )
    return output


@writing
def cancel(session: Session, pipeline_id: str, actor: str, reason: str, now: datetime) -> None:
    """Ask for the end of a pipeline. Raises :class:`NotFound` and :class:`IllegalTransition`."""
    row = _one(session, pipeline_id, lock=True)
    if row.state == PipelineState.CANCELLED or row.stopped_by is not None:
        return
    if row.state != PipelineState.RUNNING:
        raise _ended(row, PipelineState.CANCELLED)
    stopped_by = StoppedBy(verb="cancel", actor=actor, reason=reason)
    values = {"stopped_by": stopped_by.model_dump_json()}
    session.execute(update(pipeline).where(pipeline.c.id == pipeline_id).values(values))
    append_event(session, "pipeline.cancelling", actor, now, data={"pipeline": pipeline_id, "reason": reason})


@writing
def retry(session: Session, pipeline_id: str, from_step: str | None, actor: str, now: datetime) -> None:
    """Let it run again what was not COMPLETED, and ``from_step`` with all after it.

    Raises :class:`NotFound`, :class:`InvalidRequest` and :class:`IllegalTransition`.
    """
    row = _one(session, pipeline_id, lock=True)
    if row.state == PipelineState.RUNNING:
        raise _ended(row, PipelineState.RUNNING)
    spec = PipelineSpec.model_validate_json(row.spec)
    again = _after(spec, from_step)
    if row.state == PipelineState.COMPLETED and not again:
        raise _ended(row, PipelineState.RUNNING)
    failed = or_(
        pipeline_job.c.state.is_(None),
        pipeline_job.c.state != JobState.COMPLETED.value,
        pipeline_job.c.problem.is_not(None),
        pipeline_job.c.step.in_(sorted(again)),
    )
    which = (pipeline_job.c.pipeline_id == pipeline_id) & failed
    session.execute(update(pipeline_job).where(which).values(superseded=True))
    check_transition(f"pipeline {pipeline_id}", PipelineState(row.state), PipelineState.RUNNING)
    values = {"state": PipelineState.RUNNING.value, "tries": row.tries + 1, "stopped_by": None, "finished_at": None}
    session.execute(update(pipeline).where(pipeline.c.id == pipeline_id).values(values))
    append_event(session, "pipeline.retried", actor, now, data={"pipeline": pipeline_id, "from": from_step})


def no_such_pipeline(pipeline_id: str) -> NotFound:
    """The error for a pipeline that is not there, or that one may not see."""
    return NotFound(f"there is no pipeline {pipeline_id!r}", pipeline_id=pipeline_id)


def status_of(spec: PipelineSpec, decision: PipelineDecision, cached: Collection[str]) -> list[StepStatus]:
    """The steps as the API shows them. ``cached``: jobs of earlier pipelines."""
    return [
        StepStatus(
            name=step.name,
            after=list(step.after),
            when=step.when,
            state=standing.state,
            message=standing.message,
            total=standing.total,
            completed=standing.completed,
            jobs=[
                StepJob(
                    index=record.index,
                    job_id=record.job_id,
                    state=record.state,
                    cached=record.job_id in cached,
                    refusal=record.refusal,
                )
                for record in standing.records
            ],
            output=standing.output,
        )
        for step in spec.steps
        for standing in [decision.steps[step.name]]
    ]


def _one(session: Session, pipeline_id: str, *, lock: bool = False) -> Row[Any]:
    query = _ONE.with_for_update() if lock else _ONE
    row = session.execute(query, {"id": pipeline_id}).one_or_none()
    if row is None:
        raise missing(session, pipeline_id, no_such_pipeline(pipeline_id))
    return row


def _records(session: Session, pipeline_id: str) -> list[tuple[JobOfStep, Row[Any]]]:
    """The jobs that count, with their rows. A job that has ended is seen so, whether its row says it or not."""
    rows = session.execute(_JOBS, {"pipeline_id": pipeline_id}).all()
    # Elements of arrays that have not been made yet.
    unmade = [row.job_id for row in rows if row.now is None and row.state is None and array_of(row.job_id or "")]
    states = states_of(session, unmade) if unmade else {}
    return [(_record(row, states.get(row.job_id)), row) for row in rows]


def _record(row: Row[Any], without_row: JobState | None) -> JobOfStep:
    now = without_row if row.now is None else JobState(row.now)
    state = JobState(row.state) if row.state is not None else now if now is not None and now.is_terminal else None
    return JobOfStep(
        step=row.step,
        index=row.number,
        job_id=row.job_id,
        state=state,
        refusal=row.refusal,
        directory=row.directory,
        cache_key=row.cache_key,
        output_read=row.output_read,
        output=None if row.output is None else json.loads(row.output),
        problem=row.problem,
    )


def _note_ended(session: Session, pipeline_id: str, records: Sequence[tuple[JobOfStep, Row[Any]]]) -> None:
    """The rows keep how the jobs ended, and nobody must be told again. Who waits is written down again for the others:
    a restored database may have forgotten it."""
    waits: set[str] = set()
    ended: dict[JobState, list[str]] = defaultdict(list)
    for record, row in records:
        if record.job_id is None or row.state is not None:
            continue
        if record.state is None:
            waits.add(array_of(record.job_id) or record.job_id)
        else:
            ended[record.state].append(record.job_id)
    for name in sorted(waits):
        watches.watch(session, name, pipeline_id)
    for state, names in ended.items():
        for begin in range(0, len(names), _AT_ONCE):
            terms = {"pipeline": pipeline_id, "names": names[begin : begin + _AT_ONCE], "ended": state.value}
            session.execute(_ENDED, terms)
    over = {array_of(name) or name for names in ended.values() for name in names}
    watches.seen(session, pipeline_id, over - waits)


def _to_read(session: Session, record: JobOfStep) -> tuple[OutputRequest, list[str]]:
    assert record.job_id is not None
    placement = get_job(session, record.job_id).placement
    hosts = [] if placement is None else placement.hosts
    return OutputRequest(job_id=record.job_id, path=record.directory), hosts


def _after(spec: PipelineSpec, from_step: str | None) -> set[str]:
    if from_step is None:
        return set()
    names = [step.name for step in spec.steps]
    if from_step not in names:
        raise InvalidRequest(f"the pipeline has no step {from_step!r}; it has {', '.join(names)}")
    found = {from_step}
    for step in spec.steps:
        if found & set(step.after):
            found.add(step.name)
    return found


def _ended(row: Row[Any], wanted: PipelineState) -> IllegalTransition:
    what = {
        PipelineState.RUNNING: "it runs still: cancel it, or wait" if row.state == PipelineState.RUNNING else
        "nothing is left to run again: name a step with --from",
        PipelineState.CANCELLED: "there is nothing left to stop",
    }[wanted]  # fmt: skip
    return IllegalTransition(
        subject=f"pipeline {row.id}",
        current=row.state,
        wanted=wanted.value,
        allowed=[],
        message=f"pipeline {row.id} is {row.state}: {what}",
    )


def _pipeline(row: Row[Any], records: Sequence[tuple[JobOfStep, Row[Any]]] | None) -> Pipeline:
    spec = PipelineSpec.model_validate_json(row.spec)
    stopped_by = None if row.stopped_by is None else StoppedBy.model_validate_json(row.stopped_by)
    steps: list[StepStatus] = []
    if records is not None:
        decision = decide(spec, [record for record, _ in records], cancelled=stopped_by is not None)
        steps = status_of(spec, decision, {line.job_id for _, line in records if line.cached})
    return Pipeline(
        id=row.id,
        name=row.name,
        namespace=row.namespace,
        user=row.user,
        state=PipelineState(row.state),
        parameters=spec.parameters,
        created_at=row.created_at,
        finished_at=row.finished_at,
        stopped_by=stopped_by,
        steps=steps,
    )


_ONE = select(pipeline).where(pipeline.c.id == bindparam("id"))
_JOBS = (
    select(pipeline_job, job.c.state.label("now"))
    .outerjoin(job, job.c.id == pipeline_job.c.job_id)
    .where(pipeline_job.c.pipeline_id == bindparam("pipeline_id"), pipeline_job.c.superseded.is_(False))
    .order_by(pipeline_job.c.step, pipeline_job.c.number)
)
_OUTPUT_BYTES = select(func.coalesce(func.sum(func.length(pipeline_job.c.output)), 0)).where(
    pipeline_job.c.pipeline_id == bindparam("pipeline_id"), pipeline_job.c.superseded.is_(False)
)
_PENDING = (
    select(job.c.id)
    .join(pipeline_job, pipeline_job.c.job_id == job.c.id)
    .where(pipeline_job.c.pipeline_id == bindparam("pipeline_id"), job.c.state == JobState.PENDING.value)
)
_ENDED = (
    update(pipeline_job)
    .where(
        pipeline_job.c.pipeline_id == bindparam("pipeline"),
        pipeline_job.c.job_id.in_(bindparam("names", expanding=True)),
    )
    .values(state=bindparam("ended"))
)
