"""A host takes work only while it is READY, a GPU only while it works and is free."""

from __future__ import annotations

import numpy as np

from gpu_platform.domain.placement import ReasonCode
from gpu_platform.scheduling.cluster.snapshot import Change, GpuSets, HostIndices, Snapshot
from gpu_platform.scheduling.placing.framework import Ask


class HostReadyFilter:
    code = ReasonCode.HOST_NOT_READY
    can_change_by = Change.HEALTH

    def concerns(self, ask: Ask) -> bool:
        return True

    def __call__(self, ask: Ask, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        return np.where(snapshot.ready[hosts], ask.everything(snapshot, hosts), np.uint64(0))


class Working:
    code = ReasonCode.UNHEALTHY
    can_change_by = Change.HEALTH

    def concerns(self, ask: Ask) -> bool:
        return ask.wants_gpus

    def __call__(self, ask: Ask, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        return snapshot.working[hosts]


class Free:
    """Free in the store, and not promised to a proposal that is on its way there; for a share, or shared."""

    code = ReasonCode.BUSY
    can_change_by = Change.USE

    def concerns(self, ask: Ask) -> bool:
        return ask.wants_gpus

    def __call__(self, ask: Ask, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        free = snapshot.free[hosts] & ~snapshot.held[hosts]
        return free if ask.request.share is None else free | snapshot.shared.partly[hosts]
