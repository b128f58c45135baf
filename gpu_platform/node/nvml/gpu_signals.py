"""Reads one GPU through NVML, as health and accounting need it. A value that is not supported means: nothing is
wrong."""

from __future__ import annotations

import ctypes
import time
from typing import Any, NamedTuple

from gpu_platform.node.nvml.library import NvmlLibrary
from gpu_platform.node.nvml.sm_activity import SmActivity

_ASK_AGAIN_S = 60.0
"""Seconds after which an unsupported question is asked again: e.g. row remapping is unknown only while MIG is in
use."""
THROTTLE_REASONS = {0x8: "hw_slowdown", 0x20: "sw_thermal", 0x40: "hw_thermal", 0x80: "power_brake"}
"""Clock event reasons that mean heat or too little power (nvml.h, ``nvmlClocksEventReason…``)."""
_SLOWED = sum(THROTTLE_REASONS)
_NVLINK_ERRORS = (
    "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
    "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
    "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
)


class Reading(NamedTuple):
    """Values that change fast. None: this GPU or driver does not report the value."""

    at_s: float
    """When it was read, in monotonic seconds."""
    temperature_c: int
    utilization_percent: int | None = None
    power_w: float | None = None
    memory_used_mib: int | None = None
    """What programs use, without the memory that the driver reserves for itself."""
    clock_reasons: int = 0
    """``nvmlClocksEventReason…`` bits."""
    energy_j: float | None = None
    """Joules since the driver was loaded."""
    sm_activity_percent: float | None = None
    """Percentage of SMs that were busy in the last seconds, see :class:`SmActivity`."""

    @property
    def is_throttled(self) -> bool:
        """True if its clocks are lowered by heat, the power brake or a hardware slowdown."""
        return bool(self.clock_reasons & _SLOWED)

    @property
    def throttle_reasons(self) -> list[str]:
        """Why its clocks are lowered now, in the words of :data:`THROTTLE_REASONS`."""
        return [name for bit, name in THROTTLE_REASONS.items() if self.clock_reasons & bit]


class ErrorCounts(NamedTuple):
    """Counters that show faults, since the driver was loaded or the GPU was reset. 0: none, or not supported."""

    corrected_ecc: int
    uncorrected_ecc: int
    remapped_rows: int
    remap_pending: bool
    remap_failed: bool
    recovery_action: int
    """What the driver asks for: ``NVML_GPU_RECOVERY_ACTION_…``."""
    nvlink_errors: int
    """Replays, recoveries and flits with a wrong checksum, over all links."""
    pcie_replays: int


class HardwareStatus(NamedTuple):
    """Values that change rarely and take longer to read."""

    sram_threshold: bool
    """There were so many uncorrectable SRAM errors that the GPU should be replaced."""
    remap_exhausted: bool
    """A memory bank has no spare rows left."""
    pages_pending: bool
    """Page retirement (before Ampere) waits for a reset."""
    repair_pending: bool
    nvlinks_up: int
    fabric_problem: str | None
    """On NVSwitch systems: why this GPU is not part of the NVLink fabric."""
    pcie_width: int | None
    pcie_max_width: int | None
    power_limit_w: float | None


class GpuReader:
    """Reads one GPU. A question that it does not support is asked again only once a minute."""

    def __init__(self, nvml: NvmlLibrary, handle: object) -> None:
        self.handle = handle
        self._nvml = nvml
        self._unsupported = unsupported(nvml)
        self._silent_until: dict[str, float] = {}
        self._tells_reserved = True
        """The driver knows version 2 of ``nvmlDeviceGetMemoryInfo``, which tells reserved memory apart (R510)."""
        self._sm_activity = SmActivity(nvml, handle)
        self._steady: tuple[float | None, int | None, int, float | None, float | None] = (None, None, 0, None, None)

    def read(self, *, all_of_it: bool = True) -> Reading:
        """Read what changes fast. ``all_of_it`` False: only temperature and utilisation are new. Raises
        ``NVMLError``."""
        nvml = self._nvml
        temperature = nvml.nvmlDeviceGetTemperature(self.handle, nvml.NVML_TEMPERATURE_GPU)
        rates = self.ask("nvmlDeviceGetUtilizationRates")
        if all_of_it:
            self._steady = self._read_steady()
        return Reading(time.monotonic(), temperature, None if rates is None else rates.gpu, *self._steady)

    def read_errors(self) -> ErrorCounts:
        """Read the error counters. Raises ``NVMLError``."""
        nvml = self._nvml
        kinds = nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        ecc = [self.ask("nvmlDeviceGetTotalEccErrors", kind, nvml.NVML_VOLATILE_ECC) or 0 for kind in kinds]
        corrected, uncorrected, pending, failed = self.ask("nvmlDeviceGetRemappedRows") or (0, 0, 0, 0)
        asked = [
            nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
            nvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER,
            *(getattr(self._nvml, name) for name in _NVLINK_ERRORS),
        ]
        answers = self.ask("nvmlDeviceGetFieldValues", asked) or []
        values = [_unsigned(nvml, answer) for answer in answers] or [0] * len(asked)
        return ErrorCounts(
            corrected_ecc=ecc[0],
            uncorrected_ecc=ecc[1],
            remapped_rows=corrected + uncorrected,
            remap_pending=bool(pending),
            remap_failed=bool(failed),
            recovery_action=values[0],
            nvlink_errors=sum(values[2:]),
            pcie_replays=values[1],
        )

    def read_hardware_status(self) -> HardwareStatus:
        """Read what rarely changes. Raises ``NVMLError``, but only for a GPU that is lost or must be reset."""
        limit = self._ask_or_none("nvmlDeviceGetPowerManagementLimit")
        rows = self._ask_or_none("nvmlDeviceGetRowRemapperHistogram")
        sram = self._nvml.c_nvmlEccSramErrorStatus_v1_t()
        self._ask_or_none("nvmlDeviceGetSramEccErrorStatus", ctypes.byref(sram))
        return HardwareStatus(
            sram_threshold=bool(sram.bThresholdExceeded),
            remap_exhausted=rows is not None and rows.none > 0,
            pages_pending=bool(self._ask_or_none("nvmlDeviceGetRetiredPagesPendingStatus")),
            repair_pending=any(self._ask_or_none("nvmlDeviceGetRepairStatus") or ()),
            nvlinks_up=self._nvlinks_up(),
            fabric_problem=self._fabric_problem(),
            pcie_width=self._ask_or_none("nvmlDeviceGetCurrPcieLinkWidth"),
            pcie_max_width=self._ask_or_none("nvmlDeviceGetMaxPcieLinkWidth"),
            power_limit_w=None if limit is None else limit / 1000,
        )

    def _nvlinks_up(self) -> int:
        up = 0
        for link in range(self._nvml.NVML_NVLINK_MAX_LINKS):
            try:
                up += self._nvml.nvmlDeviceGetNvLinkState(self.handle, link) == self._nvml.NVML_FEATURE_ENABLED
            except self._unsupported:  # the GPU has no such link
                break
        return up

    def _fabric_problem(self) -> str | None:
        nvml = self._nvml
        info = nvml.c_nvmlGpuFabricInfoV_t()
        self._ask_or_none("nvmlDeviceGetGpuFabricInfoV", ctypes.byref(info))
        if info.state != nvml.NVML_GPU_FABRIC_STATE_COMPLETED:
            return None  # no NVSwitch, or Fabric Manager has not finished yet
        if info.status != nvml.NVML_SUCCESS:
            return f"Fabric Manager ended with NVML error {info.status}"
        bandwidth = info.healthMask >> nvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW
        is_degraded = nvml.NVML_GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_TRUE
        if bandwidth & nvml.NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_DEGRADED_BW == is_degraded:
            return "its bandwidth is degraded"
        return None

    def _ask_or_none(self, function: str, *args: object) -> Any:
        """As :meth:`ask`, but also None if the driver fails. Raises only for a GPU that is lost or must be reset."""
        try:
            return self.ask(function, *args)
        except self._nvml.NVMLError as error:
            if error.value in (self._nvml.NVML_ERROR_GPU_IS_LOST, self._nvml.NVML_ERROR_RESET_REQUIRED):
                raise
            self._silent_until[function] = time.monotonic() + _ASK_AGAIN_S
            return None

    def ask(self, function: str, *args: object) -> Any:
        """Call a function of NVML for this GPU. None: the GPU or driver does not support it. Raises ``NVMLError``
        for all else."""
        if self._silent_until.get(function, 0.0) > time.monotonic():
            return None
        try:
            return getattr(self._nvml, function)(self.handle, *args)
        except self._unsupported:
            self._silent_until[function] = time.monotonic() + _ASK_AGAIN_S
            return None

    def _read_steady(self) -> tuple[float | None, int | None, int, float | None, float | None]:
        power = self.ask("nvmlDeviceGetPowerUsage")
        memory = self._memory_used()
        reasons = self.ask("nvmlDeviceGetCurrentClocksEventReasons")
        energy = self.ask("nvmlDeviceGetTotalEnergyConsumption")
        return (
            None if power is None else power / 1000,
            None if memory is None else memory >> 20,
            reasons or 0,
            None if energy is None else energy / 1000,
            self._sm_activity.percent(time.monotonic()),
        )

    def _memory_used(self) -> int | None:
        """Bytes that programs use. Version 1 of the question counts the memory that the driver reserves for itself as
        used: 480 MiB on an empty H100, 615 MiB on an H200 (driver 580.159.04). So it is the second choice."""
        nvml = self._nvml
        if self._tells_reserved:
            try:
                return nvml.nvmlDeviceGetMemoryInfo(self.handle, version=nvml.nvmlMemory_v2).used
            except (nvml.NVMLError_FunctionNotFound, nvml.NVMLError_ArgumentVersionMismatch):
                self._tells_reserved = False
            except self._unsupported:
                return None
        memory = self.ask("nvmlDeviceGetMemoryInfo")
        return None if memory is None else memory.used


def _unsigned(nvml: NvmlLibrary, answer: Any) -> int:
    """The value of one field in the type that NVML says. 0 if it is not supported."""
    if answer.nvmlReturn != nvml.NVML_SUCCESS:
        return 0
    long = answer.valueType in (nvml.NVML_VALUE_TYPE_UNSIGNED_LONG, nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG)
    return answer.value.ullVal if long else answer.value.uiVal


def uncorrectable_ecc(nvml: NvmlLibrary, handle: object) -> int:
    """Uncorrectable errors since the driver was loaded or the GPU reset; 0 where there is no ECC."""
    try:
        return nvml.nvmlDeviceGetTotalEccErrors(handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
    except unsupported(nvml):
        return 0


def row_remapping(nvml: NvmlLibrary, handle: object) -> tuple[bool, bool]:
    """(a remapping waits for a reset, a remapping has failed). Both False before Ampere, or with MIG instances."""
    try:
        _, _, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)
    except unsupported(nvml):
        return False, False
    return bool(pending), bool(failed)


def recovery_action(nvml: NvmlLibrary, handle: object) -> int:
    """What the driver asks for: ``NVML_GPU_RECOVERY_ACTION_…``, NVML field 230. 0 means nothing."""
    try:
        value = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])[0]
    except unsupported(nvml):
        return 0
    return value.value.uiVal if value.nvmlReturn == nvml.NVML_SUCCESS else 0


def unsupported(nvml: NvmlLibrary) -> tuple[type[Exception], ...]:
    """The exceptions that NVML raises for a question that this GPU or driver does not support."""
    return (
        nvml.NVMLError_NotSupported,
        nvml.NVMLError_FunctionNotFound,
        nvml.NVMLError_InvalidArgument,
        nvml.NVMLError_NoPermission,
    )
