"""The process that imports programs and forks them: ``python -m workers.local.forked.server FD MODULES ROOM``.

MODULES are what it imports, with commas in between. ROOM is text in whose place ``ps`` shows what a child runs. The
server has one thread, so a forked child is as good as a new process. It ends with the connection at descriptor FD, and
its children get SIGTERM from the kernel then.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LARGEST_MESSAGE = 1 << 20
PR_SET_PDEATHSIG = 1


def serve(connection: socket.socket) -> dict[str, Any] | None:
    """Fork a child for each request and report each end. Returns in a child: what it must run."""
    waking, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(waking, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    selector = selectors.DefaultSelector()
    selector.register(connection, selectors.EVENT_READ)
    selector.register(waking, selectors.EVENT_READ)
    connection.send(json.dumps({"threads": len(os.listdir("/proc/self/task"))}).encode())
    while True:
        ready = {key.fd for key, _ in selector.select()}
        if waking in ready:
            os.read(waking, 4096)
            _report_ends(connection)
        if connection.fileno() not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(connection, LARGEST_MESSAGE, 2)
        if not message:
            sys.exit(0)
        request: dict[str, Any] = json.loads(message)
        if os.fork() == 0:
            selector.close()
            for descriptor in (waking, wake):
                os.close(descriptor)
            _separate(request, descriptors)
            # Only now: whoever knows the process finds it in its own session, with its own files.
            connection.send(json.dumps({"pid": os.getpid()}).encode())
            connection.close()
            return request
        for descriptor in descriptors:
            os.close(descriptor)


def _separate(request: dict[str, Any], outputs: list[int]) -> None:
    """Make this child independent of the server: signals, session, files, directory."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    if request["dies_with_parent"]:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    for number, descriptor in enumerate([os.open(os.devnull, os.O_RDONLY), *outputs]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["cwd"])
    _show_in_ps(["python", "-m", *request["argv"]])


def _show_in_ps(argv: Sequence[str]) -> None:
    """Write ``argv`` over the command line of the server, which is in this process's memory, too (proc_pid_stat(5))."""
    fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
    begin, end = int(fields[45]), int(fields[46])
    shown = "\0".join(argv).encode(errors="replace")[: end - begin - 1]
    ctypes.memmove(begin, shown.ljust(end - begin, b"\0"), end - begin)


def _report_ends(connection: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        connection.send(json.dumps({"ended": pid, "code": os.waitstatus_to_exitcode(status)}).encode())


def become(request: dict[str, Any]) -> None:
    """Run what was asked for, as ``python -m MODULE`` does, or the script of ``gpu-platform``."""
    os.environ.clear()
    os.environ.update(request["env"])
    program, *arguments = request["argv"]
    sys.argv = [program, *arguments]
    if "/" in program:
        runpy.run_path(program, run_name="__main__")
        return
    sys.orig_argv = [sys.executable, "-P", "-m", program, *arguments]
    if not hasattr(sys.modules.get(program), "__path__"):
        # A new interpreter has the module as ``__main__`` only.
        sys.modules.pop(program, None)
    runpy.run_module(program, run_name="__main__", alter_sys=True)


def end(code: int) -> None:
    """End as an interpreter does, but without taking its modules apart. Their memory is shared with the server: to free
    it, a child would first copy all of it, which takes 80 ms of CPU."""
    # What Py_FinalizeEx begins with. Only the interpreter has a way to call it.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        sys.exit(code)  # the interpreter fails in the same way, and tells it
    os._exit(code)


if __name__ == "__main__":
    for module in sys.argv[2].split(","):
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    child = serve(socket.socket(fileno=int(sys.argv[1])))
    if child is not None:
        try:
            become(child)
        except SystemExit as asked:
            if not isinstance(asked.code, int | None):
                raise
            end(asked.code or 0)
        end(0)
