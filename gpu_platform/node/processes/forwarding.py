"""``jobs forward`` in the node worker: connections to one port of a rank, each with its output, its input and its end.

The connector beside the rank opens them (``connector``) and hands them over. Where an attempt has no network of its
own, all that listens on the host is on the same loopback: there a connection is only made if a process of the attempt
listens at the port.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import HostUnavailable, NotFound, PortClosed
from gpu_platform.domain.jobs.exec import UNREAD_S, ExecChunk
from gpu_platform.node.isolation.jail import Jail
from gpu_platform.node.processes.byte_session import ByteSession
from gpu_platform.node.processes.connector import CONNECT
from gpu_platform.node.processes.exec import ExecProcess
from gpu_platform.node.processes.ranks import RankProcess
from gpu_platform.node.processes.stopping import attempt_processes
from gpu_platform.node.system import paths

_KEPT_BYTES = 128 * 1024
_ANSWER_TIMEOUT_S = 15.0
_LOOK_AGAIN_S = 2.0
"""Seconds for which a listening socket counts as the job's. Looking at all processes takes up to 0.1 s."""
_LISTENS = "0A"
"""TCP_LISTEN in proc_net_tcp(5)."""


class ForwardWay(ExecProcess):
    """The way to one port of a rank. It ends with the rank, or when nobody follows it."""

    _channel: socket.socket | None = None
    _found: str | None = None
    """The socket of the job that listened at the port at the last look."""
    _looked_at = 0.0

    async def connect(self, home: Path, host: str) -> ForwardedConnection:
        """A new connection to the port.

        Raises :class:`PortClosed` if nothing of the job listens there, :class:`NotFound` if the way has ended, and
        :class:`HostUnavailable` if the host cannot connect.
        """
        where = f"port {self.port} in rank {self.rank} of job {self.key.job_id}"
        async with self._writing:
            if self._channel is None or self.ended.is_set():
                raise NotFound(f"the way to {where} has ended")
            await asyncio.to_thread(self._check_listener, home, where)
            answer, fds = await self._ask(self._channel)
        if not fds:
            number = int(answer) if answer.isdigit() else errno.EIO
            if number == errno.ECONNREFUSED:
                raise PortClosed(f"nothing listens on {where}: start your server there, or look at its output")
            raise HostUnavailable(f"host {host} cannot connect to {where}: {os.strerror(number)}", host=host)
        connection = _checked(fds, self.port)
        if connection is None:
            raise HostUnavailable(f"host {host} got something else than a connection to {where}", host=host)
        return ForwardedConnection(self.key, self.rank, connection)

    def close(self) -> None:
        """Close all descriptors. The helper then ends the connector."""
        super().close()
        if self._channel is not None:
            self._loop.remove_reader(self._channel.fileno())
            self._channel.close()
            self._channel = None

    def _take(self, fd: int) -> None:
        self._channel = socket.socket(fileno=fd)
        self._channel.setblocking(False)

    async def _ask(self, channel: socket.socket) -> tuple[bytes, list[int]]:
        """The answer of the connector, and what it has opened."""
        answered: asyncio.Future[tuple[bytes, list[int]]] = self._loop.create_future()

        def hear() -> None:
            try:
                data, fds, _, _ = socket.recv_fds(channel, 16, 4)
            except BlockingIOError:
                return
            except OSError:
                data, fds = b"", []
            if not answered.done():
                answered.set_result((data, fds))

        try:
            channel.send(CONNECT)
            self._loop.add_reader(channel.fileno(), hear)
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                return await answered
        except (OSError, TimeoutError):
            # An answer that comes later would be taken for that of the next connection.
            self.end("it does not answer any more")
            return b"", []
        finally:
            if channel.fileno() >= 0:
                self._loop.remove_reader(channel.fileno())

    def _check_listener(self, home: Path, where: str) -> None:
        """Raise :class:`PortClosed` if the attempt shares the host's network and none of its processes listens at the
        port."""
        directory = paths.attempt_dir(home, self.key)
        jail = Jail.of(str(directory))
        if jail is not None and (jail.holder is None or not _shares_our_network(jail.holder.pid)):
            return  # the connector is in the attempt's own network, or it has ended with it
        wanted = {f"socket:[{inode}]" for inode in _listening_inodes(self.port or 0)}
        if self._found in wanted and time.monotonic() < self._looked_at + _LOOK_AGAIN_S:
            return
        ranks = [RankProcess(path, int(path.name.removeprefix("rank-")), "") for path in directory.glob("rank-[0-9]*")]
        for one in attempt_processes(home, self.key, ranks) if wanted else ():
            if found := wanted & _open_files(one.pid):
                self._found, self._looked_at = found.pop(), time.monotonic()
                return
        other = "; something else on this host does, which is not yours" if wanted else ""
        raise PortClosed(f"nothing of the job listens on {where}{other}: start your server there")


class ForwardedConnection(ByteSession):
    """One connection to a program of a rank. Each side may close its half while the other goes on."""

    unread_s: float = UNREAD_S

    def __init__(self, key: AttemptKey, rank: int, connection: socket.socket) -> None:
        super().__init__(key, rank, kept_bytes=_KEPT_BYTES)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port = connection.getpeername()[1]
        self._connection: socket.socket | None = connection
        self._why: str | None = None
        self._input = os.dup(connection.fileno())
        self._read_from(os.dup(connection.fileno()), "stdout")

    def end(self, why: str) -> None:
        """Close both halves at once."""
        self._why = self._why or why
        self.close()

    def close(self) -> None:
        """Close the connection."""
        super().close()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._look()

    # Never blocks, whatever the job does to the flags of the connection, which it may share.
    def _get(self, fd: int, size: int) -> bytes:
        assert self._connection is not None
        return self._connection.recv(size, socket.MSG_DONTWAIT)

    def _put(self, fd: int, data: memoryview) -> int:
        assert self._connection is not None
        return self._connection.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def _broke(self, error: OSError) -> None:
        self._why = self._why or f"the program broke the connection: {error.strerror}"
        self._close_input()

    def _stop_reading(self, fd: int) -> None:
        reads = fd in self._reading
        super()._stop_reading(fd)
        if reads:
            self._end += 1
            self._add(ExecChunk(stream="eof", next_offset=self._end))
            self._look()

    def _close_input(self) -> None:
        if self._input is not None and self._connection is not None:
            with suppress(OSError):  # it is broken already
                self._connection.shutdown(socket.SHUT_WR)
        super()._close_input()
        self._look()

    def _look(self) -> None:
        """Tell the end once both halves are closed."""
        if not self._reading and self._input is None and not self.ended.is_set():
            self._finish(0 if self._why is None else 1, self._why)


def _shares_our_network(pid: int) -> bool:
    """True if a process is in the network namespace of this one, or if nobody knows."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net")
    except OSError:
        return True


def _listening_inodes(port: int) -> set[int]:
    """The inodes of all sockets of this network namespace that listen at a TCP port (proc_net_tcp(5))."""
    found: set[int] = set()
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        with suppress(OSError), open(table) as file:
            for line in file:
                fields = line.split()
                if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                    found.add(int(fields[9]))
    return found


def _open_files(pid: int) -> set[str]:
    """What the descriptors of a process are, as ``/proc`` names it. Empty for processes of others."""
    found: set[str] = set()
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def _checked(fds: list[int], port: int | None) -> socket.socket | None:
    """The connection, if it is one over TCP to the loopback at this port. The job's processes are not believed."""
    sockets: list[socket.socket] = []
    for fd in fds:
        try:
            sockets.append(socket.socket(fileno=fd))
        except OSError:  # no socket
            os.close(fd)
    good = None
    with suppress(OSError):
        if len(sockets) == 1 and sockets[0].family in (socket.AF_INET, socket.AF_INET6):
            address = sockets[0].getpeername()
            is_tcp = sockets[0].proto == socket.IPPROTO_TCP and sockets[0].type == socket.SOCK_STREAM
            if is_tcp and address[0] in ("127.0.0.1", "::1") and address[1] == port:
                good = sockets[0]
    for one in sockets:
        if one is not good:
            one.close()
    return good
