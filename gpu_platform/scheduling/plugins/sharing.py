"""Filters for shares of GPUs, CPUs and memory: which GPUs can be shared, and what is left of them.

A GPU is given to one job as a whole, or shared in one mode: MIG instances for everybody, MPS shares or time slices
within one namespace. Time slices are used where there is no MPS, or where they are asked for by name.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.hosts.gpu import GpuInfo
from gpu_platform.domain.hosts.share import Share, ShareMode
from gpu_platform.domain.jobs.placement import ReasonCode
from gpu_platform.scheduling.cluster.shared_gpus import MODES, as_sets
from gpu_platform.scheduling.cluster.snapshot import ChangeKind, GpuSets, HostIndices, Snapshot
from gpu_platform.scheduling.placing.framework import HostQuery
from gpu_platform.topology.mig import mig_model

_MIG, _MPS, _TIME_SLICE = (MODES.index(mode) for mode in (ShareMode.MIG, ShareMode.MPS, ShareMode.TIME_SLICE))


class SharingSupportedFilter:
    """Keeps GPUs whose model has the MIG profile. For other shares: GPUs of hosts that support the mode."""

    code = ReasonCode.SHARING_UNSUPPORTED
    can_change_by = ChangeKind.FACTS
    is_screened = True

    def applies_to(self, query: HostQuery) -> bool:
        """Applies only to shares."""
        return query.resources.share is not None

    def __call__(self, query: HostQuery, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        """Return for each of ``hosts`` the GPUs that may serve, as a set of bits."""
        share = _share(query)
        able = snapshot.matching((share.mig_profile, share.memory_mib), lambda gpu: _can_ever(gpu, share))
        gpus = able[snapshot.machine[hosts]]
        if share.mode is not ShareMode.MPS:
            return gpus
        return np.where(snapshot.mps[hosts], gpus, np.uint64(0))


class SameTenantFilter:
    """Removes shared GPUs with another mode or, without MIG, another namespace."""

    code = ReasonCode.SHARED_BY_ANOTHER
    can_change_by = ChangeKind.USE
    is_screened = True

    def applies_to(self, query: HostQuery) -> bool:
        """Applies only to shares."""
        return query.resources.share is not None

    def __call__(self, query: HostQuery, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        """Return for each of ``hosts`` the GPUs that may serve, as a set of bits."""
        shared = snapshot.shared

        def alike() -> NDArray[np.bool_]:
            same_mode = shared.mode[hosts] == _modes(_share(query), snapshot, hosts)[:, None]
            return same_mode & (shared.tenant[hosts] == shared.tenant_number(query.tenant))

        return _whole_or(alike, snapshot, hosts)


class ShareCapacityFilter:
    """Keeps GPUs that have enough left: percent and memory, or a place for the MIG instance."""

    code = ReasonCode.TOO_LITTLE_SHARE
    can_change_by = ChangeKind.USE
    is_screened = True

    def applies_to(self, query: HostQuery) -> bool:
        """Applies only to shares."""
        return query.resources.share is not None

    def __call__(self, query: HostQuery, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        """Return for each of ``hosts`` the GPUs that may serve, as a set of bits."""
        return _whole_or(lambda: _has_room(_share(query), snapshot, hosts), snapshot, hosts)


class HostCapacityFilter:
    """Keeps hosts with enough CPUs, or memory.

    ``can_change_by`` FACTS: it counts all that the host has. USE: it counts what no job holds.
    """

    is_screened = True

    def __init__(self, code: ReasonCode, can_change_by: ChangeKind, reserve: int = 0) -> None:
        """``reserve``: CPUs or MiB that no job gets."""
        self.code, self.can_change_by, self._reserve = code, can_change_by, reserve
        self._of_memory = code is ReasonCode.RAM

    def applies_to(self, query: HostQuery) -> bool:
        """Applies only if the request asks for CPUs, or for memory."""
        return self._asked(query) > 0

    def __call__(self, query: HostQuery, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        """Return for each of ``hosts`` the GPUs that may serve, as a set of bits."""
        of_memory = self._of_memory
        left = (snapshot.ram_mib if of_memory else snapshot.cpus)[hosts] - self._reserve
        if self.can_change_by is ChangeKind.USE:
            used = snapshot.ram_mib_used if of_memory else snapshot.cpus_used
            held = snapshot.ram_mib_held if of_memory else snapshot.cpus_held
            left = left - used[hosts] - held[hosts]
        return np.where(left >= self._asked(query), query.all_gpus(snapshot, hosts), np.uint64(0))

    def _asked(self, query: HostQuery) -> int:
        return query.resources.ram_mib_per_host if self._of_memory else query.resources.cpus_per_host


def _whole_or(fits: Callable[[], NDArray[np.bool_]], snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
    """Return for each of ``hosts`` the GPUs that nobody shares, and the shared ones for which ``fits`` says True."""
    all_gpus, partly = snapshot.all_gpus[hosts], snapshot.shared.partly[hosts]
    return all_gpus & (~partly | as_sets(fits())) if partly.any() else all_gpus


def _share(query: HostQuery) -> Share:
    assert query.resources.share is not None, "asked only where it concerns"
    return query.resources.share


def _can_ever(gpu: GpuInfo, share: Share) -> bool:
    if share.mig_profile is None:
        return gpu.memory_mib >= (share.memory_mib or 0)
    model = mig_model(gpu.model) if gpu.mig_capable else None
    return model is not None and model.profile(share.mig_profile) is not None


def _modes(share: Share, snapshot: Snapshot, hosts: HostIndices) -> NDArray[np.int64]:
    """Return the mode in which each host would give the share."""
    if share.mig_profile is not None:
        return np.full(len(hosts), _MIG)
    mps = snapshot.mps[hosts] & (share.mode is not ShareMode.TIME_SLICE)
    return np.where(mps, _MPS, _TIME_SLICE)


def _has_room(share: Share, snapshot: Snapshot, hosts: HostIndices) -> NDArray[np.bool_]:
    """Return [hosts, width]: which shared GPUs have enough left. They must be shared in the mode that is asked for."""
    shared, machine = snapshot.shared, snapshot.machine[hosts]
    if share.mig_profile is not None:
        starts = snapshot.facts.mig_starts(share.mig_profile)
        return starts[snapshot.facts.mig_model[machine], shared.mig[hosts]] >= 0
    enough = shared.percent[hosts] <= 100 - (share.percent or 0)
    memory = snapshot.facts.memory_mib[machine]
    return enough & (shared.memory_mib[hosts] + (share.memory_mib or 0) <= memory)
