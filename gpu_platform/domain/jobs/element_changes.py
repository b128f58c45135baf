"""What was changed of the elements of an array since its submission, and what a change led to."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from pydantic import BaseModel, ConfigDict

from gpu_platform.domain.jobs.array import SHOWN_INDICES, Array
from gpu_platform.domain.jobs.changes import JobChanges, LimitChange
from gpu_platform.domain.jobs.index_set import IndexSet
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.domain.texts import counted

MOST_GROUPS = 64
"""So many groups of elements that have not entered the queue may have values of their own."""


class ElementValues(BaseModel):
    """Values that elements got instead of those of the submission. None: that of the submission."""

    model_config = ConfigDict(frozen=True)

    priority: int | None = None
    limit: LimitChange | None = None

    @classmethod
    def of(cls, changes: JobChanges) -> ElementValues:
        """What these changes say of elements."""
        has_limit = "time_limit_s" in changes.model_fields_set
        limit = LimitChange(time_limit_s=changes.time_limit_s) if has_limit else None
        return cls(priority=changes.priority, limit=limit)

    @property
    def is_empty(self) -> bool:
        """True if they change nothing."""
        return self.priority is None and self.limit is None

    def over(self, older: ElementValues) -> ElementValues:
        """These values, and the older ones where these say nothing."""
        return ElementValues(
            priority=older.priority if self.priority is None else self.priority,
            limit=older.limit if self.limit is None else self.limit,
        )

    def without(self, newer: ElementValues) -> ElementValues:
        """These values where the newer ones say nothing."""
        return ElementValues(
            priority=self.priority if newer.priority is None else None,
            limit=self.limit if newer.limit is None else None,
        )

    def applied_to(self, spec: JobSpec) -> JobSpec:
        """The job with these values. ``spec`` and the values have been validated together before."""
        if self.is_empty:
            return spec
        spec = spec if self.limit is None else self.limit.applied_to(spec)
        return spec if self.priority is None else spec.model_copy(update={"priority": self.priority})


class ChangedGroup(BaseModel):
    """One change of elements that have not entered the queue."""

    indices: str | None = None
    """None: all elements."""
    values: ElementValues


class ElementChanges(BaseModel):
    """All changes of an array that count for elements to come, the oldest first. Those of elements in the queue are in
    their rows."""

    groups: tuple[ChangedGroup, ...] = ()

    @property
    def whole(self) -> ElementValues:
        """What was changed for all elements."""
        found = ElementValues()
        for group in self.groups:
            if group.indices is None:
                found = group.values.over(found)
        return found

    def values_of(self, index: int) -> ElementValues:
        """The values with which the element enters the queue."""
        found = ElementValues()
        for group in self.groups:
            if group.indices is None or index in _parsed(group.indices):
                found = group.values.over(found)
        return found

    def changed_once_more(self, indices: str | None, values: ElementValues) -> ElementChanges:
        """With one more change. Raises ``ValueError`` if there are too many groups."""
        groups = list(self.groups)
        if indices is None:
            older = [group.model_copy(update={"values": group.values.without(values)}) for group in groups]
            groups = [group for group in older if not group.values.is_empty]
        elif groups and groups[-1].indices == indices:
            values = values.over(groups.pop().values)
        groups.append(ChangedGroup(indices=indices, values=values))
        if len(groups) > MOST_GROUPS:
            raise ValueError(
                f"{MOST_GROUPS} groups of elements that have not entered the queue have values of their own already: "
                "change the whole array, or elements that wait in the queue"
            )
        return ElementChanges(groups=tuple(groups))


class UnchangedElements(BaseModel):
    """Elements that a change left as they were, and why."""

    state: JobState
    count: int
    indices: str = ""
    """A long list is cut, and ends with "…". Empty: they are not listed."""
    why: str

    @classmethod
    def of(cls, state: JobState, count: int, indices: Sequence[int] = ()) -> UnchangedElements:
        """Elements in this state, which is not one in which they wait."""
        has = "has" if count == 1 else "have"
        return cls(
            state=state,
            count=count,
            indices=_cut(str(IndexSet.of(indices))),
            why=f"{counted(count, 'element')} {has} {'ended' if state.is_terminal else 'started'}",
        )


class ArrayChanged(BaseModel):
    """What a change of an array led to."""

    array: Array
    changed: int
    """How many elements have other values now: those that wait, and those that have not entered the queue."""
    same: int = 0
    """How many of them had these values before."""
    unchanged: list[UnchangedElements] = []
    """The elements that had started or ended before."""

    @property
    def summary(self) -> str:
        """In words: how many were changed, and which were not, and why."""
        parts = [f"{counted(self.changed, 'element')} changed"]
        if self.same:
            parts.append(f"{self.same} had these values already")
        parts += [
            f"not changed: {one.why} ({one.state}{': ' + one.indices if one.indices else ''})" for one in self.unchanged
        ]
        return "; ".join(parts)


@lru_cache(maxsize=256)
def _parsed(indices: str) -> IndexSet:
    return IndexSet.parse(indices)


def _cut(indices: str) -> str:
    return indices if len(indices) <= SHOWN_INDICES else indices[:SHOWN_INDICES].rpartition(",")[0] + ",…"
