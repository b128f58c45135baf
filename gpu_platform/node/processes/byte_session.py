"""What all sessions beside a rank share: output that is kept for readers, input with offsets, and their end.

Offsets count the bytes of all output in the order of arrival, so that a reader that lost its connection goes on where
it was. A slow reader holds the program up: nothing is dropped.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import deque
from collections.abc import AsyncGenerator

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import InUse, InvalidRequest
from gpu_platform.domain.jobs.exec import ExecAttached, ExecChunk, ExecInfo, ExecSession

_INPUT_PATIENCE_S = 5.0
_READ_BYTES = 32 * 1024
_UNSENT_BYTES = 256 * 1024
"""The program has to wait while so many bytes of its output are unread."""
_SCREEN_BYTES = 64 * 1024
"""The most of earlier output that a client gets when it attaches."""


class ByteSession:
    """Bytes from a program to its reader, and from its writer to the program. Use it only from the event loop.

    ``kept_bytes``: how many bytes of sent output are kept, for a reader that lost its connection.
    """

    def __init__(self, key: AttemptKey, rank: int, *, kept_bytes: int = 1024 * 1024) -> None:
        self.command: list[str] = []
        self.tty = False
        self.port: int | None = None
        self.user = ""
        """Who asked for it."""
        self.id = secrets.token_hex(16)
        self.key = key
        self.rank = rank
        self.ended = asyncio.Event()
        self.keeper: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._kept_bytes = kept_bytes
        self._input: int | None = None
        self._reading: dict[int, str] = {}
        """Descriptor -> stream, for those that may still bring output."""
        self._chunks: deque[ExecChunk] = deque()
        self._first = 0
        """Offset of the oldest byte that is kept."""
        self._end = 0
        self._sent = 0
        self._paused = False
        self._followers = 0
        self._began_at = self._unread_since = self._loop.time()
        self._attachment = 0
        self._attached_by: str | None = None
        self._news = asyncio.Event()
        self._idle = asyncio.Event()
        self._followed = asyncio.Event()
        self._received = 0
        self._writing = asyncio.Lock()
        self._waiting: asyncio.Future[None] | None = None
        """Done when the program takes input again, or takes none any more."""

    @property
    def age_s(self) -> float:
        """Seconds since it began."""
        return self._loop.time() - self._began_at

    @property
    def unread_for_s(self) -> float:
        """Seconds since somebody read it. 0.0: somebody does."""
        return 0.0 if self._followers else self._loop.time() - self._unread_since

    def info(self, host: str) -> ExecInfo:
        """What the session is, for lists."""
        return ExecInfo(
            session=self.address(host),
            command=self.command,
            tty=self.tty,
            port=self.port,
            readers=self._followers,
            ended=self.ended.is_set(),
        )

    def address(self, host: str) -> ExecSession:
        """Where it is found."""
        return ExecSession(id=self.id, job_id=self.key.job_id, attempt=self.key.attempt, rank=self.rank, host=host)

    def follow(
        self, offset: int, attachment: int = 0, most_bytes: int | None = None
    ) -> AsyncGenerator[ExecChunk, None]:
        """Output from ``offset`` on, then the end. For an ``attachment`` that is not the newest, nothing but the news
        that it is over. Raises :class:`InvalidRequest` if that output is not kept any more.

        ``most_bytes``: after so many, or a few more, it stops. A reader who passes them on before it asks for the next
        ones finds what it has not passed on, when its own reader comes back: that is kept.
        """
        if attachment == self._attachment and not self._first <= offset <= self._end:
            raise InvalidRequest(f"output from byte {offset} on is gone; {self._first} to {self._end} are kept")
        last = None if most_bytes is None else offset + min(most_bytes, self._kept_bytes // 2)
        return self._follow(offset, attachment, last)

    def attach(self, host: str, lines: int, by: str | None) -> ExecAttached:
        """Give the session to a new client, which goes on with the last ``lines`` lines of output. ``by``: who it
        is, for the one that had it before."""
        self._attachment += 1
        self._attached_by = by
        self._news.set()
        return ExecAttached(
            session=self.address(host),
            attachment=self._attachment,
            offset=self._offset_of_last(lines),
            received=self._received,
        )

    async def write(self, offset: int, data: bytes, eof: bool, attachment: int = 0) -> int:
        """Write ``data`` to the program; ``offset`` says where it begins in the whole input. Returns the bytes taken in
        all.

        It may be repeated. What the program does not take within seconds is not counted: send it again. Raises
        :class:`InUse` if somebody else attached meanwhile.
        """
        async with self._writing:
            if attachment != self._attachment:
                raise InUse(f"{self._taken()}, and only the newest terminal may type")
            if offset > self._received:
                raise InvalidRequest(f"input goes on at byte {self._received}, not at {offset}")
            end = offset + len(data)
            left = memoryview(data)[self._received - offset :]
            deadline = self._loop.time() + _INPUT_PATIENCE_S
            while left and self._input is not None and (pause := deadline - self._loop.time()) > 0:
                try:
                    written = self._put(self._input, left)
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

    def end(self, why: str) -> None:
        """End it, unless it has ended. ``why`` becomes the reason that the reader sees."""
        raise NotImplementedError

    def close(self) -> None:
        """Close all descriptors."""
        for fd in list(self._reading):
            self._stop_reading(fd)
        self._close_input()

    async def wait_idle(self, patience_s: float) -> None:
        """Wait until it has ended, or until nobody has followed it for ``patience_s``."""
        while not self.ended.is_set():
            is_followed = self._followers > 0
            change = self._idle if is_followed else self._followed
            waits = {asyncio.ensure_future(change.wait()), asyncio.ensure_future(self.ended.wait())}
            done, _ = await asyncio.wait(
                waits, timeout=None if is_followed else patience_s, return_when=asyncio.FIRST_COMPLETED
            )
            for wait in waits:
                wait.cancel()
            if not done:
                return

    async def _follow(self, offset: int, attachment: int, last: int | None) -> AsyncGenerator[ExecChunk, None]:
        self._followers += 1
        self._idle.clear()
        self._followed.set()
        try:
            while attachment == self._attachment:
                self._news.clear()
                for chunk in [chunk for chunk in self._chunks if chunk.next_offset > offset]:
                    new = chunk.next_offset - offset
                    yield chunk if new >= len(chunk.data) else chunk.model_copy(update={"data": chunk.data[-new:]})
                    offset = chunk.next_offset
                    self._was_sent(offset)
                    if last is not None and offset >= last:
                        return
                    if attachment != self._attachment:
                        break
                if self.ended.is_set() and offset == self._end:
                    return
                if offset == self._end and attachment == self._attachment:
                    await self._news.wait()
            yield ExecChunk(stream="detached", next_offset=offset, reason=self._taken())
        finally:
            self._followers -= 1
            if self._followers == 0:
                self._unread_since = self._loop.time()
                self._followed.clear()
                self._idle.set()

    def _taken(self) -> str:
        return f"{self._attached_by or 'somebody'} attached to it from another terminal"

    def _finish(self, code: int, reason: str | None) -> None:
        """Tell readers the end. Called once."""
        self._end += 1
        self._add(ExecChunk(stream="exit", next_offset=self._end, exit_code=code, reason=reason))
        self.ended.set()

    def _read_from(self, fd: int, stream: str) -> None:
        os.set_blocking(fd, False)
        self._reading[fd] = stream
        if not self._paused:
            self._loop.add_reader(fd, self._read, fd)

    def _read(self, fd: int) -> None:
        try:
            data = self._get(fd, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:  # EIO: nobody has the terminal open any more
            self._broke(error)
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

    def _get(self, fd: int, size: int) -> bytes:
        return os.read(fd, size)

    def _put(self, fd: int, data: memoryview) -> int:
        return os.write(fd, data)

    def _broke(self, error: OSError) -> None:
        """Called when reading fails."""

    def _add(self, chunk: ExecChunk) -> None:
        self._chunks.append(chunk)
        self._news.set()

    def _was_sent(self, offset: int) -> None:
        self._sent = max(self._sent, offset)
        while self._chunks and self._chunks[0].next_offset <= self._sent - self._kept_bytes:
            self._first = self._chunks.popleft().next_offset
        if self._paused and self._end - self._sent <= _UNSENT_BYTES:
            self._paused = False
            for fd in self._reading:
                self._loop.add_reader(fd, self._read, fd)

    def _offset_of_last(self, lines: int) -> int:
        """Where the last ``lines`` lines of the output that was sent begin; the line that is being written counts. What
        nobody has read yet comes after it."""
        sent = [chunk for chunk in self._chunks if chunk.data and chunk.next_offset <= self._sent]
        kept = b"".join(chunk.data for chunk in sent)[-_SCREEN_BYTES:]
        if not kept:
            return max(self._first, min(self._sent, self._end))
        begin, at = sent[-1].next_offset - len(kept), len(kept)
        for _ in range(lines):
            at = kept.rfind(b"\n", 0, at)
            if at < 0:
                return begin
        return begin + at + 1

    def _stop_reading(self, fd: int) -> None:
        if self._reading.pop(fd, None) is not None:
            self._loop.remove_reader(fd)
            os.close(fd)
            self._news.set()

    async def _writable(self, patience_s: float) -> None:
        fd = self._input
        assert fd is not None
        future = self._waiting = self._loop.create_future()
        self._loop.add_writer(fd, lambda: future.done() or future.set_result(None))
        try:
            await asyncio.wait({future}, timeout=patience_s)
        finally:
            if self._input is not None:
                self._loop.remove_writer(fd)

    def _finish_input(self) -> None:
        self._close_input()

    def _close_input(self) -> None:
        if self._input is not None:
            # A descriptor that is closed while the loop watches it ends the process: its number is soon another one's.
            self._loop.remove_writer(self._input)
            os.close(self._input)
            self._input = None
            if self._waiting is not None and not self._waiting.done():
                self._waiting.set_result(None)
