"""A memory of limited size for answers that are asked for again and again."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

_T = TypeVar("_T")
LOOKS_PER_ENTRY = 4


class LeastRecentlyUsed(Generic[_T]):
    """Forgets the entry that was not used for longest, but only if it was not used for long.

    Who goes through more keys than there is room for, round after round, would find nothing in an ordinary memory of
    this kind: each entry is forgotten shortly before it is asked for. So when all entries are in use, a new one is not
    taken in, and the others are found.
    """

    def __init__(self) -> None:
        self._entries: dict[Hashable, tuple[int, _T]] = {}
        self._looks = 0
        self._last: tuple[Hashable, _T] | None = None
        """The newest entry for which there was no room. It is asked for several times in a row."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> _T | None:
        """Return the entry, or None. It counts as used."""
        self._looks += 1
        entry = self._entries.pop(key, None)
        if entry is None:
            return self._last[1] if self._last is not None and self._last[0] == key else None
        self._entries[key] = self._looks, entry[1]  # last: the least recently used one is first
        return entry[1]

    def put(self, key: Hashable, value: _T, most: int) -> None:
        """Remember an entry, if there is room: at most ``most`` entries are kept."""
        if len(self._entries) >= most and key not in self._entries:
            oldest = next(iter(self._entries))
            if self._looks - self._entries[oldest][0] <= LOOKS_PER_ENTRY * most:
                self._last = key, value
                return
            del self._entries[oldest]
        self._entries[key] = self._looks, value

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._last = None
