"""What a simulation observes: what happened to each job, and the cluster over time."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.simulator.dates import ToldDates
from gpu_platform.scheduling.simulator.inputs.trace import TraceJob
from gpu_platform.scheduling.simulator.timeline import Timeline


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
