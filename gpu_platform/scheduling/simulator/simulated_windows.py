"""Windows in virtual time: they open and close as a leader opens and closes them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from gpu_platform.domain.placing.window import WindowRow
from gpu_platform.scheduling.scheduler import Scheduler

CYCLES = 2
"""Jobs that nothing else can help wait for so many more occurrences of windows that repeat for ever. Then they never
start."""


class SimulatedWindows:
    """The windows of one simulation. Times are seconds of virtual time."""

    def __init__(self, scheduler: Scheduler, rows: Sequence[WindowRow], margin_s: float) -> None:
        """``margin_s``: ``Policy.window_margin_s``."""
        self._scheduler, self._rows, self._margin_s = scheduler, list(rows), margin_s
        self._quiet_at = -math.inf

    def __bool__(self) -> bool:
        return bool(self._rows)

    def pass_time(self, now: float) -> None:
        """Open and close what is due."""
        if not self._rows:
            return
        rows = [then for row in self._rows if (then := row.as_of(now)) is not None]
        if rows != self._rows or self._quiet_at == -math.inf:
            self._rows = rows
            self._scheduler.replace_windows(rows)
            if self._quiet_at == -math.inf:
                self.note_progress()

    def note_progress(self) -> None:
        """Note that a job came, started or left: what waits may be helped by later occurrences again."""
        self._quiet_at = max(map(_helps_until, self._rows), default=-math.inf)

    def may_help(self, now: float) -> bool:
        """Tell whether a window may still begin or end for somebody."""
        return bool(self._rows) and now < self._quiet_at

    def next_look(self, now: float, graces_s: Iterable[float]) -> float | None:
        """Return when the scheduler must decide again because of windows: one begins or ends, or jobs with one of these
        graces must be stopped before one. None: there are no more.
        """
        graces = {0.0, *graces_s}
        begins = [row.start - self._margin_s / 2 - grace for row in self._rows if not row.is_open for grace in graces]
        ends = [at for row in self._rows for at in (row.start, row.end)]
        return min((at for at in [*begins, *ends] if at > now), default=None)


def _helps_until(row: WindowRow) -> float:
    if row.period_s is not None and row.until is not None:
        return row.until + row.duration_s
    return row.end + CYCLES * (row.period_s or 0)
