"""Learns from each run that has ended how long the next ones will run.

Runs are counted in groups, from all runs down to those of the same user, name and command. Each group remembers its
last run times. The expected run time begins with the median of all runs, and each smaller group draws it towards its
own median, the more the more runs it has (shrinkage). The smallest groups count only their last runs, because users
repeat what they did last (Tsafrir, Etsion, Feitelson, IEEE TPDS 18(6), 2007: the mean of the last two runs beats what
users say). Everything is on a logarithmic scale, because run times spread over five orders of magnitude.

Intervals are calibrated: each prediction is compared with what came, and the quantiles of the last few hundred ratios
stretch the next predictions of that kind (split conformal prediction over a moving window). Which quantiles these are
is corrected by how many runs ended below and above their intervals (adaptive conformal inference: Gibbs and Candès,
NeurIPS 2021). So in the long run about 80 % of the runs end within their intervals, whatever the distribution is.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from gpu_platform.domain.jobs.run_time import RunTime
from gpu_platform.domain.texts import name_pattern

SHORTEST_S = 1.0
"""Shorter runs count as this long."""
MAX_GROUPS = 50_000
"""So many groups are remembered; those that were not used for long are forgotten."""
REMEMBERED, LAST = 101, 5
"""How many runs a group remembers: large groups, and groups of one user and name."""
SHRINKAGE, SHRINKAGE_OF_NAMES = 2.0, 0.4
"""A group with so many runs draws the expected run time half way to its own median. Runs of one name are very alike."""
WINDOW, FEWEST_RATIOS = 400, 40
"""Intervals follow from so many ratios; with fewer, from those of all predictions."""
MISSED = 0.1
"""So many runs may end below their intervals, and as many above."""
STEP, LEAST, MOST = 0.01, 0.002, 0.4
"""How far a miss moves the quantile of the interval's end, and its bounds."""
FEWEST_RUNS = 10
"""Before so many runs have ended nothing is predicted."""


@dataclass(frozen=True, slots=True)
class JobTraits:
    """What is known of a job before it runs."""

    namespace: str = "default"
    user: str = ""
    name: str = ""
    command: str = ""
    gpus: int = 0
    model: str = ""
    time_limit_s: float | None = None


class RunTimePredictor:
    """Predicts run times in about 50 µs, and learns from one in about as much."""

    def __init__(self) -> None:
        self._groups: OrderedDict[Hashable, _Window] = OrderedDict()
        self._ratios: dict[Hashable, _Window] = {}
        self._runs = 0
        self._below = self._above = MISSED
        """How much of the ratios lies below and above the interval."""

    def learn(self, traits: JobTraits, run_s: float, told: RunTime | None = None) -> None:
        """Note that such a job ran ``run_s`` seconds to its own end. ``told``: what was predicted before it ran."""
        log_s = math.log(max(SHORTEST_S, run_s))
        told = told or self.predict(traits)
        if told is not None:
            self._below = _moved(self._below, max(SHORTEST_S, run_s) < told.low_s)
            self._above = _moved(self._above, run_s > told.high_s)
        if self._runs >= FEWEST_RUNS:
            expected, kind, _ = self._expected(traits)
            for key in (kind, None):
                self._ratios.setdefault(key, _Window(WINDOW)).add(log_s - expected)
        self._runs += 1
        for key, size in _groups_of(traits):
            group = self._groups.pop(key, None) or _Window(size)
            self._groups[key] = group
            group.add(log_s)
        while len(self._groups) > MAX_GROUPS:
            self._groups.popitem(last=False)

    def predict(self, traits: JobTraits) -> RunTime | None:
        """Return how long such a job will run, at most its time limit. None: too few runs are known."""
        if self._runs < FEWEST_RUNS:
            return None
        expected, kind, runs = self._expected(traits)
        ratios = self._ratios.get(kind)
        if ratios is None or len(ratios) < FEWEST_RATIOS:
            ratios = self._ratios.get(None)
        middle, low, high = (0.0, -2.0, 2.0)
        if ratios is not None:
            middle, low, high = (ratios.quantile(part) for part in (0.5, self._below, 1.0 - self._above))
        found = RunTime(math.exp(expected + middle), math.exp(expected + low), math.exp(expected + high), runs)
        return found.at_most(traits.time_limit_s)

    def _expected(self, traits: JobTraits) -> tuple[float, Hashable, int]:
        """Return the expected logarithm, the kind of prediction, and the runs of the smallest group that has any."""
        expected, kind, runs, weight = 0.0, 0, 0, 0.0
        for place, (key, size) in enumerate(_groups_of(traits)):
            group = self._groups.get(key)
            if group is None:
                continue
            shrinkage = SHRINKAGE_OF_NAMES if size == LAST else SHRINKAGE
            weight = len(group) / (len(group) + shrinkage) if place else 1.0
            expected += weight * (group.quantile(0.5) - expected)
            runs = len(group)
            if len(group) >= 2:
                kind = place
        limit = None if traits.time_limit_s is None else round(math.log2(max(1.0, traits.time_limit_s)))
        return expected, (kind, limit), runs


def _moved(part: float, missed: bool) -> float:
    return min(max(part + STEP * (MISSED - missed), LEAST), MOST)


def _groups_of(traits: JobTraits) -> Iterator[tuple[Hashable, int]]:
    """Yield the groups of a run from the largest to the smallest, each with the number of runs that it remembers."""
    limit, who = traits.time_limit_s, (traits.namespace, traits.user)
    yield "all", REMEMBERED
    yield ("gpus", traits.gpus, traits.model), REMEMBERED
    if limit is not None:
        yield ("limit", limit), REMEMBERED
        yield ("limit", limit, traits.gpus), REMEMBERED
    yield ("namespace", traits.namespace, limit), REMEMBERED
    yield ("namespace", traits.namespace, limit, traits.gpus), REMEMBERED
    if traits.user:
        yield ("user", *who, limit), REMEMBERED
        yield ("user", *who, limit, traits.gpus), REMEMBERED
    if traits.name:
        pattern = name_pattern(traits.name)
        yield ("pattern", *who, pattern), LAST
        yield ("pattern", *who, pattern, traits.gpus, traits.model), LAST
        if traits.command:
            yield ("command", *who, pattern, traits.command, traits.gpus, traits.model), LAST


@dataclass(slots=True)
class _Window:
    """The last ``size`` values, in order of arrival and sorted."""

    size: int
    _values: deque[float] = field(default_factory=deque)
    _sorted: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: float) -> None:
        if len(self._values) >= self.size:
            del self._sorted[bisect_left(self._sorted, self._values.popleft())]
        self._values.append(value)
        insort(self._sorted, value)

    def quantile(self, part: float) -> float:
        """Return the value below which ``part`` of the values lie, widened as conformal prediction has it."""
        n = len(self._sorted)
        place = part * (n + 1) - 1 if part != 0.5 else (n - 1) / 2
        low = min(max(math.floor(place), 0), n - 1)
        high = min(low + 1, n - 1)
        return self._sorted[low] + (self._sorted[high] - self._sorted[low]) * min(max(place - low, 0.0), 1.0)
