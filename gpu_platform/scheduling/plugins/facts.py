"""What a GPU is: model, memory, compute capability; what its host has: CUDA. And whether it has enough at all."""

from __future__ import annotations

import numpy as np

from gpu_platform.domain.capacity import mismatch
from gpu_platform.domain.gpu import GpuInfo
from gpu_platform.domain.job import GpuRequest
from gpu_platform.domain.placement import ReasonCode
from gpu_platform.scheduling.cluster.snapshot import Change, GpuSets, HostIndices, Snapshot
from gpu_platform.scheduling.placing.framework import Ask


class Fact:
    """Asked once per machine type, not per host. ``code`` says which requirement: see ``capacity.mismatch``."""

    can_change_by = Change.FACTS

    def __init__(self, code: ReasonCode) -> None:
        self.code = code

    def concerns(self, ask: Ask) -> bool:
        return bool(_ASKED[self.code](ask.request))

    def __call__(self, ask: Ask, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        only = _ONLY[self.code](ask.request)

        def accepts(gpu: GpuInfo) -> bool:
            return mismatch(gpu, only) is None

        question = (only.model, only.memory_mib, only.min_compute_capability)
        return snapshot.matching(question, accepts)[snapshot.machine[hosts]]


class CudaFilter:
    """The host has the CUDA installation; those that its driver cannot run were never reported."""

    code = ReasonCode.NO_CUDA
    can_change_by = Change.FACTS

    def concerns(self, ask: Ask) -> bool:
        return ask.request.cuda is not None

    def __call__(self, ask: Ask, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        bits = snapshot.cuda_bits(ask.request.cuda or "")
        return np.where(snapshot.cuda[hosts] & bits, ask.everything(snapshot, hosts), np.uint64(0))


class GpuCountFilter:
    """Lets everything through: hosts fail here that had too few GPUs from the start."""

    code = ReasonCode.TOO_FEW_GPUS
    can_change_by = Change.FACTS

    def concerns(self, ask: Ask) -> bool:
        return ask.wants_gpus

    def __call__(self, ask: Ask, snapshot: Snapshot, hosts: HostIndices) -> GpuSets:
        return snapshot.everything[hosts]


_ASKED = {
    ReasonCode.OTHER_MODEL: lambda asked: asked.model is not None,
    ReasonCode.TOO_LITTLE_MEMORY: lambda asked: asked.memory_mib,
    ReasonCode.COMPUTE_CAPABILITY: lambda asked: asked.min_compute_capability is not None,
}
_ONLY = {
    ReasonCode.OTHER_MODEL: lambda asked: GpuRequest(gpus_per_host=1, model=asked.model),
    ReasonCode.TOO_LITTLE_MEMORY: lambda asked: GpuRequest(gpus_per_host=1, memory_mib=asked.memory_mib),
    ReasonCode.COMPUTE_CAPABILITY: lambda asked: GpuRequest(
        gpus_per_host=1, min_compute_capability=asked.min_compute_capability
    ),
}
