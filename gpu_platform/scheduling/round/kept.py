"""What jobs ahead keep from a request in one round: whole hosts while nobody knows a date, and GPUs from a date on."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.backfilling.backfill import PlannedReservation, all_but
from gpu_platform.scheduling.backfilling.promises import EarlierPromises
from gpu_platform.scheduling.cluster.windows import ALL_CLOSED
from gpu_platform.scheduling.placing.candidates import Candidates
from gpu_platform.scheduling.placing.domains import together
from gpu_platform.scheduling.round.state import SchedulerState

RESOURCES = GPUS, HOST_ROOM = 0, 1
"""What jobs take of a host. CPUs and memory are its room."""
NO_TURN = np.iinfo(np.int64).max


class KeptHosts:
    """Arrays are [GPUs; CPUs and memory] by host. Within a round hosts are only added. A job is concerned by what is
    kept of the resources that it takes.
    """

    def __init__(self, hosts: int) -> None:
        shape = (len(RESOURCES), hosts)
        self.blocked_by = np.full(shape, NO_TURN, np.int64)
        """The turn of the first job that keeps the host."""
        self.blocked_for_unlimited_by = np.full(shape, NO_TURN, np.int64)
        """The same for hosts that are kept only from jobs without a time limit."""
        self.has_reservation = np.zeros(shape, bool)
        """Hosts that some job could use that has a planned reservation, or waits behind such a job. Nobody behind it is
        promised them."""
        self._by_newcomer = np.zeros(shape, bool)
        """Hosts that are kept by a job that came in after the last round. Only such a job may put promises off."""

    def keep(self, request: PlacementRequest, hosts: NDArray[np.bool_], turn: int, is_newcomer: bool) -> None:
        """Keep ``hosts`` for a job, from all behind it."""
        for resource in resources_taken(request):
            self.blocked_by[resource][hosts & (self.blocked_by[resource] == NO_TURN)] = turn
            self._by_newcomer[resource] |= hosts & is_newcomer

    def keep_all(self, turn: int) -> None:
        """Keep all hosts that nobody keeps."""
        self.blocked_by[self.blocked_by == NO_TURN] = turn

    def keep_from_unlimited(self, request: PlacementRequest, hosts: NDArray[np.bool_], turn: int) -> None:
        """Keep ``hosts`` for a job, from those without a time limit."""
        for resource in resources_taken(request):
            blocked = self.blocked_for_unlimited_by[resource]
            blocked[hosts & (blocked == NO_TURN)] = turn

    def reserve(self, request: PlacementRequest, hosts: NDArray[np.bool_]) -> None:
        """Note the hosts that a job with a reservation could use: see ``has_reservation``."""
        self.has_reservation[resources_taken(request)] |= hosts

    def reserved_for(self, request: PlacementRequest) -> NDArray[np.bool_]:
        """Tell for each host whether a job with a reservation, which takes what ``request`` takes, could use it."""
        return np.asarray(self.has_reservation[resources_taken(request)].any(axis=0), bool)

    def are_reserved(self, request: PlacementRequest, hosts: NDArray[np.bool_]) -> bool:
        """Tell whether this is so for one of ``hosts``."""
        return bool((hosts & self.has_reservation[resources_taken(request)]).any())

    def turns(self, request: PlacementRequest, unlimited: bool, from_promised: bool) -> NDArray[np.int64]:
        """Return for each host the turn of the first job that keeps it. NO_TURN: no job does.

        ``unlimited``: from a job without a time limit. ``from_promised``: from a job that had a promise before. A job
        without a date keeps its hosts from such a job only if it came in since.
        """
        resources = resources_taken(request)
        blocked_by = np.where(self._by_newcomer, self.blocked_by, NO_TURN) if from_promised else self.blocked_by
        kept = _first(blocked_by, resources)
        return np.minimum(kept, _first(self.blocked_for_unlimited_by, resources)) if unlimited else kept

    def newcomers_keep(self, hosts: NDArray[np.intp]) -> bool:
        """Tell whether a job that came in since the last round keeps one of these hosts, by host index."""
        return bool(self._by_newcomer[:, hosts].any())

    def amount(self) -> tuple[int, ...]:
        """Return how much is kept or reserved. It only grows."""
        kept = (np.count_nonzero(turns != NO_TURN) for turns in (self.blocked_by, self.blocked_for_unlimited_by))
        return (int(np.count_nonzero(self.has_reservation)), *map(int, kept))


class RoundKeptHosts:
    """The hosts that jobs keep in one round: outside of advance reservations, and in each of them. A job that asks for
    an advance reservation competes only with jobs that ask for the same one.
    """

    def __init__(self, hosts: int, promised: Container[str]) -> None:
        """``promised``: the jobs that had promises before the round."""
        self._hosts, self._promised = hosts, promised
        self.outside = KeptHosts(hosts)
        self._inside: dict[str, KeptHosts] = {}

    def of(self, request: PlacementRequest) -> KeptHosts:
        """Return the hosts that jobs keep which compete with ``request``."""
        asked = request.resources.reservation
        if asked is None:
            return self.outside
        if asked not in self._inside:
            self._inside[asked] = KeptHosts(self._hosts)
        return self._inside[asked]

    def blocking_turns(self, request: PlacementRequest) -> NDArray[np.int64]:
        """Return for each host the turn of the first job that keeps it from ``request``. NO_TURN: no job does."""
        return self.keeping_turns(request, request.longest_s is None and request.job_id not in self._promised)

    def keeping_turns(self, request: PlacementRequest, unlimited: bool = False) -> NDArray[np.int64]:
        """Do the same. Hosts that are kept only from jobs without a time limit count if ``unlimited``."""
        return self.of(request).turns(request, unlimited, request.job_id in self._promised)

    def are_kept(self, request: PlacementRequest, hosts: NDArray[np.bool_]) -> bool:
        """Tell whether jobs ahead keep one of ``hosts`` from ``request``, whatever its time limit is."""
        return bool((hosts & (self.keeping_turns(request) != NO_TURN)).any())


class RespectedReservations:
    """The planned reservations that a job must respect in one round: claims, those of jobs ahead, and earlier promises.

    ``planned``: the reservations of the round with the turns of their jobs; it grows. ``earlier``: what was promised
    before the round.
    """

    def __init__(
        self,
        state: SchedulerState,
        now: float,
        claims: Sequence[PlannedReservation],
        planned: Sequence[tuple[int, PlannedReservation]],
        earlier: EarlierPromises,
    ) -> None:
        self._state, self._now, self._claims, self._planned, self._earlier = state, now, claims, planned, earlier
        self._all_but_claim: PlannedReservation | None = None

    @property
    def given(self) -> int:
        """The number of reservations that the round has planned so far."""
        return len(self._planned)

    @contextmanager
    def nothing_but(self, claim: PlannedReservation) -> Iterator[None]:
        """Inside the block a job gets nothing but its claim: the rest may be promised to others."""
        self._all_but_claim = all_but(claim, self._state.snapshot)
        try:
            yield
        finally:
            self._all_but_claim = None

    def of(self, request: PlacementRequest) -> list[PlannedReservation]:
        """Return the reservations that ``request`` must respect, and the windows that are to come."""
        return [*self.of_jobs(request), *self._state.window_bookings.of(request)]

    def of_jobs(self, request: PlacementRequest) -> list[PlannedReservation]:
        """Return those of jobs ahead, and promises made while it waited already."""
        return [*self._ahead(request), *self._earlier.to_others(request)]

    def free(self, request: PlacementRequest, candidates: Candidates) -> Candidates:
        """Return ``candidates`` without what is reserved for other jobs before ``request`` would end."""
        if self._all_but_claim is not None:
            return self._state.backfill.without_reserved([self._all_but_claim], request, candidates)
        binding = [other for other in self._ahead(request) if other.binds(request, self._now)]
        as_promised = self._earlier.as_promised(request)
        binding += [promise for promise in self._earlier.to_others(request) if promise.binds(as_promised, self._now)]
        return self._state.backfill.without_reserved(binding, request, candidates) if binding else candidates

    def _ahead(self, request: PlacementRequest) -> list[PlannedReservation]:
        claims = [claim for claim in self._claims if claim.job_id != request.job_id]
        return [*claims, *(reservation for _, reservation in self._planned)]


def resources_taken(request: PlacementRequest) -> list[int]:
    """Return which of RESOURCES the job takes. Only jobs that take the same are in its way."""
    resources = [GPUS] if request.gpu_count else []
    return [*resources, HOST_ROOM] if request.needs_host_resources else resources or [GPUS]


def usable_hosts(state: SchedulerState, request: PlacementRequest) -> NDArray[np.bool_] | None:
    """Return the hosts that would be enough once all jobs have ended. None: they are too few."""
    if not request.is_plain:
        return state.empty_fits.usable_hosts(request, must=request.job_id in state.remembered.told)
    usable = together(request.resources, state.snapshot, state.candidates.able(request))
    return usable if int(np.count_nonzero(usable)) >= request.resources.hosts else None


def hosts_beside_windows(
    state: SchedulerState, request: PlacementRequest, usable: NDArray[np.bool_]
) -> NDArray[np.bool_] | None:
    """Return the ``usable`` hosts of which no window keeps anything from the job. None: they are not enough."""
    windows = state.snapshot.windows
    closed = windows.answer(request)
    if closed is None:
        return usable
    if closed == ALL_CLOSED:
        return None
    usable = usable & (windows.closed_gpus(closed, np.arange(len(usable))) == 0)
    if not request.is_plain:
        return usable if usable.any() else None
    together_there = np.count_nonzero(together(request.resources, state.snapshot, usable))
    return usable if together_there >= request.resources.hosts else None


def _first(turns: NDArray[np.int64], resources: Sequence[int]) -> NDArray[np.int64]:
    """Return for each host the first of the turns, of these resources. Callers must not change it."""
    return turns[resources[0]] if len(resources) == 1 else turns[resources].min(axis=0)
