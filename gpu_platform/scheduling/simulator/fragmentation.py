"""Fragmentation as FGD counts it (Weng et al., USENIX ATC'23), for whole GPUs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpu_platform.scheduling.cluster.snapshot import MAX_GPUS
from gpu_platform.scheduling.simulator.simulated_cluster import SimulatedCluster
from gpu_platform.scheduling.simulator.trace import TraceJob


class StrandedShare:
    """Draw a job of the trace at random: the part of the free GPUs that are on hosts with too few of them
    for its share of one host, on average over the draw. Models are not looked at.
    """

    def __init__(self, jobs: Sequence[TraceJob]) -> None:
        asked = np.bincount([job.gpus.gpus_per_host for job in jobs], minlength=MAX_GPUS + 1)
        free = np.arange(MAX_GPUS + 1)
        self._free = free
        self._lost = free * (1.0 - np.cumsum(asked) / max(1, len(jobs)))

    def stranded(self, cluster: SimulatedCluster) -> float:
        """0 to 1; 0 when nothing is free."""
        free = int(self._free @ cluster.hosts_by_free)
        return float(self._lost @ cluster.hosts_by_free) / free if free else 0.0
