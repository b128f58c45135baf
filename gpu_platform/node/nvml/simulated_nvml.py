"""Simulates a host's GPUs: an object with the functions of ``pynvml`` that we use.

It has the same names, argument order, return types, constants and exceptions (taken from ``pynvml`` itself), so the
code above uses it as it uses the real library. A machine description says what the GPUs are. Faults come from files
in the control directory (``fault_injection``), so that any process can cause one. Temperature, power and utilisation
depend on whether a living process was given the GPU (:meth:`SimulatedNvml.add_process`).
"""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gpu_platform.node.nvml.fault_injection import (
    events_dir,
    reset_all_conditions,
    reset_condition,
    write_gpu_count,
)
from gpu_platform.node.nvml.lazy_pynvml import pynvml
from gpu_platform.node.nvml.library import NvmlLibrary
from gpu_platform.node.nvml.simulated_connections import SimulatedConnections
from gpu_platform.node.nvml.simulated_events import SimulatedEventSet
from gpu_platform.node.nvml.simulated_gpu import POWER_LIMITS_MW, SimulatedGpu, on_gpu
from gpu_platform.node.nvml.simulated_mig import SimulatedMig, read_state, reset_state
from gpu_platform.node.system.process_tree import read_stat
from gpu_platform.topology.description import MachineDescription
from gpu_platform.topology.mig import mig_model

DRIVER_VERSION = "580.65.06"
CUDA_VERSION = 13000
_IDLE_C, _BUSY_C = 34, 61
_IDLE_MW, _BUSY_MW = 72_000, 540_000


class SimulatedNvml(SimulatedMig, SimulatedConnections, NvmlLibrary):
    """Thread-safe, like NVML. ``control_dir`` belongs to this host alone."""

    has_device_nodes = False
    runs_cuda = False
    must_close_to_reset = False

    def __init__(self, description: MachineDescription, host: str, control_dir: Path) -> None:
        super().__init__(description, host, control_dir)
        self.mig_capable = description.gpu.mig_capable
        self.mig_model = mig_model(description.gpu.model) if self.mig_capable else None
        self.compute_capability = description.gpu.compute_capability
        events_dir(control_dir).mkdir(parents=True, exist_ok=True)
        write_gpu_count(control_dir, len(self._gpus))

    def __getattr__(self, name: str) -> Any:
        """Constants and exceptions are those of pynvml. A function that is not simulated looks as if this driver
        lacked it."""
        value = getattr(pynvml, name)
        if callable(value) and not isinstance(value, type):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return value

    @property
    def described_machine(self) -> MachineDescription:
        """The description that its GPUs are made from."""
        return self.description

    def add_process(self, uuid: str, pid: int) -> None:
        """Note that the process computes on the GPU until it ends."""
        if (stat := read_stat(pid)) is not None:
            self._by_uuid[uuid].processes.add(stat.process)

    def simulate_work(self, uuid: str, *, begins: bool) -> None:
        """Note that a rank without a process begins or ends to work on the GPU."""
        with self._lock:
            gpu = self._by_uuid[uuid]
            gpu.simulated_work = max(0, gpu.simulated_work + (1 if begins else -1))

    def reset_gpu(self, uuid: str, timeout_s: float = 0.0) -> str | None:
        """Reset the simulated GPU. Returns why it failed, or None."""
        index = self._by_uuid[uuid].index
        problem = reset_condition(self.control_dir, index)
        if problem is None:
            reset_state(self.control_dir, index)
        return problem

    def reset_all_gpus(self, timeout_s: float = 0.0) -> str | None:
        """Reset all simulated GPUs. Returns why it failed for some of them, or None."""
        failed = reset_all_conditions(self.control_dir)
        return "; ".join(f"GPU {index}: {why}" for index, why in failed.items()) or None

    def set_time_slice(self, uuid: str, setting: int) -> None:
        """Does nothing: nothing computes on a simulated GPU, so it has no time slices."""

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None: ...

    def nvmlSystemGetDriverVersion(self) -> str:
        return DRIVER_VERSION

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return CUDA_VERSION

    def nvmlDeviceGetCount(self) -> int:
        return len(self._gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> SimulatedGpu:
        if not 0 <= index < len(self._gpus):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        self._condition(self._gpus[index])
        return self._gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> SimulatedGpu:
        if uuid not in self._by_uuid:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        self._condition(self._by_uuid[uuid])
        return self._by_uuid[uuid]

    @on_gpu
    def nvmlDeviceGetUUID(self, handle: SimulatedGpu) -> str:
        return handle.uuid

    @on_gpu
    def nvmlDeviceGetIndex(self, handle: SimulatedGpu) -> int:
        return handle.index

    @on_gpu
    def nvmlDeviceGetMinorNumber(self, handle: SimulatedGpu) -> int:
        return handle.index

    @on_gpu
    def nvmlDeviceGetName(self, handle: SimulatedGpu) -> str:
        return self.description.gpu.model

    @on_gpu
    def nvmlDeviceGetSerial(self, handle: SimulatedGpu) -> str:
        return str(1_650_000_000_000 + int(handle.uuid[-8:], 16))

    @on_gpu
    def nvmlDeviceGetMemoryInfo(self, handle: SimulatedGpu, version: int | None = None) -> Any:
        """Version 1 counts the memory that the driver reserves for itself as used; version 2 tells it apart."""
        total, reserved = self.description.gpu.memory_mib << 20, 512 << 20
        used = self._busy_bytes if self._is_busy(handle) else 0
        free = total - used - reserved
        if version is None:
            return SimpleNamespace(total=total, used=used + reserved, free=free)
        return SimpleNamespace(version=version, total=total, reserved=reserved, used=used, free=free)

    @on_gpu
    def nvmlDeviceGetCudaComputeCapability(self, handle: SimulatedGpu) -> tuple[int, int]:
        major, minor = self.description.gpu.compute_capability.split(".")
        return int(major), int(minor)

    @on_gpu
    def nvmlDeviceGetTemperature(self, handle: SimulatedGpu, sensor: int) -> int:
        if handle.condition.temperature_c is not None:
            return handle.condition.temperature_c
        return (_BUSY_C if self._is_busy(handle) else _IDLE_C) + handle.index % 4

    @on_gpu
    def nvmlDeviceGetPowerUsage(self, handle: SimulatedGpu) -> int:
        return min(_BUSY_MW if self._utilization(handle) else _IDLE_MW, handle.power_limit_mw)

    @on_gpu
    def nvmlDeviceGetTotalEnergyConsumption(self, handle: SimulatedGpu) -> int:
        with self._lock:
            now = time.monotonic()
            handle.energy_mj += self.nvmlDeviceGetPowerUsage(handle) * (now - handle.energy_at_s)
            handle.energy_at_s = now
            return int(handle.energy_mj)

    @on_gpu
    def nvmlDeviceGetPowerManagementLimit(self, handle: SimulatedGpu) -> int:
        return handle.power_limit_mw

    @on_gpu
    def nvmlDeviceGetPowerManagementDefaultLimit(self, handle: SimulatedGpu) -> int:
        return POWER_LIMITS_MW[1]

    @on_gpu
    def nvmlDeviceGetPowerManagementLimitConstraints(self, handle: SimulatedGpu) -> list[int]:
        return list(POWER_LIMITS_MW)

    @on_gpu
    def nvmlDeviceSetPowerManagementLimit(self, handle: SimulatedGpu, limit_mw: int) -> None:
        lowest, highest = POWER_LIMITS_MW
        if not lowest <= limit_mw <= highest:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        handle.power_limit_mw = limit_mw

    @on_gpu
    def nvmlDeviceGetUtilizationRates(self, handle: SimulatedGpu) -> Any:
        percent = self._utilization(handle)
        return SimpleNamespace(gpu=percent, memory=percent * 6 // 10)

    @on_gpu
    def nvmlGpmQueryDeviceSupport(self, handle: SimulatedGpu) -> Any:
        return SimpleNamespace(isSupportedDevice=0)  # a simulated GPU has no SMs whose work could be measured

    @on_gpu
    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: SimulatedGpu) -> int:
        if handle.condition.clock_reasons is not None:
            return handle.condition.clock_reasons
        return 0 if self._utilization(handle) else pynvml.nvmlClocksEventReasonGpuIdle

    @on_gpu
    def nvmlDeviceGetTotalEccErrors(self, handle: SimulatedGpu, error_type: int, counter_type: int) -> int:
        corrected = error_type == pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED
        return handle.condition.corrected_ecc if corrected else handle.condition.uncorrected_ecc

    @on_gpu
    def nvmlDeviceGetRemappedRows(self, handle: SimulatedGpu) -> tuple[int, int, int, int]:
        return 0, 0, int(handle.condition.remap_pending), int(handle.condition.remap_failed)

    @on_gpu
    def nvmlDeviceGetFieldValues(self, handle: SimulatedGpu, field_ids: list[int]) -> list[Any]:
        condition = handle.condition
        known = {
            pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: condition.recovery_action,
            pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER: condition.pcie_replays,
            pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL: condition.nvlink_errors,
        }
        return [
            SimpleNamespace(
                fieldId=field,
                nvmlReturn=pynvml.NVML_SUCCESS if field in known else pynvml.NVML_ERROR_NOT_SUPPORTED,
                valueType=pynvml.NVML_VALUE_TYPE_UNSIGNED_INT,
                value=SimpleNamespace(uiVal=known.get(field, 0)),
            )
            for field in field_ids
        ]

    @on_gpu
    def nvmlDeviceGetRowRemapperHistogram(self, handle: SimulatedGpu) -> Any:
        spent = 2 if handle.condition.remap_exhausted else 0
        return SimpleNamespace(max=640 - spent, high=0, partial=0, low=0, none=spent)

    @on_gpu
    def nvmlDeviceGetSramEccErrorStatus(self, handle: SimulatedGpu, status: Any) -> int:
        status._obj.bThresholdExceeded = handle.condition.sram_threshold
        return pynvml.NVML_SUCCESS

    @on_gpu
    def nvmlDeviceGetRepairStatus(self, handle: SimulatedGpu) -> list[int]:
        return [int(handle.condition.repair_pending), 0]

    @on_gpu
    def nvmlDeviceGetComputeRunningProcesses(self, handle: SimulatedGpu) -> list[Any]:
        pids = handle.living()
        return [SimpleNamespace(pid=pid, usedGpuMemory=self._busy_bytes // len(pids)) for pid in pids]

    @on_gpu
    def nvmlDeviceGetProcessUtilization(self, handle: SimulatedGpu, since_us: int) -> list[Any]:
        """Divide the GPU's utilisation evenly among its processes."""
        if read_state(self.control_dir, handle.index).mig:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        pids, now_us = handle.living(), time.time_ns() // 1000
        if not pids or not self._utilization(handle) or since_us >= now_us:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        percent = max(1, self._utilization(handle) // len(pids))
        return [SimpleNamespace(pid=pid, timeStamp=now_us, smUtil=percent, memUtil=percent // 2) for pid in pids]

    @on_gpu
    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: SimulatedGpu) -> list[Any]:
        return []

    @on_gpu
    def nvmlDeviceGetSupportedEventTypes(self, handle: SimulatedGpu) -> int:
        return pynvml.nvmlEventTypeXidCriticalError

    def nvmlEventSetCreate(self) -> SimulatedEventSet:
        return SimulatedEventSet(events_dir(self.control_dir))

    @on_gpu
    def nvmlDeviceRegisterEvents(self, handle: SimulatedGpu, types: int, event_set: SimulatedEventSet) -> None:
        if types & pynvml.nvmlEventTypeXidCriticalError:
            event_set.listening.add(handle.index)

    def nvmlEventSetWait_v2(self, event_set: SimulatedEventSet, timeout_ms: int) -> Any:
        event = event_set.wait(timeout_ms / 1000)
        if event is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        index, xid = event
        return SimpleNamespace(
            device=self._gpus[index],
            eventType=pynvml.nvmlEventTypeXidCriticalError,
            eventData=xid,
            gpuInstanceId=0xFFFFFFFF,
            computeInstanceId=0xFFFFFFFF,
        )

    def nvmlEventSetFree(self, event_set: SimulatedEventSet) -> None:
        event_set.close()

    def _utilization(self, gpu: SimulatedGpu) -> int:
        if gpu.condition.utilization_percent is not None:
            return gpu.condition.utilization_percent
        return 97 if self._is_busy(gpu) else 0

    @property
    def _busy_bytes(self) -> int:
        return (self.description.gpu.memory_mib << 20) // 10 * 7

    def _is_busy(self, gpu: SimulatedGpu) -> bool:
        return gpu.simulated_work > 0 or bool(gpu.living())
