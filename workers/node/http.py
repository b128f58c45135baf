"""The node worker's HTTP server: logs of its ranks, commands beside them, and its metrics.

It is for the service. Every route needs a token, except ``/metrics`` and the route at which other hosts ask for votes.
The node worker makes the token at its start and reports it to the service, as the password in ``agent_url``. A job on
this host can reach all its ports, but without the token it cannot read another job's output or run a command in its
place.
"""

from __future__ import annotations

import base64
import hmac
import secrets
import socket
from collections.abc import Sequence

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gpu_platform.client.wire import PROBLEM_JSON, Problem
from gpu_platform.domain.errors import PlatformError
from gpu_platform.hosts.agent import HostAgent
from gpu_platform.hosts.processes.exec import ExecSessions
from gpu_platform.settings import NodeSettings
from service.http.connections import TimeLimitedConnection
from workers.node.checkpoints import checkpoint_routes
from workers.node.exec import exec_routes
from workers.node.logs import log_routes
from workers.node.peer_votes import VOTES_PATH

USER = "service"


def node_app(
    agent: HostAgent, token: str, sessions: ExecSessions | None = None, more: Sequence[Route] = ()
) -> Starlette:
    """The HTTP application of a node worker. ``more``: routes besides those of logs, commands and metrics."""

    async def metrics(request: Request) -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    routes = [*log_routes(agent), Route("/metrics", metrics), *more, *checkpoint_routes(agent)]
    if sessions is not None:
        routes += exec_routes(sessions, agent.host)
    return Starlette(
        routes=routes,
        middleware=[Middleware(TokenCheck, token=token, open_paths=["/metrics", VOTES_PATH])],
        exception_handlers={PlatformError: _problem},
    )


class TokenCheck:
    """Basic authentication (RFC 7617) with one user and one password."""

    def __init__(self, app: ASGIApp, token: str, open_paths: Sequence[str]) -> None:
        self._app = app
        self._wanted = b"Basic " + base64.b64encode(f"{USER}:{token}".encode())
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection, as ASGI defines it."""
        if scope["type"] == "http" and scope["path"] not in self._open_paths:
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._wanted):
                return await PlainTextResponse("only for the service", status_code=401)(scope, receive, send)
        return await self._app(scope, receive, send)


async def _problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, PlatformError)
    body = Problem.of(error).model_dump_json(exclude_none=True)
    return Response(body, status_code=error.http_status, media_type=PROBLEM_JSON)


class NodeHttp:
    """The HTTP server of a node worker. It binds at construction, so that the address is known before the first
    report."""

    def __init__(
        self, agent: HostAgent, sessions: ExecSessions, node: NodeSettings, more: Sequence[Route] = ()
    ) -> None:
        self._socket = socket.create_server((node.address, node.agent_port), backlog=128)
        # asyncio sets it only on sockets that it made itself. Without it every answer waits 40 ms for an ACK.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        token = secrets.token_hex(24)
        self.public_url = node.advertised_url or f"http://{node.address}:{self._socket.getsockname()[1]}"
        self.url = self.public_url.replace("://", f"://{USER}:{token}@", 1)
        """The URL with the password, for the service. It is a secret."""
        self._server = uvicorn.Server(
            uvicorn.Config(
                node_app(agent, token, sessions, more),
                http=TimeLimitedConnection,
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=1,
            )
        )

    async def run(self) -> None:
        """Serve until cancelled."""
        await self._server._serve(sockets=[self._socket])
