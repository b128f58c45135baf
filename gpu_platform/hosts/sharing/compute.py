"""Who may have a context on a GPU (compute mode), and how long its turns are (time slices)."""

from __future__ import annotations

from typing import Literal

from gpu_platform.hosts.nvml.gpu_signals import unsupported
from gpu_platform.hosts.nvml.opening import Nvml
from gpu_platform.hosts.nvml.simulated_nvml import SimulatedNvml
from gpu_platform.hosts.sharing.tools import run_tool

TimeSlice = Literal["default", "short", "medium", "long"]
_SETTINGS: dict[TimeSlice, int] = {"default": 0, "short": 1, "medium": 2, "long": 3}


def set_exclusive(nvml: Nvml, gpu_uuid: str, exclusive: bool) -> None:
    """EXCLUSIVE_PROCESS or DEFAULT. Changes nothing where the GPU cannot, or we may not (no root)."""
    wanted = nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS if exclusive else nvml.NVML_COMPUTEMODE_DEFAULT
    try:
        device = nvml.nvmlDeviceGetHandleByUUID(gpu_uuid)
        if nvml.nvmlDeviceGetComputeMode(device) != wanted:
            nvml.nvmlDeviceSetComputeMode(device, wanted)
    except (*unsupported(nvml), nvml.NVMLError_NoPermission):
        return


def set_time_slice(nvml: Nvml, gpu_uuid: str, length: TimeSlice) -> None:
    """``nvidia-smi compute-policy``: NVML has no such call. Raises :class:`HostUnavailable`."""
    if isinstance(nvml, SimulatedNvml):
        return
    run_tool(["nvidia-smi", "compute-policy", "-i", gpu_uuid, f"--set-timeslice={_SETTINGS[length]}"])
