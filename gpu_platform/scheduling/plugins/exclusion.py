"""A new attempt stays off the GPUs and hosts that failed an earlier one."""

from __future__ import annotations

import numpy as np

from gpu_platform.domain.placement import ReasonCode
from gpu_platform.scheduling.cluster.snapshot import ChangeKind, GpuSets, HostIndices, Snapshot
from gpu_platform.scheduling.placing.framework import HostQuery


class ExclusionFilter:
    code = ReasonCode.EXCLUDED
    can_change_by = ChangeKind.HEALTH
    """Of the platform's own making: an exclusion never means that a job is too large for the cluster."""

    def applies_to(self, query: HostQuery) -> bool:
        return bool(query.excluded)

    def __call__(self, query: HostQuery, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        excluded = [query.excluded.get(host, 0) for host in hosts.tolist()]
        return query.all_gpus(snapshot, hosts) & ~np.array(excluded, np.uint64)
