"""Filters on windows: a job that asks for an advance reservation gets its GPUs only, and others keep out of it."""

from __future__ import annotations

import numpy as np

from gpu_platform.domain.jobs.placement import ReasonCode
from gpu_platform.scheduling.cluster.snapshot import ChangeKind, GpuSets, HostIndices, Snapshot
from gpu_platform.scheduling.placing.framework import HOST_ITSELF, HostQuery


class ReservationFilter:
    """Keeps what belongs to the advance reservation for which the job asks, whether that is open or not."""

    code = ReasonCode.RESERVATION
    can_change_by = ChangeKind.HEALTH
    """An operator makes and changes windows. It never means that a job is too large for the cluster."""
    is_screened = True

    def applies_to(self, query: HostQuery) -> bool:
        """Applies only to jobs that ask for one."""
        return query.resources.reservation is not None

    def __call__(self, query: HostQuery, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        """Return for each of ``hosts`` the GPUs that may serve, as a set of bits."""
        kept = snapshot.windows.kept(query.resources.reservation or "")
        if query.wants_gpus:
            return kept.gpus[hosts]
        return np.where(kept.whole[hosts] | (kept.gpus[hosts] != 0), HOST_ITSELF, np.uint64(0))


class WindowFilter:
    """Removes what windows keep from the job now: see ``Windows.answer``."""

    code = ReasonCode.WINDOW
    can_change_by = ChangeKind.HEALTH
    is_screened = True

    def applies_to(self, query: HostQuery) -> bool:
        """Applies only if a window keeps the job out of anything."""
        return query.closed is not None

    def __call__(self, query: HostQuery, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        """Return for each of ``hosts`` the GPUs that may serve, as a set of bits."""
        closed = query.closed or frozenset()
        if query.wants_gpus:
            return snapshot.all_gpus[hosts] & ~snapshot.windows.closed_gpus(closed, hosts)
        return np.where(snapshot.windows.closed_hosts(closed, hosts), np.uint64(0), HOST_ITSELF)
