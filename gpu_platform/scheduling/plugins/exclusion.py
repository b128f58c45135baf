"""A new attempt does not use the GPUs and hosts on which an earlier attempt failed."""

from __future__ import annotations

import numpy as np

from gpu_platform.domain.jobs.placement import ReasonCode
from gpu_platform.scheduling.cluster.snapshot import ChangeKind, GpuSets, HostIndices, Snapshot
from gpu_platform.scheduling.placing.framework import HostQuery


class ExclusionFilter:
    """Removes the GPUs that the job must not get."""

    code = ReasonCode.EXCLUDED
    is_screened = True
    can_change_by = ChangeKind.HEALTH
    """HEALTH, not FACTS: an exclusion ends after a while. It never means that a job is too large for the cluster."""

    def applies_to(self, query: HostQuery) -> bool:
        """Applies only if the job has exclusions."""
        return bool(query.excluded)

    def __call__(self, query: HostQuery, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        """Return for each of ``hosts`` the GPUs that may serve, as a set of bits."""
        excluded = [query.excluded.get(host, 0) for host in hosts.tolist()]
        return query.all_gpus(snapshot, hosts) & ~np.array(excluded, np.uint64)
