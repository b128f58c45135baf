"""Pipelines: read the file, check each step as a submission, record it, start its workflow."""

from __future__ import annotations

import hashlib

from starlette.concurrency import run_in_threadpool

from activities.pipelines import start_pipeline
from gpu_platform.domain.errors import Forbidden, InvalidRequest, NotFound, Unavailable
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.pipelines.file import ReadPipeline, read_pipeline
from gpu_platform.domain.pipelines.pipeline import (
    Pipeline,
    PipelineRequest,
    PipelineSpec,
    PipelineState,
    Step,
    StepState,
)
from gpu_platform.domain.pipelines.readiness import decide
from gpu_platform.observability import get_logger
from gpu_platform.store.jobs import admission, pipelines
from gpu_platform.store.jobs.idempotency import IdempotencyKey
from service.access.gate import Access
from service.context import ServiceContext, now
from service.operations import checkpoints, dry_runs, secrets, uploads
from service.operations.ids import new_pipeline_id
from service.operations.job_defaults import accepted

log = get_logger(__name__)


async def submit(
    context: ServiceContext, access: Access, request: PipelineRequest, key: str | None
) -> tuple[Pipeline, bool]:
    """Record a pipeline and start its workflow. If Temporal is away, the leader starts it later. Returns the pipeline
    and whether it is new. ``key``: the idempotency key.

    Raises :class:`InvalidRequest`, which names the lines that are wrong, :class:`Forbidden` and
    :class:`IdempotencyConflict`.
    """
    spec = await run_in_threadpool(_accepted, context, access, request)
    if request.dry_run:
        waiting = {"state": StepState.WAITING}
        steps = [one.model_copy(update=waiting) for one in pipelines.status_of(spec, decide(spec, []), ())]
        return Pipeline(
            id="",
            name=spec.name,
            namespace=spec.namespace,
            user=spec.user,
            state=PipelineState.RUNNING,
            parameters=spec.parameters,
            created_at=now(),
            steps=steps,
        ), True
    made, created = await run_in_threadpool(
        pipelines.create,
        context.store,
        new_pipeline_id(),
        spec,
        actor=access.actor,
        uses_cache=request.cache,
        now=now(),
        idempotency_key=None if key is None else IdempotencyKey(key, access.who.id, _digest(request)),
    )
    await _look_again(context, made.id)
    return made, created


async def cancel(context: ServiceContext, pipeline_id: str, actor: str, reason: str) -> Pipeline:
    """Cancel the jobs of a pipeline, and submit no more. Raises :class:`NotFound` and :class:`IllegalTransition`."""
    await run_in_threadpool(pipelines.cancel, context.store, pipeline_id, actor, reason, now())
    await _look_again(context, pipeline_id)
    return await run_in_threadpool(pipelines.get, context.store, pipeline_id)


async def retry(context: ServiceContext, pipeline_id: str, from_step: str | None, actor: str) -> Pipeline:
    """Run again what was not COMPLETED.

    Raises :class:`NotFound`, :class:`InvalidRequest` and :class:`IllegalTransition`.
    """
    await run_in_threadpool(pipelines.retry, context.store, pipeline_id, from_step, actor, now())
    await _look_again(context, pipeline_id)
    return await run_in_threadpool(pipelines.get, context.store, pipeline_id)


async def _look_again(context: ServiceContext, pipeline_id: str) -> None:
    """Let the pipeline's workflow look at what was recorded. While Temporal is away that is left to the leader: the
    request has succeeded already, and who repeats it would do it twice."""
    try:
        async with context.workflows.reaching() as client:
            await start_pipeline(client, context.store, pipeline_id)
    except Unavailable as error:
        log.warning("pipeline.left_to_the_leader", pipeline=pipeline_id, error=error.message)


def _digest(request: PipelineRequest) -> str:
    return hashlib.sha256(request.model_dump_json().encode()).hexdigest()


def _accepted(context: ServiceContext, access: Access, request: PipelineRequest) -> PipelineSpec:
    read = read_pipeline(request.file, request.parameters, workdir=request.workdir)
    steps = tuple(step.model_copy(update={"job": _accepted_job(context, access, read, step)}) for step in read.steps)
    first = steps[0].job
    return PipelineSpec(
        name=read.name, namespace=first.namespace, user=first.user, parameters=read.parameters, steps=steps
    )


def _accepted_job(context: ServiceContext, access: Access, read: ReadPipeline, step: Step) -> JobSpec:
    said = step.job
    if read.namespace is not None:
        said = JobSpec.model_validate({**said.model_dump(exclude_unset=True), "namespace": read.namespace})
    try:
        spec, _ = accepted(context.settings, context.store, access, said)
        checkpoints.check_resume(context.store, spec)
        secrets.check_secrets(context.store, spec)
        uploads.check_upload(context.store, spec, access.actor)
        with context.store.read() as session:
            admission.check_possible(context.store, session, spec, dry_runs.admission_refusal(context.store))
            admission.check_quotas(session, spec)
    except Forbidden:
        raise
    except (InvalidRequest, NotFound) as error:
        raise read.fail(step.name, error.message) from error
    return spec
