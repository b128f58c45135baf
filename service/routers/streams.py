"""Events and logs: as one answer, or followed as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response
from pydantic import WithJsonSchema
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from gpu_platform.client.calls import BREAK_GLASS_HEADER
from gpu_platform.client.wire import Page
from gpu_platform.domain.events import Event
from gpu_platform.store import events
from gpu_platform.store.jobs import jobs
from service import streams
from service.access.gate import Access
from service.access.masking import Mask
from service.context import AccessDep, ServiceContext, ServiceContextDep
from service.operations import logs
from service.routers.jobs import JobId
from service.streams import end, message, resume_seq, stream

router = APIRouter(tags=["events and logs"])

_RESUME = "Continue after this event; browsers send this header by themselves"
LastEventId = Annotated[
    str | None,
    WithJsonSchema({"type": "string", "pattern": r"^([0-9]{1,18})?$", "description": _RESUME}),
    Header(description=_RESUME),
]
LastPosition = Annotated[
    str | None,
    WithJsonSchema({"type": "string", "pattern": r"^([0-9]{1,18}\.[0-9]{1,18})?$", "description": _RESUME}),
    Header(description=_RESUME),
]
"""Of logs: attempt and offset."""
BreakGlass = Annotated[
    str | None,
    Header(alias=BREAK_GLASS_HEADER, description="Why an operator enters a job of somebody else; it is recorded"),
]
After = Annotated[int | None, Query(ge=0, lt=2**63, description="Only events with a higher sequence number")]
Limit = Annotated[int, Query(ge=1, le=1000)]
_SSE = streams.DESCRIBED


@router.get("/v1/events", response_model=Page[Event], responses={200: {"content": _SSE}})
async def read_events(
    context: ServiceContextDep,
    access: AccessDep,
    after: After = None,
    follow: Annotated[bool, Query(description="false: one page of the event log as JSON")] = True,
    limit: Limit = 1000,
    last_event_id: LastEventId = None,
) -> Response | Page[Event]:
    """All events, as server-sent events: from now on, or after the number `after`. `id` is the sequence number.

    410 `events_gone`: events after that number are so old that they were removed.
    """
    start = resume_seq(last_event_id, after)
    if start is not None:
        await run_in_threadpool(events.check_kept, context.store, start)
    if not follow:
        return await _page(context, access, start or 0, limit, None)
    return stream(_follow(context, access, await context.feed.last_seq() if start is None else start, None))


@router.get("/v1/jobs/{job_id}/events", response_model=Page[Event], responses={200: {"content": _SSE}})
async def read_job_events(
    job_id: JobId,
    context: ServiceContextDep,
    access: AccessDep,
    after: After = None,
    follow: Annotated[bool, Query(description="Server-sent events until the job has ended")] = False,
    limit: Limit = 1000,
    last_event_id: LastEventId = None,
) -> Response | Page[Event]:
    """The job's events, oldest first: its timeline and event log."""
    await run_in_threadpool(jobs.get_job, context.store, job_id)
    start = resume_seq(last_event_id, after) or 0
    if not follow:
        return await _page(context, access, start, limit, job_id)
    return stream(_follow(context, access, start, job_id))


@router.get(
    "/v1/jobs/{job_id}/logs",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}, **_SSE}, "description": "The output"}},
)
async def read_logs(
    job_id: JobId,
    context: ServiceContextDep,
    rank: Annotated[int, Query(ge=0)] = 0,
    attempt: Annotated[int | None, Query(ge=1, description="Default: the last one; when following, all")] = None,
    follow: Annotated[bool, Query(description="Server-sent LogChunks until the job has ended")] = False,
    last_event_id: LastPosition = None,
    _: BreakGlass = None,
) -> Response:
    """The output of one rank, stdout and stderr."""
    job = await run_in_threadpool(jobs.get_job, context.store, job_id)
    logs.check_rank(job, rank)
    start = logs.LogPosition.parse(last_event_id) if last_event_id else None
    if follow:
        return stream(logs.follow_log(context, job, rank, attempt, start))
    return StreamingResponse(await logs.whole_log(context, job, rank, attempt), media_type="text/plain; charset=utf-8")


async def _page(context: ServiceContext, access: Access, after: int, limit: int, job_id: str | None) -> Page[Event]:
    found = await run_in_threadpool(events.read_events, context.store, after, limit, job_id, access.namespaces)
    shown = await run_in_threadpool(Mask(context.store, access).events, found)
    return Page(items=shown, next_cursor=str(found[-1].seq) if len(found) == limit else None)


async def _follow(
    context: ServiceContext, access: Access, after: int, job_id: str | None
) -> AsyncGenerator[bytes, None]:
    mask = Mask(context.store, access)
    async for event in context.feed.follow(after, job_id):
        shown = [event] if access.namespaces is None else await run_in_threadpool(mask.events, [event])
        for one in shown:
            yield message(one.model_dump_json(), str(one.seq))
    if job_id is not None and not context.feed.closed:
        yield end()
