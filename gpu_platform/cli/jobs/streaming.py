"""Both ways between this terminal, or these pipes, and a session beside a rank."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import typer

from gpu_platform.cli import session

if TYPE_CHECKING:
    from gpu_platform.client import Client
    from gpu_platform.domain.jobs.exec import ExecRequest, ExecSession

_READ_BYTES = 64 * 1024


@dataclass(frozen=True)
class Place:
    """A session, and where in it this client begins. See :class:`~gpu_platform.domain.jobs.exec.ExecAttached`."""

    session: ExecSession
    attachment: int = 0
    offset: int = 0
    received: int = 0


@dataclass(frozen=True)
class StreamEnd:
    """How the stream of a session ended here. ``taken``: another client attached. ``left``: the user typed ``~.``.
    ``lost``: nothing says how it ended."""

    how: Literal["exit", "taken", "left", "lost"]
    exit_code: int = session.FAILED
    reason: str | None = None


def need_terminal() -> None:
    """Exit unless stdin and stdout are a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        session.say("Error: -t needs a terminal on stdin and stdout; leave it out for a pipe")
        raise typer.Exit(session.USAGE)


def terminal_size() -> tuple[int, int]:
    """Rows and columns. Some terminals do not know theirs: then 24 and 80."""
    columns, rows = os.get_terminal_size(0)
    return rows or 24, columns or 80


def with_terminal(request: ExecRequest) -> ExecRequest:
    """The request with the size and the kind of this terminal."""
    rows, columns = terminal_size()
    return request.model_copy(update={"rows": rows, "columns": columns, "term": os.environ.get("TERM")})


def stream_both_ways(client: Client, place: Place, *, terminal: bool, may_leave: bool = False) -> StreamEnd:
    """Send input and print output until the end. ``may_leave``: in a terminal, ``~.`` at the start of a line ends only
    this client. Without a terminal Ctrl-C ends the session, too."""
    from gpu_platform.cli.terminal import ProgramOutput

    # With -t the command talks to the user's terminal, as in `ssh -t`.
    outputs = {"stdout": ProgramOutput(sys.stdout, raw=terminal), "stderr": ProgramOutput(sys.stderr, raw=terminal)}
    over, stop = os.pipe()
    keys = LeaveKeys() if terminal and may_leave else None
    sender = _Sender(client, place, over, keys, terminal=terminal)
    connection = _ConnectionNews(place.session.job_id, raw=terminal)
    try:
        with _raw() if terminal else _killing(client, place), _following_size(client, place, terminal):
            sender.start()
            chunks = client.exec_output(
                place.session, offset=place.offset, attachment=place.attachment, on_connection=connection.tell
            )
            for chunk in chunks:
                if chunk.stream == "exit":
                    return StreamEnd("exit", chunk.exit_code or 0, chunk.reason)
                if chunk.stream == "detached":
                    session.begin_line(raw=terminal)
                    return StreamEnd("taken", reason=chunk.reason)
                outputs["stdout" if chunk.stream == "stdout" else "stderr"].write_bytes(chunk.data)
    except _Left:
        session.begin_line(raw=terminal)
        return StreamEnd("left")
    finally:
        for output in outputs.values():
            output.close()
        os.close(stop)  # wakes the thread
        sender.join(timeout=2.0)
    return StreamEnd("lost", reason="nothing says how it ended")


class LeaveKeys:
    """Finds ``~.`` at the start of a line, as ssh does. ``~~`` there sends one ``~``."""

    def __init__(self) -> None:
        self._at_start = True
        self._tilde = False
        self.left = False

    def feed(self, data: bytes) -> bytes:
        """What to send of these keys. Sets ``left`` when the user leaves; the keys after it are dropped."""
        sent = bytearray()
        for key in data:
            if self._tilde:
                self._tilde = False
                if key == ord("."):
                    self.left = True
                    break
                if key != ord("~"):
                    sent += b"~"
            elif self._at_start and key == ord("~"):
                self._tilde = True
                continue
            sent.append(key)
            self._at_start = key in b"\r\n"
        return bytes(sent)


class _Left(Exception):
    """The user typed ``~.``."""


class _Sender(threading.Thread):
    """Sends what comes on stdin, until stdin or the command ends."""

    def __init__(self, client: Client, place: Place, over: int, keys: LeaveKeys | None, *, terminal: bool) -> None:
        super().__init__(daemon=True)
        self._client, self._place, self._over = client, place, over
        self._keys, self._terminal = keys, terminal

    def run(self) -> None:
        """Read and send."""
        from gpu_platform.domain.errors import InUse, PlatformError

        received = self._place.received
        data, eof = b"", False
        try:
            while not eof or data:
                if not data:
                    ready, _, _ = select.select([sys.stdin, self._over], [], [])
                    if self._over in ready:
                        return
                    data, eof = self._read()
                    if eof and self._terminal:
                        return  # the terminal is gone, which is no end of the session's input
                    if not data and not eof:
                        continue
                before = received
                received = self._client.exec_input(
                    self._place.session, data, offset=before, eof=eof, attachment=self._place.attachment
                )
                data = data[received - before :]
        except InUse:
            return  # another client attached; the reader of the output is told
        except PlatformError as error:
            # 404: the command has ended, and the reader of its output sees that. Other errors are real.
            if error.http_status != 404:
                session.interject(f"input is lost: {error.message}", raw=self._terminal)

    def _read(self) -> tuple[bytes, bool]:
        """Keys or bytes to send, and whether they are the last."""
        try:
            data = os.read(sys.stdin.fileno(), _READ_BYTES)
        except OSError:  # EIO: the terminal is gone
            data = b""
        eof = not data
        if self._keys is not None:
            data = self._keys.feed(data)
            if self._keys.left:
                # The main thread waits for output.
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        return data, eof


class _ConnectionNews:
    """Tells the user once that the connection was lost, and once that it is back."""

    def __init__(self, job_id: str, *, raw: bool) -> None:
        self._job_id, self._raw = job_id, raw
        self._lost = False

    def tell(self, connected: bool) -> None:
        if not connected and not self._lost:
            patience = f"{session.FOLLOW_PATIENCE_S:g} s"
            session.interject(
                f"the connection is lost; trying again for {patience}. {self._job_id} goes on", raw=self._raw
            )
        elif connected and self._lost:
            session.interject("connected again", raw=self._raw)
        self._lost = not connected


@contextmanager
def _killing(client: Client, place: Place) -> Iterator[None]:
    """Let Ctrl-C end the command, too, not only this process."""
    try:
        yield
    except (KeyboardInterrupt, BrokenPipeError):
        client.exec_end(place.session)
        raise


@contextmanager
def _raw() -> Iterator[None]:
    """Send every key to the command's terminal, Ctrl-C too."""

    def leave(*_: object) -> None:
        raise _Left

    before = termios.tcgetattr(0)
    handler = signal.signal(signal.SIGUSR1, leave)
    tty.setraw(0, termios.TCSADRAIN)  # keep what was typed before
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSANOW, before)
        signal.signal(signal.SIGUSR1, handler)


@contextmanager
def _following_size(client: Client, place: Place, terminal: bool) -> Iterator[None]:
    """Keep the command's terminal as large as ours, also when ours changes."""
    if not terminal:
        yield
        return

    def send_size(*_: object) -> None:
        threading.Thread(target=resize, args=(client, place.session), daemon=True).start()

    before = signal.signal(signal.SIGWINCH, send_size)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)


def resize(client: Client, started: ExecSession) -> None:
    """Give the session's terminal the size of ours. A size that is lost does no harm."""
    from gpu_platform.domain.errors import PlatformError

    rows, columns = terminal_size()
    try:
        client.exec_resize(started, rows, columns)
    except PlatformError:
        return
