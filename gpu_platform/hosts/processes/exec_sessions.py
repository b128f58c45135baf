"""The commands beside ranks (``jobs exec``) that run on this host, and how many there may be."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import InUse, NotFound
from gpu_platform.domain.jobs.exec import ExecRequest
from gpu_platform.hosts.processes.exec import ExecProcess

MAX_SESSIONS = 64
"""The most commands that can run on one host at the same time."""
MAX_SESSIONS_OF_A_JOB = 16
"""The most of one job, so that it leaves some to others."""
UNREAD_S = 30.0
"""A session ends if nobody has read its output for this many seconds."""
_FORGET_S = 60.0
"""Seconds for which the end of a session can still be read."""


class ExecSessions:
    """All exec sessions of this host. Use it only from the event loop. ``jailed``: the host starts ranks in jails."""

    def __init__(self, home: Path, host: str, *, jailed: bool) -> None:
        self._home = home
        self._host = host
        self._jailed = jailed
        self._sessions: dict[str, ExecProcess] = {}

    async def start(self, key: AttemptKey, request: ExecRequest) -> str:
        """Start a command and return the session's id.

        Raises :class:`NotFound` if the rank does not run here (any more), :class:`InvalidRequest` if the command cannot
        be executed, and :class:`InUse` if too many commands run.
        """
        self._make_room(key.job_id)
        if len(self._sessions) >= MAX_SESSIONS:
            raise InUse(f"host {self._host} runs {MAX_SESSIONS} commands beside ranks already; end one of them")
        session = ExecProcess(key, request.rank)
        self._sessions[session.id] = session
        try:
            await session.start(self._home, request, self._host, jailed=self._jailed)
        except BaseException:
            del self._sessions[session.id]
            session.close()
            raise
        session.keeper = asyncio.create_task(self._keep(session))
        return session.id

    def get(self, key: AttemptKey, rank: int, session_id: str) -> ExecProcess:
        """A session that runs or ended a short time ago. Raises :class:`NotFound`."""
        session = self._sessions.get(session_id)
        if session is None or (session.key, session.rank) != (key, rank):
            raise NotFound(f"there is no such command on host {self._host}; it has ended, or its node worker restarted")
        return session

    def close(self) -> None:
        """Close all sessions. Their helpers notice it and kill the programs."""
        for session in self._sessions.values():
            session.close()

    def _make_room(self, job_id: str) -> None:
        """Forget the oldest ended session of a job that has all of its own. Raises :class:`InUse` if all of them
        run."""
        of_job = [session for session in self._sessions.values() if session.key.job_id == job_id]
        if len(of_job) < MAX_SESSIONS_OF_A_JOB:
            return
        ended = next((session for session in of_job if session.ended.is_set()), None)
        if ended is None:
            raise InUse(f"host {self._host} runs {len(of_job)} commands beside ranks of job {job_id}; end one of them")
        del self._sessions[ended.id]
        if ended.keeper is not None:
            ended.keeper.cancel()

    async def _keep(self, session: ExecProcess) -> None:
        try:
            while not session.ended.is_set():
                await session.wait_idle(UNREAD_S)
                session.end("nobody read its output")
            await asyncio.sleep(_FORGET_S)
        finally:
            self._sessions.pop(session.id, None)
            session.close()
