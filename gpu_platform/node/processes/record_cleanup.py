"""Removes records of attempts that have ended. What a host keeps, and for how long:

::

    ended          records of ranks, usage, plan: a step that Temporal repeats gets the same answer again
    + keep_s       the logs, while LogRetention keeps them, and ``closed``: a launch that comes late is refused
    + closed_s     nothing

Every launch is scheduled to start within half a minute, so only a Temporal server that was away, or was restored to
an older point, can deliver one late; ``closed_s`` must be longer than that.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import structlog

from gpu_platform.age_clock import AgeClock
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import IllegalTransition
from gpu_platform.node.processes import rank_log
from gpu_platform.node.system import records

log = structlog.get_logger(__name__)

CLOSED_S = 14 * 24 * 3600.0


class RecordRetention:
    """Removes records of old attempts.

    ``forget`` removes an attempt's records, or raises :class:`IllegalTransition` while it is open. ``clock``: Unix time
    in seconds.
    """

    def __init__(
        self,
        home: Path,
        forget: Callable[[AttemptKey], None],
        keep_s: float,
        closed_s: float = CLOSED_S,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._home = home
        self._forget = forget
        self._keep_s = keep_s
        self._closed_s = max(keep_s, closed_s)
        self._clock = clock or AgeClock()

    def sweep(self) -> int:
        """Remove old records. Returns of how many attempts."""
        now_s = self._clock()
        removed = 0
        for closed in self._home.glob(f"jobs/*/*/{records.CLOSED}"):
            age_s = now_s - closed.stat().st_mtime
            if age_s > self._keep_s:
                removed += self._remove(closed.parent, for_good=age_s > self._closed_s)
        if removed:
            log.info("records.removed", attempts=removed)
        return removed

    def _remove(self, attempt: Path, *, for_good: bool) -> bool:
        ranks = [str(path) for path in attempt.glob("rank-*")]
        unfinished = (attempt / records.PLAN).exists() and not (attempt / records.FINISHED).exists()
        if unfinished or any(records.is_locked(rank) for rank in ranks):
            return False
        if for_good and not any(rank_log.segments(rank) for rank in ranks):
            shutil.rmtree(attempt)
            if not os.listdir(attempt.parent):
                attempt.parent.rmdir()
            return True
        if not (attempt / records.PLAN).exists():
            return False
        try:
            self._forget(AttemptKey(job_id=attempt.parent.name, attempt=int(attempt.name)))
        except IllegalTransition:
            return False
        return True
