"""A host takes work only while it is READY, a GPU only while it works and is free."""

from __future__ import annotations

import numpy as np

from gpu_platform.domain.placement import ReasonCode
from gpu_platform.scheduling.framework import Ask
from gpu_platform.scheduling.snapshot import Change, GpuSets, Slots, Snapshot


class HostReady:
    code = ReasonCode.HOST_NOT_READY
    lifted_by = Change.HEALTH

    def __call__(self, ask: Ask, snapshot: Snapshot, hosts: Slots) -> GpuSets:
        return np.where(snapshot.ready[hosts], snapshot.everything[hosts], np.uint64(0))


class Working:
    code = ReasonCode.UNHEALTHY
    lifted_by = Change.HEALTH

    def __call__(self, ask: Ask, snapshot: Snapshot, hosts: Slots) -> GpuSets:
        return snapshot.working[hosts]


class Free:
    """Free in the store, and not promised to a proposal that is on its way there."""

    code = ReasonCode.BUSY
    lifted_by = Change.USE

    def __call__(self, ask: Ask, snapshot: Snapshot, hosts: Slots) -> GpuSets:
        return snapshot.free[hosts] & ~snapshot.held[hosts]
