"""Which processes were started with some variables, without waiting for a process that hangs.

``/proc/<pid>/environ`` is memory of the process (proc(5)). While one of its threads hangs in the kernel and another
changes the process's memory (munmap(2) of a page whose file system does not answer), whoever reads it waits, too. Any
job can bring that about, and one that does must not hold up the stop of another one.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable

import structlog

from gpu_platform.node.system.process_tree import FoundProcess, Stat, has_environ

PATIENCE_S = 0.5
"""An answer takes microseconds."""

log = structlog.get_logger(__name__)

_lock = threading.Lock()
_silent: dict[FoundProcess, threading.Thread] = {}
"""Processes that did not answer, and the threads that wait for them."""


def started_with(processes: Iterable[Stat], entries: Collection[bytes]) -> set[int]:
    """Pids of those that were started with all of these ``NAME=value`` in their environment, and are in no jail.

    One that does not answer within ``PATIENCE_S`` counts as none of them until it answers, and the log says so.
    """
    left = _Reading([stat.process for stat in processes if not stat.zombie and not _hangs(stat.process)], entries)
    found: set[int] = set()
    while True:
        silent = left.read()
        found |= left.found
        if silent is None:
            return found
        left = left.without(silent)


class _Reading:
    """A thread that asks one process after the other."""

    def __init__(self, processes: list[FoundProcess], entries: Collection[bytes]) -> None:
        self._processes, self._entries = processes, entries
        self._at = 0
        self._is_left = False
        self._done = threading.Event()
        self.found: set[int] = set()

    def read(self) -> FoundProcess | None:
        """Ask them. Returns the one that does not answer; those after it were not asked then. None: all have."""
        if not self._processes:
            return None
        thread = threading.Thread(target=self._run, name="environs", daemon=True)
        thread.start()
        at = -1
        while not self._done.wait(PATIENCE_S):
            if self._at == at:
                silent = self._processes[at]
                log.warning("process.does_not_answer", pid=silent.pid, what="it hangs in the kernel")
                self._is_left = True
                with _lock:
                    _silent[silent] = thread
                return silent
            at = self._at
        return None

    def without(self, silent: FoundProcess) -> _Reading:
        """Those that come after it."""
        return _Reading(self._processes[self._processes.index(silent) + 1 :], self._entries)

    def _run(self) -> None:
        for at, process in enumerate(self._processes):
            self._at = at
            if has_environ(process.pid, self._entries):
                self.found.add(process.pid)
            if self._is_left:
                return
        self._done.set()


def _hangs(process: FoundProcess) -> bool:
    with _lock:
        thread = _silent.get(process)
        if thread is not None and not thread.is_alive():
            del _silent[process]
            thread = None
        return thread is not None
