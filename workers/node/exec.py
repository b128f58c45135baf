"""HTTP routes of the node worker for ``jobs exec`` and ``jobs forward``; see
:mod:`gpu_platform.node.processes.exec_sessions`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.jobs.exec import ExecChunk, ExecReceived, ExecRequest, ExecSession
from gpu_platform.node.processes.byte_session import ByteSession
from gpu_platform.node.processes.exec_sessions import ExecSessions
from service.streams import ClosedStream, close_later

KEEP_ALIVE_S = 5.0


def exec_routes(sessions: ExecSessions, host: str) -> list[Route]:
    """HTTP routes of a node worker for commands beside ranks (``jobs exec``)."""

    def session_of(request: Request) -> ByteSession:
        return sessions.get(_key(request), _number(request.path_params["rank"]), request.path_params["id"])

    async def start(request: Request) -> Response:
        key, rank = _key(request), _number(request.path_params["rank"])
        try:
            wanted = ExecRequest.model_validate_json(await request.body())
        except ValidationError as error:
            raise InvalidRequest(str(error)) from error
        query = request.query_params
        wanted = wanted.model_copy(update={"rank": rank})
        session_id = await sessions.start(key, wanted, query.get("by"), operator=query.get("operator") == "1")
        session = ExecSession(id=session_id, job_id=key.job_id, attempt=key.attempt, rank=rank, host=host)
        return JSONResponse(session.model_dump(), status_code=201)

    async def output(request: Request) -> Response:
        """One :class:`ExecChunk` per line as JSON: from ``?offset=`` on, at most ``?most=`` bytes. Empty lines keep the
        connection alive."""
        query = request.query_params
        most = query.get("most")
        chunks = session_of(request).follow(
            _number(query.get("offset", "0")),
            _number(query.get("attachment", "0")),
            None if most is None else _number(most),
        )
        return ClosedStream(_lines(chunks), media_type="application/x-ndjson")

    async def give_input(request: Request) -> Response:
        query = request.query_params
        received = await session_of(request).write(
            _number(query.get("offset", "0")),
            await request.body(),
            query.get("eof") == "true",
            _number(query.get("attachment", "0")),
        )
        return JSONResponse(ExecReceived(received=received).model_dump())

    async def sessions_of_rank(request: Request) -> Response:
        found = sessions.of_rank(_key(request), _number(request.path_params["rank"]))
        return JSONResponse([one.model_dump() for one in found])

    async def attach(request: Request) -> Response:
        query = request.query_params
        lines = _number(query.get("lines", "24"))
        attached = session_of(request).attach(host, lines, query.get("by"))
        return JSONResponse(attached.model_dump())

    async def connect(request: Request) -> Response:
        key, rank = _key(request), _number(request.path_params["rank"])
        connection_id = await sessions.connect(key, rank, request.path_params["id"])
        session = ExecSession(id=connection_id, job_id=key.job_id, attempt=key.attempt, rank=rank, host=host)
        return JSONResponse(session.model_dump(), status_code=201)

    async def resize(request: Request) -> Response:
        query = request.query_params
        session_of(request).resize(_number(query.get("rows", "24")), _number(query.get("columns", "80")))
        return Response(status_code=204)

    async def end(request: Request) -> Response:
        session_of(request).end("it was ended")
        return Response(status_code=204)

    rank = "/exec/{job}/{attempt}/{rank}"
    return [
        Route(rank, start, methods=["POST"]),
        Route(rank, sessions_of_rank, methods=["GET"]),
        Route(rank + "/{id}", output, methods=["GET"]),
        Route(rank + "/{id}", end, methods=["DELETE"]),
        Route(rank + "/{id}/input", give_input, methods=["POST"]),
        Route(rank + "/{id}/size", resize, methods=["POST"]),
        Route(rank + "/{id}/attachments", attach, methods=["POST"]),
        Route(rank + "/{id}/connections", connect, methods=["POST"]),
    ]


async def _lines(chunks: AsyncGenerator[ExecChunk, None]) -> AsyncGenerator[bytes, None]:
    following = asyncio.ensure_future(anext(chunks, None))
    try:
        while True:
            done, _ = await asyncio.wait({following}, timeout=KEEP_ALIVE_S)
            if not done:
                yield b"\n"
                continue
            chunk = following.result()
            if chunk is None:
                return
            yield chunk.model_dump_json(exclude_none=True).encode() + b"\n"
            following = asyncio.ensure_future(anext(chunks, None))
    finally:
        close_later(following, chunks)


def _key(request: Request) -> AttemptKey:
    return AttemptKey(job_id=request.path_params["job"], attempt=_number(request.path_params["attempt"]))


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InvalidRequest(f"{text[:40]!r} is not a number")
    return int(text)
