"""Pack or spread. Pack: the tightest fit, so that whole hosts and islands stay free for gangs. Spread: the emptiest
host.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.jobs.resources import ResourceRequest, Strategy
from gpu_platform.scheduling.cluster.snapshot import HostIndices, Snapshot
from gpu_platform.scheduling.placing.framework import Offers

_LARGEST_LEFT = 32.0


class ResourcesScore:
    """Rates the fraction of a host's free GPUs that the job would use. 1 is an exact fit."""

    name = "resources"

    def __call__(
        self, resources: ResourceRequest, snapshot: Snapshot, hosts: HostIndices, offers: Offers
    ) -> NDArray[np.float64]:
        """Return the score of each offer, 0 to 1."""
        if not resources.gpus_per_host:
            return np.clip(resources.cpus_per_host / np.maximum(_cpus_left(snapshot, hosts), 1), 0.0, 1.0)
        free = np.bitwise_count(snapshot.available(hosts))
        return np.clip(resources.gpus_per_host / np.maximum(free, 1), 0.0, 1.0)


@dataclass
class StrategyScore:
    """Packs or spreads, as the request says.

    Pack counts the free GPUs that would be left on the host, and those in the same NUMA node once more: two GPUs out
    of four free ones leave a broken island, the last two of an island do not. A job without GPUs goes to hosts without
    GPUs first, then to hosts where no GPU is free, so that CPUs stay for jobs with GPUs. Among equal hosts it goes to
    the one with the fewest idle CPUs.
    """

    name: str = "strategy"
    left_counts: float = 1.0
    """What each free GPU that is left on the host counts."""
    whole_host_is_an_island: bool = True
    """A host with one NUMA node has an island that can be broken. False: only parts of a host count as islands."""

    def __call__(
        self, resources: ResourceRequest, snapshot: Snapshot, hosts: HostIndices, offers: Offers
    ) -> NDArray[np.float64]:
        """Return the score of each offer, 0 to 1."""
        free = np.bitwise_count(snapshot.available(hosts)).astype(np.float64)
        if not resources.gpus_per_host:
            idle = _cpus_left(snapshot, hosts) / np.maximum(snapshot.cpus[hosts], 1)
            if resources.strategy is Strategy.SPREAD:
                return idle
            beside_gpus = 0.6 * (snapshot.size[hosts] > 0)
            return 1.0 - (np.clip(free, 0.0, _LARGEST_LEFT) + beside_gpus + 0.3 * idle) / (_LARGEST_LEFT + 1.0)
        if resources.strategy is Strategy.SPREAD:
            return free / np.maximum(snapshot.size[hosts], 1)
        stranded = offers.stranded
        if not self.whole_host_is_an_island:
            stranded = stranded * (snapshot.numa_nodes[snapshot.machine[hosts]] > 1)
        left = self.left_counts * (free - resources.gpus_per_host) + stranded
        return 1.0 - np.minimum(np.maximum(left, 0.0), _LARGEST_LEFT) / _LARGEST_LEFT


def _cpus_left(snapshot: Snapshot, hosts: HostIndices) -> NDArray[np.int64]:
    return snapshot.cpus[hosts] - snapshot.cpus_used[hosts] - snapshot.cpus_held[hosts]
