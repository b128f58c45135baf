"""Learns from each estimated start how far such estimates are off, and says between which times a job will start.

An estimate is compared with what came, as the ratio of the real wait to the estimated one. The interval follows from
the quantiles of the last ratios of waits of about the same length (split conformal prediction over a moving window),
so that 80 % of the jobs start within their intervals. Three things make it hold where plain quantiles do not:

- Many jobs wait for the same running jobs, so their ratios are alike. Of estimates that were told at about the same
  time only one counts. Otherwise a single busy hour would fill the window.
- A job that still waits when its interval has ended counts as late at once, not only when it starts.
- A few assumed ratios stay among the learned ones. They decide alone as long as nothing was learned.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

MISSED = 0.1
"""So many jobs may start before their intervals, and as many after."""
SHORT_S = 60.0
"""This is added to each wait, so that seconds do not matter where a wait is short."""
WINDOW, FEWEST = 100, 20
"""From how many of the last ratios an interval follows, and from how many those of its own length of wait suffice."""
APART = 0.1
"""Of the estimates that were told within this part of the estimated wait one counts."""
ASSUMED, SPREAD = 20, 0.8
"""How many assumed ratios there are, and the logarithm of the factor within which 80 % of them lie."""
LATE = 0.3
"""So much later than its interval, on the logarithmic scale, a job is assumed to start that still waits then."""
_ALL = -1
_NORMAL = NormalDist(0.0, SPREAD / NormalDist().inv_cdf(1.0 - MISSED))
_PRIOR = [_NORMAL.inv_cdf((number + 0.5) / ASSUMED) for number in range(ASSUMED)]


@dataclass(slots=True)
class _Told:
    """What a waiting job was told first."""

    at: float
    log_s: float
    """The logarithm of the estimated wait."""
    length: int
    counts: bool
    late: float | None = None
    """The ratio that counts already, because the job still waited when its interval ended."""


class StartIntervals:
    """Tells intervals of starts, and learns from a start in a few microseconds. Times in seconds, on any clock."""

    def __init__(self) -> None:
        self._ratios: dict[int, _Ratios] = {_ALL: _Ratios()}
        """By length of the estimated wait: its doublings."""
        self._told: dict[str, _Told] = {}
        self._next: dict[int, float] = {}
        """For each length, when the next estimate counts."""
        self._ends: list[tuple[float, str, float]] = []
        """A heap of the ends of the intervals that count: (end, job, when it was told)."""

    def between(self, now: float, start: float) -> tuple[float, float]:
        """Return between which times the job will probably start whose estimate is ``start``."""
        log_s = _log(start - now)
        ratios = self._ratios.get(_length(log_s))
        if ratios is None or len(ratios) < FEWEST:
            ratios = self._ratios[_ALL]
        low, high = (_seconds(log_s + ratios.quantile(part)) for part in (MISSED, 1.0 - MISSED))
        return now + min(low, start - now), now + max(high, start - now)

    def told(self, job_id: str, now: float, start: float) -> None:
        """Note that a job was told an estimate. Only its first one is compared with what comes."""
        if job_id in self._told:
            return
        log_s = _log(start - now)
        length = _length(log_s)
        counts = now >= self._next.get(length, -math.inf)
        self._told[job_id] = _Told(now, log_s, length, counts)
        if counts:
            self._next[length] = now + APART * (start - now)
            heapq.heappush(self._ends, (self.between(now, start)[1], job_id, now))

    def pass_time(self, now: float) -> None:
        """Note what time it is: who still waits after the end of the interval is late."""
        while self._ends and self._ends[0][0] < now:
            end, job_id, at = heapq.heappop(self._ends)
            told = self._told.get(job_id)
            if told is not None and told.at == at:
                told.late = _log(end - at) - told.log_s + LATE
                self._learn(told.length, told.late)

    def started(self, job_id: str, now: float) -> None:
        """Note that a job started."""
        told = self._told.pop(job_id, None)
        if told is None or not told.counts:
            return
        if told.late is not None:
            for ratios in (self._ratios[told.length], self._ratios[_ALL]):
                ratios.forget(told.late)
        self._learn(told.length, _log(now - told.at) - told.log_s)

    def left(self, job_id: str) -> None:
        """Note that a job does not wait any more, and has not started."""
        self._told.pop(job_id, None)

    def learned(self) -> dict[int, list[float]]:
        """Return what was learned, for :meth:`restore`: the last ratios by length of wait."""
        return {length: list(ratios.values) for length, ratios in self._ratios.items()}

    def restore(self, learned: Mapping[int, Sequence[float]]) -> None:
        """Go on with what another one learned."""
        for length, values in learned.items():
            ratios = self._ratios[int(length)] = _Ratios()
            for value in values:
                ratios.add(float(value))

    def _learn(self, length: int, ratio: float) -> None:
        self._ratios.setdefault(length, _Ratios()).add(ratio)
        self._ratios[_ALL].add(ratio)


@dataclass(slots=True)
class _Ratios:
    """The last ratios, as logarithms, in order of arrival and sorted among the assumed ones."""

    values: deque[float] = field(default_factory=deque)
    _sorted: list[float] = field(default_factory=_PRIOR.copy)

    def __len__(self) -> int:
        return len(self.values)

    def add(self, value: float) -> None:
        if len(self.values) >= WINDOW:
            del self._sorted[bisect_left(self._sorted, self.values.popleft())]
        self.values.append(value)
        insort(self._sorted, value)

    def forget(self, value: float) -> None:
        if value in self.values:
            self.values.remove(value)
            del self._sorted[bisect_left(self._sorted, value)]

    def quantile(self, part: float) -> float:
        place = min(max(part * (len(self._sorted) + 1) - 1, 0.0), len(self._sorted) - 1.0)
        low = math.floor(place)
        high = min(low + 1, len(self._sorted) - 1)
        return self._sorted[low] + (self._sorted[high] - self._sorted[low]) * (place - low)


def _log(wait_s: float) -> float:
    return math.log(max(wait_s, 0.0) + SHORT_S)


def _seconds(log_s: float) -> float:
    return max(math.exp(log_s) - SHORT_S, 0.0)


def _length(log_s: float) -> int:
    return round(log_s / math.log(2.0))
