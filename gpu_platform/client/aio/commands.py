"""Commands beside a rank of a running job. ``sync/commands.py`` is generated from this file: run ``make client``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_platform.client import exec_calls as calls
from gpu_platform.client import models
from gpu_platform.client.aio.asking import AsyncAsking

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from gpu_platform.domain.jobs.exec import ExecAttached, ExecChunk, ExecInfo, ExecRequest, ExecSession


class AsyncCommands(AsyncAsking):
    """Methods about commands beside a rank, and connections to its ports."""

    async def exec(self, job_id: str, request: ExecRequest) -> ExecSession:
        """Start a command beside a rank of a running job. It is ended after 30 s if nobody reads its output."""
        return await self.send(calls.exec_start(job_id, request), models.ExecSession)

    async def exec_sessions(self, job_id: str, *, rank: int = 0) -> list[ExecInfo]:
        """Your sessions beside a rank, oldest first."""
        return (await self.send(calls.exec_sessions(job_id, rank), models.Page[models.ExecInfo])).items

    async def exec_attach(self, session: ExecSession, rows: int = 24, columns: int = 80) -> ExecAttached:
        """Go on with a session from here. Whoever had it before is told, and has it no more."""
        return await self.send(calls.exec_attach(session, rows, columns), models.ExecAttached)

    async def exec_connect(self, session: ExecSession) -> ExecSession:
        """Open a connection on a session that leads to a port. Raises :class:`PortClosed`."""
        return await self.send(calls.exec_connect(session), models.ExecSession)

    def exec_output(
        self,
        session: ExecSession,
        *,
        offset: int = 0,
        attachment: int = 0,
        on_connection: Callable[[bool], object] = bool,
    ) -> AsyncIterator[ExecChunk]:
        """The command's output while it runs. The last chunk has the exit code. ``on_connection``: called with False
        when the connection is lost, before it is tried again, and with True when it is made."""
        follow = self._follow(calls.exec_output(session, offset, attachment), on_connection)
        return (models.ExecChunk.model_validate_json(sse.data) async for sse in follow)

    async def exec_input(
        self, session: ExecSession, data: bytes, *, offset: int, eof: bool = False, attachment: int = 0
    ) -> int:
        """Send input that begins at byte ``offset`` of all input. Returns how many bytes the command has had so far."""
        call = calls.exec_input(session, data, offset, eof, attachment)
        return (await self.send(call, models.ExecReceived)).received

    async def exec_resize(self, session: ExecSession, rows: int, columns: int) -> None:
        """Set the size of the command's terminal."""
        await self.answer(calls.exec_resize(session, rows, columns))

    async def exec_end(self, session: ExecSession) -> None:
        """Kill the command with SIGKILL."""
        await self.answer(calls.exec_end(session))
