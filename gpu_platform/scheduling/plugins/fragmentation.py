"""Fragmentation gradient descent: take the GPUs whose loss leaves the rest most useful.

Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent",
USENIX ATC 2023: a host's fragmentation is the number of its free GPUs that a task of the typical mix
cannot use, in expectation. See ``stranding`` for the measure, and ``expected_tasks`` for the mix.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.jobs.resources import ResourceRequest, Strategy
from gpu_platform.scheduling.cluster.snapshot import HostIndices, Snapshot
from gpu_platform.scheduling.placing.framework import Offers
from gpu_platform.scheduling.plugins.expected_tasks import ExpectedTasks
from gpu_platform.scheduling.plugins.stranding import StrandedGpus, TypicalTask

TYPICAL_SIZES: Mapping[int, float] = {1: 0.5, 2: 0.15, 4: 0.15, 8: 0.2}
"""GPUs per host -> how often jobs ask for them. From the multi-GPU jobs in the traces that Weng et al. publish."""

TYPICAL_SHARES = (TypicalTask(1, 50, weight=0.43),)
"""Shares of GPUs that are expected beside the typical sizes: three tasks out of ten."""

_STEEP_GPUS = 4.0


class FragmentationScore:
    """Rates how much the job fragments a host: 1 if it becomes less fragmented, 0.5 if nothing changes, near 0 if many
    GPUs become useless. Jobs that want to be spread are not rated: 0.5."""

    name = "fragmentation"

    def __init__(self, expected: ExpectedTasks) -> None:
        self._expected = expected
        self._mix = expected.renewals
        self._stranding = StrandedGpus(expected.tasks)

    def __call__(
        self, resources: ResourceRequest, snapshot: Snapshot, hosts: HostIndices, offers: Offers
    ) -> NDArray[np.float64]:
        """Return the score of each offer, 0 to 1."""
        if resources.strategy is Strategy.SPREAD:
            return np.full(len(hosts), 0.5)
        if self._mix != self._expected.renewals:
            self._mix = self._expected.renewals
            self._stranding = StrandedGpus(self._expected.tasks)
        grown = self._stranding.growth(resources, snapshot, hosts, offers)
        return 0.5 - grown / (2.0 * (np.abs(grown) + _STEEP_GPUS))
