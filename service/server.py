"""The service as a process's main loop: uvicorn, and an end that does not wait for those who follow."""

from __future__ import annotations

import socket

import uvicorn
from fastapi import FastAPI

from service.http.connections import TimeLimitedConnection


class Server(uvicorn.Server):
    """Ends every stream when it is told to stop; their clients go on with another server where they were.

    uvicorn alone would wait for followers, who never leave by themselves, until its grace is over.
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
                timeout_graceful_shutdown=3,
            )
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if (context := getattr(self._application.state, "context", None)) is not None:
            context.feed.close()
        await super().shutdown(sockets)
