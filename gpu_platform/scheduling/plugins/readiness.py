"""Filters on the state of hosts and GPUs: a host must be READY, a GPU must work and be free."""

from __future__ import annotations

import numpy as np

from gpu_platform.domain.jobs.placement import ReasonCode
from gpu_platform.scheduling.cluster.snapshot import ChangeKind, GpuSets, HostIndices, Snapshot
from gpu_platform.scheduling.placing.framework import HostQuery


class HostReadyFilter:
    """Keeps hosts that are READY."""

    code = ReasonCode.HOST_NOT_READY
    can_change_by = ChangeKind.HEALTH
    is_screened = True

    def applies_to(self, query: HostQuery) -> bool:
        """Applies always."""
        return True

    def __call__(self, query: HostQuery, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        """Return for each of ``hosts`` the GPUs that may serve, as a set of bits."""
        return np.where(snapshot.ready[hosts], query.all_gpus(snapshot, hosts), np.uint64(0))


class HealthyGpuFilter:
    """Keeps GPUs in working order: not DEGRADED, RESETTING or OFFLINE."""

    code = ReasonCode.UNHEALTHY
    can_change_by = ChangeKind.HEALTH
    is_screened = True

    def applies_to(self, query: HostQuery) -> bool:
        """Applies only to requests with GPUs."""
        return query.wants_gpus

    def __call__(self, query: HostQuery, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        """Return for each of ``hosts`` the GPUs that may serve, as a set of bits."""
        return snapshot.working[hosts]


class FreeGpuFilter:
    """Keeps GPUs that are free in the store and in no proposal. For a share, GPUs that are shared already pass, too."""

    code = ReasonCode.BUSY
    can_change_by = ChangeKind.USE
    is_screened = True

    def applies_to(self, query: HostQuery) -> bool:
        """Applies only to requests with GPUs."""
        return query.wants_gpus

    def __call__(self, query: HostQuery, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        """Return for each of ``hosts`` the GPUs that may serve, as a set of bits."""
        free = snapshot.available(hosts)
        return free if query.resources.share is None else free | snapshot.shared.partly[hosts]
