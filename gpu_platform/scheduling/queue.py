"""Who is next: waiting jobs in order, and in groups that share one answer."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import replace

from gpu_platform.domain.rows import QueueRow

Order = tuple[float, float, str]
Group = tuple[str, str, float]
"""(class key, user or nothing, time limit)."""
ORDERS = ("priority", "fcfs", "fair_share")


class JobQueue:
    """Waiting jobs, in groups that one look answers.

    Order inside a group, and between groups unless shares decide (``fair_share``): by priority
    (``fcfs``: ignoring it), then time of arrival, then id. With ageing every hour of waiting is worth so much
    priority; as all jobs age alike, who is ahead of whom never changes, and nothing is sorted again.

    Jobs of a group ask for the same for the same time, so if its first cannot be placed, none can: a
    decision looks at the first job of each group, never at every job.
    """

    def __init__(self, order: str = "priority", ageing_per_hour: float = 0.0, by_user: bool = False) -> None:
        """``by_user``: users are told apart. Raises ValueError for an unknown order."""
        if order not in ORDERS:
            raise ValueError(f"there is no queue order {order!r}; there are: {', '.join(ORDERS)}")
        self._by_priority = order != "fcfs"
        self._by_user = by_user
        self._ageing_per_s = ageing_per_hour / 3600.0
        self._jobs: dict[str, QueueRow] = {}
        self._groups: dict[Group, list[Order]] = {}
        self._of_class: dict[str, dict[Group, None]] = {}
        self.version = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._jobs

    def __iter__(self) -> Iterator[QueueRow]:
        """In no particular order."""
        return iter(self._jobs.values())

    def order(self, row: QueueRow) -> Order:
        """Sorts before later jobs."""
        urgency = row.priority - self._ageing_per_s * row.enqueued_at
        return (-urgency if self._by_priority else 0.0, row.enqueued_at, row.job_id)

    def group(self, row: QueueRow) -> Group:
        return (row.class_key, row.user if self._by_user else "", row.time_limit_s or math.inf)

    def add(self, row: QueueRow) -> None:
        """Also replaces: a job waits once, for its newest attempt."""
        if not row.class_key:
            row = replace(row, class_key=_class_key(row))
        if self._jobs.get(row.job_id) == row:
            return
        self.remove(row.job_id)
        self._jobs[row.job_id] = row
        group = self.group(row)
        insort(self._groups.setdefault(group, []), self.order(row))
        self._of_class.setdefault(row.class_key, {})[group] = None
        self.version += 1

    def remove(self, job_id: str) -> QueueRow | None:
        row = self._jobs.pop(job_id, None)
        if row is None:
            return None
        group = self.group(row)
        members = self._groups[group]
        del members[bisect_left(members, self.order(row))]
        if not members:
            del self._groups[group]
            del self._of_class[row.class_key][group]
            if not self._of_class[row.class_key]:
                del self._of_class[row.class_key]
        self.version += 1
        return row

    def get(self, job_id: str) -> QueueRow | None:
        return self._jobs.get(job_id)

    def first(self, group: Group) -> QueueRow | None:
        """The first waiting job of a group."""
        members = self._groups.get(group)
        return self._jobs[members[0][2]] if members else None

    def classes(self) -> list[list[Group]]:
        """The groups of each class: alike in all but user and time limit."""
        return [list(groups) for groups in self._of_class.values()]

    def earliest(self, groups: list[Group]) -> Group:
        """That whose first job goes before those of the others."""
        return min(groups, key=lambda group: self._groups[group][0])


def _class_key(row: QueueRow) -> str:
    return "|".join(
        (row.namespace, row.gpus.model_dump_json(), *sorted(row.excluded_gpus), "", *sorted(row.excluded_hosts))
    )
