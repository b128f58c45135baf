"""What moving running jobs may cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MoveBudget:
    """Limits for one plan of moves."""

    jobs: int = 4
    """How many jobs may be moved at most."""
    lost_gpu_s: float = 8 * 3600.0
    """GPU-seconds since the last checkpoints of all moved jobs."""
