"""The other process of a service, for large requests: see :mod:`service.http.large_requests`.

A process with one thread waits for the first such request and forks it then, and again whenever it has ended. So it
costs nothing until it is needed, begins at once, and shares what is imported. Its socket is there all the time: what is
sent meanwhile waits.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from gpu_platform.domain.errors import PlatformError
from gpu_platform.settings import Settings
from gpu_platform.settings.reading import read_settings
from service.http.large_requests import Elsewhere
from service.http.rate_limits import SharedTimes

_PR_SET_PDEATHSIG = 1
_AGAIN_S = 1.0
"""After its end, or if the machine has no memory for it."""
_NAME_IN_TOP = "gpu-large-req"
"""At most 15 characters (proc_pid_comm(5))."""
_NICE = 5
"""Small requests come first."""
_STOPS_WITHIN_S = 8.0
_WAITING = 1024
_DIRECTORIES = "gpu-platform-large-"
_YOUNG_S = 60.0

Serve = Callable[[Settings, socket.socket, SharedTimes], None]
"""Accepts connections of the socket until SIGTERM. The times: see :class:`Elsewhere`."""


def fork_large_requests(serve: Serve) -> Elsewhere:
    """Call it while the process has one thread, with everything imported. ``serve`` runs in the other process, with the
    settings as they are now. The other process ends when this one does."""
    _remove_leftovers()
    directory = Path(tempfile.mkdtemp(prefix=_DIRECTORIES))
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_EX)  # kept by what is forked, until the last one has ended
    path = str(directory / "large")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(_WAITING)
    ours, theirs = socket.socketpair()
    wait_until = SharedTimes()
    if os.fork() == 0:
        ours.close()
        _look_after(serve, listener, theirs, directory, wait_until)
    theirs.close()
    listener.close()
    os.close(lock)
    return Elsewhere(path, wait_until, ours)


def _remove_leftovers() -> None:
    """Remove the directories of those that were killed before they could."""
    for directory in Path(tempfile.gettempdir()).glob(f"{_DIRECTORIES}*"):
        with suppress(OSError):  # it is gone, is in use, or belongs to another account
            if time.time() - directory.stat().st_ctime < _YOUNG_S:
                continue  # it is perhaps not locked yet
            lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory)
            finally:
                os.close(lock)


def _look_after(
    serve: Serve, listener: socket.socket, parent: socket.socket, directory: Path, wait_until: SharedTimes
) -> NoReturn:
    try:
        settings = read_settings()
    except PlatformError:  # the service finds the same, and says it
        os._exit(1)
    # A stop is meant for the service. When that has ended, the connection to it has.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    us, child, ended = os.getpid(), -1, -1
    waiting = select.poll()
    waiting.register(parent, select.POLLIN)
    waiting.register(listener, select.POLLIN)
    while parent.fileno() not in (ready := {fd for fd, _ in waiting.poll()}):
        if ended in ready:
            waiting.unregister(ended)
            os.close(ended)
            os.waitpid(child, 0)
            child, ended = -1, -1
            time.sleep(_AGAIN_S)
            waiting.register(listener, select.POLLIN)
            continue
        try:
            child = os.fork()
        except OSError:
            time.sleep(_AGAIN_S)
            continue
        if child == 0:
            parent.close()
            _end_with(us)
            _serve(lambda: serve(settings, listener, wait_until))
        waiting.unregister(listener)  # the child accepts
        ended = os.pidfd_open(child)
        waiting.register(ended, select.POLLIN)
    if child >= 0:
        os.kill(child, signal.SIGTERM)
        if not select.select([ended], [], [], _STOPS_WITHIN_S)[0]:
            os.kill(child, signal.SIGKILL)
    shutil.rmtree(directory, ignore_errors=True)
    os._exit(0)


def _end_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before
        os._exit(0)


def _serve(serve: Callable[[], None]) -> NoReturn:
    Path("/proc/self/comm").write_text(_NAME_IN_TOP)
    os.nice(_NICE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        serve()
    except BaseException:
        traceback.print_exc()
    finally:
        # As it is a copy, nothing else of an end of the interpreter may run here.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
