"""Watching a host's GPUs: one thread polls them all, one waits for XIDs.

An NVML error of one GPU is that GPU's alone: the others are polled and listened to as before, and
the one comes back by itself when NVML answers for it again.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import structlog

from gpu_platform.domain.attempt import FaultReport
from gpu_platform.domain.gpu import GpuInfo, HostInventory
from gpu_platform.domain.lease import GpuTelemetry
from gpu_platform.hosts import gpu_signals
from gpu_platform.hosts.fault_policy import COMPANION_MS, Condition, FaultPolicy
from gpu_platform.hosts.gpu_signals import GpuReader, Reading
from gpu_platform.hosts.history import FaultHistory
from gpu_platform.hosts.kernel_log import KernelLog, place_of
from gpu_platform.hosts.nvml import Nvml

log = structlog.get_logger(__name__)

COOL_BY_C = 5
"""A hot GPU takes new work again when it is so far below the limit."""
_STEADY_SIGNALS_S = 0.5
"""Power, memory, clock reasons and energy are asked this often: each question costs."""
_SLOW_SIGNALS_S = 1.0
"""ECC, row remapping and recovery action are asked this often: they change rarely and cost more."""
_EVENT_WAIT_MS = 500
CHANNEL_REMOVED = 45
"""XID 45 follows every kill of a program that computes."""
_XIDS_OF: dict[Condition, frozenset[int]] = {
    "gpu_lost": frozenset({79}),
    "ecc_uncorrectable": frozenset({48, 94, 95, 140}),
    "remap_failed": frozenset({64}),
    "remap_pending": frozenset({63}),
}
"""A condition and these XIDs are one fault when they come within ``COMPANION_MS``."""
_BURST_MS = 1000
"""The driver repeats an XID; within this time on one GPU it is the same fault."""


@dataclass
class _Gpu:
    info: GpuInfo
    reader: GpuReader | None = None
    event_handle: Any = None
    """As registered: a lost GPU cannot be asked for its uuid when its XID comes."""
    reading: Reading | None = None
    lost: str | None = None
    """Why it does not answer."""
    hot: str | None = None
    standing: set[int | str] = field(default_factory=set)
    """Conditions that were reported and still hold."""
    ecc_baseline: int = 0
    """Correctable errors at the last report."""
    xids: dict[int, int] = field(default_factory=dict)
    """XID -> when it was last seen, Unix ms."""
    killed_at_ms: int = 0
    """When we last killed what ran on it."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Both threads report faults."""


class GpuObserver(Protocol):
    def on_reading(self, uuid: str, reading: Reading) -> None: ...

    def on_ecc(self, uuid: str, errors: int) -> None:
        """Corrected and uncorrected ones since the driver was loaded or the GPU reset."""
        ...


class HealthMonitor:
    """``start`` and ``stop`` it once. ``on_fault`` is called in the monitor's threads, once for each fault."""

    def __init__(
        self,
        nvml: Nvml,
        inventory: HostInventory,
        policy: FaultPolicy,
        *,
        host: str,
        on_fault: Callable[[FaultReport], None],
        interval_s: float = 0.1,
        max_temperature_c: int = 85,
        history: FaultHistory | None = None,
        kernel_log: Path | None = None,
    ) -> None:
        self._nvml = nvml
        self._policy = policy
        self._host = host
        self._on_fault = on_fault
        self._interval_s = interval_s
        self._max_temperature_c = max_temperature_c
        self._history = history or FaultHistory()
        self._gpus = [_Gpu(info) for info in inventory.gpus]
        for gpu in self._gpus:
            gpu.standing = self._history.standing(gpu.info.uuid)
        self._slow_every = max(1, round(_SLOW_SIGNALS_S / interval_s))
        self._steady_every = max(1, round(_STEADY_SIGNALS_S / interval_s))
        self._observers: list[GpuObserver] = []
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._kernel_log = None if kernel_log is None else KernelLog(kernel_log)

    def start(self) -> None:
        self._stopping.clear()
        self._threads = [
            threading.Thread(target=self._poll_for_ever, name="gpu-poll", daemon=True),
            threading.Thread(target=self._listen_for_ever, name="gpu-events", daemon=True),
        ]
        if self._kernel_log is not None:
            target = self._follow_kernel_log
            self._threads.append(threading.Thread(target=target, name="gpu-kernel-log", daemon=True))
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self._threads = []

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold no device: a reset of a real GPU fails while NVML has it open, here as anywhere."""
        running = bool(self._threads)
        self.stop()
        for gpu in self._gpus:
            gpu.reader = None
        self._nvml.nvmlShutdown()
        try:
            yield
        finally:
            self._nvml.nvmlInit()
            if running:
                self.start()

    def expect_kill(self, uuids: Iterable[str]) -> None:
        """What runs on these GPUs is being killed now: the driver will report that their channels were removed."""
        wanted = set(uuids)
        for gpu in self._gpus:
            if gpu.info.uuid in wanted:
                gpu.killed_at_ms = _now_ms()

    def was_reset(self, uuid: str) -> None:
        """What the driver reports from now on is news, not an echo of what the reset was for."""
        for gpu in self._gpus:
            if gpu.info.uuid == uuid:
                with gpu.lock:
                    gpu.xids.clear()

    def telemetry(self) -> list[GpuTelemetry]:
        """The newest reading of each GPU; only its uuid while it does not answer."""
        return [_telemetry(gpu.info.uuid, gpu.reading) for gpu in self._gpus]

    def degraded(self) -> dict[str, str]:
        """GPU uuid -> why it should get no new work for now (lost, or too hot)."""
        reasons = {gpu.info.uuid: gpu.lost or gpu.hot for gpu in self._gpus}
        return {uuid: reason for uuid, reason in reasons.items() if reason is not None}

    def observe_with(self, observer: GpuObserver) -> None:
        """From now on ``observer`` gets every reading, in the monitor's thread."""
        self._observers.append(observer)

    def poll_once(self, *, steady_signals: bool = True, slow_signals: bool = True) -> None:
        """One round over all GPUs, as the thread does it."""
        for gpu in self._gpus:
            try:
                if gpu.reader is None:
                    gpu.reader = GpuReader(self._nvml, self._nvml.nvmlDeviceGetHandleByUUID(gpu.info.uuid))
                self._read_fast_signals(gpu, gpu.reader.read(all_of_it=steady_signals or gpu.reading is None))
                if slow_signals:
                    self._read_slow_signals(gpu, gpu.reader)
            except self._nvml.NVMLError as error:
                self._on_error(gpu, error)
            except Exception:
                log.exception("health.poll_failed", gpu=gpu.info.uuid)

    def _poll_for_ever(self) -> None:
        rounds = 0
        next_at = time.monotonic()
        while not self._stopping.is_set():
            self.poll_once(steady_signals=rounds % self._steady_every == 0, slow_signals=rounds % self._slow_every == 0)
            rounds += 1
            next_at = max(next_at + self._interval_s, time.monotonic())
            self._stopping.wait(next_at - time.monotonic())

    def _read_fast_signals(self, gpu: _Gpu, reading: Reading) -> None:
        gpu.reading = reading
        for observer in self._observers:
            observer.on_reading(gpu.info.uuid, reading)
        if gpu.lost is not None:
            log.info("health.gpu_back", gpu=gpu.info.uuid)
            gpu.lost = None
        self._note(gpu, "gpu_lost", False)
        self._note(gpu, "reset_required", False)
        limit, temperature = self._max_temperature_c, reading.temperature_c
        if temperature > limit and gpu.hot is None:
            gpu.hot = f"{temperature} °C, above the limit of {limit} °C; takes work again at {limit - COOL_BY_C} °C"
            log.warning("health.gpu_hot", gpu=gpu.info.uuid, temperature_c=temperature)
        elif gpu.hot is not None and temperature <= limit - COOL_BY_C:
            gpu.hot = None
            log.info("health.gpu_cooled", gpu=gpu.info.uuid, temperature_c=temperature)

    def _read_slow_signals(self, gpu: _Gpu, reader: GpuReader) -> None:
        pending, failed = gpu_signals.row_remapping(self._nvml, reader.handle)
        uncorrectable = gpu_signals.uncorrectable_ecc(self._nvml, reader.handle)
        correctable = gpu_signals.correctable_ecc(self._nvml, reader.handle)
        for observer in self._observers:
            observer.on_ecc(gpu.info.uuid, correctable + uncorrectable)
        gpu.ecc_baseline = min(gpu.ecc_baseline, correctable)  # a reset counts from zero again
        self._note(gpu, "ecc_uncorrectable", uncorrectable > 0, f": {uncorrectable} since the last reset")
        self._note(gpu, "remap_failed", failed)
        self._note(gpu, "remap_pending", pending)
        if correctable - gpu.ecc_baseline >= self._policy.ecc_correctable_threshold:
            self._report(gpu, "ecc_correctable", f": {correctable - gpu.ecc_baseline} more")
            gpu.ecc_baseline = correctable

    def _on_error(self, gpu: _Gpu, error: Any) -> None:
        """NVML refused. Only a GPU that is gone or must be reset is a fault; anything else may pass."""
        gpu.reader = None
        gpu.reading = None
        conditions: dict[int, Condition] = {
            self._nvml.NVML_ERROR_GPU_IS_LOST: "gpu_lost",
            self._nvml.NVML_ERROR_RESET_REQUIRED: "reset_required",
        }
        condition = conditions.get(error.value)
        if gpu.lost is None:
            log.warning("health.gpu_silent", gpu=gpu.info.uuid, error=str(error))
        gpu.lost = f"NVML says: {error}"
        if condition is not None:
            self._note(gpu, condition, True)

    def _listen_for_ever(self) -> None:
        while not self._stopping.is_set():
            try:
                self._listen()
            except self._nvml.NVMLError as error:
                # No GPU is blamed for it: build the event set anew.
                log.warning("health.events_interrupted", error=str(error))
                self._stopping.wait(1.0)
            except Exception:
                log.exception("health.events_failed")
                self._stopping.wait(1.0)

    def _listen(self) -> None:
        nvml = self._nvml
        event_set = nvml.nvmlEventSetCreate()
        try:
            silent = [gpu for gpu in self._gpus if not self._register(gpu, event_set)]
            while not self._stopping.is_set():
                try:
                    event = nvml.nvmlEventSetWait_v2(event_set, _EVENT_WAIT_MS)
                except nvml.NVMLError_Timeout:
                    if any(gpu.lost is None for gpu in silent):
                        return  # one came back: register all anew
                    continue
                gpu = next((gpu for gpu in self._gpus if _same_device(gpu.event_handle, event.device)), None)
                if gpu is not None and event.eventType & nvml.nvmlEventTypeXidCriticalError:
                    self._on_xid(gpu, int(event.eventData))
        finally:
            nvml.nvmlEventSetFree(event_set)

    def _follow_kernel_log(self) -> None:
        """NVML delivers critical XIDs only, and only those that come while it listens."""
        assert self._kernel_log is not None
        by_place = {place_of(gpu.info.pci_bus_id): gpu for gpu in self._gpus if gpu.info.pci_bus_id}
        try:
            for place, xid in self._kernel_log.follow(self._stopping):
                if (gpu := by_place.get(place)) is not None:
                    self._on_xid(gpu, xid)
        except OSError as error:
            log.warning("health.no_kernel_log", error=str(error))

    def _register(self, gpu: _Gpu, event_set: Any) -> bool:
        nvml = self._nvml
        try:
            handle = gpu.event_handle = nvml.nvmlDeviceGetHandleByUUID(gpu.info.uuid)
            types = nvml.nvmlEventTypeXidCriticalError & nvml.nvmlDeviceGetSupportedEventTypes(handle)
            if types:
                nvml.nvmlDeviceRegisterEvents(handle, types, event_set)
        except gpu_signals.unsupported(nvml):
            log.warning("health.no_xid_events", gpu=gpu.info.uuid)
        except nvml.NVMLError as error:
            log.warning("health.not_registered", gpu=gpu.info.uuid, error=str(error))
            return False
        return True

    def _on_xid(self, gpu: _Gpu, xid: int) -> None:
        with gpu.lock:
            now_ms = _now_ms()
            seen_ms = gpu.xids.get(xid, 0)
            gpu.xids[xid] = now_ms
            if now_ms - seen_ms < _BURST_MS:  # repeated by the driver, or told by event set and kernel log
                return
            if xid == CHANNEL_REMOVED and self._is_a_consequence(gpu, now_ms):
                return
            if any(xid in _XIDS_OF.get(condition, ()) for condition in gpu.standing):  # type: ignore[call-overload]
                return
            try:
                recovery = gpu_signals.recovery_action(self._nvml, gpu.event_handle)
            except self._nvml.NVMLError:
                recovery = 0  # it is lost: the table decides
            self._report(gpu, xid, recovery_action=recovery)

    def _is_a_consequence(self, gpu: _Gpu, now_ms: int) -> bool:
        """Of a kill of ours, or of another fault of the same GPU just now."""
        others = [at_ms for xid, at_ms in gpu.xids.items() if xid != CHANNEL_REMOVED]
        return now_ms - max([gpu.killed_at_ms, *others]) <= COMPANION_MS

    def _note(self, gpu: _Gpu, condition: Condition, holds: bool, detail: str = "") -> None:
        """Report a condition when it begins; forget it when it ends."""
        with gpu.lock:
            if not holds and condition in gpu.standing:
                gpu.standing.discard(condition)
                self._history.clear(gpu.info.uuid, condition)
            elif holds and condition not in gpu.standing:
                gpu.standing.add(condition)
                told_ms = max((gpu.xids.get(xid, 0) for xid in _XIDS_OF.get(condition, ())), default=0)
                if _now_ms() - told_ms > COMPANION_MS:
                    self._report(gpu, condition, detail)

    def _report(self, gpu: _Gpu, cause: int | Condition, detail: str = "", recovery_action: int = 0) -> None:
        now_ms = _now_ms()
        uuid = gpu.info.uuid
        action = self._policy.action(
            cause, history=self._history.of(uuid), now_ms=now_ms, recovery_action=recovery_action
        )
        report = FaultReport(
            fault_id=self._history.next_id(uuid),
            host=self._host,
            gpu_uuid=uuid,
            gpu_index=gpu.info.index,
            xid=cause if isinstance(cause, int) else None,
            action=action.value,
            message=f"{self._policy.describe(cause)} on GPU {gpu.info.index} of {self._host}{detail}",
            at_ms=now_ms,
        )
        try:
            self._on_fault(report)
        except Exception:
            log.exception("health.fault_not_delivered", fault=report.fault_id)
        # After the delivery: a restart in between reports the same fault again, under the same id.
        self._history.append(report, cause)


def _telemetry(uuid: str, reading: Reading | None) -> GpuTelemetry:
    if reading is None:
        return GpuTelemetry(uuid=uuid)
    return GpuTelemetry(
        uuid=uuid,
        temperature_c=reading.temperature_c,
        power_w=reading.power_w,
        utilization_percent=reading.utilization_percent,
        memory_used_mib=reading.memory_used_mib,
    )


def _same_device(a: Any, b: Any) -> bool:
    """NVML's handles are pointers: each call wraps the same one in a new object."""
    if isinstance(a, ctypes._Pointer):
        return ctypes.cast(a, ctypes.c_void_p).value == ctypes.cast(b, ctypes.c_void_p).value
    return a is not None and a is b


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
