"""The node worker's route for logs: parts of what a rank has written."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import PlatformError
from gpu_platform.node.node_worker import NodeWorker
from gpu_platform.node.processes.logs import LogRead

MAX_CHUNK = 1024 * 1024
"""How many bytes are read at once."""


def log_routes(worker: NodeWorker) -> list[Route]:
    """Routes for the HTTP application of a node worker."""

    async def logs(request: Request) -> Response:
        """``?offset=&limit=`` in bytes. It may end before ``limit``: then ask again.

        Headers: ``X-Log-Offset`` where the answer begins, ``X-Log-Size`` how much was ever written, ``X-Log-Note`` what
        the reader should know.
        """
        try:
            key = AttemptKey(job_id=request.path_params["job"], attempt=int(request.path_params["attempt"]))
            rank = int(request.path_params["rank"])
            offset = max(0, int(request.query_params.get("offset", "0")))
            limit = int(request.query_params.get("limit", str(MAX_CHUNK)))
        except ValueError as error:
            return PlainTextResponse(str(error), status_code=422)
        try:
            found = await run_in_threadpool(worker.read_log, key, rank, offset, min(limit, MAX_CHUNK))
        except FileNotFoundError:
            return PlainTextResponse(f"no log of {key} rank {rank} on {worker.host}", status_code=404)
        headers = {"X-Log-Offset": str(found.offset), "X-Log-Size": str(found.size)}
        if found.note is not None:
            headers["X-Log-Note"] = found.note
        if limit <= MAX_CHUNK:
            return Response(found.data, media_type="application/octet-stream", headers=headers)

        pieces = _pieces(worker, key, rank, found, min(found.size, found.offset + limit))
        return StreamingResponse(pieces, media_type="application/octet-stream", headers=headers)

    return [Route("/logs/{job}/{attempt}/{rank}", logs)]


async def _pieces(
    worker: NodeWorker, key: AttemptKey, rank: int, first: LogRead, end: int
) -> AsyncGenerator[bytes, None]:
    """Yield what there was up to ``end`` when it was asked for. Ends early if the log is removed meanwhile."""
    piece = first
    while piece.data:
        yield piece.data
        at = piece.offset + len(piece.data)
        if at >= end:
            return
        try:
            piece = await run_in_threadpool(worker.read_log, key, rank, at, min(MAX_CHUNK, end - at))
        except (FileNotFoundError, PlatformError):
            return
        if piece.offset != at:
            return
