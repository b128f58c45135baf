"""Passes large requests on to another process, so that no other request waits for them: those with a large body, and
those for which much is computed.

Python runs one thread at a time. A body of a MiB, an array, a pipeline, a dry run or a report would take half of that
time from everybody else, and memory. The other process is this application, too: it decides itself who may do what.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import httpx
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from gpu_platform.client.wire import Problem
from gpu_platform.domain.errors import Unavailable
from gpu_platform.observability import get_logger
from service.access.routes import MATCHED_ROUTE, TABLE
from service.http import problems
from service.http.body_limit import LARGE_BYTES
from service.http.costs import Cost, cost_of
from service.http.machines import peer_of
from service.http.rate_limits import SharedTimes

ANSWERS_WITHIN_S = 120.0
"""Longer than a turn is waited for, and than the largest array takes."""
_OF_ONE_CONNECTION = {b"connection", b"keep-alive", b"te", b"transfer-encoding", b"upgrade", b"expect"}
"""Headers that say how this connection is used (RFC 9110, 7.6.1)."""
_NOT_PASSED_ON = {*_OF_ONE_CONNECTION, b"x-forwarded-for", b"x-forwarded-proto"}
_NOT_PASSED_BACK = {*_OF_ONE_CONNECTION, b"date"}
_LARGE = {Cost.EXPAND, Cost.PLAN, Cost.REPORT}
_GONE = "the process for large requests ended or does not answer; send the same again, with its Idempotency-Key"

log = get_logger(__name__)


class Elsewhere(NamedTuple):
    """The other process."""

    path: str
    """Of its socket, which listens already."""
    wait_until: SharedTimes
    """What both know of callers that gave GPUs back too often."""
    alive: socket.socket
    """The connection to what starts that process. When it ends, nobody starts it any more; when this one is closed,
    all of them end."""

    def close(self) -> None:
        """Let the other process end, and remove its socket: this one may be killed before that has done it."""
        self.alive.close()
        shutil.rmtree(Path(self.path).parent, ignore_errors=True)

    async def watch(self) -> None:
        """Raise :class:`RuntimeError` when nobody starts the other process any more."""
        self.alive.setblocking(False)
        await asyncio.get_running_loop().sock_recv(self.alive, 1)
        raise RuntimeError("its connection ended")

    def client(self) -> httpx.AsyncClient:
        """A client of it. A connection is for one request: one that is kept may be closed while something is sent."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        transport = httpx.AsyncHTTPTransport(uds=self.path, limits=limits)
        return httpx.AsyncClient(transport=transport, timeout=httpx.Timeout(ANSWERS_WITHIN_S, pool=None))


class LargeRequests:
    """ASGI middleware, of the process that others wait for."""

    def __init__(self, app: ASGIApp, elsewhere: Elsewhere) -> None:
        self._app = app
        self._http = elsewhere.client()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection, as ASGI defines it."""
        if scope["type"] == "http" and (route := _large_route(scope)) is not None:
            scope["route"] = SimpleNamespace(path=route.partition(" ")[2])  # for the metrics
            await self._pass_on(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False
        try:
            answer = await self._http.send(_request(scope, receive), stream=True)
            try:
                headers = [one for one in answer.headers.raw if one[0].lower() not in _NOT_PASSED_BACK]
                await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
                has_begun = True
                async for piece in answer.aiter_raw():
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            finally:
                await answer.aclose()
        except ClientDisconnect:
            return
        except httpx.TransportError as error:
            log.warning("large_request.failed", path=scope["path"], error=repr(error))
            if not has_begun:  # else the answer stays incomplete, and the connection is closed
                await problems.answer(Problem.of(Unavailable(_GONE), scope["path"]))(scope, receive, send)


def _large_route(scope: Scope) -> str | None:
    """The route of a request that is passed on. None: it stays here."""
    matched = scope[MATCHED_ROUTE] = TABLE.find(scope["method"], scope["path"])
    if matched is None or peer_of(scope) is not None:
        return None
    cost = cost_of(matched.route, scope["query_string"].decode("latin-1"))
    is_large = cost in _LARGE or (cost is not Cost.NONE and _has_large_body(Headers(scope=scope)))
    return matched.route if is_large else None


def _has_large_body(headers: Headers) -> bool:
    size = headers.get("content-length", "0")
    is_large = "transfer-encoding" in headers or not size.isdecimal() or int(size[:20]) > LARGE_BYTES
    return is_large and "json" in headers.get("content-type", "")


def _request(scope: Scope, receive: Receive) -> httpx.Request:
    headers = [one for one in scope["headers"] if one[0] not in _NOT_PASSED_ON]
    client = Request(scope).client
    forwarded = [(b"x-forwarded-proto", scope["scheme"].encode())]
    if client is not None:
        forwarded.append((b"x-forwarded-for", client.host.encode()))
    path = scope["raw_path"] if not scope["query_string"] else scope["raw_path"] + b"?" + scope["query_string"]
    url = httpx.URL(scheme="http", host="localhost", raw_path=path)
    return httpx.Request(scope["method"], url, headers=[*headers, *forwarded], content=_body(receive))


async def _body(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        if piece := message.get("body", b""):
            yield piece
        if not message.get("more_body", False):
            return
