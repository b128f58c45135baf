"""Asks the application without a socket: one request of ASGI, whose answer is read piece by piece."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Scope

from gpu_platform.client.wire import Problem, problem_of_response
from gpu_platform.domain.errors import AnswerTooLarge, Unavailable
from gpu_platform.rpc.methods import HttpRequest
from service.http.body_limit import HAS_TURN
from service.http.rate_limits import caller_of

_PIECES_AHEAD = 4
"""So many pieces of an answer wait until they are read. Then the application waits."""
_LAST_S = 3.0


class Refused(Exception):
    """The application answered with a problem."""

    def __init__(self, problem: Problem, headers: dict[str, str]) -> None:
        super().__init__(problem.detail)
        self.problem = problem
        self.headers = headers


class BrokenOff(Unavailable):
    """The answer ended before it was complete: the service stops, or the token was revoked meanwhile."""

    def __init__(self) -> None:
        super().__init__("the answer broke off before its end; ask again, a stream from the last id that came")


@dataclass
class Caller:
    """Who calls."""

    address: tuple[str, int] | None
    headers: list[tuple[str, str]] = field(default_factory=list)
    is_secure: bool = False


def answer_too_large(most_bytes: int) -> AnswerTooLarge:
    """The error for an answer beyond this limit."""
    return AnswerTooLarge(
        f"the answer has more than {most_bytes:,} bytes, the most of one message of gRPC: ask for less at once, with a "
        "smaller limit or a narrower filter, or over REST, where answers have no limit"
    )


class InProcess:
    """The application, for requests of this process."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._running: set[asyncio.Task[None]] = set()

    def ask(self, request: HttpRequest, caller: Caller, *, has_turn: bool = False) -> Exchange:
        """Begin a request. Use the exchange in ``async with``: its end is the end of the request, and until then the
        request keeps its turn. ``has_turn``: the caller has the one for a large body.

        What changes something goes on to its end even if nobody waits for it any more, as with HTTP.
        """
        return Exchange(self._app, self._running, request, caller, has_turn=has_turn)

    async def close(self) -> None:
        """Wait shortly for requests that nobody waits for, then end them."""
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=_LAST_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


class Exchange:
    """One request and its answer."""

    def __init__(
        self,
        app: ASGIApp,
        running: set[asyncio.Task[None]],
        request: HttpRequest,
        caller: Caller,
        *,
        has_turn: bool = False,
    ) -> None:
        self._app, self._running, self._request = app, running, request
        self._scope = _scope(request, caller)
        if has_turn:
            self._scope[HAS_TURN] = True
        self._unread = request.body or b""
        self._was_read = False
        self._is_complete = False
        self._left = asyncio.Event()
        self._sending: MemoryObjectSendStream[Message]
        self._answer: MemoryObjectReceiveStream[Message]
        self._sending, self._answer = anyio.create_memory_object_stream[Message](_PIECES_AHEAD)
        self.headers: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        """Begin, and wait for the head of the answer. Raises :class:`Refused`."""
        self._task = asyncio.create_task(self._run())
        self._running.add(self._task)
        self._task.add_done_callback(self._running.discard)
        try:
            head = await self._next()
            if head is None:
                raise BrokenOff
            self.headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in head["headers"]}
            if head["status"] >= 400:
                body = b"".join([piece async for piece in self.pieces()])
                raise Refused(problem_of_response(head["status"], self.headers, body), self.headers)
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nobody reads the answer any more."""
        await self._leave()

    @property
    def owner(self) -> str:
        """Whose request it is, once the application has begun to answer: a user; else an address."""
        return caller_of(Request(self._scope))

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes. Raises :class:`BrokenOff` if it is not complete."""
        while (message := await self._next()) is not None:
            if message["type"] == "http.response.body":
                if body := message.get("body", b""):
                    yield body
                if not message.get("more_body", False):
                    return
        raise BrokenOff

    async def body(self, most_bytes: int | None = None) -> bytes:
        """The whole body. Raises :class:`AnswerTooLarge` if it is larger."""
        found, size = [], 0
        async for piece in self.pieces():
            size += len(piece)
            if most_bytes is not None and size > most_bytes:
                raise answer_too_large(most_bytes)
            found.append(piece)
        return b"".join(found)

    async def _run(self) -> None:
        try:
            # What the application did not expect is logged by it, and answered.
            with suppress(Exception):
                await self._app(self._scope, self._receive, self._send)
        finally:
            self._sending.close()

    async def _next(self) -> Message | None:
        try:
            return await self._answer.receive()
        except anyio.EndOfStream:
            return None

    async def _receive(self) -> Message:
        if not self._was_read:
            self._was_read = True
            return {"type": "http.request", "body": self._unread, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        with suppress(anyio.BrokenResourceError):  # nobody reads any more
            await self._sending.send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._is_complete = True
            # What was not sent to the client is in memory. So the request goes on, and keeps its turn.
            await self._left.wait()

    async def _leave(self) -> None:
        self._left.set()
        self._answer.close()
        if self._request.method == "GET" and not self._task.done():
            if not self._is_complete:
                self._task.cancel()
            await asyncio.wait({self._task})


def _scope(request: HttpRequest, caller: Caller) -> Scope:
    headers = [("host", "localhost"), *caller.headers, *request.headers]
    if request.body is not None or request.method == "POST":
        kind = "application/json" if request.is_json else "application/octet-stream"
        headers += [("content-type", kind), ("content-length", str(len(request.body or b"")))]
    made: dict[str, Any] = {
        "type": "http",
        # 2.3: a stream watches for the end of its reader by itself, and needs no error from `send`.
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "2",
        "method": request.method,
        "scheme": "https" if caller.is_secure else "http",
        "server": None,
        "client": caller.address,
        "root_path": "",
        "path": request.path,
        "raw_path": quote(request.path).encode(),
        "query_string": request.query.encode(),
        "headers": [(name.lower().encode("latin-1"), value.encode()) for name, value in headers],
        "state": {},
    }
    return made
