"""One session of ``jobs exec`` in the node worker: its program, its output kept for readers, its input, its end.

A session belongs to this node worker and ends with it. Its helper (``exec_helper``) makes sure that the program runs
where the rank runs, and dies with the rank.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import socket
import struct
import termios
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import HostUnavailable, InvalidRequest, NotFound
from gpu_platform.domain.jobs.exec import UNREAD_S, ExecRequest
from gpu_platform.node.isolation.orders import ExecOrder
from gpu_platform.node.processes.byte_session import ByteSession
from gpu_platform.node.processes.exec_helper import MESSAGE_BYTES
from gpu_platform.node.system import paths

_START_TIMEOUT_S = 20.0
_LEFT_OUTPUT_S = 0.5
"""Seconds to wait for more output after the end. If a daemon of the program holds the pipe, it never closes."""

StartHelper = Callable[[Sequence[int]], None]
"""See :meth:`SpawnerClient.start_helper`."""


class ExecProcess(ByteSession):
    """One program of an exec session. Its offsets count the bytes of stdout and stderr together."""

    def __init__(self, key: AttemptKey, request: ExecRequest) -> None:
        super().__init__(key, request.rank)
        self.command, self.tty, self.port = request.command, request.tty, request.port
        self.unread_s = request.unread_s or UNREAD_S
        self._request = request
        self._control: socket.socket | None = None
        self._terminal: int | None = None
        self._messages: asyncio.Queue[dict[str, object] | None] = asyncio.Queue()
        self._why: str | None = None
        self._ending: asyncio.Task[None] | None = None

    @property
    def was_ended(self) -> bool:
        """True if somebody ended it, or nobody read it. False: it, or its rank, ended."""
        return self._why is not None

    async def start(self, home: Path, host: str, start_helper: StartHelper, *, jailed: bool) -> None:
        """Start the helper, send it the order, and wait until the command runs.

        Raises :class:`NotFound` when the rank has ended, :class:`InvalidRequest` when the command cannot be executed,
        and :class:`HostUnavailable` when the host cannot start it.
        """
        request = self._request
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._control = ours
        pipes = [] if request.tty or request.port is not None else [os.pipe() for _ in range(3)]
        standard = [pipes[0][0], pipes[1][1], pipes[2][1]] if pipes else [os.open(os.devnull, os.O_RDWR)] * 3
        try:
            await asyncio.to_thread(start_helper, [theirs.fileno(), *standard])
        except HostUnavailable:
            for fd in (fd for pipe in pipes for fd in pipe if fd not in standard):
                os.close(fd)
            raise
        finally:
            theirs.close()
            for fd in set(standard):
                os.close(fd)
        if pipes:
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
            port=request.port,
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

    def resize(self, rows: int, columns: int) -> None:
        """Give the terminal a new size. Does nothing if there is no terminal."""
        if self._terminal is not None:
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def end(self, why: str) -> None:
        """Kill the program, unless it has ended. ``why`` becomes the reason that the reader sees."""
        if not self.ended.is_set() and self._control is not None:
            self._why = why
            self._control.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close all descriptors. The helper kills the program if it still runs."""
        super().close()
        self._terminal = None
        if self._control is not None:
            self._loop.remove_reader(self._control.fileno())
            self._control.close()
            self._control = None

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
        self._finish(code, None if reason is None else str(reason))

    def _hear(self) -> None:
        assert self._control is not None
        try:
            data, fds, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, 1)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        if fds:
            self._take(fds[0])
        if not data:
            self._loop.remove_reader(self._control.fileno())
        self._messages.put_nowait(json.loads(data) if data else None)

    def _take(self, fd: int) -> None:
        """Take what the helper has opened: the terminal."""
        self._terminal = fd
        self._input = os.dup(fd)
        self._read_from(fd, "stdout")

    def _stop_reading(self, fd: int) -> None:
        super()._stop_reading(fd)
        if fd == self._terminal:
            self._terminal = None

    def _finish_input(self) -> None:
        if self._terminal is not None and self._input is not None:
            os.write(self._input, b"\x04")  # Ctrl-D: the terminal turns it into the end of the input
        self._close_input()
