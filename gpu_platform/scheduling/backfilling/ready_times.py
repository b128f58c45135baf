"""When each host could take a slice of a gang, by the time limits of the jobs there. Only hosts that changed are
computed again.

For all hosts together only a time is computed that is never too late: when enough GPUs are free, connected or not.
When and on which GPUs a slice really fits is computed for a host when somebody wants to know.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.cluster.remembered import LeastRecentlyUsed
from gpu_platform.scheduling.cluster.running_jobs import RunningJobs, latest_end
from gpu_platform.scheduling.cluster.snapshot import ChangeKind, GpuSets, HostIndices, Snapshot
from gpu_platform.scheduling.placing.candidates import host_query, shape_of
from gpu_platform.scheduling.placing.framework import Framework
from gpu_platform.topology.machine import members
from gpu_platform.topology.subsets import best_subset_for

REMEMBERED_BYTES = 32 << 20
"""For as many requests as fit into this, the times of the hosts are remembered: 25 bytes per host."""

Booking = tuple[float, float, int, bool]
"""(start, end, GPUs, are CPUs or memory set aside, too?) on one host."""
Fit = tuple[float, int]
"""(when, on which GPUs) a slice fits on a host. (infinity, 0): nobody knows when."""


@dataclass(frozen=True, slots=True)
class _FitBeside:
    """A first fit on a host beside bookings, and what it was computed for."""

    limit_s: float | None
    not_before: float
    booked: frozenset[Booking]
    fit: Fit


@dataclass
class ReadyTimes:
    """When hosts are ready for one request. Arrays by host index."""

    seen: int = 0
    ready_at: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """Infinity: no time is known. Minus infinity: now."""
    is_exact: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    """False: the host may be ready later than ``ready_at``, and ``gpus`` says nothing."""
    gpus: GpuSets = field(default_factory=lambda: np.zeros(0, np.uint64))
    usable: GpuSets = field(default_factory=lambda: np.zeros(0, np.uint64))
    """The GPUs that could serve once all others have ended, where a time is known."""
    beside: dict[int, _FitBeside] = field(default_factory=dict)
    """The last fit beside bookings, by host index. Forgotten when something changes on the host."""

    def put(self, host_index: int, fit: Fit) -> None:
        """Note the exact time and GPUs of a host."""
        self.ready_at[host_index], self.gpus[host_index] = fit
        self.is_exact[host_index] = True


class ReadyTimesOfRequests:
    """The times of the requests that were asked for lately."""

    def __init__(
        self, framework: Framework, snapshot: Snapshot, running_jobs: RunningJobs, reserve: tuple[int, int]
    ) -> None:
        """``reserve``: CPUs and MiB of each host that no job gets."""
        self._framework, self._snapshot, self._running_jobs = framework, snapshot, running_jobs
        self._reserve = reserve
        self._known = LeastRecentlyUsed[ReadyTimes]()
        self._ends: NDArray[np.float64] = np.zeros((0, 0))
        self._ends_seen = 0

    def of(self, request: PlacementRequest, able: NDArray[np.bool_]) -> ReadyTimes:
        """Return the times of a job. ``able``: see ``CandidateIndex.able``."""
        key = (*shape_of(request), request.excluded_gpus, request.excluded_hosts)
        times = self._known.get(key)
        if times is None:
            times = ReadyTimes()
            self._known.put(key, times, REMEMBERED_BYTES // (25 * max(len(self._snapshot), 1)))
        if times.seen != self._snapshot.version or len(times.ready_at) < len(self._snapshot):
            self._bring_up_to_date(times, request, able)
        return times

    def first_fit(
        self,
        request: PlacementRequest,
        times: ReadyTimes,
        host_index: int,
        not_before: float,
        booked: frozenset[Booking],
    ) -> Fit:
        """Return when, not before ``not_before``, a slice fits on the host beside what is booked there.

        What was found with an earlier ``not_before`` stays the first fit until then: GPUs become free, and bookings
        end, at the same times, and a later window meets no fewer bookings.
        """
        limit_s, known = request.time_limit_s, times.beside.get(host_index)
        is_alike = known is not None and (known.limit_s, known.booked) == (limit_s, booked)
        if known is not None and is_alike and known.not_before <= not_before <= known.fit[0]:
            return known.fit
        fit = self._first_fit(request, host_index, int(times.usable[host_index]), not_before, booked)
        times.beside[host_index] = _FitBeside(limit_s, not_before, booked, fit)
        return fit

    def make_exact(self, request: PlacementRequest, times: ReadyTimes, host_index: int) -> Fit:
        """Return when a slice fits on a host on which nothing is booked, and note it in ``times``."""
        if not times.is_exact[host_index]:
            times.put(host_index, self._first_fit(request, host_index, int(times.usable[host_index])))
        return float(times.ready_at[host_index]), int(times.gpus[host_index])

    def are_free(self, hosts: HostIndices, gpus: GpuSets, at: float) -> bool:
        """Tell whether all these GPUs of ``hosts`` are free at that time, by time limits."""
        ends = self.ends()
        asked = (gpus[:, None] >> np.arange(ends.shape[1], dtype=np.uint64)) & np.uint64(1)
        return not (ends[hosts][asked != 0] > at).any()

    def has_room(self, host_index: int, cpus: int, ram_mib: int, at: float) -> bool:
        """Tell whether the host has so many CPUs and so much memory left at that time, by time limits."""
        left_cpus, left_ram = _left_at(self._room(host_index), self._releases(host_index), at)
        return cpus <= left_cpus and ram_mib <= left_ram

    def _room(self, host_index: int) -> tuple[int, int]:
        """Return the CPUs and the MiB of memory that nobody has."""
        snapshot, (cpus, ram_mib) = self._snapshot, self._reserve
        used_cpus = snapshot.cpus_used[host_index] + snapshot.cpus_held[host_index]
        used_ram = snapshot.ram_mib_used[host_index] + snapshot.ram_mib_held[host_index]
        return int(snapshot.cpus[host_index] - used_cpus) - cpus, int(snapshot.ram_mib[host_index] - used_ram) - ram_mib

    def _releases(self, host_index: int) -> list[tuple[float, int, int]]:
        """Return (when, CPUs, MiB of memory) that jobs give back on the host by their time limits."""
        host = self._snapshot.names[host_index]
        return [
            (latest_end(job), use.cpus, use.ram_mib)
            for job in self._running_jobs.with_host_resources_on(host)
            for use in job.host_use
            if use.host == host and job.time_limit_s is not None
        ]

    def _bring_up_to_date(self, times: ReadyTimes, request: PlacementRequest, able: NDArray[np.bool_]) -> None:
        snapshot, more = self._snapshot, len(self._snapshot) - len(times.ready_at)
        if more:
            times.ready_at = np.concatenate([times.ready_at, np.full(more, math.inf)])
            times.is_exact = np.concatenate([times.is_exact, np.zeros(more, bool)])
            times.gpus, times.usable = (
                np.concatenate([sets, np.zeros(more, np.uint64)]) for sets in (times.gpus, times.usable)
            )
        changed = np.flatnonzero(snapshot.changed_at[ChangeKind.USE] > times.seen)
        times.seen = snapshot.version
        times.ready_at[changed], times.is_exact[changed] = math.inf, False
        for host_index in changed.tolist() if times.beside else ():
            times.beside.pop(host_index, None)
        changed = changed[able[changed]]
        if len(changed):
            query = host_query(snapshot, request)
            times.usable[changed] = self._framework.usable(query, snapshot, changed, ChangeKind.USE)
            times.ready_at[changed] = self._never_too_late(request, changed, times.usable[changed])

    def _never_too_late(self, request: PlacementRequest, hosts: HostIndices, usable: GpuSets) -> NDArray[np.float64]:
        """Return when each of ``hosts`` has enough of its ``usable`` GPUs, connected or not."""
        count, ends = request.resources.gpus_per_host, self.ends()
        if not count:
            return np.full(len(hosts), -math.inf)
        width = ends.shape[1]
        if count > width:
            return np.full(len(hosts), math.inf)
        is_usable = (usable[:, None] >> np.arange(width, dtype=np.uint64)) & np.uint64(1)
        times = np.where(is_usable != 0, ends[hosts], math.inf)
        return np.partition(times, count - 1, axis=1)[:, count - 1]

    def ends(self) -> NDArray[np.float64]:
        """Return [hosts, GPUs of the largest host]: when each GPU is free by time limits. Callers must not change it.

        Minus infinity: now. Infinity: nobody knows.
        """
        snapshot = self._snapshot
        shape = (len(snapshot), int(snapshot.size.max(initial=0)))
        if self._ends.shape != shape:
            self._ends, self._ends_seen = np.full(shape, math.inf), 0
        if self._ends_seen != snapshot.version:
            for host_index in np.flatnonzero(snapshot.changed_at[ChangeKind.USE] > self._ends_seen).tolist():
                free = snapshot.available_on(host_index)
                self._ends[host_index, : int(snapshot.size[host_index])] = [
                    -math.inf if free >> position & 1 else self._running_jobs.free_at(uuid)
                    for position, uuid in enumerate(snapshot.uuids_on(host_index))
                ]
            self._ends_seen = snapshot.version
        return self._ends

    def _first_fit(
        self,
        request: PlacementRequest,
        host_index: int,
        usable: int,
        not_before: float = -math.inf,
        booked: Iterable[Booking] = (),
    ) -> Fit:
        """Return when and on which GPUs a slice fits on a host, for as long as it may run. Jobs there end at their
        time limits.
        """
        snapshot, resources = self._snapshot, request.resources
        machine = snapshot.machines[snapshot.machine[host_index]]
        free = snapshot.available_on(host_index) & usable
        ends = {not_before: 0}
        free_at = self.ends()[host_index].tolist()
        for position in members(usable & ~free) if resources.gpus_per_host else ():
            end = max(not_before, free_at[position])
            ends[end] = ends.get(end, 0) | 1 << position
        for _, end, _, _ in booked:
            ends.setdefault(max(not_before, end), 0)
        needs_room = request.needs_host_resources
        room, releases = (self._room(host_index), self._releases(host_index)) if needs_room else ((0, 0), [])
        for end, _, _ in releases:
            ends.setdefault(max(not_before, end), 0)
        for start in sorted(ends):
            if start == math.inf:
                break
            free |= ends[start]
            until = math.inf if request.time_limit_s is None else start + request.time_limit_s
            meanwhile = [one for one in booked if one[0] < until and start < one[1]]
            if needs_room:
                cpus, ram_mib = _left_at(room, releases, start)
                is_enough = resources.cpus_per_host <= cpus and resources.ram_mib_per_host <= ram_mib
                if not is_enough or any(takes_room for *_, takes_room in meanwhile):
                    continue
            left = free
            for _, _, gpus, _ in meanwhile:
                left &= ~gpus
            if not resources.gpus_per_host:
                return start, 0
            if left.bit_count() < resources.gpus_per_host:
                continue
            best = best_subset_for(resources, machine, left)
            if best is not None:
                return start, best.gpus
        return math.inf, 0


def _left_at(room: tuple[int, int], releases: Iterable[tuple[float, int, int]], at: float) -> tuple[int, int]:
    """Return the CPUs and the MiB of memory that are left at that time: what is left now, and what jobs give back."""
    cpus, ram_mib = room
    for end, more_cpus, more_ram_mib in releases:
        if end <= at:
            cpus, ram_mib = cpus + more_cpus, ram_mib + more_ram_mib
    return cpus, ram_mib
