"""The clock by which windows begin and end, and jobs are stopped for them.

A clock that somebody sets forward would stop jobs hours before a window. So a step forward of this machine's clock
counts only if the database's clock, on another machine, did not step with it and agrees now: then ours was behind, and
was corrected. Else it counts as wrong until the clock is set back, or the process begins anew. Whoever keeps jobs from
starting goes by the date all the same: to start nobody for a while costs less than to stop somebody.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from gpu_platform.clock_difference import compare
from workers.scheduler.metrics import CLOCK_DOUBTED_SECONDS

log = structlog.get_logger()

STEP_S = 2.0
"""A smaller step is none: adjustments of NTP and the time between two readings."""
TOLERANCE_S = 30.0
"""The clocks of this machine and of the database agree if they differ by no more."""


def _boot_clock_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class WindowClock:
    """Unix time in seconds, never ahead of the date.

    ``database_s``: reads the clock of the database's machine. It returns None if that is this machine. ``steady_s``:
    seconds that no change of the date moves.
    """

    def __init__(
        self,
        database_s: Callable[[], float | None],
        wall: Callable[[], float] = time.time,
        steady_s: Callable[[], float] = _boot_clock_s,
    ) -> None:
        self._database_s, self._wall, self._steady_s = database_s, wall, steady_s
        self._doubted_s = 0.0
        """By how much the date is taken to be ahead. Negative: it was set back, and may be set forward again."""
        self._offset_s: float | None = None
        self._ahead_of_database_s: float | None = None

    def __call__(self) -> float:
        """Return the time. Raises what reading the database's clock raises."""
        offset_s = self._wall() - self._steady_s()
        if self._offset_s is None or abs(offset_s - self._offset_s) > STEP_S:
            self._judge(0.0 if self._offset_s is None else offset_s - self._offset_s)
            self._offset_s = offset_s
        return self._wall() - max(0.0, self._doubted_s)

    def _judge(self, step_s: float) -> None:
        """Decide what the step, or the first reading, is worth. ``step_s``: negative if the clock was set back."""
        before, ahead_s = self._ahead_of_database_s, self._compare()
        stepped_alone = before is None or ahead_s is None or abs(ahead_s - before - step_s) < STEP_S
        if ahead_s is None or not stepped_alone:
            doubted_s = self._doubted_s + step_s  # nobody else knows what time it is
        else:
            doubted_s = ahead_s if ahead_s > TOLERANCE_S else 0.0
        if doubted_s > STEP_S and doubted_s != self._doubted_s:
            log.error("windows.clock_doubted", ahead_s=round(doubted_s, 1))
        self._doubted_s, self._ahead_of_database_s = doubted_s, ahead_s
        CLOCK_DOUBTED_SECONDS.set(max(0.0, doubted_s))

    def _compare(self) -> float | None:
        """Return by how much this machine's clock is ahead of the database's. None: there is no other."""
        if self._database_s() is None:
            return None
        return -compare(lambda: self._database_s() or self._wall()).ahead_s
