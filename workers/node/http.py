"""The node worker's HTTP server: logs of its ranks, commands beside them, and its metrics.

It is for the service. With TLS the client must show the service's certificate; other hosts' certificates are good for
one question, that for votes, and a scraper's for ``/metrics``. Without TLS, on the loopback, every route needs a token,
except ``/metrics`` and the route for votes. The node worker makes the token at its start and reports it to the service,
as the password in ``url``. A job on this host can reach all its ports, but without the token it cannot read
another job's output or run a command in its place.
"""

from __future__ import annotations

import base64
import errno
import hmac
import secrets
import socket
import time
from collections.abc import Callable, Sequence

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gpu_platform.client.wire import PROBLEM_JSON, Problem
from gpu_platform.domain.errors import PlatformError
from gpu_platform.identity import names
from gpu_platform.identity.certificates import Peer, TlsContexts
from gpu_platform.identity.revocation import Revoked, is_revoked
from gpu_platform.node.node_worker import NodeWorker
from gpu_platform.node.processes.exec_sessions import ExecSessions
from gpu_platform.observability import get_logger
from gpu_platform.settings import NodeSettings, TlsSettings
from service.http.connections import connections_of
from service.http.machines import peer_of
from service.server import cannot_listen, check_address
from workers.node.checkpoints import checkpoint_routes
from workers.node.exec import exec_routes
from workers.node.logs import log_routes
from workers.node.peer_votes import VOTES_PATH

USER = "service"
METRICS_PATH = "/metrics"

log = get_logger(__name__)


def node_app(
    worker: NodeWorker,
    token: str | None,
    sessions: ExecSessions | None = None,
    more: Sequence[Route] = (),
    *,
    open_metrics: bool = False,
    revoked: Callable[[], Revoked] = dict,
) -> Starlette:
    """The HTTP application of a node worker. ``more``: routes besides those of logs, commands and metrics.

    ``token``: None if clients show certificates. Then ``open_metrics`` lets everybody read ``/metrics``, and
    ``revoked`` says whose certificates are not believed.
    """

    def metrics(request: Request) -> Response:  # in a thread: it asks the SDK, and must not hold up a heartbeat
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    async def clock(request: Request) -> Response:
        return JSONResponse({"now": time.time()})

    routes = [
        *log_routes(worker),
        Route(METRICS_PATH, metrics),
        Route("/clock", clock),
        *more,
        *checkpoint_routes(worker),
    ]
    if sessions is not None:
        routes += exec_routes(sessions, worker.host)
    if token is None:
        check = Middleware(CertificateCheck, open_metrics=open_metrics, revoked=revoked)
    else:
        check = Middleware(TokenCheck, token=token, open_paths=[METRICS_PATH, VOTES_PATH])
    return Starlette(
        routes=routes,
        middleware=[check],
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


class CertificateCheck:
    """Lets the service's certificate ask everything, another host's only for votes, a scraper's for metrics."""

    def __init__(self, app: ASGIApp, open_metrics: bool, revoked: Callable[[], Revoked]) -> None:
        self._app = app
        self._open_metrics = open_metrics
        self._revoked = revoked

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection, as ASGI defines it."""
        if scope["type"] == "http" and not self._may(peer_of(scope), scope["path"]):
            return await PlainTextResponse("only for the service", status_code=403)(scope, receive, send)
        return await self._app(scope, receive, send)

    def _may(self, shown: Peer | None, path: str) -> bool:
        peer = None if shown is None or is_revoked(shown, self._revoked()) else shown.path
        if path == METRICS_PATH and (self._open_metrics or peer == names.SCRAPER):
            return True
        if path == VOTES_PATH and names.host_of(peer) is not None:
            return True
        return peer == names.SERVICE


def _listen(node: NodeSettings) -> socket.socket:
    """A socket at the configured port. If that is taken, at a free one, unless a proxy leads to it."""
    try:
        return socket.create_server((node.address, node.port), backlog=128)
    except OSError as error:
        if node.port == 0 or node.advertised_url is not None or error.errno != errno.EADDRINUSE:
            raise cannot_listen("node", "port", node.address, node.port, error) from error
        opened = socket.create_server((node.address, 0), backlog=128)
        log.warning("node.port_taken", wanted=node.port, port=opened.getsockname()[1])
        return opened


async def _problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, PlatformError)
    body = Problem.of(error).model_dump_json(exclude_none=True)
    return Response(body, status_code=error.http_status, media_type=PROBLEM_JSON)


class NodeHttp:
    """The HTTP server of a node worker. It binds at construction, so that the address is known before the first
    report."""

    def __init__(
        self,
        worker: NodeWorker,
        sessions: ExecSessions,
        node: NodeSettings,
        more: Sequence[Route] = (),
        tls: TlsSettings | None = None,
        contexts: TlsContexts | None = None,
        revoked: Callable[[], Revoked] = dict,
    ) -> None:
        """``contexts``: this host's certificate. None: plain HTTP. ``revoked``: see :func:`node_app`.

        Raises :class:`CannotStart` if the address is not for plain HTTP, not of this machine, or in use.
        """
        check_address(node.address, "node", tls=contexts is not None, insecure=node.insecure_http)
        tls = tls or TlsSettings()
        self._socket = _listen(node)
        # asyncio sets it only on sockets that it made itself. Without it every answer waits 40 ms for an ACK.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        token = secrets.token_hex(24) if contexts is None else None
        scheme = "http" if contexts is None else "https"
        self.public_url = node.advertised_url or f"{scheme}://{node.address}:{self._socket.getsockname()[1]}"
        self.url = self.public_url if token is None else self.public_url.replace("://", f"://{USER}:{token}@", 1)
        """The URL for the service. Without TLS it has the password, and is a secret."""
        self._server = uvicorn.Server(
            uvicorn.Config(
                node_app(worker, token, sessions, more, open_metrics=tls.metrics == "open", revoked=revoked),
                http=connections_of(tls.trust_domain, contexts),
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=1,
            )
        )

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            await self._server._serve(sockets=[self._socket])
        finally:
            for listening in getattr(self._server, "servers", []):
                listening.close()
            self._socket.close()
