"""The door of the service: no request reaches a handler before the gate has decided about it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpu_platform.client.wire import Problem
from gpu_platform.domain.access.rules import Reach
from gpu_platform.domain.errors import NotSignedIn, PlatformError, TooManyRequests
from service import streams
from service.access.gate import Access, Gate
from service.access.routes import MATCHED_ROUTE, MatchedRoute, RouteTable
from service.http import problems
from service.http.costs import cost_of
from service.http.rate_limits import RateLimits, owner_of

LOOK_AGAIN_S = 2.0
"""Seconds after which a request that is still open is judged again. A stream ends soon after its token was revoked."""
REALM = 'realm="gpu-platform"'


class AccessControl:
    """ASGI middleware. What the table does not name ends here, and so does what the gate refuses."""

    def __init__(self, app: ASGIApp, gate: Gate, table: RouteTable) -> None:
        self._app = app
        self._gate = gate
        self._table = table

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection, as ASGI defines it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        path = scope["path"]
        matched = scope[MATCHED_ROUTE] if MATCHED_ROUTE in scope else self._table.find(scope["method"], path)
        if matched is None:
            answer = problems.nothing_there(Request(scope), self._table.methods_of(path))
            await answer(scope, receive, send)
            return
        try:
            scope["access"] = await self._gate.admit(scope, matched)
        except PlatformError as error:
            await problems.answer(Problem.of(error, scope["path"]), _headers(error, matched))(scope, receive, send)
            return
        if matched.rule.reach is Reach.PUBLIC:
            await self._for_anybody(scope, matched, receive, send)
            return
        if matched.rule.reach.is_of_nodes:
            await self._app(scope, receive, send)
            return
        limits: RateLimits = scope["app"].state.context.rate_limits
        try:
            caller = owner_of(scope["access"].who)
            cost = cost_of(matched.route, scope["query_string"].decode("latin-1"))
            with limits.one_of(caller):
                async with limits.turn(caller, cost):
                    await self._watched(scope, matched, receive, send)
        except TooManyRequests as error:  # of this limit; the application itself answers what its handlers raise
            await problems.answer(Problem.of(error, path))(scope, receive, send)

    async def _for_anybody(self, scope: Scope, matched: MatchedRoute, receive: Receive, send: Send) -> None:
        """Run the handler of a public route. What makes it fail is what a stranger sent."""
        sender = _Sender(send)
        try:
            await self._app(scope, receive, sender)
        except Exception as error:
            principal = scope["access"].principal
            if principal is not None or sender.has_started:
                raise
            refusal = await self._gate.note_failed(scope, matched, error)
            await problems.answer(Problem.of(refusal, scope["path"]))(scope, receive, send)

    async def _watched(self, scope: Scope, matched: MatchedRoute, receive: Receive, send: Send) -> None:
        """Run the handler. If the gate would refuse the request meanwhile, end it."""
        sender = _Sender(send)
        task = asyncio.current_task()
        assert task is not None
        revoked = False

        async def look() -> None:
            nonlocal revoked
            if await self._gate.is_valid_still(scope, matched):
                look_later()
            else:
                revoked = True
                task.cancel()

        def begin() -> None:
            watching[:] = [loop.create_task(look())]

        def look_later() -> None:
            nonlocal timer
            timer = loop.call_later(LOOK_AGAIN_S, begin)

        loop = asyncio.get_running_loop()
        watching: list[asyncio.Task[None]] = []
        timer: asyncio.TimerHandle | None = None
        look_later()
        try:
            await self._app(scope, receive, sender)
        except asyncio.CancelledError:
            if not revoked or task.uncancel() > 0:
                raise
            await sender.end(scope, receive)
        finally:
            if timer is not None:
                timer.cancel()
            for watch in watching:
                watch.cancel()
                with suppress(asyncio.CancelledError):
                    await watch


class _Sender:
    """Passes messages on, and knows how far the answer has come."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_started = False
        self._is_stream = False
        self._ended = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_started = True
            kinds = [value for name, value in message.get("headers", ()) if name.lower() == b"content-type"]
            self._is_stream = any(kind.startswith(b"text/event-stream") for kind in kinds)
        elif message["type"] == "http.response.body":
            self._ended = not message.get("more_body", False)
        await self._send(message)

    async def end(self, scope: Scope, receive: Receive) -> None:
        """End the answer, because the request is no longer allowed."""
        refusal = NotSignedIn("the token was revoked or has expired, or its roles were taken away: sign in again")
        if self._ended:
            return
        if not self.has_started:
            await problems.answer(Problem.of(refusal, scope["path"]), _challenge(None))(scope, receive, self._send)
        elif self._is_stream:
            # A client whose short-lived token has ended connects again with a newer one, so its stream ends without a
            # problem.
            access: Access = scope["access"]
            body = streams.problem(refusal) if access.principal and access.principal.token_id else b""
            await self._send({"type": "http.response.body", "body": body, "more_body": False})
        # Any other answer stays incomplete, and the server closes the connection: so nobody takes it for complete.


def _headers(error: PlatformError, matched: MatchedRoute) -> dict[str, str]:
    return _challenge(matched) if isinstance(error, NotSignedIn) else {}


def _challenge(matched: MatchedRoute | None) -> dict[str, str]:
    """RFC 9110, 11.6.1. A browser asks for a password only where a page is for people."""
    scheme = "Basic" if matched is not None and matched.route == "GET /docs" else "Bearer"
    return {"WWW-Authenticate": f"{scheme} {REALM}"}
