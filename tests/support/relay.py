"""A TCP relay: what comes to its port goes on to a server, and the answer comes back. It can be made silent."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class Relay:
    """Gives each new connection to the next of ``targets`` (``HOST:PORT``). It knows nothing of their health.

    ``listener``: a socket that listens already, instead of ``port`` on the loopback. ``tls``: its clients speak TLS.
    """

    def __init__(
        self, *targets: str, port: int = 0, listener: socket.socket | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self._targets = targets
        self._port, self._listener, self._tls = port, listener, tls
        self._connections: set[asyncio.Task[None]] = set()
        self._turn = 0
        self.is_silent = False
        """True: it takes connections and all that comes, and passes nothing on."""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[int]:
        """Gives the port."""
        listener = self._listener or socket.create_server(("127.0.0.1", self._port), backlog=128)
        server = await asyncio.start_server(self._accept, sock=listener, ssl=self._tls)
        self._port = listener.getsockname()[1]
        try:
            yield self._port
        finally:
            server.close()
            for one in self._connections:
                one.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    @property
    def address(self) -> str:
        """``HOST:PORT`` of the relay, while it serves."""
        return f"127.0.0.1:{self._port}"

    def admits(self, client: asyncio.StreamWriter) -> bool:
        """Whether this connection is passed on."""
        return True

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(asyncio.create_task(self._pass_on(reader, writer)))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        try:
            if not self.admits(writer):
                return
            self._turn += 1
            host, _, port = self._targets[self._turn % len(self._targets)].rpartition(":")
            there, back = await asyncio.open_connection(host, int(port))
            ends.append(back)
            await asyncio.gather(self._copy(reader, back), self._copy(there, writer))
        except OSError:
            pass  # one of the ends is gone
        finally:
            for end in ends:
                end.transport.abort()
                with suppress(OSError):
                    await end.wait_closed()

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(1 << 16):
                if not self.is_silent:
                    target.write(data)
                    await target.drain()
        finally:
            target.close()
