"""A sorted list of which each entry has a number, so that one array answers for all entries in their order."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpu_platform.scheduling.queueing.queue_order import QueueSortKey

_T = TypeVar("_T")


@dataclass
class InOrder(Generic[_T]):
    """Entries sorted by their keys. No two keys are equal. Callers must not change the lists."""

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

    def copy(self) -> InOrder[_T]:
        """Return a copy of the lists, not of the items."""
        return InOrder(self.keys.copy(), self.items.copy(), self._numbers[:])
