"""HTTP connections with limits: the service does not wait for a request that never becomes complete, for a client that
does not take its answer, nor for a lost peer."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from typing import Any

import h11
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import get_remote_addr
from uvicorn.server import ServerState

from gpu_platform.identity.certificates import Peer, TlsContexts
from gpu_platform.identity.names import DEFAULT_DOMAIN
from service.http.machines import PEER
from service.http.networks import network_of

REQUEST_TIMEOUT_S = 10.0
"""A request and its body must arrive within this time after the first byte of the connection or request. A handshake of
TLS has as long."""
MOST_WAITING = 256
"""So many connections of one network may wait for their handshakes and requests at once: a stranger may not take all
files that this process may open. What sends its request at once does not count: hosts, and a proxy that all come
through."""
TAKEN_WITHIN_S = 120.0
"""So long a client may take for the end of an answer: a page of 4 MiB, at 0.3 megabits a second. Until then it is in
memory, and its request is not over: it keeps its turn."""
_PEER_IDLE_S = 30
_PEER_TIMEOUT_MS = 60_000
"""A peer that acknowledges nothing for this long is gone: it lost power, or the network broke."""
_FRAMINGS = {b"content-length", b"transfer-encoding"}
_TWO_LENGTHS = PlainTextResponse(
    "send Content-Length or Transfer-Encoding, not both (RFC 9112, 6.1)", 400, {"Connection": "close"}
)
_WAITING: Counter[str] = Counter()
"""Network -> its connections that wait for a request."""
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class TimeLimitedConnection(H11Protocol):
    """For ``uvicorn.Config(http=…)``: limits how long a request may take to arrive.

    uvicorn itself limits only the time between two requests of a connection.
    """

    trust_domain = DEFAULT_DOMAIN
    """The SPIFFE trust domain of clients that are believed; see :func:`connections_of`."""
    _waiting: asyncio.TimerHandle | None = None
    _network = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by asyncio for a new connection: start the limit for the first request."""
        super().connection_made(transport)
        self._network = _network_of(transport)
        if _WAITING[self._network] >= MOST_WAITING:
            transport.abort()
            return
        self.app = self._until_taken(self.app)
        if (tls := transport.get_extra_info("ssl_object")) is not None:
            # Each request's scope gets a copy of it.
            self.app_state = {**self.app_state, PEER: Peer.of(tls.getpeercert(), self.trust_domain)}
        _notice_lost_peers(transport.get_extra_info("socket"))
        self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio when the connection is closed."""
        self._request_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio with new bytes."""
        super().data_received(data)
        self._look()

    def handle_events(self) -> None:
        """Called by uvicorn when a request may have become complete."""
        super().handle_events()
        self._look()

    def _look(self) -> None:
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._request_came()
        elif self._waiting is None and (self.conn.their_state is h11.SEND_BODY or self.conn.trailing_data[0]):
            self._wait_for_request()

    def _until_taken(self, app: Any) -> ASGIApp:
        """The application, whose requests last until what they answer was taken by the client."""

        async def lasting(scope: Scope, receive: Receive, send: Send) -> None:
            async def sent(message: Message) -> None:
                await send(message)
                if message["type"] == "http.response.body" and not message.get("more_body", False):
                    await self._taken()

            # A proxy may believe the one, and we the other: what is a body for it would be a request here.
            framed = {name for name, _ in scope.get("headers", ())} & _FRAMINGS
            await (_TWO_LENGTHS if framed == _FRAMINGS else app)(scope, receive, sent)

        return lasting

    async def _taken(self) -> None:
        try:
            async with asyncio.timeout(TAKEN_WITHIN_S):
                await self.flow.drain()
        except TimeoutError:
            self.transport.abort()

    def _wait_for_request(self) -> None:
        _WAITING[self._network] += 1
        self._waiting = self.loop.call_later(REQUEST_TIMEOUT_S, self._give_up)

    def _request_came(self) -> None:
        if self._waiting is None:
            return
        self._waiting.cancel()
        self._waiting = None
        _one_less(self._network)

    def _give_up(self) -> None:
        self._request_came()
        if self.transport.is_closing():
            return
        if self.conn.our_state is h11.IDLE or self.conn.our_state is h11.SEND_RESPONSE:
            self.transport.write(_TOO_SLOW)  # no answer was begun yet
        self.transport.close()


class TlsHandshake(asyncio.Protocol):
    """What a connection with TLS is until its handshake ends: then it becomes a :class:`TimeLimitedConnection`.

    Until then it counts as one that waits for its request, and has the same time. asyncio would give each a minute, and
    show it to nobody before.
    """

    context: ssl.SSLContext
    connection: type[TimeLimitedConnection]

    def __init__(self, *, server_state: ServerState, **given: Any) -> None:
        """``given``: what uvicorn gives to each connection."""
        self._given = {**given, "server_state": server_state}
        self._open = server_state.connections
        self._early: list[bytes] = []
        self._is_lost = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by asyncio for a new connection: begin the handshake."""
        self._transport = transport
        network = _network_of(transport)
        if _WAITING[network] >= MOST_WAITING:
            transport.abort()
            return
        transport.pause_reading()  # the first bytes are for TLS
        _WAITING[network] += 1
        self._open.add(self)  # pyright: ignore[reportArgumentType]  # uvicorn ends all of them by shutdown()
        self._task = asyncio.get_running_loop().create_task(self._shake_hands(network))

    def data_received(self, data: bytes) -> None:
        """Called with what came behind the handshake."""
        self._early.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called when the connection is closed during the handshake."""
        self._is_lost = True

    def shutdown(self) -> None:
        """Called by uvicorn when the server ends."""
        self._transport.abort()

    async def _shake_hands(self, network: str) -> None:
        try:
            secured = await asyncio.get_running_loop().start_tls(
                self._transport, self, self.context, server_side=True, ssl_handshake_timeout=REQUEST_TIMEOUT_S
            )
        except OSError:  # not TLS, no trust, too slow, or gone
            self._transport.abort()
            return
        finally:
            self._open.discard(self)  # pyright: ignore[reportArgumentType]
            _one_less(network)
        if secured is None or self._is_lost:
            return
        connection = self.connection(**self._given)
        secured.set_protocol(connection)
        connection.connection_made(secured)
        for data in self._early:
            connection.data_received(data)


def connections_of(trust_domain: str, tls: TlsContexts | None) -> type[asyncio.Protocol]:
    """For ``uvicorn.Config(http=…)``: connections of clients with certificates of ``trust_domain``.

    ``tls``: of this server; uvicorn itself gets none. None: plain HTTP. Raises :class:`CannotStart` if a file of it
    cannot be read.
    """
    limited = type("LimitedConnection", (TimeLimitedConnection,), {"trust_domain": trust_domain})
    if tls is None:
        return limited
    return type("TlsConnection", (TlsHandshake,), {"context": tls.server(), "connection": limited})


def _network_of(transport: asyncio.Transport) -> str:
    client = get_remote_addr(transport)
    return network_of(client[0] if client else None)


def _one_less(network: str) -> None:
    _WAITING[network] -= 1
    if not _WAITING[network]:
        del _WAITING[network]


def _notice_lost_peers(connection: socket.socket | None) -> None:
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PEER_IDLE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PEER_IDLE_S // 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _PEER_TIMEOUT_MS)
