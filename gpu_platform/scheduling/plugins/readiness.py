"""A host takes work only while it is READY, a GPU only while it works and is free."""

from __future__ import annotations

import numpy as np

from gpu_platform.domain.placement import ReasonCode
from gpu_platform.scheduling.cluster.snapshot import ChangeKind, GpuSets, HostIndices, Snapshot
from gpu_platform.scheduling.placing.framework import HostQuery


class HostReadyFilter:
    code = ReasonCode.HOST_NOT_READY
    can_change_by = ChangeKind.HEALTH

    def applies_to(self, query: HostQuery) -> bool:
        return True

    def __call__(self, query: HostQuery, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        return np.where(snapshot.ready[hosts], query.all_gpus(snapshot, hosts), np.uint64(0))


class HealthyGpuFilter:
    code = ReasonCode.UNHEALTHY
    can_change_by = ChangeKind.HEALTH

    def applies_to(self, query: HostQuery) -> bool:
        return query.wants_gpus

    def __call__(self, query: HostQuery, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        return snapshot.working[hosts]


class FreeGpuFilter:
    """Free in the store, and not promised to a proposal that is on its way there; for a share, or shared."""

    code = ReasonCode.BUSY
    can_change_by = ChangeKind.USE

    def applies_to(self, query: HostQuery) -> bool:
        return query.wants_gpus

    def __call__(self, query: HostQuery, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        free = snapshot.free[hosts] & ~snapshot.held[hosts]
        return free if query.request.share is None else free | snapshot.shared.partly[hosts]
