"""What windows keep from waiting jobs at later times: their next occurrences, on the clock of the decisions.

``Windows`` answers for now. This answers for any later moment, so that nobody is told a start inside a window.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.window import WindowRow
from gpu_platform.scheduling.cluster.windows import KeptByWindow, Windows, holds_at_most_s, reservation_of

OCCURRENCES = 8
"""So many occurrences of a window are planned. Nothing is planned beyond the last one of them, unless it is the last of
all."""


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
