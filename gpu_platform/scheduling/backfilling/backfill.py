"""When a waiting gang will start at the latest, and which GPUs others must leave free for it.

A planned reservation has a date. The date follows from the time limits of the running jobs and from the reservations
of the jobs ahead. Other jobs may start before the gang on GPUs that it does not need then, or if they end before the
date. So the gang never starts later than promised, as long as limits are kept, hosts stay healthy, and no job comes
in ahead of it.

**EASY** (Lifka, "The ANL/IBM SP scheduling system", 1995) promises a date to the first job that has to wait.
**Conservative** backfill (Mu'alem and Feitelson, IEEE TPDS 12(6), 2001) promises one to every job, up to a depth.
These promises are remembered: a job may start earlier only if that delays no promise of another job.

A job without a time limit never ends before a date. If it started ahead of a gang without a date, the gang might
never get one. So with EASY, too, the next jobs get dates. These are **tentative**: they bind only jobs without a time
limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.jobs.placement import Placement, ReasonCode
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.cluster.remembered import LeastRecentlyUsed
from gpu_platform.scheduling.cluster.running_jobs import RunningJobs
from gpu_platform.scheduling.cluster.snapshot import ChangeKind, GpuSets, HostIndices, Snapshot
from gpu_platform.scheduling.placing.candidates import Candidates, host_query, shape_of
from gpu_platform.scheduling.placing.domains import domains_of, soonest
from gpu_platform.scheduling.placing.framework import CODES, Framework
from gpu_platform.topology.machine import members
from gpu_platform.topology.subsets import best_subset_for

BACKFILLS = ("easy", "conservative", "keep", "none")
REMEMBERED_BYTES = 32 << 20
"""For as many requests as fit into this, the times of the hosts are remembered: 24 bytes per host."""
_KEPT = CODES.index(ReasonCode.KEPT)


@dataclass(frozen=True)
class PlannedReservation:
    """GPUs for one waiting job, from ``start`` to ``end``."""

    job_id: str
    start: float
    end: float
    """Infinite for a job without a time limit."""
    hosts: HostIndices
    gpus: GpuSets
    """The GPUs on each of ``hosts``."""
    is_promised: bool = True
    """False: the date is tentative, and binds only jobs without a time limit."""
    host_resources: NDArray[np.bool_] | None = None
    """For each of ``hosts``: are CPUs or memory reserved there? None: on no host."""
    overdue: str = ""
    """A running job that holds what is reserved, and has run over its time limit: nobody knows the date."""
    is_expected: bool = False
    """The date follows from learned run times. Nobody is told it, but it binds all jobs: see ``expected_dates``."""

    def binds(self, row: PlacementRequest, now: float) -> bool:
        """Tell whether ``row`` must respect the reservation: if it started now, it might still run at the
        reservation's start. A promise never depends on learned run times.
        """
        if row.time_limit_s is not None:
            return (self.is_promised or self.is_expected) and now + row.time_limit_s > self.start
        longest = row.longest_s
        return self.is_promised or longest is None or now + longest > self.start


def all_but(claim: PlannedReservation, snapshot: Snapshot) -> PlannedReservation:
    """Return a reservation of all GPUs of the cluster besides those of ``claim``, now and for ever."""
    hosts = np.arange(len(snapshot))
    gpus = snapshot.all_gpus[hosts].copy()
    gpus[claim.hosts] &= ~claim.gpus
    return PlannedReservation("", -math.inf, math.inf, hosts, gpus)


def around(row: PlacementRequest, reservations: Iterable[PlannedReservation], snapshot: Snapshot) -> PlacementRequest:
    """Return ``row`` as a request that avoids what is reserved, now and for ever."""
    gpus, hosts = set(row.excluded_gpus), set(row.excluded_hosts)
    for reservation in reservations:
        resources = reservation.host_resources
        for number, (host_index, reserved) in enumerate(
            zip(reservation.hosts.tolist(), reservation.gpus.tolist(), strict=True)
        ):
            gpus.update(snapshot.uuid(host_index, position) for position in members(reserved))
            if resources is not None and resources[number] and row.needs_host_resources:
                hosts.add(snapshot.names[host_index])
    if len(gpus) == len(row.excluded_gpus) and len(hosts) == len(row.excluded_hosts):
        return row
    return replace(row, excluded_gpus=frozenset(gpus), excluded_hosts=frozenset(hosts))


def resources_of(placement: Placement, snapshot: Snapshot) -> tuple[HostIndices, GpuSets, NDArray[np.bool_]]:
    """Return what a reservation of the placement covers: hosts, their GPUs, and whether CPUs or memory are taken."""
    gpus, host_resources = np.zeros(len(snapshot), np.uint64), np.zeros(len(snapshot), bool)
    for host_slice in placement.slices:
        host_index = snapshot.host_index(host_slice.host)
        assert host_index is not None, "it was just placed there"
        for uuid in host_slice.gpu_uuids:
            place = snapshot.locate(uuid)
            assert place is not None, "it was just placed there"
            gpus[host_index] |= np.uint64(1 << place[1])
        if host_slice.cpus or host_slice.ram_mib:
            host_resources[host_index] = True
    hosts = np.flatnonzero((gpus != 0) | host_resources)
    return hosts, gpus[hosts], host_resources[hosts]


class Backfill:
    """Knows for each host when it could take a slice of a gang. Only hosts that changed are computed again."""

    def __init__(self, framework: Framework, snapshot: Snapshot, running_jobs: RunningJobs) -> None:
        self._framework, self._snapshot, self._running_jobs = framework, snapshot, running_jobs
        self._known = LeastRecentlyUsed[_ReadyTimes]()
        self._bookings = _Bookings()
        self._ends: dict[int, tuple[int, list[float]]] = {}
        """Host index -> (version of the snapshot, when each GPU is free)."""

    def plan_start(
        self,
        row: PlacementRequest,
        able: NDArray[np.bool_],
        now: float,
        others: Sequence[PlannedReservation] = (),
        is_promised: bool = True,
    ) -> PlannedReservation | None:
        """Return the earliest start of the gang beside the reservations of ``others``.

        None: it depends on jobs without a time limit. ``able``: see ``CandidateIndex.able``.
        """
        times = self._ready_times(row, able)
        ready_at, gpus = np.maximum(times.ready_at, now), times.gpus.copy()
        booked = self._bookings.follow(others)
        seen: set[int] = set()

        def put_off(host_index: int, not_before: float) -> None:
            fit = self._first_fit_beside(row, times, host_index, not_before, booked[host_index])
            ready_at[host_index], gpus[host_index] = fit

        def is_later(host_index: int) -> bool:
            if host_index not in booked or host_index in seen:
                return False
            seen.add(host_index)
            before = ready_at[host_index]
            put_off(host_index, now)
            return bool(ready_at[host_index] > before)

        while (chosen := self._earliest(row.resources, ready_at, is_later)) is not None:
            start = float(ready_at[chosen].max())
            # A host that is free before a reservation begins may be taken again when the last host becomes free.
            early = [one for one in chosen.tolist() if one in booked and ready_at[one] < start]
            for host_index in early:
                put_off(host_index, start)
            if all(ready_at[host_index] == start for host_index in early):
                end = math.inf if row.time_limit_s is None else start + row.time_limit_s
                return PlannedReservation(row.job_id, start, end, chosen, gpus[chosen], is_promised)
        return None

    def without_reserved(
        self, reservations: Iterable[PlannedReservation], row: PlacementRequest, candidates: Candidates
    ) -> Candidates:
        """Return ``candidates`` without the GPUs, CPUs and memory that are reserved."""
        snapshot, fits = self._snapshot, candidates.fits
        near = [reservation for reservation in reservations if fits[reservation.hosts].any()]
        if not near:
            return candidates
        reserved, host_resources = np.zeros(len(snapshot), np.uint64), np.zeros(len(snapshot), bool)
        for reservation in near:
            reserved[reservation.hosts] |= reservation.gpus
            if reservation.host_resources is not None and row.needs_host_resources:
                host_resources[reservation.hosts] |= reservation.host_resources
        closed = np.flatnonzero(host_resources & fits)
        touched = np.flatnonzero(candidates.offers.gpus & reserved)
        touched = touched[fits[touched] & ~host_resources[touched]]
        if not len(touched) and not len(closed):
            return candidates
        open_gpus = snapshot.available(touched)
        if row.resources.share is not None:
            open_gpus |= snapshot.shared.partly[touched]
        left = open_gpus & ~reserved[touched]
        enough = np.bitwise_count(left) >= row.resources.gpus_per_host
        result = candidates.resized(len(candidates.after_use))
        result.offers.code[closed] = _KEPT
        result.offers.code[touched[~enough]] = _KEPT
        again = touched[enough]
        query = host_query(snapshot, row, {host_index: int(reserved[host_index]) for host_index in again.tolist()})
        result.offers.put(again, self._framework.examine(query, snapshot, again))
        return result

    def _earliest(
        self, request: ResourceRequest, ready_at: NDArray[np.float64], is_later: Callable[[int], bool]
    ) -> HostIndices | None:
        """Return the hosts of the domain that is the first to have enough of them.

        Bookings only make a host later. So only hosts that would be chosen without them are computed with them:
        ``is_later`` does that for a host, corrects ``ready_at``, and tells whether it became later.
        """
        hosts = np.flatnonzero(ready_at < math.inf)
        domains = domains_of(request, self._snapshot, hosts)
        domain_of = np.zeros(len(ready_at), np.intp)
        domain_of[hosts] = domains
        found: dict[int, list[int]] = {}
        for host_index in soonest(ready_at, hosts, domains, is_later):
            inside = found.setdefault(int(domain_of[host_index]), [])
            inside.append(host_index)
            if len(inside) == request.hosts:
                return np.array(inside, np.intp)
        return None

    def _usable(self, row: PlacementRequest, host_indices: HostIndices) -> dict[int, int]:
        """Return host index -> GPUs that could serve the job once all others have ended."""
        query = host_query(self._snapshot, row)
        usable = self._framework.usable(query, self._snapshot, host_indices, ChangeKind.USE)
        return dict(zip(host_indices.tolist(), usable.tolist(), strict=True))

    def _ready_times(self, row: PlacementRequest, able: NDArray[np.bool_]) -> _ReadyTimes:
        key = (*shape_of(row), row.excluded_gpus, row.excluded_hosts)
        times = self._known.get(key)
        if times is None:
            times = _ReadyTimes()
            self._known.put(key, times, REMEMBERED_BYTES // (24 * max(len(self._snapshot), 1)))
        self._bring_up_to_date(times, row, able)
        return times

    def _bring_up_to_date(self, times: _ReadyTimes, row: PlacementRequest, able: NDArray[np.bool_]) -> None:
        snapshot, known = self._snapshot, len(times.ready_at)
        if known < len(snapshot):
            more = len(snapshot) - known
            times.ready_at = np.concatenate([times.ready_at, np.full(more, math.inf)])
            times.gpus, times.usable = (
                np.concatenate([sets, np.zeros(more, np.uint64)]) for sets in (times.gpus, times.usable)
            )
        changed = np.flatnonzero(snapshot.changed_at[ChangeKind.USE] > times.seen)
        times.ready_at[changed] = math.inf
        for host_index in changed.tolist():
            times.beside.pop(host_index, None)
        changed = changed[able[changed]]
        for host_index, gpus in self._usable(row, changed).items():
            times.usable[host_index] = gpus
            times.ready_at[host_index], times.gpus[host_index] = self._first_fit(row, host_index, gpus)
        times.seen = snapshot.version

    def _first_fit_beside(
        self,
        row: PlacementRequest,
        times: _ReadyTimes,
        host_index: int,
        not_before: float,
        booked: frozenset[_Booking],
    ) -> tuple[float, int]:
        """Do :meth:`_first_fit`, or return what it found before if it would find that again.

        What was found with an earlier ``not_before`` stays the first fit until then: GPUs become free, and bookings
        end, at the same times, and a later window meets no fewer bookings.
        """
        limit_s, known = row.time_limit_s, times.beside.get(host_index)
        is_alike = known is not None and (known.limit_s, known.booked) == (limit_s, booked)
        if known is not None and is_alike and known.not_before <= not_before <= known.fit[0]:
            return known.fit
        fit = self._first_fit(row, host_index, int(times.usable[host_index]), not_before, booked)
        times.beside[host_index] = _FitBeside(limit_s, not_before, booked, fit)
        return fit

    def _first_fit(
        self,
        row: PlacementRequest,
        host_index: int,
        usable: int,
        not_before: float = -math.inf,
        booked: Iterable[_Booking] = (),
    ) -> tuple[float, int]:
        """Return when and on which GPUs a slice fits on a host, for as long as it may run. Jobs there end at their
        time limits.
        """
        snapshot, request = self._snapshot, row.resources
        machine = snapshot.machines[snapshot.machine[host_index]]
        free = snapshot.available_on(host_index) & usable
        ends = {not_before: 0}
        free_at = self._free_at(host_index)
        for position in members(usable & ~free):
            end = max(not_before, free_at[position])
            ends[end] = ends.get(end, 0) | 1 << position
        for _, end, _ in booked:
            ends.setdefault(max(not_before, end), 0)
        for start in sorted(ends):
            if start == math.inf:
                break
            free |= ends[start]
            until = math.inf if row.time_limit_s is None else start + row.time_limit_s
            left = free
            for begins, ended, gpus in booked:
                if begins < until and start < ended:
                    left &= ~gpus
            if left.bit_count() < request.gpus_per_host:
                continue
            best = best_subset_for(request, machine, left)
            if best is not None:
                return start, best.gpus
        return math.inf, 0

    def _free_at(self, host_index: int) -> list[float]:
        """Return when each GPU of the host is free, by position. Remembered until something changes on the host."""
        seen, times = self._ends.get(host_index, (-1, []))
        if seen < int(self._snapshot.changed_at[ChangeKind.USE][host_index]):
            positions = range(int(self._snapshot.size[host_index]))
            times = [self._running_jobs.free_at(self._snapshot.uuid(host_index, position)) for position in positions]
            self._ends[host_index] = self._snapshot.version, times
        return times


_Booking = tuple[float, float, int]
"""(start, end, GPUs) on one host."""


class _Bookings:
    """What is reserved on each host. From one date to the next only a few reservations differ."""

    def __init__(self) -> None:
        self._held: dict[int, PlannedReservation] = {}
        """By identity: a reservation does not change."""
        self._on: dict[int, dict[int, _Booking]] = {}
        self._sets: dict[int, frozenset[_Booking]] = {}

    def follow(self, reservations: Iterable[PlannedReservation]) -> Mapping[int, frozenset[_Booking]]:
        """Return host index -> what these reservations book there. Valid until the next call."""
        wanted = {id(one): one for one in reservations}
        changed: set[int] = set()
        for key in self._held.keys() - wanted.keys():
            for host_index in self._held[key].hosts.tolist():
                del self._on[host_index][key]
                changed.add(host_index)
        for key in wanted.keys() - self._held.keys():
            one = wanted[key]
            for host_index, gpus in zip(one.hosts.tolist(), one.gpus.tolist(), strict=True):
                self._on.setdefault(host_index, {})[key] = one.start, one.end, gpus
                changed.add(host_index)
        for host_index in changed:
            if self._on[host_index]:
                self._sets[host_index] = frozenset(self._on[host_index].values())
            else:
                del self._on[host_index]
                self._sets.pop(host_index, None)
        self._held = wanted
        return self._sets


@dataclass(frozen=True, slots=True)
class _FitBeside:
    """A first fit on a host beside bookings, and what it was computed for."""

    limit_s: float | None
    not_before: float
    booked: frozenset[_Booking]
    fit: tuple[float, int]


@dataclass
class _ReadyTimes:
    seen: int = 0
    ready_at: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """By host index. Infinity: no time is known. Minus infinity: now."""
    gpus: GpuSets = field(default_factory=lambda: np.zeros(0, np.uint64))
    usable: GpuSets = field(default_factory=lambda: np.zeros(0, np.uint64))
    """The GPUs that could serve once all others have ended, where a time is known."""
    beside: dict[int, _FitBeside] = field(default_factory=dict)
    """The last fit beside bookings, by host index. Forgotten when something changes on the host."""
