"""Large bodies are read and checked in a thread, one at a time: the event loop answers everybody meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Callable, Coroutine
from typing import Any

from anyio import CapacityLimiter, to_thread
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.datastructures import Headers

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class OffLoopRoute(APIRoute):
    """For ``APIRouter(route_class=…)``. Small bodies are read as ever."""

    def get_route_handler(self) -> Handler:
        """Called by FastAPI once for each route."""
        handle = super().get_route_handler()
        field = self.body_field
        if field is None:
            return handle

        def read(body: bytes) -> Any:
            # A million new values start the collector dozens of times, each time over all of them, and it lets nobody
            # else run. Only one body is read at a time.
            gc.disable()
            try:
                return checked(body)
            finally:
                gc.enable()

        def checked(body: bytes) -> Any:
            try:
                value = from_json(body, allow_inf_nan=False)
            except ValueError as error:
                wrong = {"type": "json_invalid", "loc": ("body",), "input": {}, "ctx": {"error": str(error)}}
                raise RequestValidationError([{**wrong, "msg": "JSON decode error"}]) from None
            found, errors = field.validate(value, {}, loc=("body",))
            if errors:
                raise RequestValidationError(errors)
            return found

        async def handle_large(request: Request) -> Response:
            # The middleware sets it for bodies that are large, and of JSON.
            limiter: CapacityLimiter | None = request.scope.get("parsing")
            if limiter is None:
                return await handle(request)
            found = await to_thread.run_sync(read, await request.body(), limiter=limiter)
            return await handle(_Read(request, found))

        return handle_large


class _Read(Request):
    """A request whose body was read. FastAPI passes what is of its model already as it is."""

    def __init__(self, request: Request, found: Any) -> None:
        super().__init__(request.scope, request.receive)
        self._found = found

    @property
    def headers(self) -> Headers:
        """As they were sent."""
        return Headers(scope=self.scope)

    async def body(self) -> bytes:
        """Not empty: there was one."""
        return b"{}"

    async def json(self) -> Any:
        """What was read."""
        return self._found
