"""Step 1 of a turn: which waiting job is next, and which jobs can be skipped. Fair shares change as jobs start.

Within a round GPUs are only taken, and hosts are only kept for waiting jobs. So once a job has to wait, all jobs
behind it with the same need have to wait, too. The exception is a job that ends before the reservation that it would
run into. So the cost of a round depends on the number of different needs, not on the number of jobs.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.queueing.fair_share import FairShareKey
from gpu_platform.scheduling.queueing.job_queue import GroupKey, JobQueue, Need
from gpu_platform.scheduling.queueing.queue_order import QueueSortKey
from gpu_platform.scheduling.round.screen import Effect, Flags, Outlooks, Shortage
from gpu_platform.scheduling.round.state import SchedulerState

ServiceSortKey = tuple[FairShareKey, QueueSortKey]
"""(fair share, queue order). Smaller is served first."""
SortKey = Callable[[PlacementRequest], ServiceSortKey]


@dataclass(frozen=True)
class AlsoWait:
    """Which other jobs of the same need wait because one of them does."""

    limit_s: float | None = None
    """Jobs without exclusions wait if their time limit is this long or longer. None: not because of their limits."""
    longest_s: float | None = None
    """Jobs without exclusions and without a time limit wait if they will run this long or longer."""
    everybody: bool = False
    """All wait, with exclusions or without, and they do not keep any further hosts."""

    def __or__(self, other: AlsoWait) -> AlsoWait:
        """Return those who wait because of one of the two."""
        limit_s, longest_s = _least(self.limit_s, other.limit_s), _least(self.longest_s, other.longest_s)
        return AlsoWait(limit_s, longest_s, self.everybody or other.everybody)

    def includes(self, group: GroupKey) -> bool:
        """Tell whether the jobs of a group wait, if they have no exclusions."""
        least, length = (self.longest_s, group[3]) if group[2] == math.inf else (self.limit_s, group[2])
        return self.everybody or (least is not None and length >= least)


NOBODY = AlsoWait()
WITHOUT_EXCLUSIONS = AlsoWait(limit_s=-1.0, longest_s=-1.0)
"""All without exclusions: none of them can start in this round."""
EVERYBODY = AlsoWait(everybody=True)


@dataclass
class _NeedCursor:
    """The position in the groups of one need. Where fair share decides, it covers only one group."""

    need: Need
    group: GroupKey | None = None
    at: int = 0


class QueueCursor:
    """Goes through the queue. Call ``next``, then ``placed`` or ``waits``, and again ``next``."""

    def __init__(
        self,
        queue: JobQueue,
        share: Callable[[PlacementRequest], FairShareKey] | None,
        also_wait: Callable[[PlacementRequest], AlsoWait],
    ) -> None:
        """``share`` gives a job's fair share where fair share decides. It changes with each placement. ``also_wait``
        says which other jobs wait because one does.
        """
        self._queue, self._share, self._also_wait = queue, share, also_wait
        self._blocked: dict[int, AlsoWait] = {}
        """By identity of the need."""
        self._heap: list[tuple[ServiceSortKey, int, _NeedCursor]] = []
        """Groups or needs that had a turn and of which a job is left."""
        if share is None:
            self._in_order = queue.needs_in_order.copy()
            self._numbers = self._in_order.numbers()
            self._alone, self._excludes = queue.first_groups_alone(self._numbers)
            self._turns = Remaining(len(self._numbers))
        else:
            numbers = queue.jobs_in_order.numbers()
            places = np.sort(np.unique(numbers, return_index=True)[1])
            self._numbers = numbers[places]
            self._firsts = [queue.jobs_in_order.items[place] for place in places.tolist()]
            self._by_share = InShareOrder(self._firsts, self._sort_key)
        self._gone: Flags = np.zeros(len(self._numbers), bool)
        self._current: tuple[int, _NeedCursor, PlacementRequest] | None = None

    def numbers(self) -> NDArray[np.intp]:
        """Return the number of the first group of each need. Where fair share decides, of all groups."""
        return self._numbers

    def drop(self, outlooks: Outlooks) -> None:
        """Give no turn any more to those that find no place and change nothing. ``outlooks`` are in the order of
        :meth:`numbers`.

        A list of needs has the first group of each need only. What is kept does not depend on time limits and users,
        so there the first group answers for all of its need without exclusions. Else it answers for itself.
        """
        settled = outlooks.effect >= Effect.NONE
        groups = settled & (outlooks.shortage >= Shortage.RESERVED)
        if self._share is None:
            needs = settled & (outlooks.shortage >= Shortage.KEPT)
            self._gone |= (groups & self._alone) | (needs & ~self._excludes)
            self._turns.without(self._gone)
        else:
            self._gone |= groups

    def leave_out(self, groups: Flags) -> list[str]:
        """Give no turn to these, in the order of :meth:`numbers`, whoever decides. Call it before ``next``. Return
        their first jobs."""
        self._gone |= groups
        places = np.flatnonzero(groups).tolist()
        if self._share is not None:
            return [self._firsts[place].job_id for place in places]
        self._turns.without(self._gone)
        return [self._in_order.keys[place][2] for place in places]

    def next(self) -> tuple[ServiceSortKey, PlacementRequest] | None:
        """Return the next job to serve and its sort key. None: no job is left that could start."""
        while (entry := self._pop()) is not None:
            sort_key, number, cursor = entry
            if cursor.group is not None and self._is_blocked(cursor, cursor.group):
                continue
            request = self._first(cursor)
            assert request is not None, "a group is listed while it has jobs"
            self._current = (number, cursor, request)
            return sort_key, request
        return None

    def _pop(self) -> tuple[ServiceSortKey, int, _NeedCursor] | None:
        """Take the next need or group out of the list, or return None."""
        while self._heap:
            known, number, cursor = self._heap[0]
            if self._gone[number]:
                heapq.heappop(self._heap)
                continue
            request = self._first(cursor)
            assert request is not None, "a group is listed while it has jobs"
            # Placements of this round count, so another namespace or user may be next now.
            current = known if self._share is None else self._sort_key(request)
            if current == known:
                break
            heapq.heapreplace(self._heap, (current, number, cursor))
        first = self._next_of_list()
        if first is None or (self._heap and self._heap[0][0] < first[0]):
            return heapq.heappop(self._heap) if self._heap else None
        sort_key, place = first
        if self._share is None:
            self._turns.take()
            return sort_key, place, _NeedCursor(self._in_order.items[place])
        self._by_share.take()
        request = self._firsts[place]
        return sort_key, place, _NeedCursor(self._queue.need_of(request), self._queue.group(request))

    def _next_of_list(self) -> tuple[ServiceSortKey, int] | None:
        """Return the next need or group that had no turn yet, with the sort key of its first job."""
        if self._share is None:
            place = self._turns.first()
            return None if place is None else (((), self._in_order.keys[place]), place)
        while (first := self._by_share.first()) is not None and self._gone[first[1]]:
            self._by_share.take()
        return first

    def placed(self) -> None:
        """The current job was placed. The next job of its group takes its position."""
        self._follow()

    def waits(self) -> None:
        """The current job and its group have to wait."""
        assert self._current is not None
        _, cursor, request = self._current
        blocked = self._blocked.get(id(cursor.need), NOBODY) | self._also_wait(request)
        if blocked.limit_s == WITHOUT_EXCLUSIONS.limit_s and not cursor.need.with_exclusions:
            blocked = EVERYBODY
        self._blocked[id(cursor.need)] = blocked
        if cursor.group is None:
            cursor.at += 1
            self._follow()

    def _follow(self) -> None:
        assert self._current is not None
        number, cursor, _ = self._current
        if cursor.group is None:
            groups = cursor.need.groups
            while cursor.at < len(groups) and self._is_blocked(cursor, groups[cursor.at][1]):
                cursor.at = len(groups) if self._blocked[id(cursor.need)].everybody else cursor.at + 1
        request = self._first(cursor)
        if request is not None:
            heapq.heappush(self._heap, (self._sort_key(request), number, cursor))

    def _first(self, cursor: _NeedCursor) -> PlacementRequest | None:
        if cursor.group is not None:
            return self._queue.first(cursor.group)
        return self._queue.first(cursor.need.groups[cursor.at][1]) if cursor.at < len(cursor.need.groups) else None

    def _sort_key(self, request: PlacementRequest) -> ServiceSortKey:
        return (() if self._share is None else self._share(request), self._queue.order(request))

    def _is_blocked(self, cursor: _NeedCursor, group: GroupKey) -> bool:
        blocked = self._blocked.get(id(cursor.need))
        if blocked is None or not blocked.includes(group):
            return False
        request = self._queue.first(group) if cursor.need.with_exclusions and not blocked.everybody else None
        return request is None or not request.has_exclusions


class EveryJobCursor:
    """The cursor for rounds that look at every job, up to ``depth`` jobs that wait.

    :class:`QueueCursor` looks only at the first job of each group.
    """

    def __init__(
        self,
        queue: JobQueue,
        share: Callable[[PlacementRequest], FairShareKey] | None,
        depth: int,
        always: Collection[str] = (),
    ) -> None:
        """``always``: jobs that get a turn however many wait ahead of them."""
        self._queue, self._share, self._left, self._always = queue, share, depth, always
        self._in_order = queue.jobs_in_order.copy()
        self._numbers = self._in_order.numbers()
        self._turns = Remaining(len(self._numbers) if share is None else 0)
        self._by_share = None if share is None else InShareOrder(self._in_order.items, self._sort_key)
        self._left_out: Flags = np.zeros(len(self._numbers), bool)
        self._places_of_always, self._places_of_newcomers = self._places(always), self._places(queue.newcomers)
        self._blocked: set[int] = set()
        """The numbers of the groups of which a job waits."""
        self._dropped: Flags = np.zeros(len(self._numbers), bool)
        self._dropped_before = np.zeros(len(self._numbers), np.intp)
        self._current: PlacementRequest | None = None

    def numbers(self) -> NDArray[np.intp]:
        """Return the number of each job's group, in the order of the queue."""
        return self._numbers

    def drop(self, outlooks: Outlooks) -> None:
        """Give no turn any more to those that find no place and change nothing. ``outlooks`` are in the order of
        :meth:`numbers`. They count as jobs that wait. Jobs that have their turn always keep it.
        """
        new = self._places_of_newcomers
        gone = (outlooks.shortage >= Shortage.RESERVED) & (outlooks.effect >= Effect.NONE)
        gone[new] &= outlooks.effect[new] >= Effect.NONE_EVER
        gone[self._places_of_always] = False
        if self._share is None:
            gone[: self._turns.first() or 0] = False
            self._turns.without(gone)
            self._blocked.update(self._numbers[gone].tolist())
            self._dropped_before = np.cumsum(self._dropped | gone)
        self._dropped |= gone

    def leave_out(self, groups: Flags) -> list[str]:
        """Give no turn to these jobs: flags in the order of :meth:`numbers`. Call it before ``next``. Return them."""
        self._turns.without(groups)
        self._left_out |= groups
        return [self._in_order.items[place].job_id for place in np.flatnonzero(groups).tolist()]

    def next(self) -> tuple[ServiceSortKey, PlacementRequest] | None:
        """Return the next job to serve and its sort key. None: no job is left."""
        while (following := self._pop()) is not None:
            sort_key, request, left = following
            blocked = left <= 0 and self._queue.number(self._queue.group(request)) in self._blocked
            if blocked and request.job_id not in self._always:
                continue
            self._current = request
            return sort_key, request
        return None

    def _pop(self) -> tuple[ServiceSortKey, PlacementRequest, int] | None:
        """Return the next job, its sort key, and how many more jobs may wait."""
        if self._by_share is not None:
            return self._pop_by_share(self._by_share)
        at = self._turns.take()
        if at is None:
            return None
        left = self._left - int(self._dropped_before[at])
        return ((), self._in_order.keys[at]), self._in_order.items[at], left

    def _pop_by_share(self, jobs: InShareOrder) -> tuple[ServiceSortKey, PlacementRequest, int] | None:
        while (first := jobs.first()) is not None:
            sort_key, place = first
            jobs.take()
            if self._dropped[place]:
                self._left -= 1
                self._blocked.add(int(self._numbers[place]))
            elif not self._left_out[place]:
                return sort_key, self._in_order.items[place], self._left
        return None

    def _places(self, jobs: Collection[str]) -> NDArray[np.intp]:
        waiting = [request for job_id in jobs if (request := self._queue.get(job_id)) is not None]
        return np.array([self._in_order.place(self._queue.order(request)) for request in waiting], np.intp)

    def placed(self) -> None:
        """The current job was placed. There is nothing to do: all other jobs are in the list already."""

    def waits(self) -> None:
        """The current job has to wait. Other jobs are skipped only after ``depth`` jobs wait."""
        assert self._current is not None
        self._left -= 1
        self._blocked.add(self._queue.number(self._queue.group(self._current)))

    def _sort_key(self, request: PlacementRequest) -> ServiceSortKey:
        return (() if self._share is None else self._share(request), self._queue.order(request))


class Remaining:
    """The places of a list that had no turn yet, in order."""

    def __init__(self, n: int) -> None:
        self._places: Sequence[int] = range(n)
        self._at = 0

    def first(self) -> int | None:
        """Return the next place without taking it. None: none is left."""
        return self._places[self._at] if self._at < len(self._places) else None

    def take(self) -> int | None:
        """Take the next place. None: none is left."""
        place = self.first()
        self._at += place is not None
        return place

    def without(self, gone: Flags) -> None:
        """Take out the places that are ``gone``."""
        begin = self.first()
        if begin is not None:
            among = np.asarray(self._places[self._at :], np.intp)
            self._places, self._at = among[~gone[among]].tolist(), 0


class ShareKeys:
    """The fair shares of waiting jobs as sort keys. Remembers those of users until somebody starts."""

    def __init__(self, state: SchedulerState, now: float) -> None:
        self._state, self._now = state, now
        self.decide = state.order.uses_shares or state.quotas.lends
        """False: shares do not matter to the order, and all keys are empty."""
        self._known: dict[tuple[str, str], tuple[FairShareKey, float]] = {}

    def forget(self) -> None:
        """Forget all shares: a job started."""
        self._known.clear()

    def of(self, request: PlacementRequest) -> FairShareKey:
        """Return the sort key. Jobs within a guarantee come first: borrowers must not keep hosts from owners."""
        if not self.decide:
            return ()
        state, who = self._state, (request.namespace, request.user)
        share = self._known.get(who)
        if share is None:
            share = self._known[who] = state.order.share(*who, state.shares, state.snapshot.gpus, self._now)
        fair = state.order.share_key(state.queue.order(request), *share)
        if not state.quotas.lends:
            return fair
        return ((0.0 if state.quotas.is_guaranteed(request.namespace, request.gpu_count) else 1.0, ""), *fair)


def _least(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else min(one, other)


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
