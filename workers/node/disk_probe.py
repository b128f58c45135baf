"""Notices that the disk of this host's records hangs. Ranks that run need no disk for their lease, and go on; a host
whose disk hangs gets no new work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gpu_platform.node.system.records import boot_clock_s, write_record

HANGS_S = 5.0
"""A disk that takes longer for some bytes hangs."""
_LOOK_S = 2.0
_FILE = "disk-probe.json"


class DiskProbe:
    """Writes a small file again and again, in a thread of its own."""

    def __init__(self, home: Path, clock: Callable[[], float] = boot_clock_s) -> None:
        """``clock``: seconds that only grow."""
        self._path = home / _FILE
        self._clock = clock
        self._began_s: float | None = None

    @classmethod
    def begin(cls, home: Path) -> DiskProbe:
        """One that looks until the process ends."""
        probe = cls(home)
        threading.Thread(target=probe._look_for_ever, name="disk-probe", daemon=True).start()
        return probe

    def why_stuck(self) -> str | None:
        """Why this host must get no new work: its disk does not answer. None: it does, as far as is known."""
        began_s = self._began_s
        if began_s is None or self._clock() - began_s < HANGS_S:
            return None
        return f"the disk of its records has not answered for {HANGS_S:g} s: ranks that run go on, and none starts"

    def _look_for_ever(self) -> None:
        while True:
            self._began_s = self._clock()
            with suppress(OSError):  # it answers; that it is full or read-only is noticed where something is written
                write_record(str(self._path), {"boot_clock_s": self._began_s}, durable=False)
            self._began_s = None
            time.sleep(_LOOK_S)
