"""Commands beside a rank: start one, read its output, give it input."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Path, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from gpu_platform.domain.jobs.exec import ExecReceived, ExecRequest, ExecSession
from gpu_platform.store.access import sessions
from service import streams
from service.context import AccessDep, ServiceContextDep, now
from service.http.exact_types import exactly
from service.operations import exec as service_exec
from service.routers.jobs import JobId
from service.routers.streams import BreakGlass, LastEventId
from service.streams import resume_seq, stream

router = APIRouter(prefix="/v1/jobs/{job_id}/exec", tags=["commands beside a rank"])

SessionId = Annotated[
    str, Path(description="The session's id, from the answer to the start", pattern=service_exec.SESSION_ID)
]
Offset = Annotated[int, Query(ge=0, lt=2**60, description="In bytes")]
Size = Annotated[int, Query(ge=1, le=10_000)]
_SSE = streams.DESCRIBED
_INPUT = {"requestBody": {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}}


@router.post("", status_code=201)
async def start_command(
    job_id: JobId,
    request: Annotated[ExecRequest, Body(), exactly(ExecRequest)],
    context: ServiceContextDep,
    access: AccessDep,
    _: BreakGlass = None,
) -> ExecSession:
    """Run a command where a rank runs: in its cgroup and namespaces, as its user, with its environment and GPUs.

    It ends when its rank ends, or when nobody has read its output for 30 s. The event log says who ran what, and
    nobody else reads its output.
    """
    session = await service_exec.start(context, job_id, request, access.actor)
    await run_in_threadpool(sessions.add_session, context.store, session.id, job_id, access.who.id, now())
    return session


@router.get("/{session_id}", response_class=Response, responses={200: {"content": _SSE}})
async def read_output(
    job_id: JobId,
    session_id: SessionId,
    context: ServiceContextDep,
    offset: Offset = 0,
    last_event_id: LastEventId = None,
) -> Response:
    """The output of the command as server-sent ExecChunks, and how it ends. `id` is the offset to continue from."""
    return stream(await service_exec.follow(context, job_id, session_id, resume_seq(last_event_id, offset) or 0))


@router.post("/{session_id}/input", openapi_extra=_INPUT)
async def give_input(
    job_id: JobId,
    session_id: SessionId,
    request: Request,
    context: ServiceContextDep,
    offset: Offset = 0,
    eof: Annotated[bool, Query(description="This is the end of the input")] = False,
) -> ExecReceived:
    """Send bytes to its stdin. `offset` says where they begin in the whole input. May be repeated; continue at
    `received`."""
    return await service_exec.give_input(context, job_id, session_id, offset, await request.body(), eof)


@router.post("/{session_id}/size", status_code=204)
async def resize_terminal(
    job_id: JobId, session_id: SessionId, context: ServiceContextDep, rows: Size, columns: Size
) -> None:
    """Set the size of the command's terminal."""
    await service_exec.resize(context, job_id, session_id, rows, columns)


@router.delete("/{session_id}", status_code=204)
async def end_command(job_id: JobId, session_id: SessionId, context: ServiceContextDep) -> None:
    """Kill the command with SIGKILL."""
    await service_exec.stop(context, job_id, session_id)
