"""The main loop of the service: uvicorn, with an end that does not wait for streams, and gRPC beside it."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import resource
import socket
from types import FrameType
from typing import Protocol

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpu_platform.client.wire import Problem
from gpu_platform.domain.errors import CannotStart, Unavailable
from gpu_platform.identity.certificates import TlsContexts
from gpu_platform.identity.names import DEFAULT_DOMAIN
from gpu_platform.loop_watch import watch_loop
from gpu_platform.observability import get_logger
from gpu_platform.process_end import bound_stop, why_restart
from service.http import problems
from service.http.connections import connections_of

_ENDS = "this process of the service ends, and did not wait for the answer; ask again"

log = get_logger(__name__)


class Beside(Protocol):
    """A server that begins after the application, and ends before it: gRPC, which is imported only where it is
    served."""

    async def begin(self) -> None:
        """Listen. Raises :class:`CannotStart`."""
        ...

    async def end(self) -> None:
        """Let calls end, for a moment, and stop."""
        ...


class Server(uvicorn.Server):
    """Ends every stream when it must stop, so that clients continue with another server.

    uvicorn alone would wait for the streams, which never end by themselves, until its grace is over.
    """

    def __init__(
        self,
        app: FastAPI,
        host: str,
        port: int,
        tls: TlsContexts | None = None,
        trust_domain: str = DEFAULT_DOMAIN,
        grpc: Beside | None = None,
    ) -> None:
        self._application = app
        self._address = host, port
        self._grpc = grpc
        super().__init__(
            uvicorn.Config(
                _answered(app),
                host=host,
                port=port,
                http=connections_of(trust_domain, tls),
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # service/app.py trusts the proxies of the settings only
                timeout_graceful_shutdown=3,
            )
        )

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until told to stop. Raises :class:`CannotStart` if the address is not of this machine, or in use."""
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # 1,024, which is usual, are fewer than hosts have
        host, port = self._address
        bound = sockets or bind(host, port)
        try:
            super().run(bound)
        except OSError as error:  # another process has bound it too, and was the first to listen
            if error.errno != errno.EADDRINUSE:
                raise
            raise cannot_listen("service", "port", host, port, error) from error

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start as uvicorn does, then gRPC: its calls need the application. Raises :class:`CannotStart`."""
        watch_loop("main")
        await super().startup(sockets)
        if self._grpc is not None and not self.should_exit:
            await self._grpc.begin()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End all streams, then stop as uvicorn does."""
        if (context := getattr(self._application.state, "context", None)) is not None:
            context.feed.close()
        if self._grpc is not None:
            await self._grpc.end()
        await super().shutdown(sockets)

    async def _serve(self, sockets: list[socket.socket] | None = None) -> None:
        await super()._serve(sockets)
        if why_restart() is not None:
            self._captured_signals.clear()  # uvicorn would die of the signal: the exit code says more
        for handler in logging.getLogger().handlers:  # such a death leaves nobody time for it
            handler.flush()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop, within a time."""
        bound_stop()
        super().handle_exit(sig, frame)


def _answered(app: ASGIApp) -> ASGIApp:
    """The application, with an answer for requests that the server cancels when it ends.

    uvicorn would answer them with a 500, which no client sends again.
    """

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await app(scope, receive, noted)
        except asyncio.CancelledError:
            if scope["type"] != "http" or begun:
                raise
            log.warning("request.cut_short", path=scope["path"])
            await problems.answer(Problem.of(Unavailable(_ENDS), scope["path"]))(scope, receive, send)

    return call


def check_address(host: str, setting: str, *, tls: bool, insecure: bool) -> None:
    """Outside the loopback everybody on the network reads and changes plain HTTP. Raises :class:`CannotStart`.

    ``setting``: the section of the settings that the address is in.
    """
    if tls or insecure or _is_loopback(host):
        return
    raise CannotStart(
        f"{setting} would listen on {host} without TLS: tokens, logs and commands would cross the network in clear, "
        "and anybody there could pass for it. Set tls.enabled: true (docs/how-to/certificates.md), or listen on "
        f"127.0.0.1. If the network itself is private and encrypted: {setting}.insecure_http: true"
    )


def bind(host: str, port: int) -> list[socket.socket]:
    """The service's sockets, one for each address of ``host``. They do not listen yet: until the service is ready,
    connections are refused, and clients go on to another one. Raises :class:`CannotStart`."""
    bound: list[socket.socket] = []
    try:
        for family, _, _, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            bound.append(made := socket.socket(family, socket.SOCK_STREAM))
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # asyncio sets it only on sockets that it made itself. Without it every answer waits 40 ms for an ACK.
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made.bind(address)
    except OSError as error:
        for made in bound:
            made.close()
        raise cannot_listen("service", "port", host, port, error) from error
    return bound


def cannot_listen(section: str, port_setting: str, host: str, port: int, error: OSError) -> CannotStart:
    """The error for an address that is in use, or not of this machine. ``section``: of the settings."""
    advice = (
        f"end what uses the port (`ss -ltnp 'sport = :{port}'` names it), or set another {section}.{port_setting}"
        if error.errno == errno.EADDRINUSE
        else f"set {section}.{'address' if section == 'node' else 'host'} to an address of this machine"
    )
    number = error.errno or 0
    why = os.strerror(number) if number > 0 else error.strerror  # a name that is unknown has -2
    return CannotStart(f"{section}.{port_setting}: cannot listen on {host}:{port} ({why}); {advice}")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
