"""Filters on what a GPU is (model, memory, compute capability), on its host's CUDA, and on the number of GPUs."""

from __future__ import annotations

import numpy as np

from gpu_platform.domain.hosts.gpu import GpuInfo
from gpu_platform.domain.jobs.placement import ReasonCode
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.placing.capacity import mismatch
from gpu_platform.scheduling.cluster.snapshot import ChangeKind, GpuSets, HostIndices, Snapshot
from gpu_platform.scheduling.placing.framework import HostQuery


class GpuFactFilter:
    """Checks one requirement on the GPU itself, named by ``code``: see ``capacity.mismatch``. It is checked once per
    machine type, not per host."""

    can_change_by = ChangeKind.FACTS
    is_screened = True

    def __init__(self, code: ReasonCode) -> None:
        self.code = code

    def applies_to(self, query: HostQuery) -> bool:
        """Applies only if the request names this requirement."""
        return bool(_ASKED[self.code](query.resources))

    def __call__(self, query: HostQuery, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        """Return for each of ``hosts`` the GPUs that may serve, as a set of bits."""
        only = _ONLY[self.code](query.resources)

        def accepts(gpu: GpuInfo) -> bool:
            return mismatch(gpu, only) is None

        question = (only.model, only.exclude_model, only.memory_mib, only.min_compute_capability)
        return snapshot.matching(question, accepts)[snapshot.machine[hosts]]


class CudaFilter:
    """Keeps hosts that have the CUDA version. Hosts do not report versions that their driver cannot run."""

    code = ReasonCode.NO_CUDA
    can_change_by = ChangeKind.FACTS
    is_screened = True

    def applies_to(self, query: HostQuery) -> bool:
        """Applies only if the request names a CUDA version."""
        return query.resources.cuda is not None

    def __call__(self, query: HostQuery, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        """Return for each of ``hosts`` the GPUs that may serve, as a set of bits."""
        bits = snapshot.cuda_bits(query.resources.cuda or "")
        return np.where(snapshot.cuda[hosts] & bits, query.all_gpus(snapshot, hosts), np.uint64(0))


class IsolationFilter:
    """Keeps hosts whose kernel isolates ranks."""

    code = ReasonCode.NOT_ISOLATED
    can_change_by = ChangeKind.FACTS
    is_screened = True

    def applies_to(self, query: HostQuery) -> bool:
        """Applies only to jobs that require isolation."""
        return query.resources.isolated

    def __call__(self, query: HostQuery, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        """Return for each of ``hosts`` the GPUs that may serve, as a set of bits."""
        return np.where(snapshot.isolates[hosts], query.all_gpus(snapshot, hosts), np.uint64(0))


class GpuCountFilter:
    """Removes nothing. It is the reason for hosts that had too few GPUs from the start."""

    code = ReasonCode.TOO_FEW_GPUS
    can_change_by = ChangeKind.FACTS
    is_screened = True

    def applies_to(self, query: HostQuery) -> bool:
        """Applies only to requests with GPUs."""
        return query.wants_gpus

    def __call__(self, query: HostQuery, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        """Return for each of ``hosts`` the GPUs that may serve, as a set of bits."""
        return snapshot.all_gpus[hosts]


_ASKED = {
    ReasonCode.OTHER_MODEL: lambda asked: asked.model is not None or asked.exclude_model,
    ReasonCode.TOO_LITTLE_MEMORY: lambda asked: asked.memory_mib,
    ReasonCode.COMPUTE_CAPABILITY: lambda asked: asked.min_compute_capability is not None,
}
_ONLY = {
    ReasonCode.OTHER_MODEL: lambda asked: ResourceRequest(
        gpus_per_host=1, model=asked.model, exclude_model=asked.exclude_model
    ),
    ReasonCode.TOO_LITTLE_MEMORY: lambda asked: ResourceRequest(gpus_per_host=1, memory_mib=asked.memory_mib),
    ReasonCode.COMPUTE_CAPABILITY: lambda asked: ResourceRequest(
        gpus_per_host=1, min_compute_capability=asked.min_compute_capability
    ),
}
