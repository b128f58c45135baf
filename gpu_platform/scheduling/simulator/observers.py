"""Who looks at a simulation while it runs, and what the scheduler is told of run times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpu_platform.scheduling.simulator.inputs.run_times import RunTimes


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a simulation is."""

    done: int
    """Jobs that have ended or were refused."""
    jobs: int
    waiting: int
    passed_s: float
    """Virtual time since the beginning."""


@dataclass(frozen=True)
class Observers:
    """What is measured and told during a simulation."""

    clock: Callable[[], float] | None = None
    """Seconds, to measure how long decisions take. None: they are not measured."""
    progress: Callable[[Progress], None] | None = None
    """Called after each moment at which something happened."""
    estimates: int = 0
    """Ask the scheduler for the estimated start of about this many jobs. See :mod:`dates`."""
    run_times: RunTimes | None = None
    """What the scheduler knows of run times when jobs come. The only thing here that changes the result. Default: what
    it learns from the jobs of the trace that have ended."""
