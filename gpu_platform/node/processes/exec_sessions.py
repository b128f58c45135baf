"""The commands beside ranks (``jobs exec``) and the ways to their ports (``jobs forward``) on this host, and how many
there may be.

A host has so many sessions that one user does not take them all: each job and each user has a share. Some are kept for
users who have none, and some more for operators who look at a job of somebody else. If a host is full, a session that
nobody reads makes place for a user who has fewer. Every session ends after a time, read or not.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import InUse, InvalidRequest, NotFound
from gpu_platform.domain.jobs.exec import ExecInfo, ExecRequest
from gpu_platform.node.processes.byte_session import ByteSession
from gpu_platform.node.processes.exec import ExecProcess, StartHelper
from gpu_platform.node.processes.forwarding import ForwardedConnection, ForwardWay
from gpu_platform.node.system import paths, records

MAX_SESSIONS = 64
"""The most commands and ways to ports that can be on one host at the same time."""
MAX_SESSIONS_OF_A_JOB = 16
"""The most of one job, so that it leaves some to others."""
MAX_SESSIONS_OF_A_USER = 32
KEPT_FOR_NEW_USERS = 8
"""Sessions that only users get who have none on this host."""
KEPT_FOR_OPERATORS = 4
"""Sessions beyond these that only operators get."""
UNREAD_GIVES_WAY_S = 60.0
"""On a full host a session that nobody has read for so long may make place for another user's."""
LONGEST_SESSION_S = 7 * 24 * 3600.0
"""A session ends after this time, read or not."""
MAX_CONNECTIONS = 256
"""The most connections to ports on one host. Each holds up to 0.4 MiB of bytes that are on their way."""
MAX_CONNECTIONS_OF_A_WAY = 64
MAX_CONNECTIONS_OF_A_USER = 128
_FORGET_S = 60.0
"""Seconds for which the end of a session can still be read."""
_FORGET_CONNECTION_S = 10.0


class ExecSessions:
    """All exec sessions of this host. Use it only from the event loop. ``jailed``: the host starts ranks in jails."""

    def __init__(self, home: Path, host: str, start_helper: StartHelper, *, jailed: bool) -> None:
        self._home = home
        self._host = host
        self._start_helper, self._jailed = start_helper, jailed
        self._sessions: dict[str, ExecProcess] = {}
        self._connections: dict[str, tuple[ForwardWay, ForwardedConnection]] = {}
        self._opening = Counter[str]()
        """User -> connections that are being opened."""

    async def start(
        self, key: AttemptKey, request: ExecRequest, by: str | None = None, *, operator: bool = False
    ) -> str:
        """Start a command, or make a way to a port, and return the session's id. ``by``: who asks (None: the job's
        user); ``operator``: it is not a job of his own.

        Raises :class:`NotFound` if the rank does not run here (any more), :class:`InvalidRequest` if the command cannot
        be executed, and :class:`InUse` if too many commands run.
        """
        user = by or self._user_of(key)
        self._make_room_of_job(key.job_id)
        self._make_room(user, operator=operator)
        session = (ExecProcess if request.port is None else ForwardWay)(key, request)
        session.user = user
        self._sessions[session.id] = session
        try:
            await session.start(self._home, self._host, self._start_helper, jailed=self._jailed)
        except BaseException:
            del self._sessions[session.id]
            session.close()
            raise
        session.keeper = asyncio.create_task(self._keep(session))
        return session.id

    async def connect(self, key: AttemptKey, rank: int, session_id: str) -> str:
        """Open a connection on a way to a port, and return its id. It is read and written as a command is.

        Raises :class:`PortClosed` if nothing of the job listens there, and :class:`InUse` if too many are open.
        """
        way = self.get(key, rank, session_id)
        if not isinstance(way, ForwardWay):
            raise InvalidRequest("this session runs a command: it leads to no port")
        if sum(owner is way for owner, _ in self._connections.values()) >= MAX_CONNECTIONS_OF_A_WAY:
            raise InUse(f"{MAX_CONNECTIONS_OF_A_WAY} connections to port {way.port} are open; close one of them")
        if len(self._connections) + self._opening.total() >= MAX_CONNECTIONS:
            raise InUse(f"host {self._host} has {MAX_CONNECTIONS} connections to ports of jobs; try again later")
        of_user = sum(owner.user == way.user for owner, _ in self._connections.values()) + self._opening[way.user]
        if of_user >= MAX_CONNECTIONS_OF_A_USER:
            raise InUse(
                f"{way.user} has {of_user} connections to ports on host {self._host}, and "
                f"{MAX_CONNECTIONS_OF_A_USER} are the most; close one of them"
            )
        self._opening[way.user] += 1
        try:
            connection = await way.connect(self._home, self._host)
        finally:
            self._opening[way.user] -= 1
        self._connections[connection.id] = way, connection
        connection.keeper = asyncio.create_task(self._keep_connection(connection))
        return connection.id

    def get(self, key: AttemptKey, rank: int, session_id: str) -> ByteSession:
        """A session or a connection that runs, or ended a short time ago. Raises :class:`NotFound`."""
        session: ByteSession | None = self._sessions.get(session_id)
        if session is None and session_id in self._connections:
            session = self._connections[session_id][1]
        if session is None or (session.key, session.rank) != (key, rank):
            raise NotFound(f"there is no such command on host {self._host}; it has ended, or its node worker restarted")
        return session

    def of_rank(self, key: AttemptKey, rank: int) -> list[ExecInfo]:
        """The sessions beside a rank, oldest first."""
        found = [one for one in self._sessions.values() if (one.key, one.rank) == (key, rank)]
        return [one.info(self._host) for one in found]

    def close(self) -> None:
        """Close all sessions. Their helpers notice it and kill the programs."""
        for _, connection in list(self._connections.values()):
            connection.close()
        for session in self._sessions.values():
            session.close()

    def _user_of(self, key: AttemptKey) -> str:
        plan = records.read_record(str(paths.attempt_dir(self._home, key) / records.PLAN))
        return "" if plan is None else plan["user"]

    def _make_room_of_job(self, job_id: str) -> None:
        """Forget the oldest ended session of a job that has all of its own. Raises :class:`InUse` if all of them
        run."""
        of_job = [session for session in self._sessions.values() if session.key.job_id == job_id]
        if len(of_job) < MAX_SESSIONS_OF_A_JOB:
            return
        ended = next((session for session in of_job if session.ended.is_set()), None)
        if ended is None:
            raise InUse(f"host {self._host} runs {len(of_job)} commands beside ranks of job {job_id}; end one of them")
        self._forget(ended)

    def _make_room(self, user: str, *, operator: bool) -> None:
        """Raise :class:`InUse` if the host has no session left for the user. One that has ended is forgotten, and one
        that nobody reads is ended, for a user who has fewer."""
        running = [one for one in self._sessions.values() if not one.ended.is_set()]
        of_each = Counter(one.user for one in running)
        mine = of_each[user]
        if mine >= MAX_SESSIONS_OF_A_USER:
            raise InUse(
                f"{user} runs {mine} commands beside ranks on host {self._host}, and {MAX_SESSIONS_OF_A_USER} are the "
                "most of one user; end one of them"
            )
        if len(self._sessions) >= MAX_SESSIONS and (ended := next(self._ended(), None)) is not None:
            self._forget(ended)
        most = MAX_SESSIONS + (KEPT_FOR_OPERATORS if operator else 0)
        most -= KEPT_FOR_NEW_USERS if mine and not operator and MAX_SESSIONS > KEPT_FOR_NEW_USERS else 0
        if len(self._sessions) < most:
            return
        unread = [one for one in running if one.unread_for_s >= UNREAD_GIVES_WAY_S and of_each[one.user] > mine + 1]
        if not unread:
            raise InUse(
                f"host {self._host} runs {len(self._sessions)} commands beside ranks already, and {most} are the most "
                f"for {user}, who has {mine} of them; end one of them, or try again later"
            )
        victim = max(unread, key=lambda one: (of_each[one.user], one.unread_for_s))
        victim.end("nobody read its output, and another user needed its place on the host")
        self._forget(victim)

    def _ended(self) -> Iterator[ExecProcess]:
        return (session for session in self._sessions.values() if session.ended.is_set())

    def _forget(self, session: ExecProcess) -> None:
        del self._sessions[session.id]
        if session.keeper is not None:
            session.keeper.cancel()

    async def _keep(self, session: ExecProcess) -> None:
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(LONGEST_SESSION_S):
                    await session.wait_idle(session.unread_s)
            while not session.ended.is_set():
                is_old = session.age_s >= LONGEST_SESSION_S
                session.end(f"it ran for {LONGEST_SESSION_S:g} s, the longest" if is_old else "nobody read its output")
                await session.wait_idle(session.unread_s)
            # If its rank ended, a connection may still bring what the rank sent last, and then ends by itself.
            for way, connection in list(self._connections.values()):
                if way is session and session.was_ended:
                    connection.end("the way to its port was ended")
            await asyncio.sleep(_FORGET_S)
        finally:
            self._sessions.pop(session.id, None)
            session.close()

    async def _keep_connection(self, connection: ForwardedConnection) -> None:
        try:
            await connection.wait_idle(connection.unread_s)
            if not connection.ended.is_set():
                connection.end("nobody read it")
            await asyncio.sleep(_FORGET_CONNECTION_S)
        finally:
            self._connections.pop(connection.id, None)
            connection.close()
