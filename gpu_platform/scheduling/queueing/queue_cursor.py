"""Who is next in a round, and who needs no turn because it could change nothing.

Within a round GPUs are only taken and hosts only kept. So once a job has to wait, those behind it that need the same
have to wait too, unless they end before a reservation that it would run into; and what they could keep is kept.
A round's cost therefore follows the number of different needs, not that of the jobs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from gpu_platform.domain.rows import QueueRow
from gpu_platform.scheduling.queueing.fair_share import FairShareKey
from gpu_platform.scheduling.queueing.job_queue import GroupKey, JobQueue, Need, QueueSortKey, has_exclusions

ServiceSortKey = tuple[FairShareKey, QueueSortKey]
ALL_BLOCKED = -1.0
"""A limit below all others: whatever its time limit, no job of the need can start in this round."""


@dataclass
class _NeedCursor:
    """The groups of a need; where shares decide, one of them."""

    need: Need
    group: GroupKey | None = None
    at: int = 0


@dataclass
class _BlockedNeed:
    limit_s: float | None = None
    """Jobs that must not get less than others wait if they last so long, or longer."""
    all: bool = False


class QueueCursor:
    """``next``, then ``placed`` or ``waits``, and so on."""

    def __init__(self, queue: JobQueue, share: Callable[[QueueRow], FairShareKey] | None = None) -> None:
        """``share``: where a job stands now, if shares decide; it changes with what is placed."""
        self._queue, self._share = queue, share
        self._blocked: dict[int, _BlockedNeed] = {}
        self._heap: list[tuple[ServiceSortKey, int, _NeedCursor]] = []
        if share is None:
            cursors = [_NeedCursor(need) for need in queue.needs()]
        else:
            cursors = [_NeedCursor(need, group) for need in queue.needs() for _, group in need.groups]
        for number, cursor in enumerate(cursors):
            row = self._first(cursor)
            if row is not None:
                self._heap.append((self._sort_key(row), number, cursor))
        heapq.heapify(self._heap)
        self._current: tuple[int, _NeedCursor, QueueRow] | None = None

    def next(self) -> tuple[ServiceSortKey, QueueRow] | None:
        while self._heap:
            sort_key, number, cursor = heapq.heappop(self._heap)
            if cursor.group is not None and self._is_blocked(cursor, cursor.group):
                continue
            row = self._first(cursor)
            assert row is not None, "a group is listed while it has jobs"
            if self._share is not None and self._heap:
                current = self._sort_key(row)
                if current > sort_key and current > self._heap[0][0]:
                    # What was placed in this round counts: another share is behind now.
                    heapq.heappush(self._heap, (current, number, cursor))
                    continue
            self._current = (number, cursor, row)
            return sort_key, row
        return None

    def placed(self) -> None:
        """The queue has put the next job of its group, if any, into its place."""
        self._follow()

    def waits(self, limit_s: float | None = None, all_of_need: bool = False) -> None:
        """Its group has to wait.

        ``limit_s``: and so have all of its need that last at least so long and may use all that others may.
        ``all_of_need``: even those that may not, and none of them could keep anything that is not kept.
        """
        assert self._current is not None
        _, cursor, _ = self._current
        blocked = self._blocked.setdefault(id(cursor.need), _BlockedNeed())
        if limit_s is not None:
            blocked.limit_s = limit_s if blocked.limit_s is None else min(blocked.limit_s, limit_s)
        blocked.all |= all_of_need or (blocked.limit_s == ALL_BLOCKED and not cursor.need.narrowed)
        if cursor.group is not None:
            return
        cursor.at += 1
        self._follow()

    def _follow(self) -> None:
        assert self._current is not None
        number, cursor, _ = self._current
        if cursor.group is None:
            groups = cursor.need.groups
            while cursor.at < len(groups) and self._is_blocked(cursor, groups[cursor.at][1]):
                cursor.at = len(groups) if self._blocked[id(cursor.need)].all else cursor.at + 1
        row = self._first(cursor)
        if row is not None:
            heapq.heappush(self._heap, (self._sort_key(row), number, cursor))

    def _first(self, cursor: _NeedCursor) -> QueueRow | None:
        if cursor.group is not None:
            return self._queue.first(cursor.group)
        return self._queue.first(cursor.need.groups[cursor.at][1]) if cursor.at < len(cursor.need.groups) else None

    def _sort_key(self, row: QueueRow) -> ServiceSortKey:
        return (() if self._share is None else self._share(row), self._queue.order(row))

    def _is_blocked(self, cursor: _NeedCursor, group: GroupKey) -> bool:
        blocked = self._blocked.get(id(cursor.need))
        if blocked is None:
            return False
        if blocked.all:
            return True
        if blocked.limit_s is None or group[2] < blocked.limit_s:
            return False
        row = self._queue.first(group) if cursor.need.narrowed else None
        return row is None or not has_exclusions(row)


class EveryJobCursor:
    """Does the work of :class:`QueueCursor` for a round that looks at every job up to ``depth``.

    :class:`QueueCursor` looks only at the first job of each kind.
    """

    def __init__(self, queue: JobQueue, share: Callable[[QueueRow], FairShareKey] | None, depth: int) -> None:
        self._queue, self._share, self._left = queue, share, depth
        self._heap = [(self._sort_key(row), row.job_id) for row in queue]
        heapq.heapify(self._heap)
        self._blocked: set[GroupKey] = set()
        self._current: QueueRow | None = None

    def next(self) -> tuple[ServiceSortKey, QueueRow] | None:
        while self._heap:
            sort_key, job_id = heapq.heappop(self._heap)
            row = self._queue.get(job_id)
            assert row is not None, "only the job whose turn it is leaves the queue"
            if self._left <= 0 and self._queue.group(row) in self._blocked:
                continue
            if self._share is not None and self._heap and (current := self._sort_key(row)) > self._heap[0][0]:
                heapq.heappush(self._heap, (current, job_id))  # another share is behind now
                continue
            self._current = row
            return sort_key, row
        return None

    def placed(self) -> None:
        """Nobody took its place: all others are listed."""

    def waits(self, limit_s: float | None = None, all_of_need: bool = False) -> None:
        """As with :class:`QueueCursor`, of which nothing follows before the depth is reached."""
        assert self._current is not None
        self._left -= 1
        self._blocked.add(self._queue.group(self._current))

    def _sort_key(self, row: QueueRow) -> ServiceSortKey:
        return (() if self._share is None else self._share(row), self._queue.order(row))
