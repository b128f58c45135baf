"""``gpu-platform jobs exec``: a command, or a shell, in the place where a rank of a job runs."""

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
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli import session
from service.cli.jobs import jobs
from service.cli.session import JobId

if TYPE_CHECKING:
    from gpu_platform.client import Client
    from gpu_platform.domain.jobs.exec import ExecSession

_READ_BYTES = 64 * 1024


def register(_: typer.Typer) -> None:
    """Add the command ``jobs exec``."""
    jobs.app.command("exec")(exec_command)


def exec_command(
    job: JobId,
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND", help="Program and arguments.", show_default=False)
    ],
    rank: Annotated[int, typer.Option(min=0, help="The rank beside which the command runs.")] = 0,
    terminal: Annotated[bool, typer.Option("-t", "--tty", help="With a terminal, for a shell.")] = False,
    break_glass: session.BreakGlass = None,
) -> None:
    """Run a command where a rank runs: its cgroup, namespaces, user, environment, GPUs.

    It ends with the rank at the latest. Returns the command's exit code.
    """
    from gpu_platform.domain.jobs.exec import ExecRequest

    if terminal and not (sys.stdin.isatty() and sys.stdout.isatty()):
        session.say("Error: -t needs a terminal on stdin and stdout; leave it out for a pipe")
        raise typer.Exit(session.USAGE)
    request = ExecRequest(command=command, rank=rank, tty=terminal)
    if terminal:
        rows, columns = _size()
        request = request.model_copy(update={"rows": rows, "columns": columns, "term": os.environ.get("TERM")})
    with session.service(session.FOLLOW_PATIENCE_S, break_glass) as client:
        started = client.exec(job, request)
        code, reason = _stream_both_ways(client, started, terminal)
    if reason is not None:
        session.say(f"the command was ended: {reason}")
    raise typer.Exit(code)


def _stream_both_ways(client: Client, started: ExecSession, terminal: bool) -> tuple[int, str | None]:
    """Send input and print output until the end."""
    from service.cli.terminal import ProgramOutput

    # With -t the command talks to the user's terminal, as in `ssh -t`.
    outputs = {"stdout": ProgramOutput(sys.stdout, raw=terminal), "stderr": ProgramOutput(sys.stderr, raw=terminal)}
    over, stop = os.pipe()
    sending = threading.Thread(target=_send_input, args=(client, started, over), daemon=True)
    try:
        with _raw() if terminal else _killing(client, started), _following_size(client, started, terminal):
            sending.start()
            for chunk in client.exec_output(started):
                if chunk.stream == "exit":
                    return chunk.exit_code or 0, chunk.reason
                outputs["stdout" if chunk.stream == "stdout" else "stderr"].write_bytes(chunk.data)
    finally:
        for output in outputs.values():
            output.close()
        os.close(stop)  # wakes the thread
        sending.join(timeout=2.0)
    return session.FAILED, "nothing says how it ended"


def _send_input(client: Client, started: ExecSession, over: int) -> None:
    """Send what comes on stdin, until stdin or the command ends."""
    from gpu_platform.domain.errors import PlatformError

    received = 0
    data, eof = b"", False
    try:
        while not eof or data:
            if not data:
                ready, _, _ = select.select([sys.stdin, over], [], [])
                if over in ready:
                    return
                data = os.read(sys.stdin.fileno(), _READ_BYTES)
                eof = not data
            before = received
            received = client.exec_input(started, data, offset=before, eof=eof)
            data = data[received - before :]
    except PlatformError as error:
        # 404: the command has ended, and the reader of its output sees that. Other errors are real.
        if error.http_status != 404:
            session.say(f"input is lost: {error.message}")


def _size() -> tuple[int, int]:
    """Rows and columns. Some terminals do not know theirs: then 0."""
    columns, rows = os.get_terminal_size(0)
    return rows or 24, columns or 80


@contextmanager
def _killing(client: Client, started: ExecSession) -> Iterator[None]:
    """Let Ctrl-C end the command, too, not only this process."""
    try:
        yield
    except (KeyboardInterrupt, BrokenPipeError):
        client.exec_end(started)
        raise


@contextmanager
def _raw() -> Iterator[None]:
    """Send every key to the command's terminal, Ctrl-C too."""
    before = termios.tcgetattr(0)
    tty.setraw(0, termios.TCSADRAIN)  # keep what was typed before
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSANOW, before)


@contextmanager
def _following_size(client: Client, started: ExecSession, terminal: bool) -> Iterator[None]:
    """Keep the command's terminal as large as ours, also when ours changes."""
    if not terminal:
        yield
        return

    def send_size(*_: object) -> None:
        rows, columns = _size()
        threading.Thread(target=client.exec_resize, args=(started, rows, columns), daemon=True).start()

    before = signal.signal(signal.SIGWINCH, send_size)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
