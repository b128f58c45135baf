"""What NVML says about one GPU, in the terms of health and accounting. Unsupported means: nothing wrong."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

Nvml = Any
"""See ``gpu_platform.hosts.nvml``."""

_ASK_AGAIN_S = 60.0
"""What a GPU does not support may become answerable: row remapping is not while it has MIG instances."""
_SLOWED = ("HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown")
"""Clock event reasons that tell of heat or missing power (nvml.h, ``nvmlClocksEventReason…``)."""


class Reading(NamedTuple):
    """What changes fast. None: this GPU or driver cannot tell."""

    at_s: float
    """Monotonic clock."""
    temperature_c: int
    utilization_percent: int | None = None
    power_w: float | None = None
    memory_used_mib: int | None = None
    is_throttled: bool = False
    """Its clocks are lowered by heat, the power brake or a hardware slowdown."""
    energy_j: float | None = None
    """Since the driver was loaded."""


class GpuReader:
    """Readings of one GPU. A question that it does not support is asked again only once a minute."""

    def __init__(self, nvml: Nvml, handle: object) -> None:
        self.handle = handle
        self._nvml = nvml
        self._unsupported = unsupported(nvml)
        self._silent_until: dict[str, float] = {}
        self._steady: tuple[float | None, int | None, bool, float | None] = (None, None, False, None)
        self._slowed = sum(getattr(nvml, f"nvmlClocksEventReason{name}") for name in _SLOWED)

    def read(self, *, all_of_it: bool = True) -> Reading:
        """Raises ``NVMLError``. Not ``all_of_it``: only temperature and utilisation are new."""
        nvml = self._nvml
        temperature = nvml.nvmlDeviceGetTemperature(self.handle, nvml.NVML_TEMPERATURE_GPU)
        rates = self.ask("nvmlDeviceGetUtilizationRates")
        if all_of_it:
            self._steady = self._read_steady()
        return Reading(time.monotonic(), temperature, None if rates is None else rates.gpu, *self._steady)

    def ask(self, function: str, *args: object) -> Any:
        """None when the GPU or the driver does not know the question. Raises ``NVMLError`` for all else."""
        if self._silent_until.get(function, 0.0) > time.monotonic():
            return None
        try:
            return getattr(self._nvml, function)(self.handle, *args)
        except self._unsupported:
            self._silent_until[function] = time.monotonic() + _ASK_AGAIN_S
            return None

    def _read_steady(self) -> tuple[float | None, int | None, bool, float | None]:
        power = self.ask("nvmlDeviceGetPowerUsage")
        memory = self.ask("nvmlDeviceGetMemoryInfo")
        reasons = self.ask("nvmlDeviceGetCurrentClocksEventReasons")
        energy = self.ask("nvmlDeviceGetTotalEnergyConsumption")
        return (
            None if power is None else power / 1000,
            None if memory is None else memory.used >> 20,
            bool((reasons or 0) & self._slowed),
            None if energy is None else energy / 1000,
        )


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
