"""Simulates a host's GPUs: an object with the functions of ``pynvml`` that we use.

It has the same names, argument order, return types, constants and exceptions (taken from ``pynvml`` itself), so the
code above uses it as it uses the real library. A machine description says what the GPUs are. Faults come from files
in the control directory (``fault_injection``), so that any process can cause one. Temperature, power and utilisation
depend on whether a living process was given the GPU (:meth:`SimulatedNvml.add_process`).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Concatenate, ParamSpec, TypeVar

from gpu_platform.hosts.nvml.fault_injection import (
    GpuCondition,
    condition_path,
    events_dir,
    read_condition,
    reset_all_conditions,
    reset_condition,
    write_gpu_count,
)
from gpu_platform.hosts.nvml.lazy_pynvml import pynvml
from gpu_platform.hosts.nvml.library import NvmlLibrary
from gpu_platform.hosts.nvml.simulated_events import SimulatedEventSet
from gpu_platform.hosts.nvml.simulated_gpu import POWER_LIMITS_MW, SimulatedGpu
from gpu_platform.hosts.nvml.simulated_mig import SimulatedMig, read_state, reset_state
from gpu_platform.hosts.system.process_tree import read_stat
from gpu_platform.topology.description import MachineDescription, nvlink_ports, simulated_uuid
from gpu_platform.topology.mig import mig_model

_P = ParamSpec("_P")
_T = TypeVar("_T")

DRIVER_VERSION = "580.65.06"
CUDA_VERSION = 13000
_IDLE_C, _BUSY_C = 34, 61
_IDLE_MW, _BUSY_MW = 72_000, 540_000


def _on_gpu(
    function: Callable[Concatenate[SimulatedNvml, SimulatedGpu, _P], _T],
) -> Callable[Concatenate[SimulatedNvml, SimulatedGpu, _P], _T]:
    """Wraps a function of NVML so that it fails on a lost GPU, as NVML does."""

    def checked(self: SimulatedNvml, handle: SimulatedGpu, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        self._condition(handle)
        return function(self, handle, *args, **kwargs)

    return checked


class SimulatedNvml(SimulatedMig, NvmlLibrary):
    """Thread-safe, like NVML. ``control_dir`` belongs to this host alone."""

    has_device_nodes = False
    runs_cuda = False
    must_close_to_reset = False

    def __init__(self, description: MachineDescription, host: str, control_dir: Path) -> None:
        self.description = description
        self.host = host
        self.control_dir = control_dir
        self.mig_capable = description.gpu.mig_capable
        self.mig_model = mig_model(description.gpu.model) if self.mig_capable else None
        self.compute_capability = description.gpu.compute_capability
        self._gpus = [SimulatedGpu(slot.index, simulated_uuid(host, slot.index)) for slot in description.gpus]
        self._by_uuid = {gpu.uuid: gpu for gpu in self._gpus}
        self._ports = nvlink_ports(description)
        self._lock = threading.RLock()
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

    @_on_gpu
    def nvmlDeviceGetUUID(self, handle: SimulatedGpu) -> str:
        return handle.uuid

    @_on_gpu
    def nvmlDeviceGetIndex(self, handle: SimulatedGpu) -> int:
        return handle.index

    @_on_gpu
    def nvmlDeviceGetMinorNumber(self, handle: SimulatedGpu) -> int:
        return handle.index

    @_on_gpu
    def nvmlDeviceGetName(self, handle: SimulatedGpu) -> str:
        return self.description.gpu.model

    @_on_gpu
    def nvmlDeviceGetSerial(self, handle: SimulatedGpu) -> str:
        return str(1_650_000_000_000 + int(handle.uuid[-8:], 16))

    @_on_gpu
    def nvmlDeviceGetMemoryInfo(self, handle: SimulatedGpu) -> Any:
        total = self.description.gpu.memory_mib << 20
        used = (self._busy_bytes if self._is_busy(handle) else 0) + (512 << 20)
        return SimpleNamespace(total=total, used=used, free=total - used)

    @_on_gpu
    def nvmlDeviceGetCudaComputeCapability(self, handle: SimulatedGpu) -> tuple[int, int]:
        major, minor = self.description.gpu.compute_capability.split(".")
        return int(major), int(minor)

    @_on_gpu
    def nvmlDeviceGetPciInfo(self, handle: SimulatedGpu) -> Any:
        return _pci_info(self._bus_id(handle.index))

    @_on_gpu
    def nvmlDeviceGetTopologyCommonAncestor(self, handle: SimulatedGpu, other: SimulatedGpu) -> int:
        a, b = self.description.gpus[handle.index], self.description.gpus[other.index]
        if a.pcie_switch is not None and a.pcie_switch == b.pcie_switch:
            return pynvml.NVML_TOPOLOGY_MULTIPLE
        return pynvml.NVML_TOPOLOGY_NODE if a.numa_node == b.numa_node else pynvml.NVML_TOPOLOGY_SYSTEM

    @_on_gpu
    def nvmlDeviceGetP2PStatus(self, handle: SimulatedGpu, other: SimulatedGpu, index: int) -> int:
        if index == pynvml.NVML_P2P_CAPS_INDEX_NVLINK:
            pair = {handle.index, other.index}
            linked = any({link.a, link.b} == pair for link in self.description.links)
            return pynvml.NVML_P2P_STATUS_OK if linked else pynvml.NVML_P2P_STATUS_NOT_SUPPORTED
        return pynvml.NVML_P2P_STATUS_OK

    @_on_gpu
    def nvmlDeviceGetNvLinkState(self, handle: SimulatedGpu, link: int) -> int:
        self._port(handle, link)
        up = link >= handle.condition.nvlinks_down
        return pynvml.NVML_FEATURE_ENABLED if up else pynvml.NVML_FEATURE_DISABLED

    @_on_gpu
    def nvmlDeviceGetNvLinkVersion(self, handle: SimulatedGpu, link: int) -> int:
        self._port(handle, link)
        return getattr(pynvml, f"NVML_NVLINK_VERSION_{self.description.nvlink_generation or 2}_0")

    @_on_gpu
    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: SimulatedGpu, link: int) -> int:
        direct = self._port(handle, link) is not None
        return pynvml.NVML_NVLINK_DEVICE_TYPE_GPU if direct else pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH

    @_on_gpu
    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: SimulatedGpu, link: int) -> Any:
        peer = self._port(handle, link)
        return _pci_info(f"0000:f{link % 6}:00.0" if peer is None else self._bus_id(peer))

    @_on_gpu
    def nvmlDeviceGetTemperature(self, handle: SimulatedGpu, sensor: int) -> int:
        if handle.condition.temperature_c is not None:
            return handle.condition.temperature_c
        return (_BUSY_C if self._is_busy(handle) else _IDLE_C) + handle.index % 4

    @_on_gpu
    def nvmlDeviceGetPowerUsage(self, handle: SimulatedGpu) -> int:
        return min(_BUSY_MW if self._utilization(handle) else _IDLE_MW, handle.power_limit_mw)

    @_on_gpu
    def nvmlDeviceGetTotalEnergyConsumption(self, handle: SimulatedGpu) -> int:
        with self._lock:
            now = time.monotonic()
            handle.energy_mj += self.nvmlDeviceGetPowerUsage(handle) * (now - handle.energy_at_s)
            handle.energy_at_s = now
            return int(handle.energy_mj)

    @_on_gpu
    def nvmlDeviceGetPowerManagementLimit(self, handle: SimulatedGpu) -> int:
        return handle.power_limit_mw

    @_on_gpu
    def nvmlDeviceGetPowerManagementDefaultLimit(self, handle: SimulatedGpu) -> int:
        return POWER_LIMITS_MW[1]

    @_on_gpu
    def nvmlDeviceGetPowerManagementLimitConstraints(self, handle: SimulatedGpu) -> list[int]:
        return list(POWER_LIMITS_MW)

    @_on_gpu
    def nvmlDeviceSetPowerManagementLimit(self, handle: SimulatedGpu, limit_mw: int) -> None:
        lowest, highest = POWER_LIMITS_MW
        if not lowest <= limit_mw <= highest:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        handle.power_limit_mw = limit_mw

    @_on_gpu
    def nvmlDeviceGetUtilizationRates(self, handle: SimulatedGpu) -> Any:
        percent = self._utilization(handle)
        return SimpleNamespace(gpu=percent, memory=percent * 6 // 10)

    @_on_gpu
    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: SimulatedGpu) -> int:
        if handle.condition.clock_reasons is not None:
            return handle.condition.clock_reasons
        return 0 if self._utilization(handle) else pynvml.nvmlClocksEventReasonGpuIdle

    @_on_gpu
    def nvmlDeviceGetTotalEccErrors(self, handle: SimulatedGpu, error_type: int, counter_type: int) -> int:
        corrected = error_type == pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED
        return handle.condition.corrected_ecc if corrected else handle.condition.uncorrected_ecc

    @_on_gpu
    def nvmlDeviceGetRemappedRows(self, handle: SimulatedGpu) -> tuple[int, int, int, int]:
        return 0, 0, int(handle.condition.remap_pending), int(handle.condition.remap_failed)

    @_on_gpu
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

    @_on_gpu
    def nvmlDeviceGetRowRemapperHistogram(self, handle: SimulatedGpu) -> Any:
        spent = 2 if handle.condition.remap_exhausted else 0
        return SimpleNamespace(max=640 - spent, high=0, partial=0, low=0, none=spent)

    @_on_gpu
    def nvmlDeviceGetSramEccErrorStatus(self, handle: SimulatedGpu, status: Any) -> int:
        status._obj.bThresholdExceeded = handle.condition.sram_threshold
        return pynvml.NVML_SUCCESS

    @_on_gpu
    def nvmlDeviceGetRepairStatus(self, handle: SimulatedGpu) -> list[int]:
        return [int(handle.condition.repair_pending), 0]

    @_on_gpu
    def nvmlDeviceGetGpuFabricInfoV(self, handle: SimulatedGpu, info: Any) -> int:
        if not isinstance(self.description.nvlink, dict):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        info._obj.state = pynvml.NVML_GPU_FABRIC_STATE_COMPLETED
        info._obj.status = handle.condition.fabric_status
        return pynvml.NVML_SUCCESS

    @_on_gpu
    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: SimulatedGpu) -> int:
        return handle.condition.pcie_width

    @_on_gpu
    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: SimulatedGpu) -> int:
        return 16

    @_on_gpu
    def nvmlDeviceGetComputeRunningProcesses(self, handle: SimulatedGpu) -> list[Any]:
        pids = handle.living()
        return [SimpleNamespace(pid=pid, usedGpuMemory=self._busy_bytes // len(pids)) for pid in pids]

    @_on_gpu
    def nvmlDeviceGetProcessUtilization(self, handle: SimulatedGpu, since_us: int) -> list[Any]:
        """Divide the GPU's utilisation evenly among its processes."""
        if read_state(self.control_dir, handle.index).mig:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        pids, now_us = handle.living(), time.time_ns() // 1000
        if not pids or not self._utilization(handle) or since_us >= now_us:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        percent = max(1, self._utilization(handle) // len(pids))
        return [SimpleNamespace(pid=pid, timeStamp=now_us, smUtil=percent, memUtil=percent // 2) for pid in pids]

    @_on_gpu
    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: SimulatedGpu) -> list[Any]:
        return []

    @_on_gpu
    def nvmlDeviceGetSupportedEventTypes(self, handle: SimulatedGpu) -> int:
        return pynvml.nvmlEventTypeXidCriticalError

    def nvmlEventSetCreate(self) -> SimulatedEventSet:
        return SimulatedEventSet(events_dir(self.control_dir))

    @_on_gpu
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

    def _condition(self, gpu: SimulatedGpu) -> GpuCondition:
        """The GPU's condition, read again if the file was replaced. Raises GPU_IS_LOST."""
        try:
            stat = os.stat(condition_path(self.control_dir, gpu.index))
            stamp = (stat.st_ino, stat.st_mtime_ns)
        except FileNotFoundError:
            stamp = None
        if stamp != gpu.stamp:
            with self._lock:
                gpu.condition, gpu.stamp = read_condition(self.control_dir, gpu.index), stamp
        if gpu.condition.lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return gpu.condition

    def _utilization(self, gpu: SimulatedGpu) -> int:
        if gpu.condition.utilization_percent is not None:
            return gpu.condition.utilization_percent
        return 97 if self._is_busy(gpu) else 0

    @property
    def _busy_bytes(self) -> int:
        return (self.description.gpu.memory_mib << 20) // 10 * 7

    def _is_busy(self, gpu: SimulatedGpu) -> bool:
        return bool(gpu.living())

    def _bus_id(self, index: int) -> str:
        return self.description.gpus[index].pci_bus_id or f"0000:{index + 1:02x}:00.0"

    def _port(self, gpu: SimulatedGpu, link: int) -> int | None:
        """The GPU at the other end of a link. None: a switch. Raises for a link that the GPU does not have."""
        ports = self._ports[gpu.index]
        if not 0 <= link < len(ports):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT if ports else pynvml.NVML_ERROR_NOT_SUPPORTED)
        return ports[link]


def _pci_info(bus_id: str) -> Any:
    domain, bus, device = bus_id.split(".")[0].split(":")
    return SimpleNamespace(
        busId=f"{domain.zfill(8)}:{bus}:{device}.0".upper(),
        domain=int(domain, 16),
        bus=int(bus, 16),
        device=int(device, 16),
    )
