"""Filters on the state of hosts and GPUs: a host must be READY, a GPU must work and be free."""

from __future__ import annotations

import numpy as np

from gpu_platform.domain.placing.placement import ReasonCode
from gpu_platform.scheduling.cluster.snapshot import ChangeKind, GpuSets, HostIndices, Snapshot
from gpu_platform.scheduling.placing.framework import HostQuery


class HostReadyFilter:
    """The host is READY."""

    code = ReasonCode.HOST_NOT_READY
    can_change_by = ChangeKind.HEALTH

    def applies_to(self, query: HostQuery) -> bool:
        """Always."""
        return True

    def __call__(self, query: HostQuery, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        return np.where(snapshot.ready[hosts], query.all_gpus(snapshot, hosts), np.uint64(0))


class HealthyGpuFilter:
    """The GPU is in working order."""

    code = ReasonCode.UNHEALTHY
    can_change_by = ChangeKind.HEALTH

    def applies_to(self, query: HostQuery) -> bool:
        """Only for requests with GPUs."""
        return query.wants_gpus

    def __call__(self, query: HostQuery, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        return snapshot.working[hosts]


class FreeGpuFilter:
    """The GPU is free in the store, and no proposal holds it. For a share, a GPU that is shared already passes, too."""

    code = ReasonCode.BUSY
    can_change_by = ChangeKind.USE

    def applies_to(self, query: HostQuery) -> bool:
        """Only for requests with GPUs."""
        return query.wants_gpus

    def __call__(self, query: HostQuery, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        free = snapshot.available(hosts)
        return free if query.request.share is None else free | snapshot.shared.partly[hosts]
