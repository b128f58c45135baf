"""The windows that the scheduler knows, and whom each of them keeps out now.

A job is kept out of a window's GPUs from a margin before it begins, and before that if the job might still hold them
then: by its time limit and the grace that it has to stop, or because it has no limit. Jobs that ask for an advance
reservation get its GPUs and no others, while it is open, if their limits are over before it ends. Their grace may go on
after it: others wait for it there, and a window that follows counts it.

Without windows, every answer is None and costs one comparison.

:class:`Windows` answers for now. :class:`WindowPhases` answers for later moments, so that nobody is told a start inside
a window.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.domain.placing.window import WindowRow

EVERYTHING = "*"
"""In an answer: all GPUs are closed. No window has this name."""
ALL_CLOSED = frozenset({EVERYTHING})
Closed = frozenset[str]
"""The names of windows whose GPUs a job cannot get now."""
OCCURRENCES = 8
"""So many occurrences of a window are planned. Nothing is planned beyond the last one of them, unless it is the last of
all."""


class _Hosts(Protocol):
    """What is read of the snapshot."""

    facts_version: int
    all_gpus: NDArray[np.uint64]

    def __len__(self) -> int: ...
    def host_index(self, host: str) -> int | None: ...
    def locate(self, gpu_uuid: str) -> tuple[int, int] | None: ...


@dataclass(frozen=True)
class KeptByWindow:
    """What a window keeps, by host index."""

    gpus: NDArray[np.uint64]
    whole: NDArray[np.bool_]
    """Hosts that it keeps with their CPUs and memory."""

    @property
    def hosts(self) -> NDArray[np.intp]:
        """The hosts of which it keeps anything."""
        return np.flatnonzero(self.whole | (self.gpus != 0))


class Windows:
    """All windows. ``margin_s``: jobs must have ended so long before a window begins."""

    def __init__(self, hosts: _Hosts) -> None:
        self._hosts = hosts
        self.margin_s = 0.0
        self.now = -math.inf
        self.version = 0
        """Grows when the windows change."""
        self.rows: dict[str, WindowRow] = {}
        self._kept: dict[str, KeptByWindow] = {}
        self._kept_at: tuple[int, int] = (-1, -1)
        self._answers: dict[tuple[str | None, float | None, float, str, str], Closed | None] = {}
        self._is_aside = False
        self._later: tuple[float, dict[str, WindowRow]] | None = None
        """See :meth:`looking_at`."""

    def __bool__(self) -> bool:
        return bool(self.rows)

    def replace(self, rows: Iterable[WindowRow]) -> set[int]:
        """Set the windows. Return the hosts for which something changed, by index."""
        new = {row.name: row for row in rows}
        changed = [name for name in {**self.rows, **new} if self.rows.get(name) != new.get(name)]
        touched = {host for name in changed if name in self.rows for host in self.kept(name).hosts.tolist()}
        self.rows = new
        self.version += bool(changed)
        self._kept.clear()
        self._answers.clear()
        return touched | {host for name in changed if name in new for host in self.kept(name).hosts.tolist()}

    def pass_time(self, now: float) -> None:
        """Note what time it is. Time does not go back."""
        if now > self.now:
            self.now = now
            self._answers.clear()

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Inside the block no window keeps anybody out: the question is about another time than now."""
        before, self._is_aside = self._is_aside, True
        try:
            yield
        finally:
            self._is_aside = before

    @contextmanager
    def looking_at(self, moment: float) -> Iterator[None]:
        """Inside the block answers are those of a later moment."""
        before, answers = self._later, self._answers
        rows = {name: then for name, row in self.rows.items() if (then := row.as_of(moment)) is not None}
        self._later, self._answers = (moment, rows), {}
        try:
            yield
        finally:
            self._later, self._answers = before, answers

    def answer(self, request: PlacementRequest) -> Closed | None:
        """Return the windows whose GPUs the job cannot get now. None: it can get those of all windows."""
        asked = request.resources.reservation  # as ``reservation_of``: this is asked for each job in each round
        if (asked is None and not self.rows) or self._is_aside:
            return None
        namespace, user = (request.namespace, request.user) if asked else ("", "")
        key = asked, request.time_limit_s, request.grace_s, namespace, user
        if key not in self._answers:
            self._answers[key] = self._answer(request, asked)
        return self._answers[key]

    def _answer(self, request: PlacementRequest, asked: str | None) -> Closed | None:
        now, rows = (self.now, self.rows) if self._later is None else self._later
        if asked is not None:
            own = rows.get(asked)
            if own is None or not own.is_open or not own.allows(request.namespace, request.user):
                return ALL_CLOSED
            if request.time_limit_s is None or now + request.time_limit_s > own.end:
                return ALL_CLOSED
        closed = frozenset(name for name, one in rows.items() if name != asked and self._closes(one, request, now))
        return closed or None

    def will_admit(self, request: PlacementRequest) -> bool:
        """Tell whether the advance reservation for which the job asks is, or will be, open to it. True if it asks for
        none.
        """
        asked = request.resources.reservation
        if asked is None:
            return True
        own = self.rows.get(asked)
        if own is None or not own.allows(request.namespace, request.user):
            return False
        return request.time_limit_s is not None and request.time_limit_s <= own.duration_s

    def _closes(self, window: WindowRow, request: PlacementRequest, now: float) -> bool:
        return window.is_open or now + holds_at_most_s(request) > self.closes_at(window)

    def closes_at(self, window: WindowRow) -> float:
        """Return when jobs must have ended that the window keeps out."""
        return window.start - self.margin_s

    def kept(self, name: str) -> KeptByWindow:
        """Return what a window keeps. Nothing, if there is no such window."""
        stamp = len(self._hosts), self._hosts.facts_version
        if stamp != self._kept_at:
            self._kept_at = stamp
            self._kept.clear()
        found = self._kept.get(name)
        if found is None:
            found = self._kept[name] = self._find(name)
        return found

    def _find(self, name: str) -> KeptByWindow:
        n = len(self._hosts)
        gpus, whole = np.zeros(n, np.uint64), np.zeros(n, bool)
        row = self.rows.get(name)
        for place in row.places if row is not None else ():
            host_index = self._hosts.host_index(place.host)
            if host_index is None:
                continue
            if place.gpu_uuids is None:
                gpus[host_index], whole[host_index] = self._hosts.all_gpus[host_index], True
            for uuid in place.gpu_uuids or ():
                where = self._hosts.locate(uuid)
                if where is not None and where[0] == host_index:
                    gpus[host_index] |= np.uint64(1 << where[1])
        return KeptByWindow(gpus, whole)

    def closed_gpus(self, closed: Closed, hosts: NDArray[np.intp]) -> NDArray[np.uint64]:
        """Return for each of ``hosts`` the GPUs that these windows keep."""
        if EVERYTHING in closed:
            return self._hosts.all_gpus[hosts]
        gpus = np.zeros(len(hosts), np.uint64)
        for name in closed:
            gpus |= self.kept(name).gpus[hosts]
        return gpus

    def closed_hosts(self, closed: Closed, hosts: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Tell for each of ``hosts`` whether one of these windows keeps it with its CPUs and memory."""
        if EVERYTHING in closed:
            return np.ones(len(hosts), bool)
        whole = np.zeros(len(hosts), bool)
        for name in closed:
            whole |= self.kept(name).whole[hosts]
        return whole

    def allows_running(self, window: WindowRow, job: RunningRow) -> bool:
        """Tell whether a job that runs may be there while the window is open."""
        asked = None if job.resources is None else job.resources.reservation
        return asked == window.name and window.allows(job.namespace, job.user)


def holds_at_most_s(request: PlacementRequest) -> float:
    """Return how long the job may hold its GPUs once it has started, in seconds: its time limit and then its grace.
    Infinity: it has no limit. What the platform adds to start and to clean up is in the margin.
    """
    return math.inf if request.time_limit_s is None else request.time_limit_s + request.grace_s


def reservation_of(request: PlacementRequest) -> str | None:
    """Return the advance reservation for which the job asks. All rank groups ask for the same."""
    return request.resources.reservation


@dataclass(frozen=True)
class PlannedOccurrence:
    """One occurrence of a window."""

    row: WindowRow
    closes_at: float
    """When jobs must have ended that it keeps out. Minus infinity: it is open."""
    end: float
    """Infinity: it is the last that is planned, and there are more."""


@dataclass(frozen=True)
class _Window:
    name: str
    kept: KeptByWindow
    planned: tuple[PlannedOccurrence, ...]
    ends: tuple[float, ...]

    def at(self, moment: float) -> PlannedOccurrence | None:
        """Return the occurrence that is then, or the next one. None: there is none any more."""
        place = bisect_right(self.ends, moment)
        return self.planned[place] if place < len(self.planned) else None


class WindowPhases:
    """All windows of a cluster over time. It does not change: make a new one when windows or hosts change."""

    def __init__(self, windows: Windows) -> None:
        self._windows = [
            _Window(name, windows.kept(name), planned, tuple(one.end for one in planned))
            for name, row in sorted(windows.rows.items())
            if (planned := tuple(planned_occurrences(windows, row)))
        ]
        self._of = {one.name: one for one in self._windows}
        planned = [one for window in self._windows for one in window.planned]
        self.moments = sorted({at for one in planned for at in (one.row.start, one.end) if at < math.inf})
        """When GPUs may begin to be open to somebody."""
        self.hosts = np.unique(np.concatenate([one.kept.hosts for one in self._windows] or [np.zeros(0, np.intp)]))
        """The hosts of which any window keeps anything."""
        self._touched = frozenset(self.hosts.tolist())

    def __bool__(self) -> bool:
        return bool(self._windows)

    def next_after(self, moment: float) -> float:
        """Return when GPUs may be open to somebody that were closed at that moment. Infinity: never."""
        place = bisect_right(self.moments, moment)
        return self.moments[place] if place < len(self.moments) else math.inf

    def key(self, request: PlacementRequest) -> Hashable:
        """Return a key that is equal for jobs that windows treat alike at all times, whatever hosts they ask for."""
        asked = reservation_of(request)
        return asked, holds_at_most_s(request), request.time_limit_s if asked else None

    def closed_on(self, request: PlacementRequest, host_index: int, moment: float) -> int:
        """Return which GPUs of a host the job could not get at that moment, as a set of bits."""
        asked = reservation_of(request)
        if asked is not None and not self._admits(asked, request, moment):
            return ~0
        if host_index not in self._touched:
            return 0
        gone = moment + holds_at_most_s(request)
        closed = 0
        for window in self._windows:
            gpus = int(window.kept.gpus[host_index])
            if gpus and window.name != asked and (one := window.at(moment)) is not None and gone > one.closes_at:
                closed |= gpus
        return closed

    def _admits(self, asked: str, request: PlacementRequest, moment: float) -> bool:
        window = self._of.get(asked)
        one = window.at(moment) if window is not None else None
        if one is None or request.time_limit_s is None:
            return False
        return one.row.start <= moment and moment + request.time_limit_s <= one.row.end

    def closes_by_window(self, moment: float) -> NDArray[np.float64]:
        """Return for each window, in order of their names, by when the jobs must be gone that it keeps out.

        Infinity: it keeps nobody out any more.
        """
        found = (window.at(moment) for window in self._windows)
        return np.array([math.inf if one is None else one.closes_at for one in found])

    def is_admitted(self, request: PlacementRequest, moment: float) -> bool:
        """Tell whether the reservation for which the job asks is open to it then. True if it asks for none."""
        asked = reservation_of(request)
        return asked is None or self._admits(asked, request, moment)

    @property
    def names(self) -> list[str]:
        """The windows, in order."""
        return [window.name for window in self._windows]

    def kept(self) -> list[KeptByWindow]:
        """Return what each window keeps, in order of their names."""
        return [window.kept for window in self._windows]


def planned_occurrences(windows: Windows, row: WindowRow) -> Iterator[PlannedOccurrence]:
    """Yield the occurrences of a window that are planned, at most OCCURRENCES. Past ones are left out."""
    for number, one in enumerate(islice(row.occurrences(), OCCURRENCES), 1):
        is_last_planned = number == OCCURRENCES and one.following() is not None
        closes_at = -math.inf if one.is_open else windows.closes_at(one)
        yield PlannedOccurrence(one, closes_at, math.inf if is_last_planned else one.end)
