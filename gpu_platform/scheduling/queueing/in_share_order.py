"""Waiting jobs in the order of fair shares, which changes as jobs start."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.queueing.fair_share import FairShareKey
from gpu_platform.scheduling.queueing.queue_order import QueueSortKey

ServiceSortKey = tuple[FairShareKey, QueueSortKey]
"""(fair share, queue order). Smaller is served first."""
SortKey = Callable[[PlacementRequest], ServiceSortKey]


class InShareOrder:
    """Gives the places of a list, next one first.

    Jobs of one user that are of one size have the same share, so they stay in the order of the list. Only the first
    job of each user and size is compared with others.
    """

    def __init__(
        self, requests: Sequence[PlacementRequest], sort_key: Callable[[PlacementRequest], ServiceSortKey]
    ) -> None:
        """``requests`` are in the order of the queue. What ``sort_key`` returns for a job may only grow."""
        self._rows, self._sort_key = requests, sort_key
        places: dict[tuple[str, str, int], list[int]] = {}
        for place, request in enumerate(requests):
            places.setdefault((request.namespace, request.user, request.gpu_count), []).append(place)
        self._heap = [(sort_key(requests[some[0]]), 0, some) for some in places.values()]
        heapq.heapify(self._heap)

    def first(self) -> tuple[ServiceSortKey, int] | None:
        """Return the next place, with the sort key of its job, without taking it. None: none is left."""
        while self._heap:
            known, at, places = self._heap[0]
            current = self._sort_key(self._rows[places[at]])
            if current == known:
                return known, places[at]
            heapq.heapreplace(self._heap, (current, at, places))
        return None

    def take(self) -> int | None:
        """Take the next place. None: none is left."""
        first = self.first()
        if first is None:
            return None
        _, at, places = self._heap[0]
        if at + 1 < len(places):
            heapq.heapreplace(self._heap, (self._sort_key(self._rows[places[at + 1]]), at + 1, places))
        else:
            heapq.heappop(self._heap)
        return first[1]


def in_share_order(requests: Sequence[PlacementRequest], sort_key: SortKey) -> Iterator[PlacementRequest]:
    """Yield ``requests`` in the order of fair shares, next one first."""
    order = InShareOrder(requests, sort_key)
    while (place := order.take()) is not None:
        yield requests[place]
