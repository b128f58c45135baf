"""Keeps what the leader learned from estimated starts, so that the next one need not begin anew."""

from __future__ import annotations

from gpu_platform.scheduling.scheduler import Scheduler
from gpu_platform.store import Store
from gpu_platform.store.leadership import leader

KEEP_AGAIN_S = 60.0


class StartRatios:
    """Writes the ratios at most once a minute, and only if they changed. At worst the last minute is learned again."""

    def __init__(self, store: Store, epoch: int) -> None:
        self._store, self._epoch = store, epoch
        self._kept: dict[int, list[float]] = {}
        self._next = 0.0

    def teach(self, core: Scheduler) -> None:
        """Let a new core go on with what was written."""
        self._kept = leader.start_ratios(self._store)
        core.intervals.restore(self._kept)

    def keep(self, core: Scheduler, now: float) -> None:
        """Write what the core learned. ``now``: seconds on a clock that does not go back."""
        if now < self._next:
            return
        self._next = now + KEEP_AGAIN_S
        learned = core.intervals.learned()
        if learned != self._kept and leader.keep_start_ratios(self._store, self._epoch, learned):
            self._kept = learned
