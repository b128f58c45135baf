"""The hosts that waiting jobs keep from others in one round, because they have no date or may get another one."""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.round_state import RESOURCES, resources_taken

NO_TURN = np.iinfo(np.int64).max


class KeptHosts:
    """Arrays are [GPUs; CPUs and memory] by host. Within a round hosts are only added."""

    def __init__(self, hosts: int) -> None:
        shape = (len(RESOURCES), hosts)
        self.blocked_by = np.full(shape, NO_TURN, np.int64)
        """The turn of the first job that keeps the host."""
        self.blocked_for_unlimited_by = np.full(shape, NO_TURN, np.int64)
        """The same for hosts that are kept only from jobs without a time limit."""
        self.has_reservation = np.zeros(shape, bool)
        """Hosts that a job could use which has a planned reservation, or waits behind one. Nobody behind it is promised
        them."""
        self._by_newcomer = np.zeros(shape, bool)
        """Hosts that a job keeps that came in after the last round. Only such a job may put promises off."""

    def keep(self, resources: Sequence[int], hosts: NDArray[np.bool_], turn: int, is_newcomer: bool) -> None:
        """Keep ``hosts`` from all jobs behind that take one of the resources."""
        for resource in resources:
            self.blocked_by[resource][hosts & (self.blocked_by[resource] == NO_TURN)] = turn
            self._by_newcomer[resource] |= hosts & is_newcomer

    def keep_all(self, turn: int) -> None:
        """Keep all hosts that nobody keeps."""
        self.blocked_by[self.blocked_by == NO_TURN] = turn

    def keep_from_unlimited(self, resources: Sequence[int], hosts: NDArray[np.bool_], turn: int) -> None:
        """Keep ``hosts`` from jobs without a time limit."""
        for resource in resources:
            blocked = self.blocked_for_unlimited_by[resource]
            blocked[hosts & (blocked == NO_TURN)] = turn

    def reserve(self, resources: Sequence[int], hosts: NDArray[np.bool_]) -> None:
        """Note the hosts that such a job could use: see ``has_reservation``."""
        self.has_reservation[resources] |= hosts

    def are_reserved(self, resources: Sequence[int], hosts: NDArray[np.bool_]) -> bool:
        """Tell whether such a job could use one of ``hosts``: see ``has_reservation``."""
        return bool((hosts & self.has_reservation[resources]).any())

    def turns(self, resources: Sequence[int], unlimited: bool, from_promised: bool) -> NDArray[np.int64]:
        """Return for each host the turn of the first job that keeps it. NO_TURN: no job does.

        ``unlimited``: from a job without a time limit. ``from_promised``: from a job that had a promise before. A job
        without a date keeps its hosts from such a job only if it came in since.
        """
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
    """The hosts that jobs keep in one round, outside of advance reservations and in each of them. Jobs that ask for
    one are in nobody's way but that of jobs that ask for the same.
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
        return self.of(request).turns(resources_taken(request), unlimited, request.job_id in self._promised)


def _first(turns: NDArray[np.int64], resources: Sequence[int]) -> NDArray[np.int64]:
    """Return for each host the first of the turns, of these resources. Callers must not change it."""
    return turns[resources[0]] if len(resources) == 1 else turns[resources].min(axis=0)
