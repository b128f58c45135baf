"""Speeds of completed jobs, compared with the expected time. The score ``history`` uses them.

The expected time is the median of how long earlier runs of the same job took: same namespace, name and shape, completed
at the first attempt (a later one resumes from a checkpoint, so its time is no measure), and at least 10 s long. One run
teaches nothing; from the second on, ``speed`` is the expected time over the measured one, held between a quarter and
four.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from statistics import median

from gpu_platform.store import Store
from gpu_platform.store.jobs import run_times
from gpu_platform.store.jobs.run_times import CompletedRun

REMEMBERED_RUNS = 32
REMEMBERED_JOBS = 10_000
SLOWEST, FASTEST = 0.25, 4.0
SHORTEST_S = 10.0
"""Shorter runs are not used, because starting and stopping take too large a part of them."""


def learned_speeds(store: Store) -> list[tuple[list[str], float]]:
    """(hosts, speed) of the newest runs, oldest first, from which a new leader learns."""
    speeds = JobSpeeds()
    return [(run.hosts, speed) for run in run_times.completed_runs(store) if (speed := speeds.learn(run)) is not None]


class JobSpeeds:
    """Compares how long equal jobs ran, to learn which hosts are fast."""

    def __init__(self) -> None:
        self._durations: OrderedDict[tuple[str, str, str], deque[float]] = OrderedDict()

    def learn(self, run: CompletedRun) -> float | None:
        """The speed of ``run`` compared with earlier equal jobs. None: it was too short, or there are none."""
        if run.duration_s < SHORTEST_S:
            return None
        before = self._durations.setdefault(run.kind, deque(maxlen=REMEMBERED_RUNS))
        self._durations.move_to_end(run.kind)
        if len(self._durations) > REMEMBERED_JOBS:
            self._durations.popitem(last=False)
        speed = min(FASTEST, max(SLOWEST, median(before) / run.duration_s)) if before else None
        before.append(run.duration_s)
        return speed
