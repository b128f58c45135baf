"""What the health monitor keeps of each GPU."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from gpu_platform.domain.hosts.gpu import GpuHealth, GpuInfo
from gpu_platform.domain.hosts.lease import GpuTelemetry
from gpu_platform.node.health import conditions
from gpu_platform.node.health.conditions import TemperatureLimit, ThrottleDetector
from gpu_platform.node.health.fault_policy import Condition
from gpu_platform.node.nvml.gpu_signals import ErrorCounts, GpuReader, HardwareStatus, Reading


@dataclass
class WatchedGpu:
    """One GPU as the monitor knows it."""

    info: GpuInfo
    reader: GpuReader | None = None
    event_handle: Any = None
    """The handle with which the GPU was registered for XIDs. A lost GPU cannot be asked for its uuid."""
    reading: Reading | None = None
    lost: str | None = None
    """Why it does not answer. None: it answers."""
    is_silent: bool = False
    """A call of NVML for it has not returned: nothing else is asked about it."""
    temperature_limit: TemperatureLimit = field(default_factory=lambda: TemperatureLimit(85))
    throttle: ThrottleDetector = field(default_factory=ThrottleDetector)
    counts: ErrorCounts | None = None
    ecc_totals: dict[str, int] = field(default_factory=dict)
    """``corrected`` and ``uncorrected`` errors so far. The GPU's own counters begin at 0 after a reset, and a reset
    follows an error within seconds."""
    hardware_status: HardwareStatus | None = None
    nvlinks: int = 0
    """The most NVLinks that were ever up."""
    standing: set[int | str] = field(default_factory=set)
    """Conditions that were reported and still hold."""
    baselines: dict[Condition, int] = field(default_factory=dict)
    """Condition -> its counter at the last report."""
    xids: dict[int, int] = field(default_factory=dict)
    """XID -> when it was last seen, Unix ms."""
    xid_counts: dict[int, int] = field(default_factory=dict)
    """XID -> how often it came since the node worker started."""
    fatal: set[int] = field(default_factory=set)
    """XIDs that the kernel's log has called fatal since the last reset."""
    killed_at_ms: int = 0
    """When the platform last killed what ran on it, Unix ms."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while a fault is reported, because two threads report."""


def count_ecc_errors(gpu: WatchedGpu, counts: ErrorCounts) -> None:
    """Add what has come since the last reading of the counters. Call it before they are stored."""
    for kind in ("corrected", "uncorrected"):
        before = 0 if gpu.counts is None else getattr(gpu.counts, f"{kind}_ecc")
        count = getattr(counts, f"{kind}_ecc")
        gpu.ecc_totals[kind] = gpu.ecc_totals.get(kind, 0) + (count - before if count >= before else count)


def reason_against_work(gpu: WatchedGpu) -> str | None:
    """Why the GPU should get no new work for now. None: it may."""
    if gpu.lost is not None or gpu.temperature_limit.why is not None:
        return gpu.lost or gpu.temperature_limit.why
    if gpu.throttle.holds and gpu.reading is not None:
        return conditions.throttled_because(gpu.reading)
    return next((why for condition, why in conditions.KEEPS_WORK_AWAY.items() if condition in gpu.standing), None)


def health_of(gpu: WatchedGpu) -> GpuHealth:
    """All that is known of the GPU now."""
    reading, counts, hardware_status = gpu.reading, gpu.counts, gpu.hardware_status
    found = GpuHealth(problem=reason_against_work(gpu), xids=dict(gpu.xid_counts), nvlinks_best=gpu.nvlinks)
    if reading is not None:
        fast = ("temperature_c", "power_w", "utilization_percent", "memory_used_mib", "energy_j")
        fields = {name: getattr(reading, name) for name in fast}
        found = found.model_copy(update={**fields, "throttled_by": reading.throttle_reasons})
    if counts is not None:
        errors = ("corrected_ecc", "uncorrected_ecc", "remapped_rows", "remap_pending", "remap_failed")
        fields = {name: getattr(counts, name) for name in (*errors, "nvlink_errors", "pcie_replays")}
        found = found.model_copy(update=fields)
    if hardware_status is not None:
        slow = ("nvlinks_up", "fabric_problem", "pcie_width", "pcie_max_width", "power_limit_w")
        fields = {name: getattr(hardware_status, name) for name in slow}
        found = found.model_copy(update={**fields, "spare_rows_exhausted": hardware_status.remap_exhausted})
    return found


def telemetry_of(uuid: str, reading: Reading | None) -> GpuTelemetry:
    """The reading in the form in which a host reports it. Empty without a reading."""
    if reading is None:
        return GpuTelemetry(uuid=uuid)
    return GpuTelemetry(
        uuid=uuid,
        temperature_c=reading.temperature_c,
        power_w=reading.power_w,
        utilization_percent=reading.utilization_percent,
        memory_used_mib=reading.memory_used_mib,
    )
