"""Resets a GPU and proves that it works again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from gpu_platform.domain.errors import PreflightFailed
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.node.nvml.gpu_signals import recovery_action, row_remapping, uncorrectable_ecc
from gpu_platform.node.nvml.library import NvmlLibrary

_NEEDS_ITS_PEERS = re.compile(r"nvlink|must (also )?be (reset|included)", re.IGNORECASE)
"""nvidia-smi(1), ``--gpu-reset``: before Ampere, and on NVSwitch systems of Ampere while Fabric Manager does not run,
GPUs with NVLink connections must be reset in one command, and an error names those that are missing."""


def reset_gpu(nvml: NvmlLibrary, uuid: str, *, timeout_s: float) -> None:
    """Reset one GPU; see :meth:`NvmlLibrary.reset_gpu`.

    Needs root, and no process on the device. Raises :class:`PreflightFailed`, with ``details["needs_operator"]`` if
    this machine cannot reset the GPU alone: trying again does not help.
    """
    problem = nvml.reset_gpu(uuid, timeout_s)
    if problem is None:
        return
    if _NEEDS_ITS_PEERS.search(problem):
        raise _unfit(
            uuid,
            "it cannot be reset alone, but only together with the GPUs that NVLink connects it with: that takes a "
            f"drained host and nvidia-smi --gpu-reset there without -i ({problem})",
            needs_operator=True,
        )
    raise _unfit(uuid, f"reset failed: {problem}")


def verify_gpu(nvml: NvmlLibrary, uuid: str) -> None:
    """Raise :class:`PreflightFailed` unless the GPU answers and reports nothing that forbids work.

    It checks presence, temperature, volatile uncorrectable ECC, failed row remapping and the driver's own recovery
    action (field 230). Values that a GPU does not support are not held against it.
    """
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
    except nvml.NVMLError as error:
        raise _unfit(uuid, f"NVML says: {error}") from None
    if uncorrectable_ecc(nvml, handle):
        raise _unfit(uuid, "uncorrectable ECC errors since the last reset")
    if row_remapping(nvml, handle)[1]:
        raise _unfit(uuid, "row remapping failed; the GPU must be replaced")
    if action := recovery_action(nvml, handle):
        raise _unfit(uuid, f"the driver asks for recovery action {action}")


def processes_on(nvml: NvmlLibrary, uuid: str) -> set[int]:
    """Pids with a compute or graphics context, as NVML lists them. Empty for a GPU that does not answer."""
    return compute_processes_on(nvml, uuid) | _pids(nvml, uuid, nvml.nvmlDeviceGetGraphicsRunningProcesses)


def compute_processes_on(nvml: NvmlLibrary, uuid: str) -> set[int]:
    """Pids with a compute context, without those of a desktop."""
    return _pids(nvml, uuid, nvml.nvmlDeviceGetComputeRunningProcesses)


def _pids(nvml: NvmlLibrary, uuid: str, ask: Callable[[object], Iterable[Any]]) -> set[int]:
    try:
        return {process.pid for process in ask(nvml.nvmlDeviceGetHandleByUUID(uuid))}
    except nvml.NVMLError:
        return set()


def _unfit(uuid: str, problem: str, *, needs_operator: bool = False) -> PreflightFailed:
    more = {"needs_operator": True} if needs_operator else {}
    return PreflightFailed(f"GPU {uuid}: {problem}", kind=blame(FailureCause.GPU_UNFIT), gpu_uuid=uuid, **more)
