"""The node worker's small HTTP side: logs of its ranks, and its metrics. The service reads it."""

from __future__ import annotations

import socket

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gpu_platform.domain.attempt import AttemptKey
from gpu_platform.domain.errors import NotFound
from gpu_platform.hosts.agent import HostAgent

MAX_CHUNK = 1024 * 1024


def node_app(agent: HostAgent) -> Starlette:
    async def logs(request: Request) -> Response:
        """``?offset=&limit=`` in bytes; the header ``X-Log-Size`` is the size of the whole log."""
        try:
            key = AttemptKey(job_id=request.path_params["job"], attempt=int(request.path_params["attempt"]))
            rank = int(request.path_params["rank"])
            offset = max(0, int(request.query_params.get("offset", "0")))
            limit = min(MAX_CHUNK, int(request.query_params.get("limit", str(MAX_CHUNK))))
        except ValueError as error:
            return PlainTextResponse(str(error), status_code=422)
        try:
            data, size = await run_in_threadpool(agent.read_log, key, rank, offset, limit)
        except FileNotFoundError:
            return PlainTextResponse(f"no log of {key} rank {rank} on {agent.host}", status_code=404)
        except NotFound as error:
            return PlainTextResponse(error.message, status_code=404)
        return Response(data, media_type="application/octet-stream", headers={"X-Log-Size": str(size)})

    async def metrics(request: Request) -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    return Starlette(
        routes=[Route("/logs/{job}/{attempt}/{rank}", logs), Route("/metrics", metrics)],
    )


class NodeHttp:
    """Binds at construction, so that the address is known before the first report."""

    def __init__(self, agent: HostAgent, address: str, port: int) -> None:
        self._socket = socket.create_server((address, port), backlog=128)
        # asyncio sets it only on sockets that it made itself; without it every answer waits 40 ms for an ACK.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.url = f"http://{address}:{self._socket.getsockname()[1]}"
        self._server = uvicorn.Server(
            uvicorn.Config(
                node_app(agent), log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1
            )
        )

    async def run(self) -> None:
        await self._server._serve(sockets=[self._socket])
