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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.jobs.placement import Placement, ReasonCode
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.window import WindowRow
from gpu_platform.scheduling.backfilling.ready_times import Booking, ReadyTimesOfRequests
from gpu_platform.scheduling.cluster.running_jobs import RunningJobs
from gpu_platform.scheduling.cluster.snapshot import GpuSets, HostIndices, Snapshot
from gpu_platform.scheduling.cluster.windows import planned_occurrences, reservation_of
from gpu_platform.scheduling.placing.candidates import Candidates, host_query
from gpu_platform.scheduling.placing.domains import domains_of, soonest
from gpu_platform.scheduling.placing.framework import CODES, Framework
from gpu_platform.topology.machine import members

BACKFILLS = ("easy", "conservative", "keep", "none")
_KEPT = CODES.index(ReasonCode.KEPT)


@dataclass(frozen=True)
class OwnPart:
    """What a job itself will have on each host of its reservation."""

    gpus: GpuSets
    cpus: NDArray[np.int64]
    ram_mib: NDArray[np.int64]

    @property
    def takes_room(self) -> NDArray[np.bool_]:
        """For each host: does it have CPUs or memory there?"""
        return (self.cpus > 0) | (self.ram_mib > 0)


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
    own: OwnPart | None = None
    """Known of new plans with CPUs or memory. Then ``gpus`` also has the other GPUs of the hosts: jobs on them would
    need the same CPUs."""

    def overlaps(self, other: PlannedReservation) -> bool:
        """Tell whether both have a GPU in common, whenever that is."""
        _, mine, theirs = np.intersect1d(self.hosts, other.hosts, assume_unique=True, return_indices=True)
        return bool((self.gpus[mine] & other.gpus[theirs]).any())

    def binds(self, request: PlacementRequest, now: float) -> bool:
        """Tell whether ``request`` must respect the reservation: if it started now, it might still run at the
        reservation's start. A promise never depends on learned run times.
        """
        if request.time_limit_s is not None:
            return (self.is_promised or self.is_expected) and now + request.time_limit_s > self.start
        longest = request.longest_s
        return self.is_promised or longest is None or now + longest > self.start


def all_but(claim: PlannedReservation, snapshot: Snapshot) -> PlannedReservation:
    """Return a reservation of all GPUs of the cluster besides those of ``claim``, now and for ever."""
    hosts = np.arange(len(snapshot))
    gpus = snapshot.all_gpus[hosts].copy()
    gpus[claim.hosts] &= ~claim.gpus
    return PlannedReservation("", -math.inf, math.inf, hosts, gpus)


def around(
    request: PlacementRequest, reservations: Iterable[PlannedReservation], snapshot: Snapshot
) -> PlacementRequest:
    """Return ``request`` as a request that avoids what is reserved, now and for ever."""
    gpus, hosts = set(request.excluded_gpus), set(request.excluded_hosts)
    for reservation in reservations:
        resources = reservation.host_resources
        for number, (host_index, reserved) in enumerate(
            zip(reservation.hosts.tolist(), reservation.gpus.tolist(), strict=True)
        ):
            gpus.update(snapshot.uuid(host_index, position) for position in members(reserved))
            if resources is not None and resources[number] and request.needs_host_resources:
                hosts.add(snapshot.names[host_index])
    if len(gpus) == len(request.excluded_gpus) and len(hosts) == len(request.excluded_hosts):
        return request
    return replace(request, excluded_gpus=frozenset(gpus), excluded_hosts=frozenset(hosts))


def resources_of(placement: Placement, snapshot: Snapshot) -> tuple[HostIndices, OwnPart]:
    """Return what a reservation of the placement covers: hosts, and what it has there."""
    gpus = np.zeros(len(snapshot), np.uint64)
    cpus, ram_mib = np.zeros(len(snapshot), np.int64), np.zeros(len(snapshot), np.int64)
    for host_slice in placement.slices:
        host_index = snapshot.host_index(host_slice.host)
        assert host_index is not None, "it was just placed there"
        for uuid in host_slice.gpu_uuids:
            place = snapshot.locate(uuid)
            assert place is not None, "it was just placed there"
            gpus[host_index] |= np.uint64(1 << place[1])
        cpus[host_index] += host_slice.cpus
        ram_mib[host_index] += host_slice.ram_mib
    hosts = np.flatnonzero((gpus != 0) | (cpus > 0) | (ram_mib > 0))
    return hosts, OwnPart(gpus[hosts], cpus[hosts], ram_mib[hosts])


def with_host_resources(
    job_id: str,
    start: float,
    end: float,
    hosts: HostIndices,
    own: OwnPart,
    meanwhile: Iterable[PlannedReservation],
    snapshot: Snapshot,
    is_promised: bool,
) -> PlannedReservation:
    """Return the reservation of a job that needs CPUs or memory. ``meanwhile``: those of others at the same time."""
    room = own.takes_room
    # Other jobs on the rest of a host would need the same CPUs or memory. But what they were promised is theirs.
    rest = np.where(room & (own.gpus != 0), snapshot.all_gpus[hosts] & snapshot.working[hosts], 0)
    for other in meanwhile:
        _, mine, theirs = np.intersect1d(hosts, other.hosts, assume_unique=True, return_indices=True)
        rest[mine] &= ~other.gpus[theirs]
    gpus = own.gpus | rest.astype(np.uint64)
    return PlannedReservation(job_id, start, end, hosts, gpus, is_promised, room, own=own)


class Backfill:
    """Knows for each host when it could take a slice of a gang. Only hosts that changed are computed again."""

    def __init__(
        self,
        framework: Framework,
        snapshot: Snapshot,
        running_jobs: RunningJobs,
        reserve: tuple[int, int] = (0, 0),
    ) -> None:
        """``reserve``: CPUs and MiB of each host that no job gets."""
        self._framework, self._snapshot = framework, snapshot
        self._times = ReadyTimesOfRequests(framework, snapshot, running_jobs, reserve)
        self._bookings = _Bookings()

    def ends(self) -> NDArray[np.float64]:
        """Return [hosts, GPUs of the largest host]: when each GPU is free, as ``ReadyTimesOfRequests.ends``."""
        return self._times.ends()

    def plan_start(
        self,
        request: PlacementRequest,
        able: NDArray[np.bool_],
        now: float,
        others: Sequence[PlannedReservation] = (),
        is_promised: bool = True,
    ) -> PlannedReservation | None:
        """Return the earliest start of the gang beside the reservations of ``others``.

        None: it depends on jobs without a time limit. ``able``: see ``CandidateIndex.able``.
        """
        times = self._times.of(request, able)
        ready_at, gpus = np.maximum(times.ready_at, now), times.gpus.copy()
        booked = self._bookings.follow(others)
        seen: set[int] = set()

        def put_off(host_index: int, not_before: float) -> None:
            fit = self._times.first_fit(request, times, host_index, not_before, booked[host_index])
            ready_at[host_index], gpus[host_index] = fit

        def is_later(host_index: int) -> bool:
            if host_index in seen:
                return False
            seen.add(host_index)
            before = ready_at[host_index]
            if host_index in booked:
                put_off(host_index, now)
            else:
                at, gpus[host_index] = self._times.make_exact(request, times, host_index)
                ready_at[host_index] = max(at, now)
            return bool(ready_at[host_index] > before)

        while (chosen := self._earliest(request.resources, ready_at, is_later)) is not None:
            start = float(ready_at[chosen].max())
            # A host that is free before a reservation begins may be taken again when the last host becomes free.
            early = [one for one in chosen.tolist() if one in booked and ready_at[one] < start]
            for host_index in early:
                put_off(host_index, start)
            if all(ready_at[host_index] == start for host_index in early):
                end = math.inf if request.time_limit_s is None else start + request.time_limit_s
                if not request.needs_host_resources:
                    return PlannedReservation(request.job_id, start, end, chosen, gpus[chosen], is_promised)
                amounts = (request.resources.cpus_per_host, request.resources.ram_mib_per_host)
                own = OwnPart(gpus[chosen], *(np.full(len(chosen), amount) for amount in amounts))
                meanwhile = [other for other in others if other.start < end and start < other.end]
                return with_host_resources(
                    request.job_id, start, end, chosen, own, meanwhile, self._snapshot, is_promised
                )
        return None

    def can_keep(self, promise: PlannedReservation, others: Iterable[PlannedReservation]) -> bool:
        """Tell whether what a promise needs is free at its start, by time limits and beside the reservations of
        ``others``. False also if it is not known what CPUs and memory it needs.
        """
        booked, own, times = self._bookings.follow(others), promise.own, self._times
        if own is None and promise.host_resources is not None and promise.host_resources.any():
            return False
        needed = promise.gpus if own is None else own.gpus
        for place, (host_index, gpus) in enumerate(zip(promise.hosts.tolist(), needed.tolist(), strict=True)):
            cpus, ram_mib = (0, 0) if own is None else (int(own.cpus[place]), int(own.ram_mib[place]))
            for begins, ends, taken, takes_room in booked.get(host_index, ()):
                meets = begins < promise.end and promise.start < ends
                if meets and (gpus & taken or (takes_room and (cpus or ram_mib))):
                    return False
            if (cpus or ram_mib) and not times.has_room(host_index, cpus, ram_mib, promise.start):
                return False
        return times.are_free(promise.hosts, needed, promise.start)

    def without_reserved(
        self, reservations: Iterable[PlannedReservation], request: PlacementRequest, candidates: Candidates
    ) -> Candidates:
        """Return ``candidates`` without the GPUs, CPUs and memory that are reserved."""
        snapshot, fits = self._snapshot, candidates.fits
        near = [reservation for reservation in reservations if fits[reservation.hosts].any()]
        if not near:
            return candidates
        reserved, host_resources = np.zeros(len(snapshot), np.uint64), np.zeros(len(snapshot), bool)
        for reservation in near:
            reserved[reservation.hosts] |= reservation.gpus
            if reservation.host_resources is not None and request.needs_host_resources:
                host_resources[reservation.hosts] |= reservation.host_resources
        closed = np.flatnonzero(host_resources & fits)
        touched = np.flatnonzero(candidates.offers.gpus & reserved)
        touched = touched[fits[touched] & ~host_resources[touched]]
        if not len(touched) and not len(closed):
            return candidates
        open_gpus = snapshot.available(touched)
        if request.resources.share is not None:
            open_gpus |= snapshot.shared.partly[touched]
        left = open_gpus & ~reserved[touched]
        enough = np.bitwise_count(left) >= request.resources.gpus_per_host
        result = candidates.resized(len(candidates.after_use))
        result.offers.code[closed] = _KEPT
        result.offers.code[touched[~enough]] = _KEPT
        again = touched[enough]
        more = {host_index: int(reserved[host_index]) for host_index in again.tolist()}
        query = host_query(snapshot, request, more, is_now=True)
        result.offers.put(again, self._framework.examine(query, snapshot, again))
        return result

    def _earliest(
        self, resources: ResourceRequest, ready_at: NDArray[np.float64], is_later: Callable[[int], bool]
    ) -> HostIndices | None:
        """Return the hosts of the domain that is the first to have enough of them.

        ``ready_at`` may be too early. Only for hosts that would be chosen is the right time computed, beside bookings:
        ``is_later`` does that for a host, corrects ``ready_at``, and tells whether it became later.
        """
        hosts = np.flatnonzero(ready_at < math.inf)
        domains = domains_of(resources, self._snapshot, hosts)
        domain_of = np.zeros(len(ready_at), np.intp)
        domain_of[hosts] = domains
        found: dict[int, list[int]] = {}
        for host_index in soonest(ready_at, hosts, domains, is_later):
            inside = found.setdefault(int(domain_of[host_index]), [])
            inside.append(host_index)
            if len(inside) == resources.hosts:
                return np.array(inside, np.intp)
        return None


class _Bookings:
    """What is reserved on each host. From one date to the next only a few reservations differ."""

    def __init__(self) -> None:
        self._held: dict[int, PlannedReservation] = {}
        """By identity: a reservation does not change."""
        self._on: dict[int, dict[int, Booking]] = {}
        self._sets: dict[int, frozenset[Booking]] = {}

    def follow(self, reservations: Iterable[PlannedReservation]) -> Mapping[int, frozenset[Booking]]:
        """Return host index -> what these reservations book there. Valid until the next call."""
        wanted = {id(one): one for one in reservations}
        changed: set[int] = set()
        for key in self._held.keys() - wanted.keys():
            for host_index in self._held[key].hosts.tolist():
                del self._on[host_index][key]
                changed.add(host_index)
        for key in wanted.keys() - self._held.keys():
            one = wanted[key]
            taken = np.zeros(len(one.hosts), bool) if one.host_resources is None else one.host_resources
            for host_index, gpus, also in zip(one.hosts.tolist(), one.gpus.tolist(), taken.tolist(), strict=True):
                self._on.setdefault(host_index, {})[key] = one.start, one.end, gpus, also
                changed.add(host_index)
        for host_index in changed:
            if self._on[host_index]:
                self._sets[host_index] = frozenset(self._on[host_index].values())
            else:
                del self._on[host_index]
                self._sets.pop(host_index, None)
        self._held = wanted
        return self._sets


class WindowBookings:
    """Windows as backfill sees them: GPUs that are booked for a time, so that no date is planned across it. Bookings
    are made once for as long as no window and no machine changes, because ``Backfill`` knows them by identity.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._seen: tuple[int, int, int] = (-1, -1, -1)
        self._of: dict[tuple[str | None, float], list[PlannedReservation]] = {}

    def __bool__(self) -> bool:
        return bool(self._snapshot.windows)

    def of(self, request: PlacementRequest) -> list[PlannedReservation]:
        """Return what is booked for others than the job: windows that are not its own, and all times outside its own.

        Bookings of other windows begin earlier by the job's grace, because only its time limit is planned. Callers must
        not change them.
        """
        windows = self._snapshot.windows
        if not windows.rows:
            return []
        asked = reservation_of(request)
        seen = windows.version, self._snapshot.facts_version, len(self._snapshot)
        if seen != self._seen:
            self._seen, self._of = seen, {}
        key = asked, request.grace_s
        found = self._of.get(key)
        if found is None:
            found = self._of[key] = [one for window in windows.rows.values() for one in self._book(window, *key)]
        return found

    def _book(self, window: WindowRow, asked: str | None, grace_s: float) -> Iterator[PlannedReservation]:
        kept = self._snapshot.windows.kept(window.name)
        hosts = kept.hosts
        if not len(hosts):
            return

        def booked(start: float, end: float) -> PlannedReservation:
            return PlannedReservation("", start, end, hosts, kept.gpus[hosts], host_resources=kept.whole[hosts])

        if window.name == asked:
            if not window.is_open:
                yield booked(-math.inf, window.start)
            yield booked(window.end, math.inf)
            return
        for one in planned_occurrences(self._snapshot.windows, window):
            yield booked(one.closes_at - grace_s, one.end)
