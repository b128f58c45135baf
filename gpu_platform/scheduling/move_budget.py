"""What moving running jobs may cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MoveBudget:
    """Limits for one plan of moves."""

    jobs: int = 4
    """The most jobs that may be moved."""
    lost_gpu_s: float = 8 * 3600.0
    """The most work that may be lost: GPU-seconds since the last checkpoints of all moved jobs."""
