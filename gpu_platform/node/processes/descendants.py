"""The processes below a supervisor, or below a helper of ``jobs exec``: it reaps them, counts what they used, and ends
them. Standard library only: the spawner imports it.
"""

from __future__ import annotations

import os
import signal

from gpu_platform.node.processes.ending import kill_below
from gpu_platform.node.system.records import boot_clock_s

UNKILLABLE_S = 10.0
"""A process that survives SIGKILL for this many seconds hangs in the kernel. ``stop`` handles it."""


class Descendants:
    """All processes below this one, which is a subreaper and blocks SIGCHLD. They belong to one rank."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        """CPU seconds of those that were reaped, and of what these had reaped."""
        self.peak_memory_kib = 0
        """Peak resident memory of the largest of them."""

    def reap_until(self, child: int) -> int | None:
        """Reap processes that have ended. Returns the child's wait status if the child is one of them."""
        while True:
            pid, status = self._reap_one()
            if pid == child:
                return status
            if pid == 0:
                return None

    def reap(self) -> bool:
        """Reap processes that have ended. True: some are left."""
        while True:
            try:
                pid, _ = self._reap_one()
            except ChildProcessError:
                return False
            if pid == 0:
                return True

    def wait_until_none(self, seconds: float) -> None:
        """Wait until none is left, at most ``seconds``."""
        deadline = boot_clock_s() + seconds
        while self.reap():
            remaining = deadline - boot_clock_s()
            if remaining <= 0:
                return
            signal.sigtimedwait({signal.SIGCHLD}, remaining)

    def send_kill(self) -> None:
        """Send SIGKILL to all of them, once."""
        kill_below([os.getpid()])

    def kill(self) -> bool:
        """Send SIGKILL to them until none is left. False: one does not die."""
        patience = boot_clock_s() + UNKILLABLE_S
        while self.reap():
            if boot_clock_s() > patience:
                return False
            self.send_kill()
            self.wait_until_none(0.05)  # look again for processes that were forked meanwhile
        return True

    def _reap_one(self) -> tuple[int, int]:
        """As ``os.waitpid(-1, os.WNOHANG)``."""
        pid, status, used = os.wait4(-1, os.WNOHANG)
        if pid:
            self.cpu_s += used.ru_utime + used.ru_stime
            self.peak_memory_kib = max(self.peak_memory_kib, used.ru_maxrss)
        return pid, status
