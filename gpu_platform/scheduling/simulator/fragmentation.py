"""Fragmentation as FGD counts it (Weng et al., USENIX ATC'23), for whole GPUs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpu_platform.scheduling.cluster.snapshot import MAX_GPUS
from gpu_platform.scheduling.simulator.inputs.trace import TraceJob
from gpu_platform.scheduling.simulator.simulated_cluster import SimulatedCluster


class StrandedShare:
    """Tells which fraction of the free GPUs a random job of the trace could not use, on average.

    A free GPU is stranded for a job if its host has too few free GPUs for one slice of the job. Models are not
    compared.
    """

    def __init__(self, jobs: Sequence[TraceJob]) -> None:
        asked = np.bincount([job.gpus.gpus_per_host for job in jobs], minlength=MAX_GPUS + 1)
        free = np.arange(MAX_GPUS + 1)
        self._free = free
        self._lost = free * (1.0 - np.cumsum(asked) / max(1, len(jobs)))

    def stranded(self, cluster: SimulatedCluster) -> float:
        """Return the fraction, 0 to 1. It is 0 when no GPU is free."""
        free = int(self._free @ cluster.hosts_by_free)
        return float(self._lost @ cluster.hosts_by_free) / free if free else 0.0
