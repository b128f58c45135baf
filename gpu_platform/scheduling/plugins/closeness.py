"""Scores for well-connected GPUs: by topology level, and by the bandwidth of their ring."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.scheduling.cluster.snapshot import HostIndices, Snapshot
from gpu_platform.scheduling.placing.framework import Offers
from gpu_platform.topology.subsets import HOST_LEVELS

FASTEST_GB_S = 900.0
"""The bandwidth of 18 NVLinks of generation 5."""
_LOG_OF_FASTEST = np.log1p(FASTEST_GB_S)


class TopologyScore:
    """Rates how close the GPUs are: 1 for NVLink inside one NUMA node, down to 0.2 for GPUs on several sockets."""

    name = "topology"

    def __call__(
        self, resources: ResourceRequest, snapshot: Snapshot, hosts: HostIndices, offers: Offers
    ) -> NDArray[np.float64]:
        """Return the score of each offer, 0 to 1."""
        return closeness(offers)


class BandwidthScore:
    """Rates the bandwidth on a logarithmic scale: twice the bandwidth gains the same on old and new machines."""

    name = "bandwidth"

    def __call__(
        self, resources: ResourceRequest, snapshot: Snapshot, hosts: HostIndices, offers: Offers
    ) -> NDArray[np.float64]:
        """Return the score of each offer, 0 to 1."""
        return speed_of_links(offers)


def closeness(offers: Offers) -> NDArray[np.float64]:
    """Return the score of each offer's topology level, 0.2 to 1."""
    return 1.0 - offers.level / len(HOST_LEVELS)


def speed_of_links(offers: Offers) -> NDArray[np.float64]:
    """Return the score of each offer's bandwidth, 0 to 1, on a logarithmic scale."""
    return np.minimum(1.0, np.log1p(offers.bandwidth_gb_s) / _LOG_OF_FASTEST)
