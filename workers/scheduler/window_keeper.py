"""Opens windows when they begin, and closes them when they have ended.

What is open is written down. So it stays open when the leader changes, or when somebody sets a clock back. The
scheduler keeps jobs out by the clock, too, from before a window is opened.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

import structlog

from gpu_platform.domain.placing.window import WindowRow
from gpu_platform.store import Store, windows
from workers.scheduler.window_clock import WindowClock

log = structlog.get_logger()


class WindowKeeper:
    """Looks at the windows of one leader. It asks the database only if one of them is due."""

    def __init__(self, store: Store, epoch: int, clock: WindowClock | None = None) -> None:
        self._store, self._epoch = store, epoch
        self._clock = clock or WindowClock(store.clock)

    def now(self) -> float:
        """Return the time by which windows begin and jobs are stopped for them, Unix seconds: see
        :class:`WindowClock`."""
        return self._clock()

    def look(self, rows: Collection[WindowRow]) -> bool:
        """Open and close those that are due. Return whether something changed. Raises :class:`StaleEpoch`."""
        if not rows or not windows.due(rows, at := self.now()):
            return False
        now = datetime.fromtimestamp(at, UTC)
        changed = windows.advance(self._store, self._epoch, now)
        if changed:
            log.info("windows.advanced", windows=changed)
        return bool(changed)
