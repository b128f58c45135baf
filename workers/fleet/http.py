"""One HTTP server for all hosts of a fleet. Each host has a port of its own, as if it were a machine of its own."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from workers.node.http import USER

_ADDRESS = "127.0.0.1"
_BACKLOG = 16


class FleetHttp:
    """Answers for hosts. The application of a host is made when somebody asks it for the first time."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self._makers: dict[int, Callable[[], ASGIApp]] = {}
        self._apps: dict[int, ASGIApp] = {}

    def add_host(self) -> HostPort:
        """Open a port for one host."""
        opened = socket.create_server((_ADDRESS, 0), backlog=_BACKLOG)
        # asyncio sets it only on sockets that it made itself. Without it every answer waits 40 ms for an ACK.
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sockets.append(opened)
        return HostPort(self, opened.getsockname()[1])

    def connect(self, port: int, make: Callable[[], ASGIApp] | None) -> None:
        """Let ``make`` make what answers at this port. None: the host is off, and nothing answers."""
        self._apps.pop(port, None)
        self._makers.pop(port, None)
        if make is not None:
            self._makers[port] = make

    async def run(self) -> None:
        """Serve until cancelled."""
        config = uvicorn.Config(
            self._answer,
            interface="asgi3",
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        try:
            await server._serve(sockets=self._sockets)
        finally:
            for listening in getattr(server, "servers", []):
                listening.close()
            for one in self._sockets:
                one.close()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        port = scope["server"][1]
        app = self._apps.get(port)
        if app is None:
            make = self._makers.get(port)
            if make is None:
                await send({"type": "http.response.start", "status": 503, "headers": [(b"connection", b"close")]})
                await send({"type": "http.response.body", "body": b"this host of the fleet is off"})
                return
            app = self._apps[port] = make()
        await app(scope, receive, send)


class HostPort:
    """The port of one host, and the password that the service shows there."""

    def __init__(self, http: FleetHttp, port: int) -> None:
        self._http = http
        self._port = port
        self.token = secrets.token_hex(24)

    @property
    def url(self) -> str:
        """The URL for the service. It has the password, and is a secret."""
        return f"http://{USER}:{self.token}@{_ADDRESS}:{self._port}"

    def answer_with(self, make: Callable[[], ASGIApp] | None) -> None:
        """See :meth:`FleetHttp.connect`."""
        self._http.connect(self._port, make)
