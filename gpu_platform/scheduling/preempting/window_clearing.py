"""Which jobs are stopped because a window begins: all that run on what it keeps, and may not run in it.

Mostly there are none. Jobs that respect the window by their time limits have ended by then. What is left was there
before the window was made, has no time limit, or ran over its limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.domain.placing.window import WindowRow
from gpu_platform.scheduling.cluster.running_jobs import AttemptId, RunningJobs
from gpu_platform.scheduling.cluster.snapshot import Snapshot
from gpu_platform.scheduling.round.holders import Proposals


@dataclass(frozen=True)
class ClearedWindow:
    """The ``victims`` (job id, attempt) must be stopped because a window begins."""

    window: WindowRow
    victims: tuple[AttemptId, ...]


class WindowClearing:
    """Remembers which jobs it named, so that each is named once."""

    def __init__(self, snapshot: Snapshot, running_jobs: RunningJobs, proposals: Proposals) -> None:
        self._snapshot, self._running_jobs, self._proposals = snapshot, running_jobs, proposals
        self._named: set[AttemptId] = set()
        self.as_of = math.inf
        """Nobody is stopped because of a later time."""

    def due(self) -> list[ClearedWindow]:
        """Return the windows for which jobs must be stopped now."""
        windows = self._snapshot.windows
        if not windows:
            return []
        self._named = {key for key in self._named if self._running_jobs.get(key) is not None}
        found = []
        for window in windows.rows.values():
            victims = tuple(self._victims(window))
            if victims:
                self._named.update(victims)
                found.append(ClearedWindow(window, victims))
        return found

    def _victims(self, window: WindowRow) -> Iterator[AttemptId]:
        windows = self._snapshot.windows
        now = min(windows.now, self.as_of)
        stops_at = window.start - windows.margin_s / 2
        if not window.is_open and now < stops_at - _LONGEST_GRACE_S:
            return
        for job in holders(window, self._snapshot, self._running_jobs):
            key = job.job_id, job.attempt
            if key in self._named or job.preempting or key in self._proposals or windows.allows_running(window, job):
                continue
            # Whoever is still there then has its whole grace, however long it is, before the window begins. Those that
            # respect the window by their limits have ended half a margin earlier.
            if window.is_open or now >= stops_at - min(job.grace_s, _LONGEST_GRACE_S):
                yield key


_LONGEST_GRACE_S = 3600.0
"""``JobSpec.grace_s`` is no longer."""


def holders(window: WindowRow, snapshot: Snapshot, running_jobs: RunningJobs) -> list[RunningRow]:
    """Return the jobs that hold anything of what the window keeps, each once."""
    found: dict[AttemptId, RunningRow] = {}
    for place in window.places:
        host_index = snapshot.host_index(place.host)
        if place.gpu_uuids is not None:
            there = running_jobs.on(place.gpu_uuids)
        elif host_index is not None:
            there = running_jobs.on(snapshot.uuids_on(host_index)) + running_jobs.with_host_resources_on(place.host)
        else:
            continue
        found |= {(job.job_id, job.attempt): job for job in there}
    return list(found.values())
