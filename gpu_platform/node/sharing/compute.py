"""Who may have a context on a GPU (compute mode), and how long its turns are (time slices)."""

from __future__ import annotations

from typing import Literal

from gpu_platform.node.nvml.gpu_signals import unsupported
from gpu_platform.node.nvml.library import NvmlLibrary

TimeSlice = Literal["default", "short", "medium", "long"]
_SETTINGS: dict[TimeSlice, int] = {"default": 0, "short": 1, "medium": 2, "long": 3}


def set_exclusive(nvml: NvmlLibrary, gpu_uuid: str, exclusive: bool) -> None:
    """Set the compute mode to EXCLUSIVE_PROCESS or DEFAULT. Does nothing if the GPU or our rights do not allow it."""
    wanted = nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS if exclusive else nvml.NVML_COMPUTEMODE_DEFAULT
    try:
        device = nvml.nvmlDeviceGetHandleByUUID(gpu_uuid)
        if nvml.nvmlDeviceGetComputeMode(device) != wanted:
            nvml.nvmlDeviceSetComputeMode(device, wanted)
    except (*unsupported(nvml), nvml.NVMLError_NoPermission):
        return


def set_time_slice(nvml: NvmlLibrary, gpu_uuid: str, length: TimeSlice) -> None:
    """Set how long the turns of processes on the GPU are. Raises :class:`HostUnavailable`."""
    nvml.set_time_slice(gpu_uuid, _SETTINGS[length])
