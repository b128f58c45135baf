"""Command-line programs of NVIDIA and of the system: those that a host runs for itself, not for what a job names.

A tool may hang in the driver, where not even SIGKILL ends it: ``subprocess.run`` would wait for it for ever. Here
nobody waits longer than the time limit and two seconds. A tool that hangs in the kernel is not started again before it
has ended. What a job can make long is a step: ``processes/step_process.py``.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import structlog

from gpu_platform.domain.errors import HostUnavailable
from gpu_platform.inherited import inherited

TIMEOUT_S = 20.0
KILL_PATIENCE_S = 2.0
"""A killed tool that lives longer hangs in the kernel."""
_LOOK_S = 0.25

log = structlog.get_logger(__name__)

_lock = threading.Lock()
_hung: dict[str, subprocess.Popen[bytes]] = {}
"""What hangs in the kernel, by what it does."""


GivenUp = Callable[[], bool]
"""True if nobody waits for the tool any more."""


def never() -> bool:
    """Somebody waits to the end."""
    return False


class ToolEnd(NamedTuple):
    """How a tool ended."""

    code: int
    output: str
    said: str
    """Its stderr."""


class NotEnded(HostUnavailable):
    """A tool did not end within its time, or nobody waits for it any more."""


def run(
    command: Sequence[str],
    *,
    timeout_s: float = TIMEOUT_S,
    environ: Mapping[str, str] | None = None,
    say: str = "",
    name: str = "",
    given_up: GivenUp = never,
) -> ToolEnd:
    """Run a tool until it ends, for at most ``timeout_s`` seconds, or until ``given_up``. Then it is killed with all
    in its session.

    ``name``: what it does, if the command alone does not say so. Raises :class:`NotEnded`, and ``OSError`` if it cannot
    be started.
    """
    name = name or " ".join(command)
    _check_hung(name)
    # Files, not pipes: a daemon that the tool leaves behind may keep a pipe open.
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as told:
        told.write(say.encode())
        told.seek(0)
        environ = inherited() if environ is None else environ
        process = subprocess.Popen(
            list(command), env=environ, stdin=told, stdout=output, stderr=said, start_new_session=True
        )
        why = _wait(process, timeout_s, given_up)
        if why is not None:
            _kill(process, name)
            raise NotEnded(f"{name} {why}")
        output.seek(0)
        said.seek(0)
        texts = [file.read().decode(errors="replace") for file in (output, said)]
    return ToolEnd(process.returncode, *texts)


def run_tool(
    command: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    say: str = "",
    given_up: GivenUp = never,
) -> str:
    """Run a command and return what it wrote.

    Raises :class:`HostUnavailable`, with the command's own message, if it fails, hangs or is not installed.
    """
    try:
        ended = run(command, environ=environ, say=say, given_up=given_up)
    except FileNotFoundError:
        raise HostUnavailable(f"{command[0]} is not installed on this host") from None
    words = (ended.output + ended.said).strip()
    if ended.code != 0:
        raise HostUnavailable(f"{' '.join(command)} ended with {ended.code}: {words[-300:]}")
    return words


def _wait(process: subprocess.Popen[bytes], timeout_s: float, given_up: GivenUp) -> str | None:
    """None: it has ended. Else why it must be ended."""
    deadline = time.monotonic() + timeout_s
    fd = os.pidfd_open(process.pid)  # it is there until this process has waited for it
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        while True:
            left = deadline - time.monotonic()
            if poll.poll(max(0.0, min(_LOOK_S, left)) * 1000):
                process.wait()
                return None
            if left <= 0:
                return f"did not end within {timeout_s:g} s"
            if given_up():
                return "was ended: nobody waits for it any more"
    finally:
        os.close(fd)


def _kill(process: subprocess.Popen[bytes], name: str) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(KILL_PATIENCE_S)
    except subprocess.TimeoutExpired:
        log.error("tool.hangs_in_the_kernel", pid=process.pid, tool=name)
        with _lock:
            _hung[name] = process


def _check_hung(name: str) -> None:
    with _lock:
        hung = _hung.get(name)
        if hung is None:
            return
        if hung.poll() is None:
            raise NotEnded(f"{name} hangs in the kernel (process {hung.pid}): reboot the host if that stays so")
        del _hung[name]
