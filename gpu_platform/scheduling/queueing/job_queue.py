"""The queue: waiting jobs in order of service, in groups for which one answer is enough."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.queueing.queue_order import QueueOrder, QueueSortKey

GroupKey = tuple[str, str, float, float]
"""(class key, user or nothing, time limit, time limit or assumed limit)."""
NeedKey = tuple[ResourceRequest, tuple[tuple[str, ResourceRequest], ...], str, str]
"""(request, requests of the rank groups, tenant, namespace or nothing)."""


@dataclass
class Need:
    """The groups whose jobs ask for the same hosts and GPUs. Their users and exclusions may differ."""

    groups: list[tuple[QueueSortKey, GroupKey]] = field(default_factory=list)
    """Sorted by the first job of each group, unless fair share decides."""
    with_exclusions: int = 0
    """The number of groups whose jobs must not use certain GPUs or hosts."""


class JobQueue:
    """Waiting jobs in groups. One look answers for all jobs of a group.

    The order inside a group, and between groups unless fair share decides, is that of ``queue_order``. All jobs age
    alike, so the order of two jobs never changes, and nothing is sorted again.

    Jobs of a group ask for the same, with the same time limit. If the first cannot be placed, none can. So a decision
    looks at the first job of each group, never at every job.
    """

    def __init__(self, order: QueueOrder | None = None, by_user: bool = False, by_namespace: bool = False) -> None:
        """``by_user`` and ``by_namespace``: jobs of different users or namespaces are in different groups. The default
        order is priority, then arrival.
        """
        self._order = order or QueueOrder()
        self._by_user, self._by_namespace = by_user, by_namespace
        self._keys: dict[str, QueueSortKey] = {}
        self._jobs: dict[str, PlacementRequest] = {}
        self._groups: dict[GroupKey, list[QueueSortKey]] = {}
        self._classes: dict[str, dict[GroupKey, None]] = {}
        self._new_classes: dict[str, None] = {}
        self._needs: dict[NeedKey, Need] = {}
        self._in_order: list[tuple[QueueSortKey, Need]] = []
        self.endless = 0
        """The number of jobs without a time limit."""
        self.version = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._jobs

    def __iter__(self) -> Iterator[PlacementRequest]:
        """Iterate over all jobs, in no particular order."""
        return iter(self._jobs.values())

    def order(self, row: PlacementRequest) -> QueueSortKey:
        """Return the job's sort key. Smaller goes first. That of a waiting job was computed when it was added."""
        return self._keys[row.job_id] if self._jobs.get(row.job_id) is row else self._order.sort_key(row)

    def group(self, row: PlacementRequest) -> GroupKey:
        """Return the key of the job's group."""
        user = row.user if self._by_user else ""
        return row.class_key, user, row.time_limit_s or math.inf, row.longest_s or math.inf

    def need(self, row: PlacementRequest) -> NeedKey:
        """Return a key that is equal for jobs that fit the same hosts and have the same rights, exclusions aside."""
        return row.resources, row.groups, row.tenant, row.namespace if self._by_namespace else ""

    def add(self, row: PlacementRequest) -> None:
        """Add a job, or replace it: a job waits once, for its newest attempt."""
        if not row.class_key:
            row = row.with_class_key()
        if self._jobs.get(row.job_id) == row:
            return
        order = self._order.sort_key(row)
        self.remove(row.job_id)
        self._jobs[row.job_id], self._keys[row.job_id] = row, order
        self.endless += row.time_limit_s is None
        group = self.group(row)
        members = self._groups.get(group)
        if members is None:
            self._groups[group] = [order]
            if row.class_key not in self._classes:
                self._new_classes[row.class_key] = None
            self._classes.setdefault(row.class_key, {})[group] = None
            need = self._needs.setdefault(self.need(row), Need())
            need.with_exclusions += row.has_exclusions
            with self._sorted(need):
                insort(need.groups, (order, group))
        else:
            first = members[0]
            insort(members, order)
            if order < first:
                self._move(row, group, first, order)
        self.version += 1

    def remove(self, job_id: str) -> PlacementRequest | None:
        """Remove a job and return it. Return None if it does not wait."""
        row = self._jobs.pop(job_id, None)
        if row is None:
            return None
        self.endless -= row.time_limit_s is None
        group, order = self.group(row), self._keys.pop(row.job_id)
        members = self._groups[group]
        first = members[0]
        del members[bisect_left(members, order)]
        if not members:
            self._dissolve(row, group, first)
        elif order == first:
            self._move(row, group, first, members[0])
        self.version += 1
        return row

    def _move(self, row: PlacementRequest, group: GroupKey, before: QueueSortKey, after: QueueSortKey) -> None:
        """Sort a group again, because its first job is another one now."""
        need = self._needs[self.need(row)]
        with self._sorted(need):
            del need.groups[bisect_left(need.groups, (before, group))]
            insort(need.groups, (after, group))

    @contextmanager
    def _sorted(self, need: Need) -> Iterator[None]:
        """Keep the need at its place among the needs while its groups change."""
        before = need.groups[0][0] if need.groups else None
        yield
        after = need.groups[0][0] if need.groups else None
        if before != after:
            if before is not None:
                del self._in_order[bisect_left(self._in_order, before, key=_first_key)]
            if after is not None:
                insort(self._in_order, (after, need), key=_first_key)

    def _dissolve(self, row: PlacementRequest, group: GroupKey, first: QueueSortKey) -> None:
        del self._groups[group]
        del self._classes[row.class_key][group]
        if not self._classes[row.class_key]:
            del self._classes[row.class_key]
            self._new_classes.pop(row.class_key, None)
        need = self._needs[self.need(row)]
        with self._sorted(need):
            del need.groups[bisect_left(need.groups, (first, group))]
        need.with_exclusions -= row.has_exclusions
        if not need.groups:
            del self._needs[self.need(row)]

    def get(self, job_id: str) -> PlacementRequest | None:
        """Return a waiting job, or None."""
        return self._jobs.get(job_id)

    def groups(self) -> Iterator[GroupKey]:
        """Iterate over the keys of all groups."""
        return iter(self._groups)

    def first(self, group: GroupKey) -> PlacementRequest | None:
        """Return the first waiting job of a group, or None."""
        members = self._groups.get(group)
        return self._jobs[members[0][2]] if members else None

    def members(self, group: GroupKey) -> Sequence[QueueSortKey]:
        """Return the sort keys of a group's jobs in order. The last element of each key is the job id."""
        return self._groups.get(group, ())

    def is_alone(self, row: PlacementRequest) -> bool:
        """Tell whether no other job has the same need."""
        groups = self._needs[self.need(row)].groups
        return len(groups) == 1 and len(self._groups[groups[0][1]]) == 1

    def needs(self) -> Iterator[Need]:
        """Iterate over all needs. Callers must not change them; they change as jobs come and go."""
        return iter(self._needs.values())

    def needs_in_order(self) -> list[tuple[QueueSortKey, Need]]:
        """Return all needs, sorted by their first jobs, with the sort keys of these jobs. The list is a copy; callers
        must not change the needs.
        """
        return self._in_order.copy()

    def first_of(self, class_key: str) -> PlacementRequest | None:
        """Return the first waiting job of a class, or None."""
        groups = self._classes.get(class_key)
        return self.first(min(groups, key=lambda group: self._groups[group][0])) if groups else None

    def take_new_classes(self) -> list[str]:
        """Return the classes that are new since the last call and still wait."""
        new, self._new_classes = list(self._new_classes), {}
        return new

    def classes(self) -> Iterator[str]:
        """Iterate over the keys of all classes."""
        return iter(self._classes)


def _first_key(entry: tuple[QueueSortKey, Need]) -> QueueSortKey:
    return entry[0]
