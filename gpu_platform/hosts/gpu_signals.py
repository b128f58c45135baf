"""What NVML says about one GPU's health, in the terms of the fault policy. Unsupported means: nothing wrong."""

from __future__ import annotations

from typing import Any

Nvml = Any
"""See ``gpu_platform.hosts.nvml``."""


def uncorrectable_ecc(nvml: Nvml, handle: object) -> int:
    """Uncorrectable errors since the driver was loaded or the GPU reset; 0 where there is no ECC."""
    return _ecc(nvml, handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)


def correctable_ecc(nvml: Nvml, handle: object) -> int:
    return _ecc(nvml, handle, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED)


def _ecc(nvml: Nvml, handle: object, kind: int) -> int:
    try:
        return nvml.nvmlDeviceGetTotalEccErrors(handle, kind, nvml.NVML_VOLATILE_ECC)
    except unsupported(nvml):
        return 0


def row_remapping(nvml: Nvml, handle: object) -> tuple[bool, bool]:
    """(waits for a reset, has failed). Nothing is said by GPUs before Ampere, or with MIG instances."""
    try:
        _, _, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)
    except unsupported(nvml):
        return False, False
    return bool(pending), bool(failed)


def recovery_action(nvml: Nvml, handle: object) -> int:
    """What the driver itself wants: ``NVML_GPU_RECOVERY_ACTION_…``, NVML field 230; 0 is nothing."""
    try:
        value = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])[0]
    except unsupported(nvml):
        return 0
    return value.value.uiVal if value.nvmlReturn == nvml.NVML_SUCCESS else 0


def unsupported(nvml: Nvml) -> tuple[type[Exception], ...]:
    """What NVML raises for a question that this GPU or this driver does not know."""
    return (
        nvml.NVMLError_NotSupported,
        nvml.NVMLError_FunctionNotFound,
        nvml.NVMLError_InvalidArgument,
        nvml.NVMLError_NoPermission,
    )
