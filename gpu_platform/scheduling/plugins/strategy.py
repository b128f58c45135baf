"""Pack: the tightest fit, to keep whole hosts and islands for gangs. Spread: the emptiest host."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.job import GpuRequest, Strategy
from gpu_platform.scheduling.framework import Offers
from gpu_platform.scheduling.snapshot import Slots, Snapshot

_LARGEST_LEFT = 32.0


class Resources:
    """What part of a host's free GPUs the job would use: 1 is an exact fit."""

    name = "resources"

    def __call__(self, request: GpuRequest, snapshot: Snapshot, hosts: Slots, offers: Offers) -> NDArray[np.float64]:
        free = np.bitwise_count(snapshot.free[hosts] & ~snapshot.held[hosts])
        return np.clip(request.gpus_per_host / np.maximum(free, 1), 0.0, 1.0)


class PackOrSpread:
    """As the request says.

    Pack counts the free GPUs that would be left on the host, and those in the same NUMA node once
    more: two GPUs out of a free four leave a broken island, the last two of one do not.
    """

    name = "strategy"

    def __call__(self, request: GpuRequest, snapshot: Snapshot, hosts: Slots, offers: Offers) -> NDArray[np.float64]:
        free = np.bitwise_count(snapshot.free[hosts] & ~snapshot.held[hosts]).astype(np.float64)
        if request.strategy is Strategy.SPREAD:
            return free / np.maximum(snapshot.size[hosts], 1)
        left = free - request.gpus_per_host + offers.stranded
        return 1.0 - np.clip(left, 0.0, _LARGEST_LEFT) / _LARGEST_LEFT
