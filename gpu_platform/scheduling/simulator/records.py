"""What a simulation observes: each job's fate, and the cluster over time."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from gpu_platform.domain.rows import QueueRow
from gpu_platform.scheduling.simulator.timeline import Timeline
from gpu_platform.scheduling.simulator.trace import TraceJob


class JobOutcome(StrEnum):
    COMPLETED = "completed"
    TIMED_OUT = "timed_out"
    REFUSED = "refused"
    """More than the whole cluster could ever hold."""
    FAILED = "failed"
    """Stopped by more failures than ``max_restarts``."""
    RUNNING = "running"
    """Still, when the simulation ended."""
    WAITING = "waiting"
    """Still, when the simulation ended."""
    NOT_ARRIVED = "not_arrived"


@dataclass(frozen=True, slots=True)
class HeldPeriod:
    """GPUs that a job held from one time to another."""

    begin_s: float
    end_s: float
    gpu_uuids: list[str]
    gpu_fraction: float = 1.0
    """Of each."""


@dataclass(slots=True)
class SimulatedJob:
    """What became of one job."""

    job: TraceJob
    request: QueueRow
    """As it waits, whenever it does."""
    outcome: JobOutcome = JobOutcome.NOT_ARRIVED
    attempt: int = 0
    first_start_s: float | None = None
    end_s: float | None = None
    held_periods: list[HeldPeriod] = field(default_factory=list)
    """One for each attempt that was placed."""
    lost_gpu_seconds: float = 0.0
    """Of what it held, what had to be done again."""
    preemptions: int = 0
    moves: int = 0
    """For defragmentation and recovery."""
    restarts: int = 0
    """After failures."""
    recovery_s: list[float] = field(default_factory=list)
    """After each failure, until it ran again."""
    level: str | None = None
    """Of its first placement."""
    bandwidth_gb_s: float = 0.0
    left_s: float = 0.0
    """Work that is still to do."""
    gpu_uuids: list[str] = field(default_factory=list)
    gpu_fraction: float = 1.0
    """Of each of ``gpu_uuids``."""
    since_s: float = 0.0
    being_preempted: bool = False
    """It was told to make room, does no more work, and still holds its GPUs."""
    preempted_at_s: float = 0.0
    """When it was told to make room, if it is leaving."""
    failed_at_s: float | None = None
    """It waits because of a failure."""

    @property
    def gpus_held(self) -> float:
        return len(self.gpu_uuids) * self.gpu_fraction

    @property
    def gpu_seconds(self) -> float:
        """Held, in all attempts; parts of GPUs count as such."""
        return sum((stay.end_s - stay.begin_s) * len(stay.gpu_uuids) * stay.gpu_fraction for stay in self.held_periods)


@dataclass(frozen=True)
class SimulationRun:
    """Everything that was observed; :func:`report.report_on` condenses it."""

    records: list[SimulatedJob]
    timeline: Timeline
    """held, down: GPUs; waiting: jobs; wanted: GPUs that waiting jobs ask for; stranded: see :mod:`fragmentation`."""
    begin_s: float
    end_s: float
    gpus: int
    failures: int
    decision_s: list[float]
    """Wall-clock time of each decision; empty without a clock."""
