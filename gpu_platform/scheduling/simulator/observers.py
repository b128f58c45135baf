"""Who looks at a simulation while it runs. Nobody changes its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


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
