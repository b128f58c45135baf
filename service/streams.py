"""Server-sent events (WHATWG HTML, 9.2): ids to resume from, keep-alives, and an ``end`` event after the last one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from starlette.types import Send

from gpu_platform.client.wire import Problem
from gpu_platform.domain.errors import InvalidRequest, PlatformError
from gpu_platform.observability import get_logger

KEEP_ALIVE_S = 10.0

DESCRIBED: dict[str, Any] = {
    "text/event-stream": {
        "schema": {
            "type": "object",
            "description": "Each event; `data` is JSON",
            "properties": {"data": {"type": "string"}, "id": {"type": "string"}, "event": {"type": "string"}},
        }
    }
}
"""How the OpenAPI description shows an answer with server-sent events: one event of it."""

log = get_logger(__name__)


def message(data: str, event_id: str) -> bytes:
    """One server-sent event."""
    return format_sse_event(data_str=data, id=event_id)


def end(data: str = "{}") -> bytes:
    """The event that says that nothing more comes. Without it the client reconnects, e.g. after a restart of the
    service."""
    return format_sse_event(data_str=data, event="end")


def problem(error: PlatformError) -> bytes:
    """The event that says that the stream ends because of an error, and that trying again cannot help."""
    return format_sse_event(data_str=Problem.of(error).model_dump_json(exclude_none=True), event="problem")


class ClosedStream(EventSourceResponse):
    """A stream whose source is closed as soon as its client is gone.

    Starlette cancels the task that sends, again and again until that has ended. So nothing can be awaited there: what
    closes the source is a task of its own. Otherwise the source stays open until its memory is collected, and a
    command beside a rank seems to have a reader.
    """

    async def stream_response(self, send: Send) -> None:
        """Called by Starlette for the body."""
        try:
            await super().stream_response(send)
        finally:
            if isinstance(self.body_iterator, AsyncGenerator):
                _later(self.body_iterator.aclose())


def stream(events: AsyncGenerator[bytes, None]) -> EventSourceResponse:
    """The HTTP answer for server-sent events. It sends a line now and then to keep the connection alive."""
    return ClosedStream(
        _with_keep_alive(_with_problems(events)), headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    )


def close_later(following: asyncio.Future[Any], events: AsyncGenerator[Any, None]) -> None:
    """Cancel ``following``, which waits for the next of ``events``, and then close ``events``."""

    async def close() -> None:
        await asyncio.gather(following, return_exceptions=True)
        await events.aclose()

    following.cancel()
    _later(close())


_closing: set[asyncio.Task[None]] = set()


def _later(closing: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(closing)
    _closing.add(task)
    task.add_done_callback(_closing.discard)


def resume_seq(last_event_id: str | None, after: int | None) -> int | None:
    """The number after which the stream continues. The last event that the client saw counts more than its first
    request."""
    if not last_event_id:
        return after
    if not last_event_id.isascii() or not last_event_id.isdigit() or len(last_event_id) > 18:
        raise InvalidRequest(f"Last-Event-ID {last_event_id[:80]!r} is not an id of this stream")
    return int(last_event_id)


async def _with_problems(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Turn an error after the head was sent into an event. If trying again can help, end without ``end`` instead."""
    try:
        async for event in events:
            yield event
    except PlatformError as error:
        log.warning("stream.broke", error=error.message)
        if not error.retryable:
            yield problem(error)
    finally:
        await events.aclose()


async def _with_keep_alive(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    following = asyncio.ensure_future(anext(events, None))
    try:
        while True:
            done, _ = await asyncio.wait({following}, timeout=KEEP_ALIVE_S)
            if not done:
                yield KEEPALIVE_COMMENT
                continue
            event = following.result()
            if event is None:
                return
            yield event
            following = asyncio.ensure_future(anext(events, None))
    finally:
        close_later(following, events)
