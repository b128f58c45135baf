"""Commands beside a rank, and ways to its ports: sends requests to the node worker of the rank's host, and writes the
event log.

The service keeps nothing: a session lives on its host, and its address (job, attempt, rank, id) is all that a
request needs, whichever service answers it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import httpx
from pydantic import TypeAdapter, ValidationError
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from gpu_platform.client.wire import problem_of_response
from gpu_platform.domain.errors import HostUnavailable, IllegalTransition, InvalidRequest, PlatformError
from gpu_platform.domain.jobs.exec import (
    ExecAttached,
    ExecChunk,
    ExecInfo,
    ExecReceived,
    ExecRequest,
    ExecSession,
)
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.states import JobState
from gpu_platform.store.database import writing
from gpu_platform.store.events import append_event
from gpu_platform.store.jobs import jobs
from service import node_workers
from service.context import ServiceContext, now
from service.node_workers import NodeWorkers
from service.operations import logs
from service.streams import end, message

_SILENCE = httpx.Timeout(10.0, connect=2.0, read=20.0)
"""Timeouts. The node worker sends something every 5 s while a command writes nothing."""
_PART_BYTES = 512 * 1024
"""The most that is asked of a host at once. It sends less of a connection."""
_SESSION = TypeAdapter(ExecSession)
_RECEIVED = TypeAdapter(ExecReceived)
_ATTACHED = TypeAdapter(ExecAttached)
_SESSIONS = TypeAdapter(list[ExecInfo])
SESSION_ID = r"^([0-9]{1,9})\.([0-9]{1,9})\.([0-9a-f]{32})$"
"""A session's id: the attempt, the rank, and the id that its host gave."""
_SHOWN_ARGUMENTS = 64
_SHOWN_CHARACTERS = 1000


async def start(context: ServiceContext, job_id: str, request: ExecRequest, actor: str, user: str) -> ExecSession:
    """Start a command, or make a way to a port. ``user``: who asks, for his share of the host's sessions.

    Raises :class:`IllegalTransition` if the job does not run, and the errors of the host.
    """
    job = await run_in_threadpool(jobs.get_job, context.store, job_id)
    logs.check_rank(job, request.rank)
    if job.state is not JobState.RUNNING:
        raise _not_running(job)
    rank_host = await _ExecHost.of(context, job, job.attempt, request.rank)
    # Record it first, then run it: so no command runs without a record.
    await run_in_threadpool(_record, context.store, job, rank_host.host, request, actor, now())
    try:
        who = {"by": user, "operator": int(user != job.spec.user)}
        answer = await rank_host.ask("POST", content=request.model_dump_json(), params=who)
    except PlatformError as error:
        await run_in_threadpool(_record, context.store, job, rank_host.host, request, actor, now(), error.message)
        raise
    return _public(node_workers.parsed(_SESSION, answer, rank_host.host))


async def of_rank(context: ServiceContext, job_id: str, rank: int, ids: set[str]) -> list[ExecInfo]:
    """The sessions beside a rank of the current attempt that have one of these ids, oldest first. Empty if the job
    does not run."""
    job = await run_in_threadpool(jobs.get_job, context.store, job_id)
    logs.check_rank(job, rank)
    if job.state is not JobState.RUNNING:
        return []
    rank_host = await _ExecHost.of(context, job, job.attempt, rank)
    found = node_workers.parsed(_SESSIONS, await rank_host.ask("GET"), rank_host.host)
    shown = [one.model_copy(update={"session": _public(one.session)}) for one in found]
    return [one for one in shown if one.session.id in ids and one.session.job_id == job_id]


async def attach(
    context: ServiceContext, job_id: str, session_id: str, rows: int, columns: int, actor: str
) -> ExecAttached:
    """Give a session to the client that asks, and its terminal this size. The one that had it before is told."""
    rank_host = await _ExecHost.of_session(context, job_id, session_id)
    answer = await rank_host.ask("POST", "/attachments", params={"lines": rows, "by": actor})
    attached = node_workers.parsed(_ATTACHED, answer, rank_host.host)
    await rank_host.ask("POST", "/size", params={"rows": rows, "columns": columns})
    return attached.model_copy(update={"session": _public(attached.session)})


async def connect(context: ServiceContext, job_id: str, session_id: str) -> ExecSession:
    """Open a connection on a way to a port. Raises :class:`PortClosed`, and the errors of the host."""
    rank_host = await _ExecHost.of_session(context, job_id, session_id)
    answer = await rank_host.ask("POST", "/connections")
    return _public(node_workers.parsed(_SESSION, answer, rank_host.host))


async def follow(
    context: ServiceContext, job_id: str, session_id: str, offset: int, attachment: int
) -> AsyncGenerator[bytes, None]:
    """Server-sent :class:`ExecChunk`s. The id of each says where the next begins. The last one is the end.

    Raises :class:`NotFound` before the first one if there is no such job or rank.
    """
    return _chunks(context, await _ExecHost.of_session(context, job_id, session_id), offset, attachment)


async def _chunks(
    context: ServiceContext, rank_host: _ExecHost, offset: int, attachment: int
) -> AsyncGenerator[bytes, None]:
    """Asks the host for a part, passes it on, and asks for the next one. So what is on its way here when the client's
    connection or its token ends is still kept on the host, however slow the client reads."""
    while True:
        began = offset
        async with rank_host.stream(offset, attachment) as lines:
            async for line in lines:
                if context.feed.closed:
                    return
                if line:
                    try:
                        chunk = ExecChunk.model_validate_json(line)
                    except ValidationError:
                        return  # the host sends something else: for the client the stream has broken off
                    yield message(chunk.model_dump_json(exclude_none=True), str(chunk.next_offset))
                    if chunk.stream in ("exit", "detached"):
                        yield end()
                        return
                    offset = chunk.next_offset
        if offset <= began:
            return


async def give_input(
    context: ServiceContext, job_id: str, session_id: str, offset: int, data: bytes, eof: bool, attachment: int
) -> ExecReceived:
    """Send input to the command; ``offset`` says where it begins in the whole input. Returns how much the command
    has got."""
    rank_host = await _ExecHost.of_session(context, job_id, session_id)
    params = {"offset": offset, "eof": str(eof).lower(), "attachment": attachment}
    answer = await rank_host.ask("POST", "/input", params=params, content=data)
    return node_workers.parsed(_RECEIVED, answer, rank_host.host)


async def resize(context: ServiceContext, job_id: str, session_id: str, rows: int, columns: int) -> None:
    """Set the size of the command's terminal."""
    rank_host = await _ExecHost.of_session(context, job_id, session_id)
    await rank_host.ask("POST", "/size", params={"rows": rows, "columns": columns})


async def stop(context: ServiceContext, job_id: str, session_id: str) -> None:
    """Kill the command."""
    rank_host = await _ExecHost.of_session(context, job_id, session_id)
    await rank_host.ask("DELETE")


@writing
def _record(
    session: Session, job: Job, host: str, request: ExecRequest, actor: str, at: datetime, failure: str | None = None
) -> None:
    data: dict[str, Any] = {"rank": request.rank}
    if request.port is None:
        kind = "job.exec"
        data["command"] = [argument[:_SHOWN_CHARACTERS] for argument in request.command[:_SHOWN_ARGUMENTS]]
        data["tty"] = request.tty
    else:
        kind = "job.forward"
        data["port"] = request.port
    if failure is not None:
        kind += "_failed"
        data["failure"] = failure
    append_event(session, kind, actor, at, job_id=job.id, attempt=job.attempt, host=host, data=data)


def _public(session: ExecSession) -> ExecSession:
    """The session with the id under which clients know it."""
    return session.model_copy(update={"id": f"{session.attempt}.{session.rank}.{session.id}"})


def _not_running(job: Job) -> IllegalTransition:
    why = "it has ended" if job.state.is_terminal else "try again once it is RUNNING"
    return IllegalTransition(
        subject=f"job {job.id}",
        current=job.state.value,
        wanted="entered",
        allowed=[],
        message=f"job {job.id} is {job.state}, so no rank of it runs that a command could join: {why}",
    )


class _ExecHost:
    """The node worker of one rank's host."""

    def __init__(self, node_workers: NodeWorkers, host: str, path: str) -> None:
        self._node_workers = node_workers
        self.host = host
        self._path = path

    @classmethod
    async def of(cls, context: ServiceContext, job: Job, attempt: int, rank: int, session: str = "") -> _ExecHost:
        host = await run_in_threadpool(logs.host_of, context, job, attempt, rank)
        path = f"/exec/{job.id}/{attempt}/{rank}" + (f"/{session}" if session else "")
        return cls(context.node_workers, host, path)

    @classmethod
    async def of_session(cls, context: ServiceContext, job_id: str, session_id: str) -> _ExecHost:
        attempt, rank, name = _parse(session_id)
        job = await run_in_threadpool(jobs.get_job, context.store, job_id)
        logs.check_rank(job, rank)
        return await cls.of(context, job, attempt, rank, name)

    async def ask(self, method: str, below: str = "", **options: Any) -> httpx.Response:
        try:
            path = self._path + below
            answer = await self._node_workers.ask(self.host, method, path, timeout=_SILENCE, **options)
        except httpx.TransportError as error:
            raise self._away() from error
        if not answer.is_success:
            raise problem_of_response(answer.status_code, answer.headers, answer.content).error()
        return answer

    @asynccontextmanager
    async def stream(self, offset: int, attachment: int) -> AsyncIterator[AsyncIterator[bytes]]:
        params = {"offset": offset, "attachment": attachment, "most": _PART_BYTES}
        try:
            asked = self._node_workers.stream(self.host, "GET", self._path, params=params, timeout=_SILENCE)
            async with asked as answer:
                if not answer.is_success:
                    failed = await node_workers.whole(answer, self.host)
                    raise problem_of_response(failed.status_code, failed.headers, failed.content).error()
                yield node_workers.lines(answer, self.host)
        except httpx.TransportError as error:
            raise self._away() from error

    def _away(self) -> HostUnavailable:
        return HostUnavailable(f"the command runs on host {self.host}, which does not answer", host=self.host)


def _parse(session_id: str) -> tuple[int, int, str]:
    if found := re.match(SESSION_ID, session_id):
        return int(found[1]), int(found[2]), found[3]
    raise InvalidRequest(f"{session_id[:80]!r} is not the id of a command beside a rank")
