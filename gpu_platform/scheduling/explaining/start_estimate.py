"""When waiting jobs will probably start: running jobs, and then the jobs ahead, run as long as earlier ones did.

Where nothing was learned, they run to their time limits. Jobs are assumed to start in order, each as early as possible.
Backfill is not considered. Jobs that end early, and backfill, let a job start before its estimate. Later jobs that come
in ahead of it, and failures, let it start after. An estimate is no promise.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.jobs.placement import EstimateBasis
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.backfilling.release_forecast import ReleaseForecast, WhatIf
from gpu_platform.scheduling.placing.domains import together
from gpu_platform.scheduling.queueing.job_queue import JobQueue
from gpu_platform.scheduling.queueing.quota import QuotaDenial
from gpu_platform.scheduling.round_state import SchedulerState

AHEAD = 256
"""For how many jobs in order an estimate is made. The jobs behind them get none."""


@dataclass(frozen=True)
class Estimate:
    """A probable start, and what it is based on."""

    start: float | None
    """Seconds, on the clock of ``Scheduler.decide``."""
    basis: EstimateBasis


class Estimates:
    """One run of estimates, job after job. ``denial``: says why the quotas do not allow a job, or None."""

    def __init__(
        self,
        state: SchedulerState,
        forecast: ReleaseForecast,
        denial: Callable[[PlacementRequest], QuotaDenial | None],
        now: float,
    ) -> None:
        self._state, self._denial, self._now = state, denial, now
        # If no running job has a time limit, and nothing was learned of any, nothing can be estimated.
        running = state.running_jobs
        self._limited, self._cut = running.limited + running.expected > 0, len(state.queue) > AHEAD
        self._basis = EstimateBasis.RUN_TIMES if running.expected else EstimateBasis.TIME_LIMITS
        self._what_if = WhatIf.of(forecast, state.snapshot, now) if self._limited else None
        self._jobs = deque(islice(in_order(state.queue), AHEAD) if self._limited else ())
        self._of: dict[str, Estimate] = {}
        self._last = now
        """The latest start of the jobs so far. Infinity: nobody knows when one of them starts."""

    @property
    def left(self) -> int:
        """The number of jobs without an estimate so far."""
        return len(self._jobs)

    def advance(self, jobs: int) -> bool:
        """Estimate the next ``jobs`` jobs. Return False when none is left."""
        for _ in range(min(jobs, len(self._jobs))):
            row = self._state.queue.get(self._jobs.popleft())
            if row is not None:
                self._of[row.job_id] = self.look(row)
        return bool(self._jobs)

    def get(self, row: PlacementRequest) -> Estimate | None:
        """Return a job's estimate. None: it was not in the queue when the run began, or its estimate comes later."""
        if row.job_id in self._of:
            return self._of[row.job_id]
        if not self._limited:
            return Estimate(None, EstimateBasis.REPAIR if self._able(row) is None else EstimateBasis.NO_TIME_LIMIT)
        return Estimate(None, EstimateBasis.TOO_FAR) if self._cut and not self._jobs else None

    def look(self, row: PlacementRequest) -> Estimate:
        """Estimate the next job in order. The GPUs that it takes are not free for the jobs behind it."""
        if self._denial(row) is not None:
            return Estimate(None, EstimateBasis.QUOTA)
        able = self._able(row)
        if able is None:
            return Estimate(None, EstimateBasis.REPAIR)
        assert self._what_if is not None, "nobody is looked at where nothing is known"
        found = self._what_if.earliest(row) if has_simple_estimate(row) else None
        if found is None:
            self._what_if.close(np.flatnonzero(able))  # kept for it, until an unknown time
            self._last = math.inf
            return Estimate(None, EstimateBasis.NO_TIME_LIMIT if has_simple_estimate(row) else EstimateBasis.PARTS)
        start, gpus = found
        if start <= self._now:
            start = self._last  # it would fit now, but it waits: hosts are kept until the jobs ahead have started
            if start == math.inf or start <= self._now:
                return Estimate(None, EstimateBasis.NO_TIME_LIMIT)
        self._last = max(self._last, start)
        self._what_if.take(gpus, start + (row.expected_run_s or math.inf))
        return Estimate(start, self._basis)

    def _able(self, row: PlacementRequest) -> NDArray[np.bool_] | None:
        """Return the hosts that could serve it once all jobs have ended. None: they are too few."""
        state = self._state
        if not row.is_plain:
            return state.gangs.usable_hosts(row, lambda candidates: candidates.after_use)
        able = together(row.resources, state.snapshot, state.candidates.able(row))
        return able if np.count_nonzero(able) >= row.resources.hosts else None


def has_simple_estimate(row: PlacementRequest) -> bool:
    """Tell whether the job asks for equal slices of whole GPUs."""
    return row.is_plain and not row.needs_partial_resources


def in_order(queue: JobQueue) -> Iterator[str]:
    """Yield the ids of the waiting jobs in order of service; where fair share decides, by arrival. The queue must not
    change meanwhile.
    """
    sources = [need.groups for need in queue.needs()]
    heap = [(groups[0][0], number, 0, 0) for number, groups in enumerate(sources)]
    heapq.heapify(heap)
    while heap:
        order, number, at, member = heapq.heappop(heap)
        yield order[2]
        groups = sources[number]
        if member == 0 and at + 1 < len(groups):
            heapq.heappush(heap, (groups[at + 1][0], number, at + 1, 0))
        members = queue.members(groups[at][1])
        if member + 1 < len(members):
            heapq.heappush(heap, (members[member + 1], number, at, member + 1))
