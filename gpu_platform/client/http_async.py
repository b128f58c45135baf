"""How the client for asyncio sends requests: with httpx. ``http_sync.py`` has the same methods without asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
from httpx_sse import EventSource

from gpu_platform.client.answer import Answer, NoAnswer, ServerSentEvent
from gpu_platform.client.calls import Call
from gpu_platform.client.connection import CONNECT_TIMEOUT_S, STREAM_TIMEOUT_S, Connection


def httpx_options(connection: Connection) -> dict[str, Any]:
    """The arguments for a client of httpx that asks as this connection does, without a token."""
    return {
        "base_url": connection.base_url,
        "headers": connection.who_asks(),
        "timeout": httpx.Timeout(30.0, connect=CONNECT_TIMEOUT_S),
        "trust_env": connection.may_use_proxy,
        "verify": connection.trusted(),
    }


class AsyncHttp:
    """Sends requests, and keeps connections open for the next ones. Further ``options`` are those of httpx."""

    def __init__(self, connection: Connection, **options: Any) -> None:
        self._connection = connection
        self.httpx_client = httpx.AsyncClient(**httpx_options(connection) | options)

    async def send(self, url: str, call: Call, token: str | None, tries: int = 0) -> Answer:
        """Send a request to the service at ``url``, after so many ``tries`` at others. Raises :class:`NoAnswer`."""
        timeout = httpx.Timeout(self._connection.read_timeout_s(call, tries), connect=CONNECT_TIMEOUT_S)
        headers = self._connection.signed(self._connection.headers(call), token)
        try:
            answer = await self.httpx_client.request(
                call.method, url + call.path, params=call.params, content=call.body, headers=headers, timeout=timeout
            )
        except httpx.TransportError as error:
            raise _no_answer(error) from error
        return Answer(answer.status_code, answer.headers, answer.content)

    async def open(self, url: str, call: Call, token: str | None, last_id: str) -> AsyncStream | Answer:
        """Ask for a stream of events, those after the event with the id ``last_id``. An answer that is an error comes
        complete. Raises :class:`NoAnswer`."""
        timeout = httpx.Timeout(CONNECT_TIMEOUT_S, read=STREAM_TIMEOUT_S)
        headers = self._connection.signed(self._connection.stream_headers(last_id), token)
        request = self.httpx_client.build_request(
            call.method, url + call.path, params=call.params, headers=headers, timeout=timeout
        )
        try:
            response = await self.httpx_client.send(request, stream=True)
            if response.is_success:
                return AsyncStream(response)
            try:
                return Answer(response.status_code, response.headers, await response.aread())
            finally:
                await response.aclose()
        except httpx.TransportError as error:
            raise _no_answer(error) from error

    async def close(self) -> None:
        """Close all connections."""
        await self.httpx_client.aclose()


class AsyncStream:
    """The events of an answer, as they come."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self.status = response.status_code

    async def events(self) -> AsyncIterator[ServerSentEvent]:
        """The events. Raises :class:`NoAnswer` when the connection breaks."""
        try:
            async for event in EventSource(self._response).aiter_sse():
                yield ServerSentEvent(event.event, event.data, event.id)
        except httpx.TransportError as error:
            raise _no_answer(error) from error

    async def aclose(self) -> None:
        """Read no more of it."""
        await self._response.aclose()


def _no_answer(error: httpx.TransportError) -> NoAnswer:
    return NoAnswer(error, was_sent=not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout))
