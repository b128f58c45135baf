"""Refuses bodies that are too large before they are in memory, and those that would be too large once they are read.

A body of up to 64 KiB goes on as it comes. A larger one of JSON takes a turn of its caller, so that few are in memory
at once; then it is looked at before anybody reads it: JSON takes up to 25 times its size as objects.
"""

from __future__ import annotations

from typing import NamedTuple

from anyio import CapacityLimiter, to_thread
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpu_platform.client.wire import Problem
from gpu_platform.domain.access.principal import PrincipalKind
from gpu_platform.domain.errors import TooManyRequests
from gpu_platform.domain.jobs.array import MAX_ELEMENTS, MAX_PARAMETER_BYTES, MAX_PARAMETERS
from service.http import problems, structure
from service.http.rate_limits import RateLimits, caller_of

MAX_BODY_BYTES = 1024 * 1024
MAX_VALUES = 100_000
LARGE_BYTES = 64 * 1024
"""From this size on a body takes time and memory that others notice."""


HAS_TURN = "has turn of a large body"
"""Key of a scope whose caller has the turn already: gRPC took it before it read the message."""


class BodySize(NamedTuple):
    """The largest body of a route."""

    most_bytes: int
    values: int
    """Numbers, texts, lists and objects in it."""


USUAL = BodySize(MAX_BODY_BYTES, MAX_VALUES)
LARGER = {
    ("POST", "/v1/arrays"): BodySize(2 * MAX_PARAMETER_BYTES, MAX_PARAMETERS + 2 * MAX_ELEMENTS),
}
"""Method and path -> its largest body. Parameters of arrays are large, and quotes and commas of JSON come to them."""


class BodyLimit:
    """ASGI middleware. It counts the bytes, because the announced length may be missing or wrong."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._reading = CapacityLimiter(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection, as ASGI defines it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most = LARGER.get((scope["method"], scope["path"]), USUAL)
        headers = Headers(scope=scope)
        announced = headers.get("content-length", "0")
        announced_bytes = int(announced[:20]) if announced.isdecimal() else 0
        is_large = announced_bytes > LARGE_BYTES or "transfer-encoding" in headers
        if announced_bytes > most.most_bytes:
            await self._refuse(scope, receive, send, _refusal(too_large(most)))
        elif is_large and "json" in headers.get("content-type", ""):
            await self._large(scope, receive, send, most, announced_bytes)
        else:
            await self._app(scope, _counted(receive, most), send)

    async def _large(self, scope: Scope, receive: Receive, send: Send, most: BodySize, announced_bytes: int) -> None:
        access = scope.get("access")
        is_of_node = access is not None and access.principal is not None and access.principal.kind is PrincipalKind.NODE
        if is_of_node or HAS_TURN in scope:
            await self._read(scope, receive, send, most)
            return
        limits: RateLimits = scope["app"].state.context.rate_limits
        try:
            async with limits.large_body(caller_of(Request(scope)), announced_bytes or most.most_bytes):
                await self._read(scope, receive, send, most)
        except TooManyRequests as error:
            await problems.answer(Problem.of(error, scope["path"]))(scope, receive, send)

    async def _read(self, scope: Scope, receive: Receive, send: Send, most: BodySize) -> None:
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return  # nobody waits for an answer
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > most.most_bytes:
                await self._refuse(scope, receive, send, _refusal(too_large(most)))
                return
        if not await to_thread.run_sync(structure.at_most, body, most.values, limiter=self._reading):
            await self._refuse(scope, receive, send, _refusal(too_many_values(most)))
            return
        scope["parsing"] = self._reading
        whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]
        body.clear()

        async def once() -> Message:
            return whole.pop() if whole else await receive()

        await self._app(scope, once, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, refusal: HTTPException) -> None:
        await problems.http_error(Request(scope), refusal)(scope, receive, send)


def too_large(most: BodySize) -> str:
    """Why a body that is larger is refused."""
    return f"the body is too large: at most {most.most_bytes} bytes are allowed here"


def too_many_values(most: BodySize) -> str:
    """Why a body with more values is refused."""
    return (
        f"the body has more than {most.values} values (numbers, texts, lists and objects), which is the most here: "
        "send less at once"
    )


def _counted(receive: Receive, most: BodySize) -> Receive:
    received = 0

    async def counted() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received <= most.most_bytes:
            return message
        # Raised where the application reads the body, so its error handlers answer.
        raise _refusal(too_large(most))

    return counted


def _refusal(why: str) -> HTTPException:
    return HTTPException(413, why)
