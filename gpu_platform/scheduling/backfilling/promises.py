"""Which promises of the last decision still stand, and which dates nobody knows because a job runs over its limit.

Conservative backfill remembers what it promised. The promises are a schedule that can be carried out: no GPU is
promised twice at one time. A round moves each job forward in this schedule, or leaves it where it is. So the job with
the earliest promise can start as soon as nothing runs, and the cluster never stands still.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.backfilling.backfill import Backfill, PlannedReservation
from gpu_platform.scheduling.backfilling.gang_backfill import Unfinished
from gpu_platform.scheduling.cluster.running_jobs import RunningJobs
from gpu_platform.scheduling.cluster.snapshot import GpuSets, Snapshot
from gpu_platform.scheduling.queueing.job_queue import JobQueue

Asked = tuple[str, float | None]
"""(class key, time limit): see ``PlacementRequest.with_class_key``."""


@dataclass
class DateMemory:
    """Which dates were computed when: see ``date_slices``."""

    dated: dict[str, int] = field(default_factory=dict)
    """The round in which the date of a job that has a promise was computed last."""
    tried: set[str] = field(default_factory=set)
    """Other jobs for which a date was computed in vain, lately."""
    unfinished: dict[str, Unfinished] = field(default_factory=dict)
    """Jobs for which the search for a date goes on in the next round -> how far it came."""
    rounds: int = 0


@dataclass
class RememberedPromises:
    """The promises as of the last decision, and what was known of them. All but ``told`` only with conservative
    backfill.
    """

    reservations: dict[str, PlannedReservation] = field(default_factory=dict)
    asked: dict[str, Asked] = field(default_factory=dict)
    """What each of these jobs asked for when it got its promise."""
    dates: DateMemory = field(default_factory=DateMemory)
    """When dates were computed last."""
    gang_dates: DateMemory = field(default_factory=DateMemory)
    """The same for gangs of several groups, totals, and shares of GPUs."""
    told: Collection[str] = ()
    """The jobs that were told a promise, as of the last decision. They never wait for their turn."""


class EarlierPromises:
    """The promises of the last decision in a new round. Nobody has to wait for one that cannot be kept.

    A promise ends if the job is gone or asks for something else now, if its hosts or GPUs left service, or if all of
    its time has passed because other jobs ran over their time limits.
    """

    def __init__(
        self,
        remembered: RememberedPromises,
        queue: JobQueue,
        overruns: Overruns,
        backfill: Backfill,
        now: float,
        claims: Sequence[PlannedReservation] = (),
    ) -> None:
        """``claims``: GPUs that preemption freed for certain jobs."""
        self._remembered, self._queue, self._now = remembered, queue, now
        self._claims = {claim.job_id: claim for claim in claims}
        self._snapshot, self._backfill = overruns.snapshot, backfill
        self.standing = {
            job_id: promise for job_id, promise in remembered.reservations.items() if self._stands(job_id, promise)
        }
        """The promises that can still be kept."""
        self.unrenewed = dict(self.standing)
        """Those of them whose jobs had no turn yet."""

    def _stands(self, job_id: str, promise: PlannedReservation) -> bool:
        request, asked = self._queue.get(job_id), self._remembered.asked[job_id]
        if request is None or what_is_asked(request) != asked or promise.end <= self._now:
            return False
        snapshot, hosts = self._snapshot, promise.hosts
        return bool(snapshot.ready[hosts].all() and not (promise.gpus & ~snapshot.working[hosts]).any())

    def to_others(self, request: PlacementRequest) -> list[PlannedReservation]:
        """Return the promises that ``request`` must not put off. A job that came in since may put all of them off.

        So may a job on GPUs that are claimed for it. Otherwise they would stay empty. Elsewhere it respects promises.
        """
        if request.job_id in self._queue.newcomers:
            return []
        others = [promise for job_id, promise in self.unrenewed.items() if job_id != request.job_id]
        claim = self._claims.get(request.job_id)
        return others if claim is None else [promise for promise in others if not promise.overlaps(claim)]

    def as_promised(self, request: PlacementRequest) -> PlacementRequest:
        """Return the job with the time that is left of its promise, if that has begun and other jobs are late.

        It would run longer, but into times that follow from the same delay.
        """
        own = self.standing.get(request.job_id)
        if own is None or own.start >= self._now or request.time_limit_s is None:
            return request
        return replace(request, time_limit_s=own.end - self._now)

    def better(
        self, request: PlacementRequest, planned: PlannedReservation | None, others: list[PlannedReservation]
    ) -> PlannedReservation | None:
        """Return the job's promise if a new plan is later, or there is none, although the promise can be kept."""
        promise = self.standing.get(request.job_id)
        if promise is None or promise.start < self._now or (planned is not None and planned.start <= promise.start):
            return None
        return promise if self._backfill.can_keep(promise, others) else None

    def _are_put_off(self, planned: list[PlannedReservation]) -> bool:
        start = {reservation.job_id: reservation.start for reservation in planned}
        waiting = (promise for job_id, promise in self.standing.items() if job_id in self._queue)
        return any(start.get(promise.job_id, math.inf) > promise.start for promise in waiting)

    def remember(self, planned: list[PlannedReservation], no_turn: Container[str] = ()) -> bool:
        """Remember what was planned for the next round. Return whether a promise was put off, or is there no more.

        ``no_turn``: jobs at which nobody looked yet. They count as jobs that come in after this round.

        Where nobody knows the date, the old promise stays: it still says who is first, and where.
        """
        remembered = self._remembered
        remembered.reservations = {
            # What is left of ``unrenewed`` got no turn, because jobs of lost hosts come first for a moment.
            **self.unrenewed,
            **{entry.job_id: self.standing.get(entry.job_id, entry) if entry.overdue else entry for entry in planned},
        }
        self._queue.all_have_waited(but=no_turn)
        requests = ((job_id, self._queue.get(job_id)) for job_id in remembered.reservations)
        remembered.asked = {job_id: what_is_asked(request) for job_id, request in requests if request is not None}
        return self._are_put_off(planned)


class Overruns:
    """What jobs hold that have run over their time limits, and what is planned on it. Nobody knows when it is free."""

    def __init__(self, running_jobs: RunningJobs, snapshot: Snapshot) -> None:
        self.running_jobs, self.snapshot = running_jobs, snapshot
        self._gpus: GpuSets = np.zeros(len(snapshot), np.uint64)
        self._host_resources: NDArray[np.bool_] = np.zeros(len(snapshot), bool)
        self._holders: dict[int, str] = {}
        for job in running_jobs.overdue.values():
            for uuid in job.gpu_uuids:
                place = snapshot.locate(uuid)
                if place is not None:
                    self._gpus[place[0]] |= np.uint64(1 << place[1])
                    self._holders[place[0]] = job.job_id
            for use in job.host_use:
                host_index = snapshot.host_index(use.host)
                if host_index is not None:
                    self._host_resources[host_index] = True
                    self._holders[host_index] = job.job_id

    def mark(self, planned: PlannedReservation) -> PlannedReservation:
        """Return the reservation, marked if its date depends on such a job. What is planned after it depends, too."""
        if not self._holders:
            return planned
        touched = (self._gpus[planned.hosts] & planned.gpus) != 0
        if planned.host_resources is not None:
            touched |= self._host_resources[planned.hosts] & planned.host_resources
        if not touched.any():
            return planned
        job_id = self._holders[int(planned.hosts[np.flatnonzero(touched)[0]])]
        self._gpus[planned.hosts] |= planned.gpus
        if planned.host_resources is not None:
            self._host_resources[planned.hosts] |= planned.host_resources
        for host_index in planned.hosts.tolist():
            self._holders.setdefault(host_index, job_id)
        return replace(planned, overdue=job_id)


def what_is_asked(request: PlacementRequest) -> Asked:
    """Return everything of a request that a promise is for. ``request`` comes from the queue, so it has a class key."""
    return request.class_key, request.time_limit_s
