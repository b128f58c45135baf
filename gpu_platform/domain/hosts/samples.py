"""Samples of GPUs: what a host keeps of its measurements, and the figures that are computed from them.

A sample is the mean of a GPU's readings within 15 s, in whole units. A host answers with how often it measured each
value (:class:`ValueCounts`). Such counts of many GPUs and hosts can be added up, and percentiles of the sum are exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, model_validator

from gpu_platform.domain.hosts.bounds import Count, Uuid

SAMPLE_S = 15
"""The length of one sample. Samples begin and end at multiples of it, so those of all hosts do so together."""
MAX_POINTS = 120
MAX_HELD = 20_000
"""Times in one question: a host with 16 GPUs, and as many attempts as a job may have."""
DAY_S = 86_400

Measurement = Literal["utilization_percent", "memory_used_mib", "temperature_c", "power_w"]
MEASUREMENTS: tuple[Measurement, ...] = ("utilization_percent", "memory_used_mib", "temperature_c", "power_w")

_UnixS = Annotated[int, Field(ge=0, le=2**32 - 1)]
_Value = Annotated[int, Field(ge=-300, le=2**32 - 1)]
_Sum = Annotated[int, Field(ge=-(2**53), le=2**53)]


class HeldGpu(BaseModel):
    """A GPU, and the time for which it is asked: after ``since`` and up to ``until``, Unix seconds."""

    gpu_uuid: Uuid
    since: _UnixS
    until: _UnixS


class SampleQuery(BaseModel):
    """What the service asks a node worker: samples of some GPUs within some times."""

    since: _UnixS
    """Unix seconds. A sample counts if it lies after ``since`` and before ``until`` as a whole."""
    until: _UnixS
    point_s: Annotated[int, Field(ge=SAMPLE_S)]
    """The length of one point."""
    gpus: Annotated[list[HeldGpu], Field(max_length=MAX_HELD)]
    asked_at: _UnixS | None = None
    """When the service asked, by its clock. None: it has not asked yet."""

    def by_clock(self, now_s: float) -> SampleQuery:
        """The same times by the clock of a host, on which it is ``now_s``. Its samples have the times of that clock."""
        ahead_s = 0 if self.asked_at is None else round(now_s - self.asked_at)
        whole_s = round(ahead_s / SAMPLE_S) * SAMPLE_S  # the window begins and ends with samples
        if not whole_s:
            return self
        gpus = [one.model_copy(update=_moved(one.since, one.until, ahead_s)) for one in self.gpus]
        return self.model_copy(update={**_moved(self.since, self.until, whole_s), "gpus": gpus})

    @property
    def points(self) -> int:
        """How many points the window has. They are counted back from ``until``, so the first one may be shorter."""
        return max(0, -((self.since - self.until) // self.point_s))

    @model_validator(mode="after")
    def _has_few_points(self) -> Self:
        if self.points > MAX_POINTS:
            raise ValueError(f"the window has {self.points} points, and may have {MAX_POINTS}: take longer ones")
        return self


class PointSums(BaseModel):
    """The samples of one point."""

    point: Annotated[int, Field(ge=0, lt=MAX_POINTS)]
    """Its number, the oldest first."""
    count: Count
    sum: _Sum
    max: _Value


class ValueCounts(BaseModel):
    """How often each value of one measurement was measured."""

    counts: list[tuple[_Value, Count]] = []
    """(value, number of samples), each value once."""
    points: Annotated[list[PointSums], Field(max_length=MAX_POINTS)] = []
    """Without those that have no samples."""


class HostSamples(BaseModel):
    """The answer of a node worker to a :class:`SampleQuery`."""

    measured: dict[Measurement, ValueCounts] = {}
    retention_days: Annotated[int, Field(ge=0, le=100_000)]
    """How long this host keeps samples."""


class Point(BaseModel):
    """One of the equal parts of the window."""

    at: datetime
    """Its end."""
    mean: float | None = None
    """None: nothing was measured."""
    max: int | None = None


class Figures(BaseModel):
    """The figures of one measurement. None: nothing was measured."""

    count: int = 0
    """How many samples."""
    mean: float | None = None
    p50: int | None = None
    """Half of the samples are at most this (nearest rank)."""
    p90: int | None = None
    p99: int | None = None
    max: int | None = None
    points: list[Point] = []
    """Equal parts of the window, the oldest first, at most 120."""


class MetricsHistory(BaseModel):
    """What some GPUs did within a window of time, from the samples that their hosts keep.

    Each figure is over all samples of all these GPUs. Of a shared GPU it is that of the whole GPU.
    """

    since: datetime
    until: datetime
    """Of a job that holds nothing any more: when it released its last GPU."""
    sample_s: int = SAMPLE_S
    """Each sample is the mean of the readings of one GPU within this time."""
    point_s: int
    """The length of one point. The first one may be shorter."""
    gpus: int
    """How many GPUs it is about."""
    hosts: list[str]
    """The hosts that answered."""
    unmeasured_hosts: dict[str, str] = {}
    """The hosts whose samples are missing, each with the reason."""
    retention_days: int | None = None
    """How long the hosts keep samples: the shortest of them. None: no host answered."""
    utilization_percent: Figures = Figures()
    memory_used_mib: Figures = Figures()
    temperature_c: Figures = Figures()
    power_w: Figures = Figures()
    prometheus_url: str | None = None
    """The same in Prometheus. None: `service.prometheus_url` is not set."""


class Tally:
    """Adds up what hosts have measured."""

    def __init__(self, query: SampleQuery) -> None:
        """``query``: the window and the points that all these hosts were asked for."""
        self._query = query
        self._counts: dict[str, Counter[int]] = {name: Counter() for name in MEASUREMENTS}
        self._points: dict[str, dict[int, PointSums]] = {name: {} for name in MEASUREMENTS}

    def add(self, measured: Mapping[Measurement, ValueCounts]) -> None:
        """Add the answer of one host."""
        for name, found in measured.items():
            counts, points = self._counts[name], self._points[name]
            for value, number in found.counts:
                counts[value] += number
            for one in found.points:
                points[one.point] = one if one.point not in points else _added(points[one.point], one)

    def figures(self) -> dict[Measurement, Figures]:
        """The figures of all measurements so far."""
        return {name: self._figures(name) for name in MEASUREMENTS}

    def _figures(self, name: Measurement) -> Figures:
        points = self._points[name]
        ends = range(self._query.points - 1, -1, -1)
        return figures_of(self._counts[name]).model_copy(
            update={
                "points": [
                    _point(self._query.until - left * self._query.point_s, points.get(number))
                    for number, left in enumerate(ends)
                ]
            }
        )


def figures_of(counts: Mapping[int, int]) -> Figures:
    """The figures of values that were measured so often, without points."""
    total = sum(counts.values())
    if not total:
        return Figures()
    ordered = sorted(value for value, number in counts.items() if number)
    ranks = [-(-total * percent // 100) for percent in (50, 90, 99)]
    p50, p90, p99 = _at_ranks(((value, counts[value]) for value in ordered), ranks)
    mean = sum(value * number for value, number in counts.items()) / total
    return Figures(count=total, mean=round(mean, 2), p50=p50, p90=p90, p99=p99, max=ordered[-1])


def point_length(window_s: int) -> int:
    """The length of a point, so that the window has at most 120 of them: a multiple of the length of a sample."""
    return max(1, -(-window_s // (MAX_POINTS * SAMPLE_S))) * SAMPLE_S


def _moved(since: int, until: int, by_s: int) -> dict[str, int]:
    return {"since": max(0, since + by_s), "until": max(0, until + by_s)}


def _at_ranks(ordered: Iterable[tuple[int, int]], ranks: list[int]) -> list[int]:
    """The values at these ranks, which begin at 1 and rise."""
    found: list[int] = []
    seen = 0
    for value, number in ordered:
        seen += number
        while len(found) < len(ranks) and ranks[len(found)] <= seen:
            found.append(value)
    return found


def _added(one: PointSums, other: PointSums) -> PointSums:
    return PointSums.model_construct(
        point=one.point, count=one.count + other.count, sum=one.sum + other.sum, max=max(one.max, other.max)
    )


def _point(end: int, sums: PointSums | None) -> Point:
    at = datetime.fromtimestamp(end, UTC)
    if sums is None or not sums.count:
        return Point(at=at)
    return Point(at=at, mean=round(sums.sum / sums.count, 2), max=sums.max)
