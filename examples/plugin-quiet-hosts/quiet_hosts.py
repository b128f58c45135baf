"""A scoring plugin: hosts that carry the label ``quiet: "no"`` come last (say, those in the room with the desks)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.scheduling.cluster.snapshot import HostIndices, Snapshot
from gpu_platform.scheduling.placing.framework import Offers


class QuietHosts:
    """Scores are 0 to 1, one per host of ``hosts``; they may depend on the request and that host alone."""

    name = "quiet_hosts"

    def __call__(
        self, resources: ResourceRequest, snapshot: Snapshot, hosts: HostIndices, offers: Offers
    ) -> NDArray[np.float64]:
        loud = [snapshot.inventory(host_index).labels.get("quiet") == "no" for host_index in hosts.tolist()]
        return np.where(loud, 0.0, 1.0)
