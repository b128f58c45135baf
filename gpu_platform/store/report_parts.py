"""The hours or days of the period of a report."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import datetime, timedelta

HOUR_S = 3600.0
_HOURLY_UP_TO = timedelta(days=3)


class PeriodParts:
    """The hours of the period, or its days if it is long. The last one may be shorter."""

    def __init__(self, since: datetime, until: datetime) -> None:
        self.since, self.until = since, until
        self._step = timedelta(hours=1) if until - since <= _HOURLY_UP_TO else timedelta(days=1)
        self._edges = [*_every(since, until, self._step), until]

    def __len__(self) -> int:
        return len(self._edges) - 1

    def __iter__(self) -> Iterator[tuple[datetime, datetime]]:
        """Begin and end of each."""
        return itertools.pairwise(self._edges)

    def place(self, at: datetime) -> int:
        """The number of the part that a time is in."""
        return (at - self.since) // self._step

    def divided(self, begin: datetime, end: datetime) -> Iterator[tuple[int, float]]:
        """The parts that a span touches, and its hours in each."""
        place = self.place(begin)
        while place < len(self) and self._edges[place] < end:
            yield place, hours_between(max(begin, self._edges[place]), min(end, self._edges[place + 1]))
            place += 1


def hours_between(begin: datetime, end: datetime) -> float:
    """The hours from ``begin`` to ``end``."""
    return (end - begin).total_seconds() / HOUR_S


def _every(since: datetime, until: datetime, step: timedelta) -> Iterator[datetime]:
    while since < until:
        yield since
        since += step
