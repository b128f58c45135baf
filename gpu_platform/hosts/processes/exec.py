"""One session of ``jobs exec`` in the node worker: its program, its output kept for readers, its input, its end.

A session belongs to this node worker and ends with it. Its helper (``exec_helper``) makes sure that the program runs
where the rank runs, and dies with the rank.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import secrets
import socket
import struct
import subprocess
import sys
import termios
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path

import gpu_platform
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import HostUnavailable, InvalidRequest, NotFound
from gpu_platform.domain.jobs.exec import ExecChunk, ExecRequest
from gpu_platform.hosts.isolation.orders import ExecOrder
from gpu_platform.hosts.processes.exec_helper import MESSAGE_BYTES
from gpu_platform.hosts.system import paths

_START_TIMEOUT_S = 20.0
_INPUT_PATIENCE_S = 5.0
_LEFT_OUTPUT_S = 0.5
"""Seconds to wait for more output after the end. If a daemon of the program holds the pipe, it never closes."""
_READ_BYTES = 32 * 1024
_UNSENT_BYTES = 256 * 1024
"""The program has to wait while so many bytes of its output are unread."""
_KEPT_BYTES = 1024 * 1024
"""How many bytes of sent output are kept, for a reader that lost its connection."""
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from gpu_platform.hosts.processes.exec_helper import main; main(int(sys.argv[2]))"
)


class ExecProcess:
    """One program of an exec session. Offsets count the bytes of stdout and stderr together, in the order of
    arrival."""

    def __init__(self, key: AttemptKey, rank: int) -> None:
        self.id = secrets.token_hex(16)
        self.key = key
        self.rank = rank
        self.ended = asyncio.Event()
        self.keeper: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._control: socket.socket | None = None
        self._helper: subprocess.Popen[bytes] | None = None
        self._input: int | None = None
        self._terminal: int | None = None
        self._reading: dict[int, str] = {}
        """Descriptor -> stream, for those that may still bring output."""
        self._chunks: deque[ExecChunk] = deque()
        self._first = 0
        """Offset of the oldest byte that is kept."""
        self._end = 0
        self._sent = 0
        self._paused = False
        self._followers = 0
        self._news = asyncio.Event()
        self._idle = asyncio.Event()
        self._messages: asyncio.Queue[dict[str, object] | None] = asyncio.Queue()
        self._received = 0
        self._writing = asyncio.Lock()
        self._why: str | None = None
        self._ending: asyncio.Task[None] | None = None

    async def start(self, home: Path, request: ExecRequest, host: str, *, jailed: bool) -> None:
        """Start the helper, send it the order, and wait until the command runs.

        Raises :class:`NotFound` when the rank has ended, :class:`InvalidRequest` when the command cannot be executed,
        and :class:`HostUnavailable` when the host cannot start it.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._control = ours
        pipes = [] if request.tty else [os.pipe() for _ in range(3)]
        root = str(Path(gpu_platform.__file__).parent.parent)
        stdin, stdout, stderr = (pipes[0][0], pipes[1][1], pipes[2][1]) if pipes else (subprocess.DEVNULL,) * 3
        try:
            # Like the spawner: no site packages, and nothing of our environment.
            self._helper = await asyncio.to_thread(
                subprocess.Popen,
                [sys.executable, "-I", "-S", "-X", "utf8", "-c", _PROGRAM, root, str(theirs.fileno())],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env={},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError as error:
            for fd in (fd for pipe in pipes for fd in pipe):
                os.close(fd)
            raise HostUnavailable(f"host {host} cannot start a process: {error}") from error
        finally:
            theirs.close()
        if pipes:
            os.close(pipes[0][0])
            os.close(pipes[1][1])
            os.close(pipes[2][1])
            self._input = pipes[0][1]
            os.set_blocking(self._input, False)
            self._read_from(pipes[1][0], "stdout")
            self._read_from(pipes[2][0], "stderr")
        self._loop.add_reader(ours.fileno(), self._hear)
        order = ExecOrder(
            id=self.id,
            rank_dir=str(paths.rank_dir(home, self.key, self.rank)),
            attempt_dir=str(paths.attempt_dir(home, self.key)),
            argv=request.command,
            tty=request.tty,
            rows=request.rows,
            columns=request.columns,
            term=request.term if request.tty else None,
            jailed=jailed,
        )
        data = json.dumps(order.to_json()).encode()
        if len(data) > MESSAGE_BYTES // 4:
            raise InvalidRequest(f"the command has {len(data)} bytes: put it into a script")
        await self._loop.sock_sendall(ours, data)
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                answer = await self._messages.get()
        except TimeoutError:
            raise HostUnavailable(f"host {host} did not start the command within {_START_TIMEOUT_S:g} s") from None
        match answer:
            case {"status": "started"}:
                self._ending = asyncio.create_task(self._wait_for_end())
            case {"status": "ended"} | None:
                raise NotFound(f"rank {self.rank} of {self.key} does not run on {host}: it has ended")
            case {"status": "failed", "message": message}:
                raise InvalidRequest(str(message), exit_code=answer.get("exit_code"))
            case _:
                raise HostUnavailable(f"host {host} could not start the command: {answer.get('message')}")

    def follow(self, offset: int) -> AsyncGenerator[ExecChunk, None]:
        """Output from ``offset`` on, then the end. Raises :class:`InvalidRequest` if that output is not kept any
        more."""
        if not self._first <= offset <= self._end:
            raise InvalidRequest(f"output from byte {offset} on is gone; {self._first} to {self._end} are kept")
        return self._follow(offset)

    async def write(self, offset: int, data: bytes, eof: bool) -> int:
        """Write ``data`` to the program; ``offset`` says where it begins in the whole input. Returns the bytes taken in
        all.

        It may be repeated. What the program does not take within seconds is not counted: send it again.
        """
        async with self._writing:
            if offset > self._received:
                raise InvalidRequest(f"input goes on at byte {self._received}, not at {offset}")
            end = offset + len(data)
            left = memoryview(data)[self._received - offset :]
            deadline = self._loop.time() + _INPUT_PATIENCE_S
            while left and self._input is not None and (pause := deadline - self._loop.time()) > 0:
                try:
                    written = os.write(self._input, left)
                except BlockingIOError:
                    await self._writable(pause)
                    continue
                except OSError:  # the program has closed its input
                    self._close_input()
                    break
                self._received += written
                left = left[written:]
            if self._input is None:
                self._received = max(self._received, end)  # counted as taken, as with any pipe whose reader is gone
            elif eof and not left:
                self._finish_input()
            return self._received

    def resize(self, rows: int, columns: int) -> None:
        """Give the terminal a new size. Does nothing if there is no terminal."""
        if self._terminal is not None:
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def end(self, why: str) -> None:
        """Kill the program, unless it has ended. ``why`` becomes the reason that the reader sees."""
        if not self.ended.is_set() and self._control is not None:
            self._why = why
            self._control.shutdown(socket.SHUT_WR)

    async def wait_idle(self, patience_s: float) -> None:
        """Wait until it has ended, or until nobody has followed it for ``patience_s``."""
        while not self.ended.is_set():
            if self._followers == 0:
                ending = asyncio.ensure_future(self.ended.wait())
                done, _ = await asyncio.wait({ending}, timeout=patience_s)
                ending.cancel()
                if done or self._followers == 0:
                    return
            waits = {asyncio.ensure_future(self._idle.wait()), asyncio.ensure_future(self.ended.wait())}
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()

    def close(self) -> None:
        """Close all descriptors. The helper kills the program if it still runs."""
        for fd in list(self._reading):
            self._stop_reading(fd)
        self._close_input()
        self._terminal = None
        if self._control is not None:
            self._loop.remove_reader(self._control.fileno())
            self._control.close()
            self._control = None
        if self._helper is not None and self._helper.poll() is None:
            self._loop.run_in_executor(None, self._helper.wait)

    async def _follow(self, offset: int) -> AsyncGenerator[ExecChunk, None]:
        self._followers += 1
        self._idle.clear()
        try:
            while True:
                self._news.clear()
                for chunk in [chunk for chunk in self._chunks if chunk.next_offset > offset]:
                    new = chunk.next_offset - offset
                    yield chunk if new >= len(chunk.data) else chunk.model_copy(update={"data": chunk.data[-new:]})
                    offset = chunk.next_offset
                    self._was_sent(offset)
                if self.ended.is_set() and offset == self._end:
                    return
                if offset == self._end:
                    await self._news.wait()
        finally:
            self._followers -= 1
            if self._followers == 0:
                self._idle.set()

    async def _wait_for_end(self) -> None:
        answer = await self._messages.get()
        deadline = self._loop.time() + _LEFT_OUTPUT_S
        while self._reading and self._why is None and (self._paused or self._loop.time() < deadline):
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LEFT_OUTPUT_S):
                    await self._news.wait()
        answer = answer or {"exit_code": 128 + 9, "reason": "its helper was killed"}
        code, reason = answer.get("exit_code"), answer.get("reason")
        assert isinstance(code, int)
        if reason is not None and self._why is not None:
            reason = self._why
        self._end += 1
        self._add(
            ExecChunk(
                stream="exit",
                next_offset=self._end,
                exit_code=code,
                reason=None if reason is None else str(reason),
            )
        )
        self.ended.set()

    def _hear(self) -> None:
        assert self._control is not None
        try:
            data, fds, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, 1)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        if fds:
            [self._terminal] = fds
            self._input = os.dup(self._terminal)
            os.set_blocking(self._terminal, False)
            self._read_from(self._terminal, "stdout")
        if not data:
            self._loop.remove_reader(self._control.fileno())
        self._messages.put_nowait(json.loads(data) if data else None)

    def _read_from(self, fd: int, stream: str) -> None:
        os.set_blocking(fd, False)
        self._reading[fd] = stream
        self._loop.add_reader(fd, self._read, fd)

    def _read(self, fd: int) -> None:
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:  # EIO: nobody has the terminal open any more
            data = b""
        if not data:
            self._stop_reading(fd)
            return
        self._end += len(data)
        stream = self._reading[fd]
        self._add(ExecChunk.model_construct(stream=stream, data=data, next_offset=self._end))  # type: ignore[arg-type]
        if self._end - self._sent > _UNSENT_BYTES and not self._paused:
            self._paused = True
            for fd in self._reading:
                self._loop.remove_reader(fd)

    def _add(self, chunk: ExecChunk) -> None:
        self._chunks.append(chunk)
        self._news.set()

    def _was_sent(self, offset: int) -> None:
        self._sent = max(self._sent, offset)
        while self._chunks and self._chunks[0].next_offset <= self._sent - _KEPT_BYTES:
            self._first = self._chunks.popleft().next_offset
        if self._paused and self._end - self._sent <= _UNSENT_BYTES:
            self._paused = False
            for fd in self._reading:
                self._loop.add_reader(fd, self._read, fd)

    def _stop_reading(self, fd: int) -> None:
        if self._reading.pop(fd, None) is not None:
            self._loop.remove_reader(fd)
            os.close(fd)
            self._news.set()
            if fd == self._terminal:
                self._terminal = None

    async def _writable(self, patience_s: float) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        fd = self._input
        assert fd is not None
        self._loop.add_writer(fd, lambda: future.done() or future.set_result(None))
        try:
            await asyncio.wait({future}, timeout=patience_s)
        finally:
            self._loop.remove_writer(fd)

    def _finish_input(self) -> None:
        if self._terminal is not None and self._input is not None:
            os.write(self._input, b"\x04")  # Ctrl-D: the terminal turns it into the end of the input
        self._close_input()

    def _close_input(self) -> None:
        if self._input is not None:
            os.close(self._input)
            self._input = None
