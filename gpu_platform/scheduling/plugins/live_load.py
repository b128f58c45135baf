"""Scores and the temperature filter: how busy and how hot hosts are now, and how often they were chosen."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.jobs.placement import ReasonCode
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.scheduling.cluster.snapshot import ChangeKind, GpuSets, HostIndices, Snapshot
from gpu_platform.scheduling.placing.framework import HostQuery, Offers

NO_PENALTY_BELOW_C, FULL_PENALTY_FROM_C = 30.0, 90.0


class UtilisationScore:
    """Prefers the least loaded host: 1 if its GPUs are idle, 0 if all of them work."""

    name = "utilisation"

    def __call__(
        self, resources: ResourceRequest, snapshot: Snapshot, hosts: HostIndices, offers: Offers
    ) -> NDArray[np.float64]:
        """Return the score of each offer, 0 to 1."""
        return 1.0 - snapshot.load[hosts]


class ThermalScore:
    """Prefers cool hosts: 1 if the hottest GPU has 30 °C, 0 at 90 °C. An unknown temperature counts as cool."""

    name = "thermal"

    def __call__(
        self, resources: ResourceRequest, snapshot: Snapshot, hosts: HostIndices, offers: Offers
    ) -> NDArray[np.float64]:
        """Return the score of each offer, 0 to 1."""
        return np.clip(
            (FULL_PENALTY_FROM_C - snapshot.heat[hosts]) / (FULL_PENALTY_FROM_C - NO_PENALTY_BELOW_C), 0.0, 1.0
        )


class RoundRobinScore:
    """Prefers the host that was chosen least often."""

    name = "round_robin"

    def __call__(
        self, resources: ResourceRequest, snapshot: Snapshot, hosts: HostIndices, offers: Offers
    ) -> NDArray[np.float64]:
        """Return the score of each offer, 0 to 1."""
        return 1.0 / (1.0 + snapshot.uses[hosts].astype(np.float64))


class HistoryScore:
    """Prefers hosts where jobs ran faster than expected, on this kind of GPU under this leaf. 0.5: as expected."""

    name = "history"

    def __call__(
        self, resources: ResourceRequest, snapshot: Snapshot, hosts: HostIndices, offers: Offers
    ) -> NDArray[np.float64]:
        """Return the score of each offer, 0 to 1."""
        return np.minimum(np.maximum(snapshot.speed[hosts] / 2.0, 0.0), 1.0)


class TemperatureFilter:
    """Removes GPUs above the temperature limit until they have cooled down."""

    code = ReasonCode.TOO_HOT
    can_change_by = ChangeKind.HEALTH
    is_screened = True

    def applies_to(self, query: HostQuery) -> bool:
        """Applies only to requests with GPUs."""
        return query.wants_gpus

    def __call__(self, query: HostQuery, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        """Return for each of ``hosts`` the GPUs that may serve, as a set of bits."""
        return snapshot.all_gpus[hosts] & ~snapshot.hot[hosts]
