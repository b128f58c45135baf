"""Who is next: waiting jobs in order, and in groups that share one answer."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import replace

from gpu_platform.domain.rows import QueueRow

Order = tuple[float, float, str]


class JobQueue:
    """Waiting jobs by priority (``order="fcfs"``: ignoring it), then time of arrival, then id.

    Jobs with one ``class_key`` ask for the same, so if the first of a class cannot be placed, none
    can: a decision looks at the first job of each class, never at every job.
    """

    def __init__(self, order: str = "priority") -> None:
        """Raises ValueError for an unknown order."""
        if order not in ("priority", "fcfs"):
            raise ValueError(f"there is no queue order {order!r}; there are: priority, fcfs")
        self._by_priority = order == "priority"
        self._jobs: dict[str, QueueRow] = {}
        self._classes: dict[str, list[Order]] = {}
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
        return (float(-row.priority) if self._by_priority else 0.0, row.enqueued_at, row.job_id)

    def add(self, row: QueueRow) -> None:
        """Also replaces: a job waits once, for its newest attempt."""
        if not row.class_key:
            row = replace(row, class_key=_class_key(row))
        if self._jobs.get(row.job_id) == row:
            return
        self.remove(row.job_id)
        self._jobs[row.job_id] = row
        insort(self._classes.setdefault(row.class_key, []), self.order(row))
        self.version += 1

    def remove(self, job_id: str) -> QueueRow | None:
        row = self._jobs.pop(job_id, None)
        if row is None:
            return None
        members = self._classes[row.class_key]
        del members[bisect_left(members, self.order(row))]
        if not members:
            del self._classes[row.class_key]
        self.version += 1
        return row

    def get(self, job_id: str) -> QueueRow | None:
        return self._jobs.get(job_id)

    def first(self, class_key: str) -> tuple[Order, QueueRow] | None:
        """The first waiting job of a class."""
        members = self._classes.get(class_key)
        return (members[0], self._jobs[members[0][2]]) if members else None

    def heads(self) -> list[tuple[Order, str]]:
        """(order of its first job, class), sorted: who may choose first."""
        return sorted((members[0], class_key) for class_key, members in self._classes.items())

    def classes(self) -> set[str]:
        return set(self._classes)


def _class_key(row: QueueRow) -> str:
    return "|".join(
        (row.namespace, row.gpus.model_dump_json(), *sorted(row.excluded_gpus), "", *sorted(row.excluded_hosts))
    )
