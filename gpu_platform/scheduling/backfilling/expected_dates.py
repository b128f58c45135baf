"""Dates by learned run times, for waiting jobs to which time limits give no date.

Without a date a job keeps all hosts that it could use, and they stay empty until jobs without a time limit end. With
an **expected date** others may start there if they will have ended before it: by their time limits, or by their assumed
limits (``PlacementRequest.assumed_limit_s``). It is no promise, and nobody is told it.

Jobs can run longer than expected. Then the date moves, until the job has waited PATIENCE times as long as was first
expected. From then on it keeps its hosts. So it starts one day, however wrong the run times were.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.backfilling.backfill import PlannedReservation
from gpu_platform.scheduling.backfilling.release_forecast import ForecastCopy, ReleaseForecast
from gpu_platform.scheduling.cluster.snapshot import Snapshot
from gpu_platform.scheduling.queueing.job_queue import JobQueue

PATIENCE = 4.0
MAX_DATES = 4
"""How many jobs have an expected date at one time. Others keep their hosts."""


class ExpectedDates:
    """Plans the dates, and remembers until when each job may have one."""

    def __init__(self, forecast: ReleaseForecast, snapshot: Snapshot, queue: JobQueue) -> None:
        self._forecast, self._snapshot, self._queue = forecast, snapshot, queue
        self._until: dict[str, float] = {}
        """Waiting job -> from when on it keeps its hosts."""

    def forget_started(self) -> None:
        """Forget jobs that do not wait any more."""
        self._until = {job_id: until for job_id, until in self._until.items() if job_id in self._queue}

    def copy(self) -> ExpectedDates:
        """Return dates that go on from these by themselves."""
        copy = ExpectedDates(self._forecast, self._snapshot, self._queue)
        copy._until = self._until.copy()
        return copy

    def allows(self, request: PlacementRequest, now: float) -> bool:
        """Tell whether the job may have such a date. False: it has waited too long, or asks for more than equal slices
        of whole GPUs; CPUs and memory are not planned.
        """
        has_time = now < self._until.get(request.job_id, math.inf)
        return has_time and request.is_plain and not request.needs_partial_resources

    def earliest(
        self, request: PlacementRequest, now: float, forecast: ForecastCopy
    ) -> tuple[float, Mapping[int, int]] | None:
        """Return the job's date if GPUs become free as in ``forecast``, and where: host index -> GPUs. None: nobody
        knows, or it may have none.
        """
        found = forecast.earliest(request, now) if self.allows(request, now) else None
        if found is None:
            return None
        start = max(found[0], now)
        self._until.setdefault(request.job_id, now + PATIENCE * (start - now))
        return start, found[1]

    def plan(
        self, request: PlacementRequest, now: float, others: Iterable[PlannedReservation]
    ) -> PlannedReservation | None:
        """Return the GPUs that ``request`` will probably get, and when. None: as in :meth:`earliest`.

        ``others``: what is reserved for other jobs.
        """
        if not self.allows(request, now):
            return None
        forecast = ForecastCopy.of(self._forecast, self._snapshot, now)
        for other in others:
            forecast.take(dict(zip(other.hosts.tolist(), other.gpus.tolist(), strict=True)), other.end)
        found = self.earliest(request, now, forecast)
        if found is None:
            return None
        start, gpus = found
        hosts = sorted(gpus)
        end = math.inf if request.longest_s is None else start + request.longest_s
        sets = np.array([gpus[host_index] for host_index in hosts], np.uint64)
        return PlannedReservation(
            request.job_id, start, end, np.array(hosts, np.intp), sets, is_promised=False, is_expected=True
        )
