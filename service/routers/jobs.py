"""Jobs: submit, look, wait, interrupt."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Body, Header, Path, Query, Response
from starlette.concurrency import run_in_threadpool

from gpu_platform.client.wire import Page, ReasonBody
from gpu_platform.domain.jobs.array import Array
from gpu_platform.domain.jobs.changes import JobChanges
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.learned.run_times import shared_run_times, traits_of
from gpu_platform.store.jobs import jobs
from gpu_platform.store.jobs.paging import MAX_PAGE
from service.access.gate import Access
from service.access.masking import Mask
from service.context import AccessDep, ServiceContext, ServiceContextDep
from service.http.exact_types import exactly
from service.http.filters import JobFiltersDep
from service.http.off_loop import OffLoopRoute
from service.http.paging import KeyCursor
from service.http.rate_limits import owner_of
from service.operations import changes, holds, retries, submission
from service.operations.job_defaults import accepted
from service.operations.warnings import may_need_warnings, warnings_of
from service.operations.windows import window_warnings

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=OffLoopRoute)

E = TypeVar("E", Job, Array)

JobId = Annotated[str, Path(description="Job id", examples=["j-1jrp3k2h0x4t7za"])]
ReasonBodyDep = Annotated[ReasonBody | None, Body(description="Optional; the reason goes to the event log")]

IdempotencyHeader = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        pattern=r"^[\x21-\x7e]+$",
        description="Any unique text; the same key and body return what was made first, another body is a 409",
    ),
]

_AGAIN: dict[int | str, dict[str, Any]] = {
    200: {"model": Job, "description": "Submitted before with this Idempotency-Key"}
}
EXAMPLES: dict[str, Any] = {
    "one_gpu": {
        "summary": "One GPU",
        "value": {"name": "hello", "command": ["nvidia-smi"], "gpus": {"gpus_per_host": 1}},
    },
    "gang": {
        "summary": "A gang of 16 GPUs on two hosts, one rank per GPU",
        "value": {
            "name": "train",
            "command": ["python", "train.py", "--epochs", "3"],
            "workdir": "/srv/experiment",
            "env": {"NCCL_DEBUG": "WARN"},
            "gpus": {"hosts": 2, "gpus_per_host": 8, "model": "H100", "memory_mib": 65536},
            "rank_per": "gpu",
            "time_limit_s": 7200,
            "max_retries": 1,
        },
    },
}


@router.post("", status_code=201, responses=_AGAIN)
async def submit_job(
    spec: Annotated[JobSpec, Body(openapi_examples=EXAMPLES), exactly(JobSpec)],
    context: ServiceContextDep,
    access: AccessDep,
    response: Response,
    idempotency_key: IdempotencyHeader = None,
) -> Job:
    """Submit a job. Once this has answered, the job is stored durably: it will run, or say why it cannot."""
    context.rate_limits.check_releases(owner_of(access.who))
    spec, said = await run_in_threadpool(accepted, context.settings, context.store, access, spec)
    key = None if idempotency_key is None else jobs.IdempotencyKey(idempotency_key, access.who.id, said)
    job, created = await submission.submit(context, spec, access.actor, key)
    return await _made(context, access, response, job, created=created)


@router.get("")
def list_jobs(
    context: ServiceContextDep,
    access: AccessDep,
    filters: JobFiltersDep,
    state: Annotated[list[JobState] | None, Query(description="Only these states; may be repeated")] = None,
    array: Annotated[
        str | None,
        Query(max_length=64, description="Only elements of this array, by index; without it, elements are left out"),
    ] = None,
    cursor: KeyCursor = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
) -> Page[Job]:
    """Jobs, newest first. Elements of arrays are listed by array."""
    if array is not None:
        filters.check_empty()
        found, next_cursor = jobs.list_elements(
            context.store, array, states=state, cursor=cursor, limit=limit, visible=access.namespaces
        )
    else:
        found, next_cursor = jobs.list_jobs(
            context.store,
            states=state,
            cursor=cursor,
            limit=limit,
            visible=access.namespaces,
            **filters.arguments(),
        )
    shown = Mask(context.store, access).jobs(found)
    return Page(items=[context.with_workflow_url(job) for job in shown], next_cursor=next_cursor)


@router.get("/{job_id}")
async def get_job(
    job_id: JobId,
    context: ServiceContextDep,
    access: AccessDep,
    wait_s: Annotated[
        float,
        Query(ge=0, le=60, description="Wait with the answer until the job has ended, but at most so many seconds"),
    ] = 0.0,
) -> Job:
    """One job: what was asked, its state, where it runs, or why it waits."""
    return await _shown(context, access, await _ended(context, job_id, wait_s))


@router.post("/{job_id}/cancel", status_code=202)
async def cancel_job(job_id: JobId, context: ServiceContextDep, access: AccessDep, body: ReasonBodyDep = None) -> Job:
    """Stop the job with SIGTERM, its grace, SIGKILL. It ends CANCELLED."""
    return await _interrupt(context, job_id, "cancel", access, body)


@router.post("/{job_id}/kill", status_code=202)
async def kill_job(job_id: JobId, context: ServiceContextDep, access: AccessDep, body: ReasonBodyDep = None) -> Job:
    """Stop the job with SIGKILL at once. It ends CANCELLED."""
    return await _interrupt(context, job_id, "kill", access, body)


@router.post("/{job_id}/preempt", status_code=202)
async def preempt_job(job_id: JobId, context: ServiceContextDep, access: AccessDep, body: ReasonBodyDep = None) -> Job:
    """Stop a job that holds GPUs, with SIGTERM and its grace to write a checkpoint, and queue it again."""
    return await _interrupt(context, job_id, "preempt", access, body)


@router.post("/{job_id}/retry", status_code=201, responses=_AGAIN)
async def retry_job(
    job_id: JobId,
    context: ServiceContextDep,
    access: AccessDep,
    response: Response,
    idempotency_key: IdempotencyHeader = None,
) -> Job:
    """Submit a new job with the specification of one that has ended, also with the values of its environment. It
    belongs to the same user and namespace, and `retry_of` names the first one."""
    context.rate_limits.check_releases(owner_of(access.who))
    spec = await run_in_threadpool(retries.repetition, context, access, job_id)
    key = retries.key_of(access, job_id, idempotency_key)
    job, created = await submission.submit(context, spec, access.actor, key, retry_of=job_id)
    return await _made(context, access, response, job, created=created)


@router.patch("/{job_id}")
async def change_job(
    job_id: JobId,
    wanted: Annotated[JobChanges, Body(), exactly(JobChanges)],
    context: ServiceContextDep,
    access: AccessDep,
) -> Job:
    """Change the priority, the time limit, or the dependencies of a job that waits. What is left out stays."""
    return await _shown(context, access, await changes.change(context, access, job_id, wanted))


@router.post("/{job_id}/hold")
async def hold_job(job_id: JobId, context: ServiceContextDep, access: AccessDep, body: ReasonBodyDep = None) -> Job:
    """Keep a job that waits from starting until it is released. If an operator holds it, only operators release it."""
    await holds.hold(context, access, job_id, body.reason if body else "")
    return await _shown(context, access, await _ended(context, job_id, 0.0))


@router.post("/{job_id}/release")
async def release_job(job_id: JobId, context: ServiceContextDep, access: AccessDep) -> Job:
    """End a hold, also that of a job whose dependency can never be met. Its place in the queue counts from now on."""
    await holds.release(context, access, job_id)
    return await _shown(context, access, await _ended(context, job_id, 0.0))


async def _made(context: ServiceContext, access: Access, response: Response, job: Job, *, created: bool) -> Job:
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    if not created:
        response.status_code = 200
    return await _shown(context, access, job)


async def _shown(context: ServiceContext, access: Access, job: Job) -> Job:
    """The job as the one who asks may see it, with warnings."""
    shown = context.with_workflow_url(await run_in_threadpool(_masked, context, access, job))
    if job.state.is_terminal:
        return shown
    found = await run_in_threadpool(_warnings, context, job.spec)
    silence = context.leader.silence
    if silence is not None and silence.nothing_is_placed and not job.state.holds_gpus:
        found = [silence.message, *found]
    return shown.model_copy(update={"warnings": found}) if found else shown


def _warnings(context: ServiceContext, spec: JobSpec) -> list[str]:
    return warnings_of(context.store, spec) if may_need_warnings(spec) else window_warnings(context.store, spec)


def _masked(context: ServiceContext, access: Access, job: Job) -> Job:
    if not job.state.is_terminal:
        expected = shared_run_times(context.store).expect(traits_of(job.spec))
        job = job.model_copy(update={"run_time": expected})
    return Mask(context.store, access).job(job)


async def _interrupt(
    context: ServiceContext, job_id: str, verb: submission.Verb, access: Access, body: ReasonBody | None
) -> Job:
    job = await submission.interrupt(context, job_id, verb, access.actor, body.reason if body else "")
    if job.state.holds_gpus and job.spec.gpu_count:
        context.rate_limits.note_release(owner_of(access.who))
    return context.with_workflow_url(await run_in_threadpool(Mask(context.store, access).job, job))


async def _ended(context: ServiceContext, job_id: str, wait_s: float) -> Job:
    def look() -> Job:
        return jobs.get_job(context.store, job_id)

    return await until_ended(context, job_id, look, wait_s)


async def until_ended(context: ServiceContext, watched: str, look: Callable[[], E], wait_s: float) -> E:
    """What ``look`` finds once it has ended, or after ``wait_s`` seconds. ``watched``: the id of its job or array."""
    deadline = time.monotonic() + wait_s
    with context.feed.watching(watched) as news:
        while True:
            news.clear()
            found = await run_in_threadpool(look)
            left = deadline - time.monotonic()
            if found.state.is_terminal or left <= 0 or context.feed.closed:
                return found
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await news.wait()
