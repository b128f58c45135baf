"""``gpu-platform jobs forward``: ports of this machine that lead to ports of a job's rank, through the service."""

from __future__ import annotations

import errno
import re
import socket
import threading
import time
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from gpu_platform.cli import session
from gpu_platform.cli.session import JobId

if TYPE_CHECKING:
    from gpu_platform.client import Client
    from gpu_platform.domain.jobs.exec import ExecSession

_READ_BYTES = 512 * 1024
_LOOK_S, _END_PATIENCE_S = 0.2, 15.0
_BACKLOG = 64
_PORTS = re.compile(r"(?:([0-9]{0,5}):)?([0-9]{1,5})")
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def register(jobs: typer.Typer) -> None:
    """Add the command ``jobs forward``."""
    jobs.command("forward")(forward)


class PortPair(NamedTuple):
    """A port of this machine, 0: any free one, and the rank's port that it leads to."""

    here: int
    there: int


def parse_ports(text: str) -> PortPair:
    """Read ``8888``, ``9000:8888`` or ``:8888``. Raises :class:`typer.BadParameter`."""
    found = _PORTS.fullmatch(text)
    here, there = (found[1], int(found[2])) if found else (None, 0)
    pair = PortPair(there if here is None else int(here or 0), there)
    if not (0 <= pair.here < 65_536 and 0 < pair.there < 65_536):
        raise typer.BadParameter(f"{text!r} is no port: write 8888, 9000:8888 (here:there), or :8888 (any port here)")
    return pair


def forward(
    job: JobId,
    ports: Annotated[
        list[str],
        typer.Argument(metavar="[HERE:]PORT…", help="8888, 9000:8888, or :8888 for any free port here."),
    ],
    rank: Annotated[int, typer.Option(min=0, help="The rank whose port it is.")] = 0,
    address: Annotated[
        str, typer.Option(help="Address of this machine to listen at. Others reach the job with another one.")
    ] = "127.0.0.1",
    break_glass: session.BreakGlass = None,
) -> None:
    """Reach a server of a running job, such as a notebook or TensorBoard, at a port of this machine.

    Leads to 127.0.0.1 where the rank runs, and only to what the job itself listens at. Ends with the job, or with
    Ctrl-C.
    """
    pairs = [parse_ports(text) for text in ports]
    with session.service(session.FOLLOW_PATIENCE_S, break_glass) as client:
        listening = [_listen(address, pair) for pair in pairs]
        over = _End()
        ways: list[_Way] = []
        try:
            for opened, pair in zip(listening, pairs, strict=True):
                way = _Way(client, job, rank, pair.there, over)
                ways.append(way)
                here = "{}:{}".format(*opened.getsockname()[:2])
                session.write(f"{here} -> port {pair.there} of rank {rank} of {job}")
                threading.Thread(target=_accept, args=(opened, way), daemon=True).start()
            if address not in _LOOPBACK:
                session.say(f"everybody who reaches {address} of this machine reaches the job through these ports")
            session.say("Ctrl-C ends it")
            over.wait()
        finally:
            for opened in listening:
                opened.close()
            for way in ways:
                way.close()
    session.say(over.why)
    raise typer.Exit(over.code)


class _End:
    """The end of the command: why, and with which exit code."""

    def __init__(self) -> None:
        self.why, self.code = "", 0
        self._happened = threading.Event()

    def set(self, why: str, code: int) -> None:
        """Only the first call counts."""
        if not self._happened.is_set():
            self.why, self.code = why, code
            self._happened.set()

    def wait(self) -> None:
        """Wait for it. Ctrl-C raises here."""
        while not self._happened.wait(1.0):  # without a timeout no signal is handled
            pass


class _Way:
    """The session that leads to one port of the rank. It is made again when the host's node worker was restarted."""

    def __init__(self, client: Client, job_id: str, rank: int, port: int, over: _End) -> None:
        self._client, self.job_id, self._rank, self._port, self._over = client, job_id, rank, port, over
        self._lock = threading.Lock()
        self._session = self._start()
        threading.Thread(target=self._follow, daemon=True).start()

    @property
    def client(self) -> Client:
        """The client, which threads share."""
        return self._client

    def connect(self) -> ExecSession:
        """A new connection. Raises what the service answers, :class:`PortClosed` for example."""
        from gpu_platform.domain.errors import NotFound

        used = self._session
        try:
            return self._client.exec_connect(used)
        except NotFound:
            self._renew(used)
            return self._client.exec_connect(self._session)

    def close(self) -> None:
        """End the session on the host, and with it all its connections."""
        from gpu_platform.domain.errors import PlatformError

        try:
            self._client.exec_end(self._session)
        except PlatformError:
            return  # it has ended, or the host ends it because nobody follows it

    def _start(self) -> ExecSession:
        from gpu_platform.domain.jobs.exec import ExecRequest

        return self._client.exec(self.job_id, ExecRequest(rank=self._rank, port=self._port))

    def _renew(self, used: ExecSession) -> None:
        with self._lock:
            if self._session is used:
                self._session = self._start()

    def _follow(self) -> None:
        """Show the host that somebody is here, and learn how it ends."""
        from gpu_platform.domain.errors import NotFound, PlatformError

        while True:
            used = self._session
            try:
                ends = [chunk for chunk in self._client.exec_output(used) if chunk.stream == "exit"]
                if ends:
                    return self._over.set(*self._ended(ends[-1].reason or "it was ended"))
            except NotFound:
                pass  # the node worker was restarted
            except PlatformError as error:
                return self._over.set(error.message, session.exit_code_of(error))
            try:
                self._renew(used)
            except PlatformError as error:
                return self._over.set(*self._ended(error.message))

    def _ended(self, reason: str) -> tuple[str, int]:
        from gpu_platform.domain.errors import PlatformError

        deadline = time.monotonic() + _END_PATIENCE_S
        try:
            job = self._client.get(self.job_id)
            while job.state == "RUNNING" and time.monotonic() < deadline:  # its ranks end a little before it
                time.sleep(_LOOK_S)
                job = self._client.get(self.job_id)
        except PlatformError:
            return f"the way to port {self._port} ended: {reason}", session.FAILED
        if job.state.is_terminal:
            return f"{self.job_id} has ended ({job.state}), and the way to its ports with it", 0
        return f"the way to port {self._port} of {self.job_id} ended: {reason}; the job is {job.state}", session.FAILED


def _listen(address: str, pair: PortPair) -> socket.socket:
    """Listen here. Raises :class:`typer.BadParameter`, with what to do."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, pair.here), family=family, backlog=_BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            why = (
                f"port {pair.here} of {address} is in use on this machine: name another one, for example "
                f"{(pair.here + 1) % 65_536}:{pair.there}, or let any free one be taken, with :{pair.there}"
            )
        elif error.errno == errno.EACCES:
            why = f"port {pair.here} is only for root on this machine: take another one, for example :{pair.there}"
        else:
            why = f"cannot listen at {address}:{pair.here}: {error.strerror or error}"
        raise typer.BadParameter(why) from None


def _accept(listening: socket.socket, way: _Way) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:  # closed: the command ends
            return
        threading.Thread(target=_carry, args=(connection, way), daemon=True).start()


def _carry(connection: socket.socket, way: _Way) -> None:
    """Carry the bytes of one connection both ways until both are over."""
    from gpu_platform.domain.errors import PlatformError

    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            there = way.connect()
        except PlatformError as error:
            session.say(error.message)
            return _reset(connection)
        sending = threading.Thread(target=_send, args=(connection, way.client, there), daemon=True)
        sending.start()
        try:
            whole = _receive(connection, way.client, there)
        except (PlatformError, OSError) as error:
            session.say(f"a connection broke: {getattr(error, 'message', error)}")
            whole = False
        if not whole:
            _end(way.client, there)
            _reset(connection)
        sending.join()
    return None


def _receive(connection: socket.socket, client: Client, there: ExecSession) -> bool:
    """Write what comes from the job. True: both ways came to their end."""
    for chunk in client.exec_output(there):
        if chunk.stream == "stdout":
            connection.sendall(chunk.data)
        elif chunk.stream == "eof":
            connection.shutdown(socket.SHUT_WR)
        else:
            return chunk.exit_code == 0
    return False


def _send(connection: socket.socket, client: Client, there: ExecSession) -> None:
    """Send what is written here, until its end. The job's program holds it up if it does not read."""
    from gpu_platform.domain.errors import PlatformError

    received = 0
    try:
        while True:
            data = connection.recv(_READ_BYTES)
            end = received + len(data)
            while received < end or not data:
                left = data[len(data) - (end - received) :]
                received = client.exec_input(there, left, offset=received, eof=not data)
                if not data:
                    return
    except (PlatformError, OSError):
        _end(client, there)  # the other thread sees it, and says so


def _end(client: Client, there: ExecSession) -> None:
    from gpu_platform.domain.errors import PlatformError

    try:
        client.exec_end(there)
    except PlatformError:
        return  # it has ended


def _reset(connection: socket.socket) -> None:
    """Break the connection, so that its program does not take the end for a whole answer."""
    import struct

    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RD)  # wakes the thread that reads
    except OSError:
        return
