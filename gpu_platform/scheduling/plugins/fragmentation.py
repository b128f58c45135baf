"""Fragmentation gradient descent: take the GPUs whose loss leaves the rest most useful.

Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent",
USENIX ATC 2023: a host's fragmentation is the number of its free GPUs that a task of the typical mix
cannot use, in expectation. Here for whole GPUs, where "cannot use" includes that they are not connected
as jobs need by default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.scheduling.cluster.snapshot import HostIndices, Snapshot
from gpu_platform.scheduling.placing.framework import Offers
from gpu_platform.scheduling.plugins.stranding import StrandedGpus, TypicalTask
from gpu_platform.topology.machine import Machine
from gpu_platform.topology.subsets import best_subset

TYPICAL_SIZES: Mapping[int, float] = {1: 0.5, 2: 0.15, 4: 0.15, 8: 0.2}
"""GPUs per host -> how often jobs ask for them. From the multi-GPU jobs in the traces that Weng et al. publish. Set
your own."""

_STEEP_GPUS = 4.0


class FragmentationScore:
    """Rates how much the job fragments a host: 1 if it becomes less fragmented, 0.5 if nothing changes, 0 if all
    that is left becomes useless."""

    name = "fragmentation"

    def __init__(self, sizes: Mapping[int, float] = TYPICAL_SIZES, tasks: Sequence[TypicalTask] = ()) -> None:
        """``tasks``: the expected tasks, with shares of GPUs, CPUs and memory. If there are any, ``sizes`` do not
        count.
        """
        self._stranding = StrandedGpus(tasks) if tasks else None
        total = sum(sizes.values())
        self._sizes = {size: frequency / total for size, frequency in sizes.items()}
        self._known: dict[tuple[Machine, int], float] = {}

    def __call__(
        self, request: ResourceRequest, snapshot: Snapshot, hosts: HostIndices, offers: Offers
    ) -> NDArray[np.float64]:
        """Return the score of each offer, 0 to 1."""
        if self._stranding is not None:
            grown = self._stranding.growth(request, snapshot, hosts, offers)
            return 0.5 - grown / (2.0 * (np.abs(grown) + _STEEP_GPUS))
        free = (snapshot.available(hosts)).tolist()
        machines = [snapshot.machines[number] for number in snapshot.machine[hosts].tolist()]
        growth = [
            self.unusable(machine, before & ~taken) - self.unusable(machine, before) if taken else 0.0
            for machine, before, taken in zip(machines, free, offers.gpus.tolist(), strict=True)
        ]
        return 0.5 - np.clip(np.array(growth) / np.maximum(snapshot.size[hosts], 1), -1.0, 1.0) / 2.0

    def unusable(self, machine: Machine, free: int) -> float:
        """Return how many of the ``free`` GPUs the next task cannot use, in expectation."""
        key = (machine, free)
        if key not in self._known:
            lost = sum(
                frequency for size, frequency in self._sizes.items() if best_subset(machine, free, size, False) is None
            )
            self._known[key] = lost * free.bit_count()
        return self._known[key]
