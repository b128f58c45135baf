"""Times in which GPUs are kept: advance reservations, for people, and maintenance windows, for nobody's jobs.

Both are *windows*. A window occurs once, or every day or week (24 or 168 hours apart). A row has one occurrence: the
one that is open, or else the next one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from itertools import product

DAY_S, WEEK_S = 86_400, 7 * 86_400


class Repeat(StrEnum):
    """How often a window occurs."""

    DAILY = "daily"
    WEEKLY = "weekly"

    @property
    def period_s(self) -> int:
        """Seconds from one occurrence to the next."""
        return DAY_S if self is Repeat.DAILY else WEEK_S


@dataclass(frozen=True, slots=True)
class WindowPlace:
    """What a window keeps of one host."""

    host: str
    gpu_uuids: tuple[str, ...] | None = None
    """None: the whole host, with its CPUs and memory."""

    def meets(self, other: WindowPlace) -> bool:
        """Tell whether both keep the same GPU, or the same host."""
        if self.host != other.host:
            return False
        if self.gpu_uuids is None or other.gpu_uuids is None:
            return True
        return not set(self.gpu_uuids).isdisjoint(other.gpu_uuids)


@dataclass(frozen=True, slots=True)
class WindowRow:
    """A window as the scheduler sees it. Times are Unix seconds."""

    name: str
    start: float
    end: float
    places: tuple[WindowPlace, ...]
    maintenance: bool = False
    is_open: bool = False
    """The leader has opened this occurrence. It stays open until the leader closes it, whatever a clock says."""
    period_s: int | None = None
    """None: there is no other occurrence."""
    until: float | None = None
    """No occurrence begins then or later. None: it repeats for ever."""
    namespaces: tuple[str, ...] = ()
    """Whose jobs may use it. Empty: those of all namespaces; see ``users``."""
    users: tuple[str, ...] = ()
    """Whose jobs may use it. Empty: those of all users. With ``namespaces``, a job must meet both."""

    @property
    def duration_s(self) -> float:
        """How long an occurrence lasts."""
        return self.end - self.start

    @property
    def key(self) -> tuple[str, float]:
        """Names the occurrence."""
        return self.name, self.start

    def allows(self, namespace: str, user: str) -> bool:
        """Tell whether jobs of this user in this namespace may use it."""
        if self.maintenance:
            return False
        return (not self.namespaces or namespace in self.namespaces) and (not self.users or user in self.users)

    def following(self) -> WindowRow | None:
        """Return the window with its next occurrence, not open. None: this was the last one."""
        if self.period_s is None:
            return None
        start = self.start + self.period_s
        if self.until is not None and start >= self.until:
            return None
        return replace(self, start=start, end=self.end + self.period_s, is_open=False)

    def ending_after(self, now: float) -> WindowRow | None:
        """Return the window with its first occurrence, from this one on, that ends after ``now``. None: none does."""
        row: WindowRow | None = self
        if self.period_s is not None and now >= self.end:  # one step, however long nobody looked
            skipped = math.floor((now - self.end) / self.period_s) * self.period_s
            row = replace(self, start=self.start + skipped, end=self.end + skipped, is_open=False)
            if self.until is not None and row.start >= self.until:
                return None
        while row is not None and row.end <= now:
            row = row.following()
        return row

    def as_of(self, now: float) -> WindowRow | None:
        """Return the window as a leader will have it at ``now``: with its occurrence then, open or not. None: it has
        ended for good. What is open stays open until its end.
        """
        if self.is_open and now < self.end:
            return self
        row = self.ending_after(now)
        if row is None or row.start > now:
            return row
        return replace(row, is_open=True)

    def occurrences(self) -> Iterator[WindowRow]:
        """Yield this occurrence and those after it. There may be no end."""
        row: WindowRow | None = self
        while row is not None:
            yield row
            row = row.following()

    def meets(self, other: WindowRow) -> bool:
        """Tell whether both keep the same GPU or the same host, whenever that is."""
        return any(mine.meets(theirs) for mine in self.places for theirs in other.places if mine.host == theirs.host)

    def overlap(self, other: WindowRow) -> float | None:
        """Return when occurrences of both are at the same time first, whatever they keep. None: never.

        Once both have begun, all repeats after the longest period: so it is enough to look that far.
        """
        longest = max(self.duration_s, other.duration_s)
        period = max(self.period_s or 0, other.period_s or 0)
        horizon = max(self.start, other.start) + 2 * period + longest
        from_s = max(self.start, other.start) - longest - period
        pairs = product(_between(self, from_s, horizon), _between(other, from_s, horizon))
        found = (max(one.start, two.start) for one, two in pairs if one.start < two.end and two.start < one.end)
        return min(found, default=None)


def _between(row: WindowRow, since: float, until: float) -> Iterator[WindowRow]:
    first = row.ending_after(since)
    for one in first.occurrences() if first is not None else ():
        if one.start > until:
            return
        yield one


def conflict(wanted: WindowRow, others: Iterable[WindowRow]) -> tuple[WindowRow, float] | None:
    """Return the first of ``others`` that keeps something of ``wanted`` at the same time, and when. None: there is
    none.
    """
    for other in others:
        if other.name != wanted.name and wanted.meets(other) and (at := wanted.overlap(other)) is not None:
            return other, at
    return None


def kind_of(window: WindowRow) -> str:
    """Return for what and when it keeps hosts, without its name: ``for maintenance from … to …``. Whose an advance
    reservation is concerns only those who may use it.
    """
    what = "maintenance" if window.maintenance else "an advance reservation"
    return f"for {what} {span_text(window.start, window.end)}"


def time_text(at: float) -> str:
    """Return a moment for people: ``2026-12-01 14:00 UTC``."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"


def span_text(start: float, end: float) -> str:
    """Return a time for people: ``from 2026-12-01 14:00 to 16:00 UTC``."""
    first, last = (datetime.fromtimestamp(at, UTC) for at in (start, end))
    same_day = first.date() == last.date()
    return f"from {first:%Y-%m-%d %H:%M} to {last:{'%H:%M' if same_day else '%Y-%m-%d %H:%M'}} UTC"
