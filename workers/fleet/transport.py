"""HTTP/1.1 to this machine, as little of it as a fleet needs.

A thousand hosts send five hundred heartbeats a second. What httpx usually does for a request (pools, locks, time limits
for any server of the world) takes half of the processor of a fleet.
"""

from __future__ import annotations

import asyncio

import httpx

KEPT = 4
"""So many connections to one server are kept for the next request."""
_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class LocalTransport(httpx.AsyncBaseTransport):
    """Sends requests over plain connections that it keeps. The caller limits the time."""

    def __init__(self) -> None:
        self._idle: dict[tuple[str, int], list[_Connection]] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request. Raises :class:`httpx.TransportError`."""
        place = request.url.host, request.url.port or 80
        message = _message(request)
        while True:
            idle = self._idle.setdefault(place, [])
            is_kept = bool(idle)
            try:
                connection = idle.pop() if is_kept else await asyncio.open_connection(*place)
            except OSError as error:
                raise httpx.ConnectError(str(error), request=request) from error
            try:
                response, keep = await _exchange(connection, message)
            except asyncio.IncompleteReadError as error:
                connection[1].close()
                if is_kept and not error.partial:
                    continue  # the server had closed it; it did not read the request
                raise httpx.ReadError("the server closed the connection", request=request) from error
            except (OSError, ValueError) as error:
                connection[1].close()
                raise httpx.ReadError(str(error), request=request) from error
            except BaseException:
                connection[1].close()
                raise
            if keep and len(idle) < KEPT:
                idle.append(connection)
            else:
                connection[1].close()
            return response

    async def aclose(self) -> None:
        """Close all connections."""
        for idle in self._idle.values():
            for _, writer in idle:
                writer.close()
        self._idle.clear()


def _message(request: httpx.Request) -> bytes:
    head = [f"{request.method} {request.url.raw_path.decode('ascii')} HTTP/1.1".encode("ascii")]
    head += [name + b": " + value for name, value in request.headers.raw]
    return b"\r\n".join([*head, b"", request.content])


async def _exchange(connection: _Connection, message: bytes) -> tuple[httpx.Response, bool]:
    reader, writer = connection
    writer.write(message)
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head[:-4].split(b"\r\n")
    headers = [(name.strip().lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
    named = dict(headers)
    content = await reader.readexactly(int(named.get(b"content-length", b"0")))
    keep = named.get(b"connection", b"keep-alive") != b"close"
    # As a stream: a response that is made of its content cannot be read in pieces any more.
    response = httpx.Response(int(first.split(b" ", 2)[1]), headers=headers, stream=httpx.ByteStream(content))
    return response, keep
