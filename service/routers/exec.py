"""Commands beside a rank, and ways to its ports: start one, read its output, give it input, come back to it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Path, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from gpu_platform.client.wire import Page
from gpu_platform.domain.jobs.exec import ExecAttached, ExecInfo, ExecReceived, ExecRequest, ExecSession
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
Attachment = Annotated[
    int, Query(ge=0, lt=2**60, description="From the answer to `attach`; 0: that of the client that started it")
]
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
    """Run a command where a rank runs: in its cgroup and namespaces, as its user, with its environment and GPUs. Or, if
    the request names a port, make a way to it.

    It ends when its rank ends, or when nobody has read its output for `unread_s`. The event log says who ran what, and
    nobody else reads its output.
    """
    session = await service_exec.start(context, job_id, request, access.actor, access.user)
    await run_in_threadpool(sessions.add_session, context.store, session.id, job_id, access.who.id, now())
    return session


@router.get("")
async def list_commands(
    job_id: JobId,
    context: ServiceContextDep,
    access: AccessDep,
    rank: Annotated[int, Query(ge=0, lt=2**31)] = 0,
    _: BreakGlass = None,
) -> Page[ExecInfo]:
    """The sessions beside a rank that you started, oldest first. All are on one page."""
    ids = await run_in_threadpool(sessions.sessions_of, context.store, job_id, access.who.id)
    return Page(items=await service_exec.of_rank(context, job_id, rank, ids))


@router.post("/{session_id}/attach")
async def attach_to_command(
    job_id: JobId,
    session_id: SessionId,
    context: ServiceContextDep,
    access: AccessDep,
    rows: Size = 24,
    columns: Size = 80,
) -> ExecAttached:
    """Go on with a session from this client: its last screenful of output, and its input. Whoever had it before is
    told, and has it no more."""
    return await service_exec.attach(context, job_id, session_id, rows, columns, access.actor)


@router.post("/{session_id}/connections", status_code=201)
async def open_connection(
    job_id: JobId, session_id: SessionId, context: ServiceContextDep, access: AccessDep
) -> ExecSession:
    """Open a connection on a way to a port. It is read, written and ended as a command is; `eof` closes one half.

    409 `port_closed` if no program of the job listens there.
    """
    connection = await service_exec.connect(context, job_id, session_id)
    await run_in_threadpool(sessions.add_session, context.store, connection.id, job_id, access.who.id, now())
    return connection


@router.get("/{session_id}", response_class=Response, responses={200: {"content": _SSE}})
async def read_output(
    job_id: JobId,
    session_id: SessionId,
    context: ServiceContextDep,
    offset: Offset = 0,
    attachment: Attachment = 0,
    last_event_id: LastEventId = None,
) -> Response:
    """The output of the command as server-sent ExecChunks, and how it ends. `id` is the offset to continue from."""
    begin = resume_seq(last_event_id, offset) or 0
    return stream(await service_exec.follow(context, job_id, session_id, begin, attachment))


@router.post("/{session_id}/input", openapi_extra=_INPUT)
async def give_input(
    job_id: JobId,
    session_id: SessionId,
    request: Request,
    context: ServiceContextDep,
    offset: Offset = 0,
    eof: Annotated[bool, Query(description="This is the end of the input")] = False,
    attachment: Attachment = 0,
) -> ExecReceived:
    """Send bytes to its stdin. `offset` says where they begin in the whole input. May be repeated; continue at
    `received`."""
    return await service_exec.give_input(context, job_id, session_id, offset, await request.body(), eof, attachment)


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
