"""When a gang of several rank groups, or a total, will start at the latest. Found by simulating that jobs end one
after another.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.scheduling.backfilling.backfill import Backfill, PlannedReservation, resources_of, with_host_resources
from gpu_platform.scheduling.cluster.running_jobs import RunningJobs
from gpu_platform.scheduling.cluster.shared_gpus import as_sets
from gpu_platform.scheduling.cluster.snapshot import Snapshot
from gpu_platform.scheduling.cluster.statement import Statement
from gpu_platform.scheduling.placing.candidates import CandidateIndex, Candidates, Remembering
from gpu_platform.scheduling.placing.gangs import GangPlacer

TRIAL_LOOKS, MOST_LOOKS = 16, 64
"""What a trial costs, by looks at the number of GPUs that are free; and after so many looks the steps grow."""


@dataclass(frozen=True)
class Unfinished:
    """How far a search for a date came before it stopped, so that it did not take long."""

    not_before: float
    """The gang cannot start before this time."""
    fits_alone: bool
    """If nothing were reserved for others, it could start then."""


class _Count:
    """Counts GPUs, connected or not: a gang for which they are too few surely does not fit."""

    def __init__(self, request: PlacementRequest, ends: NDArray[np.float64], candidates: CandidateIndex) -> None:
        """``ends``: see ``Backfill.ends``."""
        self._ends = ends.copy()
        self._groups: list[tuple[ResourceRequest, NDArray[np.bool_]]] = []
        for group in request.rank_groups():
            resources = group.resources
            if resources.share is None and resources.gpus:
                one = group if resources.total is None else group.asking_for(resources.slices(1))
                self._groups.append((resources, candidates.able(one)))

    def never_too_late(self, now: float) -> float:
        """Return a time before which the gang cannot start. Infinity: never by time limits."""
        bound = now
        for resources, able in self._groups:
            there = self._ends[able]
            if resources.total is None:
                gpus, needed = resources.gpus_per_host, resources.hosts
                times = np.partition(there, gpus - 1, axis=1)[:, gpus - 1] if gpus <= there.shape[1] else np.zeros(0)
            else:
                times, needed = there.ravel(), resources.total
            bound = max(bound, float(np.partition(times, needed - 1)[needed - 1]) if needed <= len(times) else math.inf)
        return bound

    def too_few(self, at: float, reserved: Iterable[PlannedReservation]) -> bool:
        """Tell whether too few GPUs are free at that time beside what is reserved."""
        free = as_sets(self._ends <= at)
        for other in reserved:
            free[other.hosts] &= ~other.gpus
        counts = np.bitwise_count(free)
        for resources, able in self._groups:
            if resources.total is None:
                if np.count_nonzero(counts[able] >= resources.gpus_per_host) < resources.hosts:
                    return True
            elif int(counts[able].sum()) < resources.total:
                return True
        return False


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
        self,
        request: PlacementRequest,
        now: float,
        others: Sequence[PlannedReservation] = (),
        is_promised: bool = True,
        *,
        begun: Unfinished | None = None,
        most_trials: float = math.inf,
    ) -> PlannedReservation | Unfinished | None:
        """Return the earliest start of the whole gang by time limits. None: it depends on jobs without one.

        Where the reservations of others leave it no place at many ends in a row, not every end is tried. Then it may
        not be the earliest. After ``most_trials`` trials the search stops. ``begun``: how far it came before.
        """
        ending: dict[float, list[RunningRow]] = {}
        for job in self._running_jobs:
            if job.time_limit_s is not None:
                ending.setdefault(max(now, job.started_at + job.time_limit_s), []).append(job)
        booked = {max(now, other.end) for other in others if other.end < math.inf}
        ends = sorted({now, *ending, *booked})

        count = _Count(request, self._backfill.ends(), self._candidates)
        bound = max(count.never_too_late(now), -math.inf if begun is None else begun.not_before)
        if bound == math.inf:
            return None
        with Statement(self._snapshot) as attempt:
            passed = bisect_left(ends, bound)
            for end in ends[:passed]:
                self._end(ending.get(end, ()), attempt)
            trials, fits_alone = 0, begun is not None and begun.fits_alone
            if not fits_alone:
                passed, trials, fits_alone = self._pass_ends_in_vain(
                    request, ends, ending, attempt, passed, most_trials
                )
            looks, step = 0, 1
            while passed < len(ends):
                if trials >= most_trials:
                    return Unfinished(ends[passed], fits_alone)
                until = min(passed + step, len(ends))
                for end in ends[passed:until]:
                    self._end(ending.get(end, ()), attempt)
                start = ends[until - 1]
                end = math.inf if request.time_limit_s is None else start + request.time_limit_s
                meanwhile = [other for other in others if other.start < end and start < other.end]
                is_ruled_out = count.too_few(start, meanwhile)
                trials += not is_ruled_out
                placement = None if is_ruled_out else self._try(request, attempt, meanwhile)
                if placement is not None:
                    break
                # A reservation begins in between.
                passed, looks = until, looks + (1 if is_ruled_out else TRIAL_LOOKS)
                step = 2 * step if looks >= MOST_LOOKS else 1
            else:
                return None
        return self._reservation(request, placement, start, end, meanwhile, is_promised)

    def _pass_ends_in_vain(
        self,
        request: PlacementRequest,
        ends: list[float],
        ending: dict[float, list[RunningRow]],
        attempt: Statement,
        passed: int,
        most_trials: float,
    ) -> tuple[int, int, bool]:
        """Let jobs end in ``attempt`` as long as the gang does not fit beside no reservation, or until ``most_trials``.
        Return how many of the ``ends`` passed, the number of trials, and whether it fits at the next end. ``passed``:
        how many have passed already.

        What fits early also fits after more jobs have ended. Each trial costs as much as the jobs that end in it, and
        mostly few must end: so the steps grow from the first end on, and then halve.
        """
        step, grows, trials = 1, True, 0
        while step and passed < len(ends) and trials < most_trials:
            trials += 1
            before, until = attempt.checkpoint(), min(passed + step, len(ends))
            for end in ends[passed:until]:
                self._end(ending.get(end, ()), attempt)
            if self._try(request, attempt, ()) is None:
                passed = until
            else:
                attempt.rollback(before)
                grows = False
            step = 2 * step if grows else step // 2
        return passed, trials, not step

    @staticmethod
    def _end(jobs: Iterable[RunningRow], attempt: Statement) -> None:
        for job in jobs:
            attempt.end(job)

    def _try(
        self, request: PlacementRequest, attempt: Statement, meanwhile: Sequence[PlannedReservation]
    ) -> Placement | None:
        """Return a place for the gang beside these reservations. Nothing of it is held afterwards."""

        def lookup(group: PlacementRequest) -> Candidates:
            candidates = self._candidates.fitting(group)
            return self._backfill.without_reserved(meanwhile, group, candidates) if meanwhile else candidates

        before = attempt.checkpoint()
        with self._snapshot.windows.set_aside():  # the trial is about a later time; windows are among ``meanwhile``
            placement = self._placer.place_in(request, attempt, Remembering(self._snapshot, lookup))
        attempt.rollback(before)
        return placement

    def _reservation(
        self,
        request: PlacementRequest,
        placement: Placement,
        start: float,
        end: float,
        meanwhile: Sequence[PlannedReservation],
        is_promised: bool,
    ) -> PlannedReservation:
        hosts, own = resources_of(placement, self._snapshot)
        return with_host_resources(request.job_id, start, end, hosts, own, meanwhile, self._snapshot, is_promised)
