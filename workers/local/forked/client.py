"""Asks the fork server for processes, and stands for them as :class:`asyncio.subprocess.Process` does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from gpu_platform.domain.errors import CannotStart
from workers.local.forked.server import LARGEST_MESSAGE
from workers.local.log_ends import error_of

PROGRAMS = ("workers.service", "workers.control", "workers.scheduler", "workers.node", "workers.gateway")
MODULES = (
    "workers.service",
    "workers.control",
    "workers.scheduler.main",
    "workers.node.main",
    # What they import later, when they need it.
    "gpu_platform.store.migrate",
    "anyio._backends._asyncio",
    "httpcore",
    "uvicorn.protocols.websockets.auto",
)
COMMAND = str(Path(sys.executable).with_name("gpu-platform"))
_ROOM_IN_PS = "." * 100
_END_PATIENCE_S = 10.0
_NAMESPACES = ("net", "mnt", "uts", "ipc", "user", "cgroup")


def program_of(argv: Sequence[str]) -> list[str] | None:
    """What the fork server calls this program, with its arguments. None: it cannot fork it."""
    if argv[0] == COMMAND:
        return list(argv)
    if list(argv[:3]) == [sys.executable, "-P", "-m"] and argv[3] in PROGRAMS:
        return list(argv[3:])
    return None


class Process:
    """``ended``: its exit code, or the negative number of the signal that ended it, as soon as it has ended.

    A child of the fork server. Its methods are those of :class:`asyncio.subprocess.Process`."""

    def __init__(self, pid: int, ended: Future[int]) -> None:
        self.pid = pid
        self.ended = ended
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None

    @property
    def returncode(self) -> int | None:
        """What ``ended`` has. None: it runs."""
        return self.ended.result() if self.ended.done() else None

    async def wait(self) -> int:
        """Wait for its end. Returns what ``returncode`` is then."""
        return await asyncio.shield(asyncio.wrap_future(self.ended))

    async def communicate(self) -> tuple[bytes, bytes]:
        """Read both outputs to their ends and wait for its end."""
        assert self.stdout is not None
        assert self.stderr is not None
        out, err, _ = await asyncio.gather(self.stdout.read(), self.stderr.read(), self.wait())
        return out, err

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """One fork server, and the connection to it. Thread-safe."""

    def __init__(self, modules: Sequence[str] = MODULES) -> None:
        self._modules = modules
        self._lock = threading.Lock()
        self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._living: dict[int, Future[int]] = {}
        self._server: subprocess.Popen[bytes] | None = None
        self._surroundings: tuple[str, ...] = ()
        self._connection: socket.socket
        self._said: IO[bytes]
        """What the server writes to stderr."""

    @property
    def pid(self) -> int | None:
        """That of the server. None: it does not run."""
        return None if self._server is None else self._server.pid

    def can_fork(self, argv: Sequence[str], env: Mapping[str, str]) -> bool:
        """Whether a forked process would be as a new one: the program is known, and this thread and the server are in
        the same namespaces and cgroups. Variables that an interpreter reads at its start must be the same.

        Raises :class:`CannotStart` if the server cannot import the programs: then they cannot run at all.
        """
        if program_of(argv) is None:
            return False
        with self._lock:
            self._begin()
        kept = {name for name in {*env, *os.environ} if name.startswith(("PYTHON", "LD_", "MALLOC_"))}
        same = all(env.get(name) == os.environ.get(name) for name in kept)
        return same and _surroundings("thread-self") == self._surroundings

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        stdout: int,
        stderr: int,
        cwd: Path | None = None,
        dies_with_parent: bool = False,
    ) -> Process:
        """Start a program in a session of its own, without input. The two descriptors stay the caller's."""
        request = {
            "argv": program_of(argv), "env": dict(env), "cwd": str(cwd or Path.cwd()),
            "dies_with_parent": dies_with_parent,
        }  # fmt: skip
        with self._lock:
            self._begin()
            socket.send_fds(self._connection, [json.dumps(request).encode()], [stdout, stderr])
            answer = self._answers.get(timeout=30)
        return Process(answer["pid"], answer["ended"])

    def run(
        self, argv: Sequence[str], env: Mapping[str, str], *, cwd: Path | None = None, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a program that can be forked, without input, to its end.

        It is killed after ``timeout_s`` seconds, and TimeoutError raised.
        """
        assert self.can_fork(argv, env)
        with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
            process = self.start(argv, env, stdout=out.fileno(), stderr=err.fileno(), cwd=cwd)
            try:
                code = process.ended.result(timeout_s)
            finally:
                process.kill()
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(list(argv), code, out.read(), err.read())

    async def piped(self, argv: Sequence[str], env: Mapping[str, str], cwd: Path | None = None) -> Process:
        """Start a program that can be forked, without input. Read its outputs from ``stdout`` and ``stderr``."""
        assert self.can_fork(argv, env)
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        try:
            process = self.start(argv, env, stdout=out_end, stderr=err_end, cwd=cwd)
        finally:
            os.close(out_end)
            os.close(err_end)
        process.stdout, process.stderr = await _reader(out), await _reader(err)
        return process

    def close(self) -> None:
        """End the server."""
        with self._lock:
            if self._server is not None:
                self._connection.shutdown(socket.SHUT_RDWR)
                self._server.wait(30)
                self._connection.close()
                self._server = None
                self._tell()

    def _begin(self) -> None:
        if self._server is not None:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            which = [str(theirs.fileno()), ",".join(self._modules), _ROOM_IN_PS]
            command = [sys.executable, "-P", "-m", "workers.local.forked.server", *which]
            # Libraries of numerics start threads when they are imported, which a fork would lose.
            env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
            self._said = TemporaryFile()  # noqa: SIM115  # _tell closes it
            # A session of its own: Ctrl-C at the terminal is not meant for it.
            server = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], env=env, stderr=self._said, start_new_session=True
            )
        if not (greeting := ours.recv(LARGEST_MESSAGE)):
            ours.close()
            raise self._cannot_start(server.wait(30))
        self._server, self._connection = server, ours
        threads = json.loads(greeting)["threads"]
        assert threads == 1, f"the fork server has {threads} threads: a child would have one of them"
        self._surroundings = _surroundings(str(self._server.pid))
        threading.Thread(target=self._read, name="fork-server", daemon=True).start()

    def _cannot_start(self, code: int) -> CannotStart:
        with self._said as said:
            said.seek(0)
            error = error_of(said.read().decode(errors="replace").splitlines()) or "it says nothing"
        hint = f". Install what {sys.executable} lacks (`make up` does)" if "No module named" in error else ""
        return CannotStart(f"the process that imports and starts the programs ended with code {code}: {error}{hint}")

    def _read(self) -> None:
        connection = self._connection
        with contextlib.suppress(ConnectionError):  # it was killed
            while message := connection.recv(LARGEST_MESSAGE):
                note: dict[str, Any] = json.loads(message)
                if "pid" in note:
                    # Set here and not by the caller: the child may end before that.
                    self._living[note["pid"]] = note["ended"] = Future()
                    self._answers.put(note)
                else:
                    self._living.pop(note["ended"]).set_result(note["code"])
        living, self._living = self._living, {}
        self._forget(connection)
        for pid, ended in living.items():
            _wait_for_orphan(pid)
            ended.set_result(-signal.SIGTERM)

    def _forget(self, connection: socket.socket) -> None:
        """The server behind this connection has ended. The next start begins another."""
        with self._lock:
            if self._server is not None and self._connection is connection:
                self._server.wait(30)
                connection.close()
                self._server = None
                self._tell()

    def _tell(self) -> None:
        """Show what the server wrote to stderr: why it crashed, if it did."""
        with self._said as said:
            said.seek(0)
            sys.stderr.write(said.read().decode(errors="replace"))


SERVER = ForkServer()
"""That of this process. It starts when it is first used."""


def _wait_for_orphan(pid: int) -> None:
    """Wait for the end of a child whose server has died. The kernel sent it SIGTERM."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if not select.select([pidfd], [], [], _END_PATIENCE_S)[0]:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            select.select([pidfd], [], [])
    finally:
        os.close(pidfd)


def _surroundings(process: str) -> tuple[str, ...]:
    directory = Path("/proc", process)
    return (*[str((directory / "ns" / name).readlink()) for name in _NAMESPACES], (directory / "cgroup").read_text())


async def _reader(descriptor: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    pipe = os.fdopen(descriptor, "rb", buffering=0)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return reader
