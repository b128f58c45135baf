"""The clock by which old files and rows are deleted."""

from __future__ import annotations

import time
from collections.abc import Callable


def _boot_clock_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class AgeClock:
    """Unix time in seconds, for the age of files. It never runs faster than real time since the object was made.

    If somebody sets the clock forward by a month, all files would seem a month older, and retention would delete them
    within minutes. So AgeClock ignores such a step: files only stay longer, until the process restarts. If the clock is
    set back, AgeClock follows it. ``steady``: seconds that no change of the date moves and that count sleep
    (``CLOCK_BOOTTIME``).
    """

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = _boot_clock_s) -> None:
        self._wall = wall
        self._steady = steady
        self._began = wall() - steady()

    def __call__(self) -> float:
        """Return the time, Unix seconds."""
        return min(self._wall(), self._began + self._steady())
