"""Sets of indices as people write them: ``0-1999``, ``1,3,5-9``, ``0-100:10``."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate

MAX_INDEX = 9_999_999
"""The largest index. Slurm's largest possible MaxArraySize is 4,000,001."""
_PART = re.compile(r"([0-9]+)(?:-([0-9]+)(?::([0-9]+))?)?")
_LONGEST_NUMBER = 12
"""Digits. A longer number is too large, whatever it is."""


class IndexSet:
    """Indices in ascending order, kept as ranges: a set of a million costs as much as one of ten."""

    def __init__(self, ranges: Iterable[range]) -> None:
        self._ranges = tuple(one for one in ranges if one)
        self._starts = [one.start for one in self._ranges]
        self._ends = list(accumulate(len(one) for one in self._ranges))

    @classmethod
    def parse(cls, text: str) -> IndexSet:
        """Read ``1,3,5-9:2``. Raises ``ValueError`` for anything else, and for indices that are not ascending."""
        ranges = []
        last = -1
        for part in text.split(","):
            found = _PART.fullmatch(part.strip())
            if found is None:
                raise ValueError(
                    f"{part.strip()[:40]!r} is not a range of indices: write 7, 0-1999, 0-100:10, or several "
                    "with commas"
                )
            if too_long := [number for number in found.groups() if number and len(number) > _LONGEST_NUMBER]:
                raise ValueError(f"index {too_long[0][:40]} is too large: the largest is {MAX_INDEX}")
            first, end, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
            if step == 0:
                raise ValueError(f"the step of {part.strip()!r} is 0: write 1 or more, or leave it out")
            if first > end:
                raise ValueError(f"the range {part.strip()!r} is empty: the first index must not be after the last")
            if end > MAX_INDEX:
                raise ValueError(f"index {end} is too large: the largest is {MAX_INDEX}")
            if first <= last:
                raise ValueError(f"the index {first} comes after {last}: write indices in ascending order, each once")
            ranges.append(range(first, end + 1, step))
            last = ranges[-1][-1]
        return cls(ranges)

    @classmethod
    def of(cls, indices: Iterable[int]) -> IndexSet:
        """The set of these indices, which may come in any order."""
        ranges: list[range] = []
        for index in sorted(set(indices)):
            if ranges and ranges[-1].stop == index:
                ranges[-1] = range(ranges[-1].start, index + 1)
            else:
                ranges.append(range(index, index + 1))
        return cls(ranges)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[int]:
        for one in self._ranges:
            yield from one

    def __contains__(self, index: object) -> bool:
        if not isinstance(index, int):
            return False
        place = bisect_right(self._starts, index) - 1
        return place >= 0 and index in self._ranges[place]

    def __getitem__(self, place: int) -> int:
        """The index at ``place``, counted from 0. Raises ``IndexError``."""
        if not 0 <= place < len(self):
            raise IndexError(f"there are {len(self)} indices, and none at place {place}")
        of_range = bisect_right(self._ends, place)
        before = self._ends[of_range - 1] if of_range else 0
        return self._ranges[of_range][place - before]

    def missing_from(self, other: IndexSet) -> int | None:
        """The smallest index of this set that ``other`` does not have. None: it has all of them."""
        return next((index for index in self if index not in other), None)

    def __str__(self) -> str:
        return ",".join(_written(one) for one in self._ranges)

    @property
    def largest(self) -> int:
        """The largest index. Raises ``IndexError`` if there is none."""
        return self[len(self) - 1]


def _written(one: range) -> str:
    if len(one) == 1:
        return str(one[0])
    step = "" if one.step == 1 else f":{one.step}"
    return f"{one[0]}-{one[-1]}{step}"
