"""Watches a host's GPUs: one thread polls all of them, another waits for XIDs.

An NVML error of one GPU does not affect the others: they are read as before. The GPU is watched again as soon as
NVML answers for it. A call of NVML that does not return holds up its thread. Then another thread takes over, which
leaves that GPU out until the call has returned.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import structlog

from gpu_platform.domain.errors import HostUnavailable
from gpu_platform.domain.hosts.gpu import HostInventory
from gpu_platform.domain.hosts.lease import GpuTelemetry
from gpu_platform.domain.jobs.attempt import FaultReport
from gpu_platform.node.health import conditions
from gpu_platform.node.health.conditions import TemperatureLimit
from gpu_platform.node.health.fault_history import FaultHistory
from gpu_platform.node.health.fault_policy import Condition, FaultPolicy
from gpu_platform.node.health.fault_reports import FaultReports, now_ms
from gpu_platform.node.health.kernel_log import KernelLog, place_of
from gpu_platform.node.health.watched_gpu import WatchedGpu, count_ecc_errors, reason_against_work, telemetry_of
from gpu_platform.node.nvml import gpu_signals
from gpu_platform.node.nvml.gpu_signals import ErrorCounts, GpuReader, HardwareStatus, Reading
from gpu_platform.node.nvml.library import NvmlLibrary

log = structlog.get_logger(__name__)

_STEADY_SIGNALS_S = 0.5
"""Seconds between two readings of power, memory, clock reasons and energy: each call to NVML takes time."""
_ERRORS_S = 1.0
"""Seconds between two readings of the error counters."""
_HARDWARE_STATUS_S = 10.0
"""Seconds between two readings of what rarely changes."""
_EVENT_WAIT_MS = 500
SILENT_S = 5.0
"""A call of NVML that takes longer hangs: its GPU gets no work. Each GPU costs at most one thread of each kind."""
_LOOK_S = 1.0
_SILENT = f"NVML has not answered for {SILENT_S:g} s for this GPU"


class GpuObserver(Protocol):
    """Gets the monitor's readings, in the monitor's thread."""

    def on_reading(self, uuid: str, reading: Reading) -> None:
        """Called with each new reading of a GPU."""
        ...

    def on_ecc(self, uuid: str, errors: int) -> None:
        """Called with the corrected and uncorrected errors since the driver was loaded or the GPU was reset."""
        ...


class HealthMonitor:
    """Reads the GPUs of this host and reports faults. Call ``start`` and ``stop`` once.

    ``on_fault`` is called in the monitor's threads, once for each fault.
    """

    def __init__(
        self,
        nvml: NvmlLibrary,
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
        self._interval_s = interval_s
        history = history or FaultHistory()
        self._faults = FaultReports(policy, history, host=host, on_fault=on_fault)
        self._gpus = [
            WatchedGpu(info, temperature_limit=TemperatureLimit(max_temperature_c)) for info in inventory.gpus
        ]
        for gpu in self._gpus:
            gpu.standing = history.standing(gpu.info.uuid)
        self._errors_every = max(1, round(_ERRORS_S / interval_s))
        self._hardware_status_every = max(1, round(_HARDWARE_STATUS_S / interval_s))
        self._steady_every = max(1, round(_STEADY_SIGNALS_S / interval_s))
        self._observers: list[GpuObserver] = []
        self._stopping = threading.Event()
        self.is_paused = False
        """True while NVML is closed because a GPU is being reset."""
        self._threads: list[_Watcher] = []
        self._replacing = threading.Lock()
        self._kernel_log = None if kernel_log is None else KernelLog(kernel_log)

    def start(self) -> None:
        """Start the threads that read the GPUs, wait for XIDs and follow the kernel's log."""
        if not self._gpus:
            return
        self._stopping.clear()
        self._threads = [
            _Watcher("gpu-poll", self._poll_for_ever),
            _Watcher("gpu-events", self._listen_for_ever),
            _Watcher("gpu-silence", self._look_for_silence),
        ]
        if self._kernel_log is not None:
            self._threads.append(_Watcher("gpu-kernel-log", self._follow_kernel_log))
        for thread in self._threads:
            thread.start()

    def stop(self) -> bool:
        """End the threads. True: they have ended. False: NVML does not let go of one of them."""
        self._stopping.set()
        deadline = time.monotonic() + SILENT_S
        with self._replacing:
            threads, self._threads = self._threads, []
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Close NVML meanwhile. A real GPU cannot be reset while any process has NVML open. Raises
        :class:`HostUnavailable` if NVML hangs."""
        running = bool(self._threads)
        self.is_paused = True
        if not self.stop() or any(gpu.is_silent for gpu in self._gpus):
            self.is_paused = False
            self.start()
            raise HostUnavailable(f"{_SILENT}: it cannot be closed for a reset; see `nvidia-smi` and the kernel's log")
        for gpu in self._gpus:
            gpu.reader = None
        self._nvml.nvmlShutdown()
        try:
            yield
        finally:
            self._nvml.nvmlInit()
            self.is_paused = False
            if running:
                self.start()

    def expect_kill(self, uuids: Iterable[str]) -> None:
        """Say that the platform is about to kill the processes on these GPUs: XIDs that follow from that are no
        faults."""
        wanted = set(uuids)
        for gpu in self._gpus:
            if gpu.info.uuid in wanted:
                gpu.killed_at_ms = now_ms()

    def was_reset(self, uuid: str) -> None:
        """Say that the GPU was reset. XIDs from now on are new faults, not repeats of one before the reset."""
        for gpu in self._gpus:
            if gpu.info.uuid == uuid:
                with gpu.lock:
                    gpu.xids.clear()
                    gpu.fatal.clear()

    def telemetry(self) -> list[GpuTelemetry]:
        """The newest reading of each GPU. Only its uuid if it does not answer."""
        return [telemetry_of(gpu.info.uuid, gpu.reading) for gpu in self._gpus]

    def gpus(self) -> Sequence[WatchedGpu]:
        """All GPUs as the monitor knows them now. Callers must not change them."""
        return self._gpus

    def degraded(self) -> dict[str, str]:
        """GPU uuid -> why it should get no new work for now: it is lost, hot, throttled or badly linked, or its host
        is unwell."""
        host = self._faults.host_reason_against_work()
        reasons = {gpu.info.uuid: reason_against_work(gpu) or host for gpu in self._gpus}
        return {uuid: reason for uuid, reason in reasons.items() if reason is not None}

    def forget_resets_before(self, before_ms: int) -> None:
        """Stop counting resets before ``before_ms`` (Unix ms) against the host: an operator put it online then."""
        self._faults.excused_before_ms = before_ms

    def observe_with(self, observer: GpuObserver) -> None:
        """Give every reading from now on to ``observer``, in the monitor's thread."""
        self._observers.append(observer)

    def poll_once(self, *, steady: bool = True, errors: bool = True, hardware_status: bool = True) -> None:
        """Read all GPUs once, as the thread does."""
        for gpu in self._gpus:
            if not _asks(gpu):
                return  # another thread does it now
            if gpu.is_silent:
                continue
            try:
                if gpu.reader is None:
                    gpu.reader = GpuReader(self._nvml, self._nvml.nvmlDeviceGetHandleByUUID(gpu.info.uuid))
                self._read_fast_signals(gpu, gpu.reader.read(all_of_it=steady or gpu.reading is None))
                if errors:
                    self._read_errors(gpu, gpu.reader.read_errors())
                if hardware_status or gpu.hardware_status is None:
                    self._read_hardware_status(gpu, gpu.reader.read_hardware_status())
            except self._nvml.NVMLError as error:
                self._on_error(gpu, error)
            except Exception:
                log.exception("health.poll_failed", gpu=gpu.info.uuid)
        _asks(None)

    def take_events(self) -> None:
        """Handle the XIDs that wait now, without a thread that listens. For hosts that share a process."""
        event_set = self._nvml.nvmlEventSetCreate()
        try:
            for gpu in self._gpus:
                self._register(gpu, event_set)
            while self._take_event(event_set, 0):
                pass
        finally:
            self._nvml.nvmlEventSetFree(event_set)

    def _poll_for_ever(self) -> None:
        rounds = 0
        next_at = time.monotonic()
        while not self._is_over():
            self.poll_once(
                steady=rounds % self._steady_every == 0,
                errors=rounds % self._errors_every == 0,
                hardware_status=rounds % self._hardware_status_every == 0,
            )
            rounds += 1
            next_at = max(next_at + self._interval_s, time.monotonic())
            self._stopping.wait(next_at - time.monotonic())

    def _is_over(self) -> bool:
        return self._stopping.is_set() or _is_replaced()

    def _look_for_silence(self) -> None:
        """Have another thread take over from one whose call does not return."""
        while not self._stopping.wait(_LOOK_S):
            with self._replacing:
                for number, thread in enumerate(self._threads):
                    gpu = thread.silent_gpu()
                    if gpu is None:
                        continue
                    log.error("health.gpu_hangs", gpu=gpu.info.uuid, thread=thread.name)
                    thread.is_replaced = gpu.is_silent = True
                    gpu.reading, gpu.lost = None, _SILENT
                    self._threads[number] = _Watcher(thread.name, thread.work)
                    self._threads[number].start()

    def _read_fast_signals(self, gpu: WatchedGpu, reading: Reading) -> None:
        gpu.reading = reading
        for observer in self._observers:
            observer.on_reading(gpu.info.uuid, reading)
        if gpu.lost is not None:
            log.info("health.gpu_back", gpu=gpu.info.uuid)
            gpu.lost = None
        self._faults.note(gpu, "gpu_lost", False)
        self._faults.note(gpu, "reset_required", False)
        was_hot, was_slow = gpu.temperature_limit.why, gpu.throttle.holds
        if (gpu.temperature_limit.look(reading.temperature_c) is None) != (was_hot is None):
            if gpu.temperature_limit.why is None:
                log.warning("health.gpu_cooled", gpu=gpu.info.uuid, temperature_c=reading.temperature_c)
            else:
                log.warning("health.gpu_hot", gpu=gpu.info.uuid, temperature_c=reading.temperature_c)
        if gpu.throttle.look(reading.at_s, reading.is_throttled) != was_slow:
            log.warning("health.gpu_throttled", gpu=gpu.info.uuid, throttled=not was_slow, by=reading.throttle_reasons)

    def _read_errors(self, gpu: WatchedGpu, counts: ErrorCounts) -> None:
        for observer in self._observers:
            observer.on_ecc(gpu.info.uuid, counts.corrected_ecc + counts.uncorrected_ecc)
        for condition, holds, detail in conditions.error_conditions(counts, gpu.counts):
            self._faults.note(gpu, condition, holds, detail, counts.recovery_action)
        count_ecc_errors(gpu, counts)
        gpu.counts = counts
        counters: dict[Condition, int] = {
            "ecc_correctable": counts.corrected_ecc,
            "nvlink_errors": counts.nvlink_errors,
            "pcie_replays": counts.pcie_replays,
        }
        for condition, count in counters.items():
            before = min(gpu.baselines.get(condition, 0), count)  # after a reset the counter starts from zero
            gpu.baselines[condition] = before
            if count - before >= self._policy.thresholds[condition]:
                self._faults.report(gpu, condition, f": {count - before} more")
                gpu.baselines[condition] = count

    def _read_hardware_status(self, gpu: WatchedGpu, hardware_status: HardwareStatus) -> None:
        gpu.hardware_status = hardware_status
        gpu.nvlinks = max(gpu.nvlinks, hardware_status.nvlinks_up)
        for condition, holds, detail in conditions.hardware_conditions(hardware_status, gpu.nvlinks):
            self._faults.note(gpu, condition, holds, detail)

    def _on_error(self, gpu: WatchedGpu, error: Any) -> None:
        """Handle an error of NVML. Only a GPU that is lost or must be reset is a fault. Other errors may pass."""
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
            self._faults.note(gpu, condition, True)

    def _listen_for_ever(self) -> None:
        while not self._is_over():
            try:
                self._listen()
            except self._nvml.NVMLError as error:
                # No GPU is to blame: make a new event set.
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
            _asks(None)
            while not self._is_over():
                if not self._take_event(event_set, _EVENT_WAIT_MS) and any(gpu.lost is None for gpu in silent):
                    return  # a lost GPU came back: register all again
        finally:
            nvml.nvmlEventSetFree(event_set)

    def _take_event(self, event_set: Any, wait_ms: int) -> bool:
        """Wait for an XID and handle it. False: the time was up."""
        nvml = self._nvml
        try:
            event = nvml.nvmlEventSetWait_v2(event_set, wait_ms)
        except nvml.NVMLError_Timeout:
            return False
        gpu = next((gpu for gpu in self._gpus if _same_device(gpu.event_handle, event.device)), None)
        if gpu is not None and event.eventType & nvml.nvmlEventTypeXidCriticalError:
            _asks(gpu)
            self._faults.on_xid(gpu, int(event.eventData), partial(self._recovery_action, gpu))
            _asks(None)
        return True

    def _follow_kernel_log(self) -> None:
        """Read XIDs from the kernel's log: NVML delivers only critical XIDs, and only those that come while it
        listens."""
        assert self._kernel_log is not None
        by_place = {place_of(gpu.info.pci_bus_id): gpu for gpu in self._gpus if gpu.info.pci_bus_id}
        try:
            for place, xid, fatal in self._kernel_log.follow(self._stopping):
                if (gpu := by_place.get(place)) is not None:
                    _asks(gpu)
                    self._faults.on_xid(gpu, xid, partial(self._recovery_action, gpu), fatal=fatal)
                    if not _asks(None):
                        return
        except OSError as error:
            log.warning("health.no_kernel_log", error=str(error))

    def _register(self, gpu: WatchedGpu, event_set: Any) -> bool:
        nvml = self._nvml
        if gpu.is_silent or not _asks(gpu):
            return False
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

    def _recovery_action(self, gpu: WatchedGpu) -> int:
        try:
            # The kernel's log may bring an XID before the event set exists.
            handle = gpu.event_handle or self._nvml.nvmlDeviceGetHandleByUUID(gpu.info.uuid)
            return gpu_signals.recovery_action(self._nvml, handle)
        except self._nvml.NVMLError:
            return 0  # the GPU is lost: the fault policy's table decides


def _same_device(a: Any, b: Any) -> bool:
    """True if both handles are the same GPU. They are pointers, and each call wraps them in a new object."""
    if isinstance(a, ctypes._Pointer):
        return ctypes.cast(a, ctypes.c_void_p).value == ctypes.cast(b, ctypes.c_void_p).value
    return a is not None and a is b


class _Watcher(threading.Thread):
    """A thread of the monitor, and the GPU that it asks NVML about just now."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        super().__init__(target=work, name=name, daemon=True)
        self.work = work
        self.gpu: WatchedGpu | None = None
        self.since_s = 0.0
        self.is_replaced = False
        """Another one has its work. It ends when its call returns."""

    def silent_gpu(self) -> WatchedGpu | None:
        """The GPU about which a call has not returned for ``SILENT_S``. None: there is none."""
        gpu, since_s = self.gpu, self.since_s
        return gpu if gpu is not None and time.monotonic() - since_s > SILENT_S else None


def _asks(gpu: WatchedGpu | None) -> bool:
    """Note that this thread asks about the GPU now. None: about none. False: another thread has taken over."""
    thread = threading.current_thread()
    if not isinstance(thread, _Watcher):
        return True
    if thread.is_replaced and thread.gpu is not None:
        thread.gpu.is_silent = False  # its call has returned
    thread.gpu, thread.since_s = gpu, time.monotonic()
    if thread.is_replaced:
        thread.gpu = None
    return not thread.is_replaced


def _is_replaced() -> bool:
    thread = threading.current_thread()
    return isinstance(thread, _Watcher) and thread.is_replaced
