"""The queue: waiting jobs in order of service, in groups for which one answer is enough."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, insort
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.queueing.queue_order import QueueOrder, QueueSortKey

FIRST_GROUPS = 256
GroupKey = tuple[str, str, float, float, float]
"""(class key, user or nothing, time limit, time limit or assumed limit, grace)."""
NeedKey = tuple[ResourceRequest, tuple[tuple[str, ResourceRequest], ...], str, str]
"""(request, requests of the rank groups, tenant, namespace or nothing)."""
_T = TypeVar("_T")


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

    Jobs of a group ask for the same, with the same time limit and the same grace. If the first cannot be placed, none
    can. So a decision looks at the first job of each group, never at every job.
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
        self.jobs_in_order = NumberedEntries[PlacementRequest]()
        """All jobs, with the numbers of their groups. Only the queue changes it."""
        self.needs_in_order = NumberedEntries[Need]()
        """All needs, sorted by their first jobs, with the numbers of their first groups. Only the queue changes it."""
        self._numbers: dict[GroupKey, int] = {}
        self._free_numbers: list[int] = []
        self._new_groups: dict[int, GroupKey] = {}
        self._is_alone = np.zeros(FIRST_GROUPS, bool)
        self._excludes = np.zeros(FIRST_GROUPS, bool)
        self.endless = 0
        """The number of jobs without a time limit."""
        self.newcomers: set[str] = set()
        """The jobs that did not wait yet when :meth:`all_have_waited` was called last."""
        self._left: set[str] = set()
        """The jobs that waited then, and do not wait any more."""
        self.version = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._jobs

    def __iter__(self) -> Iterator[PlacementRequest]:
        """Iterate over all jobs, in no particular order."""
        return iter(self._jobs.values())

    def order(self, request: PlacementRequest) -> QueueSortKey:
        """Return the job's sort key. Smaller goes first. That of a waiting job was computed when it was added."""
        waits = self._jobs.get(request.job_id) is request
        return self._keys[request.job_id] if waits else self._order.sort_key(request)

    def group(self, request: PlacementRequest) -> GroupKey:
        """Return the key of the job's group."""
        user = request.user if self._by_user or request.resources.reservation is not None else ""
        return request.class_key, user, request.time_limit_s or math.inf, request.longest_s or math.inf, request.grace_s

    def need(self, request: PlacementRequest) -> NeedKey:
        """Return a key that is equal for jobs that fit the same hosts and have the same rights, exclusions aside."""
        return request.resources, request.groups, request.tenant, request.namespace if self._by_namespace else ""

    def add(self, request: PlacementRequest) -> None:
        """Add a job, or replace it: a job waits once, for its newest attempt."""
        if not request.class_key:
            request = request.with_class_key()
        if self._jobs.get(request.job_id) == request:
            return
        order = self._order.sort_key(request)
        self.remove(request.job_id)
        self._jobs[request.job_id], self._keys[request.job_id] = request, order
        self.endless += request.time_limit_s is None
        if request.job_id in self._left:
            self._left.discard(request.job_id)
        else:
            self.newcomers.add(request.job_id)
        group = self.group(request)
        members = self._groups.get(group)
        if members is None:
            self._groups[group] = [order]
            self._give_number(group)
            if request.class_key not in self._classes:
                self._new_classes[request.class_key] = None
            self._classes.setdefault(request.class_key, {})[group] = None
            need = self._needs.setdefault(self.need(request), Need())
            with self._sorted(need):
                need.with_exclusions += request.has_exclusions
                insort(need.groups, (order, group))
        else:
            first = members[0]
            insort(members, order)
            if order < first:
                self._move(request, group, first, order)
        self.jobs_in_order.insert(order, request, self._numbers[group])
        self.version += 1

    def remove(self, job_id: str) -> PlacementRequest | None:
        """Remove a job and return it. Return None if it does not wait."""
        request = self._jobs.pop(job_id, None)
        if request is None:
            return None
        self.endless -= request.time_limit_s is None
        if request.job_id in self.newcomers:
            self.newcomers.discard(request.job_id)
        else:
            self._left.add(request.job_id)
        group, order = self.group(request), self._keys.pop(request.job_id)
        self.jobs_in_order.remove(order)
        members = self._groups[group]
        first = members[0]
        del members[bisect_left(members, order)]
        if not members:
            self._dissolve(request, group, first)
        elif order == first:
            self._move(request, group, first, members[0])
        self.version += 1
        return request

    def _move(self, request: PlacementRequest, group: GroupKey, before: QueueSortKey, after: QueueSortKey) -> None:
        """Sort a group again, because its first job is another one now."""
        need = self._needs[self.need(request)]
        with self._sorted(need):
            del need.groups[bisect_left(need.groups, (before, group))]
            insort(need.groups, (after, group))

    @contextmanager
    def _sorted(self, need: Need) -> Iterator[None]:
        """Keep the need at its place among the needs while its groups change."""
        before = need.groups[0] if need.groups else None
        yield
        after = need.groups[0] if need.groups else None
        if before != after:
            if before is not None:
                self.needs_in_order.remove(before[0])
            if after is not None:
                self.needs_in_order.insert(after[0], need, self._numbers[after[1]])
        if after is not None:
            number = self._numbers[after[1]]
            self._is_alone[number], self._excludes[number] = len(need.groups) == 1, need.with_exclusions > 0

    def _dissolve(self, request: PlacementRequest, group: GroupKey, first: QueueSortKey) -> None:
        del self._groups[group]
        del self._classes[request.class_key][group]
        if not self._classes[request.class_key]:
            del self._classes[request.class_key]
            self._new_classes.pop(request.class_key, None)
        need = self._needs[self.need(request)]
        with self._sorted(need):
            del need.groups[bisect_left(need.groups, (first, group))]
            need.with_exclusions -= request.has_exclusions
        if not need.groups:
            del self._needs[self.need(request)]
        number = self._numbers.pop(group)
        self._free_numbers.append(number)
        self._new_groups.pop(number, None)

    def _give_number(self, group: GroupKey) -> None:
        number = self._free_numbers.pop() if self._free_numbers else len(self._numbers)
        self._numbers[group], self._new_groups[number] = number, group
        if number >= len(self._is_alone):
            self._is_alone, self._excludes = (np.resize(one, 2 * number) for one in (self._is_alone, self._excludes))

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

    def is_alone(self, request: PlacementRequest) -> bool:
        """Tell whether no other job has the same need."""
        groups = self._needs[self.need(request)].groups
        return len(groups) == 1 and len(self._groups[groups[0][1]]) == 1

    def need_of(self, request: PlacementRequest) -> Need:
        """Return the groups that have the need of a waiting job. Callers must not change it."""
        return self._needs[self.need(request)]

    def needs(self) -> Iterator[Need]:
        """Iterate over all needs. Callers must not change them; they change as jobs come and go."""
        return iter(self._needs.values())

    def number(self, group: GroupKey) -> int:
        """Return the number of a group. While a group has jobs its number stays the same; then another may get it."""
        return self._numbers[group]

    def numbers_for(self, request: PlacementRequest) -> tuple[int, int]:
        """Return the number of the job's group, and of the first group of its need."""
        return self._numbers[self.group(request)], self._numbers[self._needs[self.need(request)].groups[0][1]]

    def take_new_groups(self) -> dict[int, GroupKey]:
        """Return the groups that got their numbers since the last call, by number."""
        new, self._new_groups = self._new_groups, {}
        return new

    def first_groups_alone(self, numbers: NDArray[np.intp]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Tell of the first groups of needs, by their numbers: is the group the only one of its need, and has its need
        jobs with exclusions?"""
        return self._is_alone[numbers], self._excludes[numbers]

    def all_have_waited(self, but: Container[str] = ()) -> None:
        """Note that a decision looked at all jobs, ``but`` some: see ``newcomers``."""
        self.newcomers = {job_id for job_id in self.newcomers if job_id in but}
        self._left = set()

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


@dataclass
class NumberedEntries(Generic[_T]):
    """Entries sorted by their keys. No two keys are equal. Each has a number, so that one array answers for all entries
    in their order. Callers must not change the lists.
    """

    keys: list[QueueSortKey] = field(default_factory=list)
    items: list[_T] = field(default_factory=list)
    _numbers: array[int] = field(default_factory=lambda: array("q"))

    def insert(self, key: QueueSortKey, item: _T, number: int) -> None:
        """Add an entry."""
        at = bisect_left(self.keys, key)
        self.keys.insert(at, key)
        self.items.insert(at, item)
        self._numbers.insert(at, number)

    def remove(self, key: QueueSortKey) -> None:
        """Remove the entry with this key."""
        at = bisect_left(self.keys, key)
        del self.keys[at], self.items[at], self._numbers[at]

    def place(self, key: QueueSortKey) -> int:
        """Return the place of the entry with this key."""
        return bisect_left(self.keys, key)

    def numbers(self) -> NDArray[np.intp]:
        """Return the numbers of all entries in order."""
        return np.array(self._numbers, np.intp)

    def copy(self) -> NumberedEntries[_T]:
        """Return a copy of the lists, not of the items."""
        return NumberedEntries(self.keys.copy(), self.items.copy(), self._numbers[:])
