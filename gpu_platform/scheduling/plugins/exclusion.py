"""A new attempt stays off the GPUs and hosts that failed an earlier one."""

from __future__ import annotations

import numpy as np

from gpu_platform.domain.placement import ReasonCode
from gpu_platform.scheduling.cluster.snapshot import Change, GpuSets, HostIndices, Snapshot
from gpu_platform.scheduling.placing.framework import Ask


class ExclusionFilter:
    code = ReasonCode.EXCLUDED
    can_change_by = Change.HEALTH
    """Of the platform's own making: an exclusion never means that a job is too large for the cluster."""

    def concerns(self, ask: Ask) -> bool:
        return bool(ask.excluded)

    def __call__(self, ask: Ask, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        excluded = [ask.excluded.get(host, 0) for host in hosts.tolist()]
        return ask.everything(snapshot, hosts) & ~np.array(excluded, np.uint64)
