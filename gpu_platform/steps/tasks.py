"""The tasks of one step on one host: processes, their output, and how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

_BLOCK_BYTES = 64 << 10
_OUTPUT_PATIENCE_S = 2.0
"""How long the output of an ended task is read. A process that it left behind may keep the pipe open for ever."""
_KILL_AFTER_S = 5.0
_WARNINGS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)

Written = Callable[[int, int, bytes], None]
"""(task, 1 or 2 for stdout or stderr, bytes)."""
Ended = Callable[[int, int, str | None], None]
"""(task, exit code as a shell gives it, why it could not be started)."""


@dataclass(frozen=True)
class Task:
    """One process that is to be started."""

    number: int
    """Its SLURM_PROCID."""
    environ: Mapping[str, str]


class TaskGroup:
    """The tasks of a step on this host. ``written`` and ``ended`` are called by threads of the group."""

    def __init__(self, command: Sequence[str], directory: str, written: Written, ended: Ended) -> None:
        self._command, self._directory = list(command), directory
        self._written, self._ended = written, ended
        self._lock = threading.Lock()
        self._living: dict[int, subprocess.Popen[bytes]] = {}
        self._stopped = False

    def start(self, tasks: Sequence[Task]) -> None:
        """Start the tasks. One that cannot be started has ended with 126 or 127."""
        for task in tasks:
            try:
                with self._lock:
                    if self._stopped:
                        raise ProcessLookupError
                    process = subprocess.Popen(
                        self._command,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        cwd=self._directory,
                        env=dict(task.environ),
                        start_new_session=True,
                        executable=_found(self._command[0], task.environ),
                    )
                    self._living[task.number] = process
            except ProcessLookupError:
                self._ended(task.number, 128 + signal.SIGTERM, "the step was stopped before it")
            except (OSError, ValueError) as error:
                code = 127 if isinstance(error, FileNotFoundError) else 126
                reason = error.strerror if isinstance(error, OSError) else str(error)
                self._ended(task.number, code, f"{self._command[0]}: {reason}")
            else:
                threading.Thread(target=self._watch, args=(task.number, process), daemon=True).start()

    def send(self, number: int) -> None:
        """Send a signal to every living task and what it started in its session.

        SIGUSR1, SIGUSR2 and SIGHUP go only to processes with a handler, as all warnings of the platform: they would
        end the others.
        """
        with self._lock:
            living = list(self._living.values())
        if number in _WARNINGS:
            _warn({process.pid for process in living}, number)
            return
        for process in living:
            try:
                os.killpg(process.pid, number)
            except (ProcessLookupError, PermissionError):
                continue

    def stop(self) -> None:
        """End all tasks: SIGTERM, and SIGKILL for what lives 5 s later. Returns at once."""
        with self._lock:
            self._stopped = True
        self.send(signal.SIGTERM)
        killer = threading.Timer(_KILL_AFTER_S, self.send, args=(signal.SIGKILL,))
        killer.daemon = True
        killer.start()

    def _watch(self, number: int, process: subprocess.Popen[bytes]) -> None:
        readers = [
            threading.Thread(target=self._read, args=(number, stream, pipe), daemon=True)
            for stream, pipe in ((1, process.stdout), (2, process.stderr))
        ]
        for reader in readers:
            reader.start()
        code = process.wait()
        for reader in readers:
            reader.join(_OUTPUT_PATIENCE_S)
        with self._lock:
            self._living.pop(number, None)
        self._ended(number, code if code >= 0 else 128 - code, None)

    def _read(self, number: int, stream: int, pipe: IO[bytes] | None) -> None:
        assert pipe is not None
        while block := os.read(pipe.fileno(), _BLOCK_BYTES):
            self._written(number, stream, block)


def _warn(sessions: set[int], number: int) -> None:
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal():
            continue
        pid = int(entry.name)
        try:
            if os.getsid(pid) not in sessions:
                continue
            if handles(pid, number):
                os.kill(pid, number)
        except OSError:
            continue  # it ended meanwhile


def handles(pid: int, number: int) -> bool:
    """True if the process has a handler for the signal (proc(5), ``/proc/<pid>/status``, SigCgt). False: it is gone."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            caught = next((line for line in file if line.startswith("SigCgt:")), "SigCgt: 0")
    except OSError:
        return False
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def _found(program: str, environ: Mapping[str, str]) -> str | None:
    """The program by the task's own PATH. None: as it is written."""
    if "/" in program:
        return None
    for directory in os.get_exec_path(environ):
        path = os.path.join(directory, program)
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    raise FileNotFoundError(2, "not found in PATH")
