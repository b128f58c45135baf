"""The time by which old things are deleted."""

from __future__ import annotations

import time
from collections.abc import Callable


def _boot_clock_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class AgeClock:
    """Unix time, seconds; never further on than has really passed since it was made.

    A clock that is set forward by a month would make everything a month older, and retention would delete it within
    minutes. Set back, it is followed: things only stay longer. After a true correction forward they stay longer too,
    until the process starts again. ``steady``: seconds that no change of the date moves, and that count sleep
    (``CLOCK_BOOTTIME``).
    """

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = _boot_clock_s) -> None:
        self._wall = wall
        self._steady = steady
        self._began = wall() - steady()

    def __call__(self) -> float:
        return min(self._wall(), self._began + self._steady())
