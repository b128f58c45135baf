# Generated from aio/commands.py (make client): do not edit, change that one.
"""Commands beside a rank of a running job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_platform.client import exec_calls as calls
from gpu_platform.client import models
from gpu_platform.client.sync.asking import Asking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpu_platform.domain.jobs.exec import ExecAttached, ExecChunk, ExecInfo, ExecRequest, ExecSession


class Commands(Asking):
    """Methods about commands beside a rank, and connections to its ports."""

    def exec(self, job_id: str, request: ExecRequest) -> ExecSession:
        """Start a command beside a rank of a running job. It is ended after 30 s if nobody reads its output."""
        return self.send(calls.exec_start(job_id, request), models.ExecSession)

    def exec_sessions(self, job_id: str, *, rank: int = 0) -> list[ExecInfo]:
        """Your sessions beside a rank, oldest first."""
        return (self.send(calls.exec_sessions(job_id, rank), models.Page[models.ExecInfo])).items

    def exec_attach(self, session: ExecSession, rows: int = 24, columns: int = 80) -> ExecAttached:
        """Go on with a session from here. Whoever had it before is told, and has it no more."""
        return self.send(calls.exec_attach(session, rows, columns), models.ExecAttached)

    def exec_connect(self, session: ExecSession) -> ExecSession:
        """Open a connection on a session that leads to a port. Raises :class:`PortClosed`."""
        return self.send(calls.exec_connect(session), models.ExecSession)

    def exec_output(
        self,
        session: ExecSession,
        *,
        offset: int = 0,
        attachment: int = 0,
        on_connection: Callable[[bool], object] = bool,
    ) -> Iterator[ExecChunk]:
        """The command's output while it runs. The last chunk has the exit code. ``on_connection``: called with False
        when the connection is lost, before it is tried again, and with True when it is made."""
        follow = self._follow(calls.exec_output(session, offset, attachment), on_connection)
        return (models.ExecChunk.model_validate_json(sse.data) for sse in follow)

    def exec_input(
        self, session: ExecSession, data: bytes, *, offset: int, eof: bool = False, attachment: int = 0
    ) -> int:
        """Send input that begins at byte ``offset`` of all input. Returns how many bytes the command has had so far."""
        call = calls.exec_input(session, data, offset, eof, attachment)
        return (self.send(call, models.ExecReceived)).received

    def exec_resize(self, session: ExecSession, rows: int, columns: int) -> None:
        """Set the size of the command's terminal."""
        self.answer(calls.exec_resize(session, rows, columns))

    def exec_end(self, session: ExecSession) -> None:
        """Kill the command with SIGKILL."""
        self.answer(calls.exec_end(session))
