"""When a gang of several rank groups, or a total, will start at the latest. Found by simulating that jobs end one
after another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.scheduling.backfilling.backfill import Backfill, PlannedReservation, resources_of
from gpu_platform.scheduling.cluster.running_jobs import RunningJobs
from gpu_platform.scheduling.cluster.snapshot import Snapshot
from gpu_platform.scheduling.cluster.statement import Statement
from gpu_platform.scheduling.placing.candidates import CandidateIndex, Candidates
from gpu_platform.scheduling.placing.gangs import GangPlacer


class GangBackfill:
    """Does the work of :meth:`Backfill.plan_start` for gangs that are more than equal slices."""

    def __init__(
        self,
        placer: GangPlacer,
        snapshot: Snapshot,
        running_jobs: RunningJobs,
        candidates: CandidateIndex,
        backfill: Backfill,
    ) -> None:
        self._placer, self._snapshot, self._running_jobs = placer, snapshot, running_jobs
        self._candidates, self._backfill = candidates, backfill

    def plan_start(
        self, row: PlacementRequest, now: float, others: Sequence[PlannedReservation] = (), is_promised: bool = True
    ) -> PlannedReservation | None:
        """Return the earliest start of the whole gang by time limits. None: it depends on jobs without one."""
        ending: dict[float, list[RunningRow]] = {}
        for job in self._running_jobs:
            if job.time_limit_s is not None:
                ending.setdefault(max(now, job.started_at + job.time_limit_s), []).append(job)
        booked = {max(now, other.end) for other in others if other.end < math.inf}
        ends = sorted({now, *ending, *booked})

        def at(number: int, others: Sequence[PlannedReservation]) -> PlannedReservation | None:
            ended = [job for end in ends[: number + 1] for job in ending.get(end, ())]
            return self._at(row, ended, ends[number], others, is_promised)

        low, high = 0, len(ends)
        while low < high:  # what fits early also fits after more jobs have ended
            middle = (low + high) // 2
            low, high = (low, middle) if at(middle, ()) is not None else (middle + 1, high)
        for number in range(low, len(ends)):  # but a reservation may begin in between
            found = at(number, others)
            if found is not None:
                return found
        return None

    def _at(
        self,
        row: PlacementRequest,
        ended: list[RunningRow],
        start: float,
        others: Sequence[PlannedReservation],
        is_promised: bool,
    ) -> PlannedReservation | None:
        end = math.inf if row.time_limit_s is None else start + row.time_limit_s
        meanwhile = [other for other in others if other.start < end and start < other.end]

        def lookup(request: PlacementRequest) -> Candidates:
            candidates = self._candidates.of(request)
            return self._backfill.without_reserved(meanwhile, request, candidates) if meanwhile else candidates

        with Statement(self._snapshot) as attempt:
            for job in ended:
                attempt.end(job)
            placement = self._placer.place_in(row, attempt, lookup)
            if placement is None:
                return None
        hosts, own, host_resources = resources_of(placement, self._snapshot)
        # Other jobs on the rest of a host would need the same CPUs or memory. But what they were promised is theirs.
        whole = np.where(host_resources & (own != 0), self._snapshot.all_gpus[hosts] & self._snapshot.working[hosts], 0)
        for other in meanwhile:
            _, mine, theirs = np.intersect1d(hosts, other.hosts, assume_unique=True, return_indices=True)
            whole[mine] &= ~other.gpus[theirs]
        gpus = own | whole.astype(np.uint64)
        return PlannedReservation(row.job_id, start, end, hosts, gpus, is_promised, host_resources)
