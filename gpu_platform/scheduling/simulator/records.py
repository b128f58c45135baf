"""What a simulation observes: what happened to each job, and the cluster over time."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.simulator.dates import ToldDates
from gpu_platform.scheduling.simulator.inputs.trace import TraceJob

Floats = NDArray[np.float64]


class JobOutcome(StrEnum):
    """How a job ended, or where it was when the simulation ended."""

    COMPLETED = "completed"
    TIMED_OUT = "timed_out"
    REFUSED = "refused"
    """It asked for more than the whole cluster could ever hold."""
    FAILED = "failed"
    """More failures than ``max_restarts`` stopped it."""
    RUNNING = "running"
    """It still ran when the simulation ended."""
    WAITING = "waiting"
    """It still waited when the simulation ended."""
    NOT_ARRIVED = "not_arrived"


@dataclass(frozen=True, slots=True)
class HeldPeriod:
    """GPUs that a job held from one time to another."""

    begin_s: float
    end_s: float
    gpu_uuids: list[str]
    gpu_fraction: float = 1.0
    """The fraction of each GPU that it held."""


@dataclass(slots=True)
class SimulatedJob:
    """What happened to one job."""

    job: TraceJob
    request: PlacementRequest
    """Its row in the queue while it waits."""
    outcome: JobOutcome = JobOutcome.NOT_ARRIVED
    attempt: int = 0
    first_start_s: float | None = None
    end_s: float | None = None
    held_periods: list[HeldPeriod] = field(default_factory=list)
    """One period for each attempt that was placed."""
    lost_gpu_seconds: float = 0.0
    """GPU-seconds whose work had to be done again."""
    preemptions: int = 0
    moves: int = 0
    """How often it was moved, for defragmentation and recovery."""
    restarts: int = 0
    """How often it started again after failures."""
    recovery_s: list[float] = field(default_factory=list)
    """The time from each failure until it ran again."""
    level: str | None = None
    """The topology level of its first placement."""
    bandwidth_gb_s: float = 0.0
    left_s: float = 0.0
    """Seconds of work that are still to do."""
    gpu_uuids: list[str] = field(default_factory=list)
    gpu_fraction: float = 1.0
    """The fraction of each of ``gpu_uuids`` that it holds."""
    since_s: float = 0.0
    being_preempted: bool = False
    """It was ordered to stop, does no more work, and still holds its GPUs."""
    preempted_at_s: float = 0.0
    """When it was ordered to stop, if it is being preempted."""
    failed_at_s: float | None = None
    """When a failure stopped it, if it waits because of that."""

    @property
    def gpus_held(self) -> float:
        """GPUs that it holds now. A share counts as a fraction."""
        return len(self.gpu_uuids) * self.gpu_fraction

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds held in all attempts. A share counts as a fraction."""
        return sum((stay.end_s - stay.begin_s) * len(stay.gpu_uuids) * stay.gpu_fraction for stay in self.held_periods)


@dataclass(frozen=True)
class SimulationRun:
    """Everything that was observed. :func:`report.report_on` makes a report of it."""

    records: list[SimulatedJob]
    timeline: Timeline
    """held, down: GPUs; waiting: jobs; wanted: GPUs that waiting jobs ask for; stranded: see :mod:`fragmentation`."""
    begin_s: float
    end_s: float
    gpus: int
    failures: int
    decision_s: list[float]
    """Wall-clock time of each decision. Empty without a clock."""
    told: ToldDates = field(default_factory=ToldDates)
    """Promised and estimated starts."""


class Timeline:
    """The values of the quantities ``names`` over virtual time, as steps: a value stays until the next one. All are
    recorded together whenever one changes.
    """

    def __init__(self, *names: str) -> None:
        self._at = array("d")
        self._values = {name: array("d") for name in names}

    def record(self, at_s: float, **values: float) -> None:
        """Record values. Times must not go back. A second record at the same time replaces the first."""
        if self._at and self._at[-1] == at_s:
            self._at.pop()
            for column in self._values.values():
                column.pop()
        self._at.append(at_s)
        for name, column in self._values.items():
            column.append(values[name])

    def steps(self, name: str) -> tuple[Floats, Floats]:
        """Return (times, values)."""
        return np.array(self._at), np.array(self._values[name])

    def integral(self, name: str, begin_s: float, end_s: float) -> float:
        """Return value times seconds over an interval. It is 0 before the first record."""
        return float(np.diff(self._running(name, np.array([begin_s, end_s])))[0])

    def means(self, name: str, begin_s: float, end_s: float, buckets: int) -> Floats:
        """Return the time-weighted mean in each of ``buckets`` equal intervals."""
        if end_s <= begin_s or not self._at:
            return np.zeros(buckets)
        edges = np.linspace(begin_s, end_s, buckets + 1)
        return np.diff(self._running(name, edges)) / np.diff(edges)

    def _running(self, name: str, until: Floats) -> Floats:
        """Return the integral from the first record to each time in ``until``."""
        at, values = self.steps(name)
        if not len(at):
            return np.zeros(len(until))
        total = np.concatenate(([0.0], np.cumsum(np.diff(at) * values[:-1])))
        step = np.maximum(np.searchsorted(at, until, side="right") - 1, 0)
        return total[step] + values[step] * np.maximum(until - at[step], 0.0)
