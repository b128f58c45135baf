"""The main loop of the service: uvicorn, with an end that does not wait for streams."""

from __future__ import annotations

import socket

import uvicorn
from fastapi import FastAPI

from service.http.connections import TimeLimitedConnection


class Server(uvicorn.Server):
    """Ends every stream when it must stop, so that clients continue with another server.

    uvicorn alone would wait for the streams, which never end by themselves, until its grace is over.
    """

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        self._application = app
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                http=TimeLimitedConnection,
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=3,
            )
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End all streams, then stop as uvicorn does."""
        if (context := getattr(self._application.state, "context", None)) is not None:
            context.feed.close()
        await super().shutdown(sockets)
