"""Refuses bodies that are too large before they are in memory. The answer is a problem, as for every other error."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpu_platform.domain.jobs.array import MAX_PARAMETER_BYTES

MAX_BODY_BYTES = 1024 * 1024
LARGER = {("POST", "/v1/arrays"): 2 * MAX_PARAMETER_BYTES}
"""Method and path -> bytes. Parameters of arrays are large, and quotes and commas of JSON come to them."""


class BodyLimit:
    """Refuses bodies that are too large. It counts the bytes, because the announced length may be missing or wrong."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection, as ASGI defines it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most = LARGER.get((scope["method"], scope["path"]), MAX_BODY_BYTES)
        announced = Headers(scope=scope).get("content-length", "0")
        too_large = announced.isdecimal() and int(announced[:20]) > most
        received = 0

        async def counted() -> Message:
            nonlocal received
            if not too_large:
                message = await receive()
                received += len(message.get("body", b""))
                if received <= most:
                    return message
            # Raised where the application reads the body, so its error handlers answer.
            raise HTTPException(413)

        await self._app(scope, counted, send)
