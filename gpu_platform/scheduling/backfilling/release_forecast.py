"""When GPUs become free if every running job runs to its time limit, and which jobs have them until then. And how they
become free if waiting jobs start meanwhile (:class:`ForecastCopy`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.jobs.placement import BlockingJob
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.scheduling.cluster.remembered import LeastRecentlyUsed
from gpu_platform.scheduling.cluster.running_jobs import AttemptId, RunningJobs, latest_end
from gpu_platform.scheduling.cluster.snapshot import ChangeKind, GpuSets, HostIndices, Snapshot
from gpu_platform.scheduling.cluster.windows import WindowPhases
from gpu_platform.scheduling.placing.candidates import host_query, shape_of
from gpu_platform.scheduling.placing.domains import domains_of, is_between_hosts, soonest
from gpu_platform.scheduling.placing.framework import Framework, HostQuery
from gpu_platform.topology.machine import Machine, members
from gpu_platform.topology.subsets import best_subset_for

Times = NDArray[np.float64]
REMEMBERED_BYTES = 32 << 20
"""For as many shapes of requests as fit into this, the times of the hosts are remembered: 16 bytes per host."""
HOLDERS = 5
"""How many blocking jobs a reason names."""
TRIES = 4


@dataclass
class HostAvailability:
    """When hosts can serve one shape of request. Arrays by host index."""

    usable: GpuSets
    """The GPUs that may serve once no job has them."""
    at: Times
    """When a host has enough usable GPUs, connected or not. Minus infinity: now. Infinity: nobody knows."""
    seen: int = 0
    """Up to which change it is up to date: a version of the snapshot, or a number of changes of a ForecastCopy."""
    blockers: dict[int, tuple[int, dict[AttemptId, int] | None]] = field(default_factory=dict)
    """Host index -> (version of the snapshot, jobs that must end there): see :meth:`ReleaseForecast.holders`."""

    def copy(self) -> HostAvailability:
        """Return a copy without the remembered blockers."""
        return HostAvailability(self.usable.copy(), self.at.copy(), self.seen)


class ReleaseForecast:
    """When each GPU becomes free. Only hosts that changed are computed again."""

    def __init__(self, framework: Framework, snapshot: Snapshot, running_jobs: RunningJobs) -> None:
        self._framework, self._snapshot, self._running_jobs = framework, snapshot, running_jobs
        self._ends: Times = np.zeros((0, 0))
        self._learned: Times = np.zeros((3, 0, 0))
        """[start of the job, its expected end, growth of its run time beyond that; hosts, GPUs]. Not a number: nothing
        was learned."""
        self._unknown: GpuSets = np.zeros(0, np.uint64)
        """GPUs that are taken by a job that is not known here."""
        self._seen = 0
        self._known = LeastRecentlyUsed[HostAvailability]()

    def ends(self) -> Times:
        """Return [hosts, GPUs of the largest host]: when each GPU is free. Minus infinity: now. Infinity: nobody
        knows, for example because a job has run over its time limit.
        """
        snapshot = self._snapshot
        shape = (len(snapshot), int(snapshot.size.max(initial=0)))
        if self._ends.shape != shape:
            self._ends, self._unknown, self._seen = np.full(shape, math.inf), np.zeros(shape[0], np.uint64), 0
            self._learned = np.full((3, *shape), math.nan)
            self._known.clear()
        if self._seen != snapshot.version:
            for host_index in np.flatnonzero(snapshot.changed_at[ChangeKind.USE] > self._seen).tolist():
                free, row, unknown = (
                    snapshot.available_on(host_index),
                    self._ends[host_index],
                    0,
                )
                row[:] = math.inf
                self._learned[:, host_index] = math.nan
                for position in range(int(snapshot.size[host_index])):
                    if free >> position & 1:
                        row[position] = -math.inf
                    elif not (holders := self._running_jobs.holders(uuid := snapshot.uuid(host_index, position))):
                        unknown |= 1 << position
                    else:
                        overdue = any((job.job_id, job.attempt) in self._running_jobs.overdue for job in holders)
                        row[position] = math.inf if overdue else self._running_jobs.free_at(uuid)
                        self._learned[:, host_index, position] = _learned(holders)
                self._unknown[host_index] = unknown
            self._seen = snapshot.version
        return self._ends

    def expected_ends(self, now: float) -> Times:
        """Return the same by expected run times where they are known. A job that runs longer than expected is expected
        to run on for a part of the time that it ran."""
        ends, (start, end, growth) = self.ends(), self._learned
        expected = np.fmin(np.maximum(end, start + growth * (now - start)), ends)
        return np.where(np.isnan(end), ends, expected)

    def availability(self, request: PlacementRequest) -> HostAvailability:
        """Return when hosts can serve a job. Callers must not change it."""
        snapshot, ends, key = self._snapshot, self.ends(), shape_of(request)
        known = self._known.get(key)
        if known is None:
            known = HostAvailability(np.zeros(len(snapshot), np.uint64), np.full(len(snapshot), math.inf))
            self._known.put(key, known, REMEMBERED_BYTES // (16 * max(len(snapshot), 1)))
        if known.seen != snapshot.version:
            changed = np.flatnonzero(snapshot.changed_at[ChangeKind.USE] > known.seen)
            known.usable[changed] = self._framework.usable(
                HostQuery(request.resources, tenant=request.tenant), snapshot, changed, ChangeKind.USE
            )
            refresh_availability(known, ends, changed, request.resources.gpus_per_host)
            known.seen = snapshot.version
        query = host_query(snapshot, request)
        if query.excluded:
            known, hosts = known.copy(), np.array(sorted(query.excluded), np.intp)
            known.usable[hosts] = self._framework.usable(query, snapshot, hosts, ChangeKind.USE)
            refresh_availability(known, ends, hosts, request.resources.gpus_per_host)
        return known

    def holders(self, request: PlacementRequest, able: NDArray[np.bool_]) -> tuple[list[BlockingJob], int]:
        """Return the jobs that must end before ``request`` can start, and how many more there are than the HOLDERS that
        are named.

        For each host it is a smallest set of jobs. Hosts that are free first are used; where nobody knows when, those
        that lack the fewest GPUs. ``able``, by host index: hosts that could serve the job once all others have ended.
        """
        resources, snapshot, available = request.resources, self._snapshot, self.availability(request)
        free = np.bitwise_count(available.usable & snapshot.available())
        known = np.bitwise_count(available.usable & ~self._unknown) >= resources.gpus_per_host
        hosts = np.flatnonzero(able & known)
        order = np.lexsort((snapshot.by_name[hosts], -free[hosts].astype(np.int64), available.at[hosts]))
        rank = np.full(len(snapshot), math.inf)
        rank[hosts[order]] = np.arange(len(hosts))
        for _ in range(TRIES):
            chosen = earliest_hosts(resources, snapshot, rank)
            if chosen is None:
                break
            found = {host_index: self._blockers(resources, host_index, available) for host_index in chosen.tolist()}
            impossible = [host_index for host_index, holders in found.items() if holders is None]
            if not impossible:
                return self._describe({host_index: holders for host_index, holders in found.items() if holders})
            rank[impossible] = math.inf  # the GPUs with a known holder are not connected without those of unknown jobs
        return [], 0

    def first_fit(
        self, resources: ResourceRequest, host_index: int, usable: int, ends: Times, after: float
    ) -> tuple[float, int]:
        """Return when, not before ``after``, and on which GPUs the host has a slice with GPUs connected as requested.

        ``ends``: the row of :meth:`ends` for this host. (infinity, 0) if nobody knows.
        """
        machine = self._snapshot.machines[self._snapshot.machine[host_index]]
        row = ends.tolist()
        for end in sorted({max(end, after) for end in row if end < math.inf}):
            there = usable & sum(1 << position for position, at in enumerate(row) if at <= end)
            gpus = _best(machine, there, resources)
            if gpus:
                return end, gpus
        return math.inf, 0

    def _blockers(
        self, resources: ResourceRequest, host_index: int, available: HostAvailability
    ) -> dict[AttemptId, int] | None:
        """Return the jobs that must end so that a slice fits on the host, with the number of their GPUs there.

        None: it would not help. Remembered until something changes on the host.
        """
        seen, holders = available.blockers.get(host_index, (-1, None))
        if seen < int(self._snapshot.changed_at[ChangeKind.USE][host_index]):
            holders = self._find_blockers(resources, host_index, int(available.usable[host_index]))
            available.blockers[host_index] = (self._snapshot.version, holders)
        return holders

    def _find_blockers(self, resources: ResourceRequest, host_index: int, usable: int) -> dict[AttemptId, int] | None:
        snapshot, machine = self._snapshot, self._snapshot.machines[self._snapshot.machine[host_index]]
        free = snapshot.available_on(host_index) & usable
        if _best(machine, free, resources):
            return {}
        theirs: dict[AttemptId, int] = {}
        jobs: dict[AttemptId, RunningRow] = {}
        of_gpu: dict[int, set[AttemptId]] = {}
        for position in members(usable & ~free):
            for holder in self._running_jobs.holders(snapshot.uuid(host_index, position)):
                key = (holder.job_id, holder.attempt)
                jobs[key], theirs[key] = holder, theirs.get(key, 0) | 1 << position
                of_gpu.setdefault(position, set()).add(key)

        def enough(ended: Sequence[AttemptId]) -> bool:
            """Tell whether the host has enough once these jobs have ended. A shared GPU is free once all its jobs
            have ended."""
            freed = sum(1 << position for position, holders in of_gpu.items() if holders.issubset(ended))
            return _best(machine, free | freed, resources) != 0

        chosen: list[AttemptId] = []
        for key in sorted(jobs, key=lambda key: (latest_end(jobs[key]), -theirs[key].bit_count(), key)):
            if enough(chosen):
                break
            chosen.append(key)
        if not enough(chosen):
            return None
        for key in chosen[::-1]:
            without = [other for other in chosen if other != key]
            if enough(without):
                chosen = without
        return {key: theirs[key].bit_count() for key in chosen}

    def _describe(self, found: Mapping[int, Mapping[AttemptId, int]]) -> tuple[list[BlockingJob], int]:
        gpus: dict[AttemptId, int] = {}
        for holders in found.values():
            for key, count in holders.items():
                gpus[key] = gpus.get(key, 0) + count
        ends = {key: latest_end(job) for key in gpus if (job := self._running_jobs.get(key)) is not None}
        first = nsmallest(HOLDERS, ((end, -gpus[key], key) for key, end in ends.items()))
        hosts: dict[AttemptId, list[str]] = {key: [] for *_, key in first}
        for host_index, holders in found.items():
            for key in hosts.keys() & holders.keys():
                hosts[key].append(self._snapshot.names[host_index])
        named = [
            BlockingJob(
                job_id=key[0],
                attempt=key[1],
                gpus=gpus[key],
                hosts=sorted(hosts[key]),
                ends_by=ends[key] if ends[key] < math.inf else None,
            )
            for *_, key in first
        ]
        return named, len(ends) - len(named)


def _learned(holders: Sequence[RunningRow]) -> tuple[float, float, float]:
    """Return start, expected end and growth of the job that holds the GPU longest. Not a number: one is unknown."""
    known = [(job.started_at + job.run_time.median_s, job) for job in holders if job.run_time is not None]
    if len(known) < len(holders):
        return math.nan, math.nan, math.nan
    end, job = max(known, key=lambda one: one[0])
    assert job.run_time is not None, "only those are known"
    return job.started_at, end, job.run_time.growth


def refresh_availability(available: HostAvailability, ends: Times, hosts: HostIndices, count: int) -> None:
    """Compute again for ``hosts``: when each has ``count`` usable GPUs."""
    width = ends.shape[1]
    if count > width:
        available.at[hosts] = math.inf
        return
    usable = (available.usable[hosts, None] >> np.arange(width, dtype=np.uint64)) & np.uint64(1)
    times = np.where(usable != 0, ends[hosts], math.inf)
    available.at[hosts] = np.partition(times, count - 1, axis=1)[:, count - 1]


def earliest_hosts(
    resources: ResourceRequest, snapshot: Snapshot, at: Times, is_later: Callable[[int], bool] = lambda _: False
) -> HostIndices | None:
    """Return as many hosts as the gang needs, in one domain of its required level, so that the last is ready first.

    ``at``, by host index: when hosts are ready, or their rank in another order. Infinity: never. ``is_later``: see
    :func:`soonest`. Of domains that are ready at the same time it is the one whose first host is first by name.
    """
    hosts = np.flatnonzero(at < math.inf)
    if len(hosts) < resources.hosts:
        return None
    anywhere = resources.hosts == 1 or not is_between_hosts(resources.gang_level)
    domain_of = np.zeros(len(at), np.intp)
    domain_of[hosts] = 0 if anywhere else domains_of(resources, snapshot, hosts)
    found: dict[int, list[int]] = {}
    whole: list[list[int]] = []
    for host_index in soonest(at, hosts, snapshot.by_name[hosts], is_later):
        if whole and at[host_index] > at[whole[0][-1]]:
            break
        inside = found.setdefault(int(domain_of[host_index]), [])
        inside.append(host_index)
        if len(inside) == resources.hosts:
            whole.append(inside)
            if anywhere:
                break
    if not whole:
        return None
    best = min(whole, key=lambda inside: int(snapshot.by_name[inside[0]]))
    return np.array(best[: resources.hosts], np.intp)


def _best(machine: Machine, free: int, resources: ResourceRequest) -> int:
    best = best_subset_for(resources, machine, free)
    return 0 if best is None else best.gpus


@dataclass
class ForecastCopy:
    """When GPUs become free if waiting jobs start as estimated, and when a gang could start then. It is a copy of the
    forecast, and changes nothing else.
    """

    forecast: ReleaseForecast
    snapshot: Snapshot
    ends: Times
    known: dict[tuple[object, ...], HostAvailability] = field(default_factory=dict)
    changes: list[HostIndices] = field(default_factory=list)
    """The hosts of each change of ``ends``. What is known of a shape is brought up to date when it is asked for."""
    phases: WindowPhases | None = None
    """None: there are no windows."""

    @classmethod
    def of(cls, forecast: ReleaseForecast, snapshot: Snapshot, now: float) -> ForecastCopy:
        """Return a copy of what the forecast expects now."""
        return cls(forecast, snapshot, forecast.expected_ends(now), phases=phases_of(snapshot))

    def earliest(self, request: PlacementRequest, now: float) -> tuple[float, Mapping[int, int]] | None:
        """Return when the gang could start at the earliest, and where: host index -> GPUs. None: nobody knows.

        Without windows the start may be before ``now``: then it is now.
        """
        available = self._availability(request)
        if self.phases is not None:
            return self._earliest_beside(self.phases, request, available, now)
        resources = request.resources

        def is_later(host_index: int) -> bool:
            at = float(available.at[host_index])
            available.at[host_index], _ = self._first_fit(request, host_index, available, at)
            return bool(available.at[host_index] > at)

        chosen = earliest_hosts(resources, self.snapshot, available.at, is_later)
        if chosen is None:
            return None
        start = float(available.at[chosen].max())
        return start, {
            host_index: self._first_fit(request, host_index, available, start)[1] for host_index in chosen.tolist()
        }

    def take(self, gpus: Mapping[int, int], until: float) -> None:
        """Assume that a job has these GPUs until ``until``."""
        for host_index, chosen in gpus.items():
            self.ends[host_index, members(chosen)] = until
        self.changes.append(np.array(sorted(gpus), np.intp))

    def close(self, hosts: HostIndices) -> None:
        """Assume that nobody knows when these hosts are free."""
        self.ends[hosts] = math.inf
        self.changes.append(hosts)

    def _earliest_beside(
        self, phases: WindowPhases, request: PlacementRequest, available: HostAvailability, now: float
    ) -> tuple[float, Mapping[int, int]] | None:
        """Do what :meth:`earliest` does where windows come and go: a host that is ready now may be closed when the last
        one is ready, and then the next moment is tried."""
        at = np.maximum(available.at, now)

        def fit(host_index: int, after: float) -> tuple[float, int]:
            if math.isinf(after):
                return math.inf, 0
            return self._first_fit_beside(phases, request, host_index, available, after)

        def is_later(host_index: int) -> bool:
            before = float(at[host_index])
            at[host_index], _ = fit(host_index, before)
            return bool(at[host_index] > before)

        while (chosen := earliest_hosts(request.resources, self.snapshot, at, is_later)) is not None:
            start = float(at[chosen].max())
            found = {host_index: fit(host_index, start) for host_index in chosen.tolist()}
            late = {host_index: when for host_index, (when, _) in found.items() if when > start}
            if not late:
                return start, {host_index: gpus for host_index, (_, gpus) in found.items()}
            for host_index, when in late.items():
                at[host_index] = when
        return None

    def _first_fit_beside(
        self,
        phases: WindowPhases,
        request: PlacementRequest,
        host_index: int,
        available: HostAvailability,
        after: float,
    ) -> tuple[float, int]:
        machine = self.snapshot.machines[self.snapshot.machine[host_index]]
        usable, ends = int(available.usable[host_index]), self.ends[host_index].tolist()
        moments = {max(end, after) for end in ends if end < math.inf}
        moments |= {moment for moment in phases.moments if moment > after}
        for moment in sorted(moments):
            free = sum(1 << position for position, end in enumerate(ends) if end <= moment)
            there = usable & free & ~phases.closed_on(request, host_index, moment)
            best = best_subset_for(request.resources, machine, there)
            if best is not None:
                return moment, best.gpus
        return math.inf, 0

    def _first_fit(
        self, request: PlacementRequest, host_index: int, available: HostAvailability, after: float
    ) -> tuple[float, int]:
        return self.forecast.first_fit(
            request.resources, host_index, int(available.usable[host_index]), self.ends[host_index], after
        )

    def _availability(self, request: PlacementRequest) -> HostAvailability:
        key = (*shape_of(request), request.excluded_gpus, request.excluded_hosts)
        available = self.known.get(key)
        if available is None:
            available = self.known[key] = self.forecast.availability(request).copy()
            changed = [np.arange(len(self.snapshot))]
        else:
            changed = self.changes[available.seen :]
        if changed:
            hosts = np.unique(np.concatenate(changed))
            refresh_availability(available, self.ends, hosts, request.resources.gpus_per_host)
        available.seen = len(self.changes)
        return available


def phases_of(snapshot: Snapshot) -> WindowPhases | None:
    """Return the windows of a cluster over time. None: there are none."""
    return WindowPhases(snapshot.windows) if snapshot.windows else None
