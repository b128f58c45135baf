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
from gpu_platform.scheduling.queueing.fair_share import Share
from gpu_platform.scheduling.queueing.job_queue import Group, JobQueue, Need, Order, has_exclusions

Place = tuple[Share, Order]
ALL_BLOCKED = -1.0
"""A limit below all others: whatever its time limit, no job of the need can start in this round."""


@dataclass
class _Line:
    """The groups of a need; where shares decide, one of them."""

    need: Need
    group: Group | None = None
    at: int = 0


@dataclass
class _BlockedNeed:
    limit_s: float | None = None
    """Jobs that must not get less than others wait if they last so long, or longer."""
    all: bool = False


class Turns:
    """``next``, then ``placed`` or ``waits``, and so on."""

    def __init__(self, queue: JobQueue, share: Callable[[QueueRow], Share] | None = None) -> None:
        """``share``: where a job stands now, if shares decide; it changes with what is placed."""
        self._queue, self._share = queue, share
        self._shut: dict[int, _BlockedNeed] = {}
        self._heap: list[tuple[Place, int, _Line]] = []
        if share is None:
            lines = [_Line(need) for need in queue.needs()]
        else:
            lines = [_Line(need, group) for need in queue.needs() for _, group in need.groups]
        for number, line in enumerate(lines):
            row = self._first(line)
            if row is not None:
                self._heap.append((self._place(row), number, line))
        heapq.heapify(self._heap)
        self._current: tuple[int, _Line, QueueRow] | None = None

    def next(self) -> tuple[Place, QueueRow] | None:
        while self._heap:
            place, number, line = heapq.heappop(self._heap)
            if line.group is not None and self._is_blocked(line, line.group):
                continue
            row = self._first(line)
            assert row is not None, "a group is listed while it has jobs"
            if self._share is not None and self._heap:
                current = self._place(row)
                if current > place and current > self._heap[0][0]:
                    # What was placed in this round counts: another share is behind now.
                    heapq.heappush(self._heap, (current, number, line))
                    continue
            self._current = (number, line, row)
            return place, row
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
        _, line, _ = self._current
        shut = self._shut.setdefault(id(line.need), _BlockedNeed())
        if limit_s is not None:
            shut.limit_s = limit_s if shut.limit_s is None else min(shut.limit_s, limit_s)
        shut.all |= all_of_need or (shut.limit_s == ALL_BLOCKED and not line.need.narrowed)
        if line.group is not None:
            return
        line.at += 1
        self._follow()

    def _follow(self) -> None:
        assert self._current is not None
        number, line, _ = self._current
        if line.group is None:
            groups = line.need.groups
            while line.at < len(groups) and self._is_blocked(line, groups[line.at][1]):
                line.at = len(groups) if self._shut[id(line.need)].all else line.at + 1
        row = self._first(line)
        if row is not None:
            heapq.heappush(self._heap, (self._place(row), number, line))

    def _first(self, line: _Line) -> QueueRow | None:
        if line.group is not None:
            return self._queue.first(line.group)
        return self._queue.first(line.need.groups[line.at][1]) if line.at < len(line.need.groups) else None

    def _place(self, row: QueueRow) -> Place:
        return (() if self._share is None else self._share(row), self._queue.order(row))

    def _is_blocked(self, line: _Line, group: Group) -> bool:
        shut = self._shut.get(id(line.need))
        if shut is None:
            return False
        if shut.all:
            return True
        if shut.limit_s is None or group[2] < shut.limit_s:
            return False
        row = self._queue.first(group) if line.need.narrowed else None
        return row is None or not has_exclusions(row)


class EveryJobCursor:
    """As :class:`Turns`, for a round in which every job up to ``depth`` matters, not only the first of its kind."""

    def __init__(self, queue: JobQueue, share: Callable[[QueueRow], Share] | None, depth: int) -> None:
        self._queue, self._share, self._left = queue, share, depth
        self._heap = [(self._place(row), row.job_id) for row in queue]
        heapq.heapify(self._heap)
        self._shut: set[Group] = set()
        self._current: QueueRow | None = None

    def next(self) -> tuple[Place, QueueRow] | None:
        while self._heap:
            place, job_id = heapq.heappop(self._heap)
            row = self._queue.get(job_id)
            assert row is not None, "only the job whose turn it is leaves the queue"
            if self._left <= 0 and self._queue.group(row) in self._shut:
                continue
            if self._share is not None and self._heap and (current := self._place(row)) > self._heap[0][0]:
                heapq.heappush(self._heap, (current, job_id))  # another share is behind now
                continue
            self._current = row
            return place, row
        return None

    def placed(self) -> None:
        """Nobody took its place: all others are listed."""

    def waits(self, limit_s: float | None = None, all_of_need: bool = False) -> None:
        """As with :class:`Turns`, of which nothing follows before the depth is reached."""
        assert self._current is not None
        self._left -= 1
        self._shut.add(self._queue.group(self._current))

    def _place(self, row: QueueRow) -> Place:
        return (() if self._share is None else self._share(row), self._queue.order(row))
