"""What single processes use of GPUs that several jobs share, as NVML reports it.

Memory: ``nvmlDeviceGetComputeRunningProcesses``, and the MPS variant of it, which has the clients of an MPS server;
with MIG asked of each MIG device. Utilisation: ``nvmlDeviceGetProcessUtilization``, percent of the time in which a
process had a kernel running, from samples of at most a second; it names only processes that computed lately (NVML
API reference). With MIG NVML has no such figure (only GPM counters have), and where the MPS server itself is
named, nobody can tell which of its clients computed.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from itertools import zip_longest
from typing import Any, NamedTuple

from gpu_platform.domain.hosts.share import ShareMode
from gpu_platform.node.accounting.accounting import LiveAttempt
from gpu_platform.node.accounting.gpu_meter import OwnUse
from gpu_platform.node.nvml.library import NvmlLibrary

_SHORTEST_LOOK_S = 2.0
"""Ask for samples of at least this many last seconds: the driver takes a sample once a second or more often."""


class ProcessUse(NamedTuple):
    """What each process uses of one GPU, by pid."""

    memory_mib: dict[int, int] | None
    """Memory of every process with a context. None: this driver does not report it."""
    utilization_percent: dict[int, float] | None
    """Utilisation by each process that computed since the last call. None: NVML does not report it."""

    def of(self, pids: Set[int], server: Set[int] = frozenset()) -> OwnUse:
        """What ``pids`` use together. ``server``: processes that may have computed for them (an MPS server)."""
        memory = None if self.memory_mib is None else sum(self.memory_mib.get(pid, 0) for pid in pids)
        if self.utilization_percent is None:
            return OwnUse(None, memory)
        own = sum(self.utilization_percent.get(pid, 0.0) for pid in pids)
        if not own and server:
            return OwnUse(None, memory)
        # A process that ran any kernel is not idle, so it counts with at least one percent.
        return OwnUse(min(100, max(1, round(own))) if own else 0, memory)


class SharedGpuMeter:
    """Measures what an attempt itself uses of a GPU of which it has only a share."""

    def __init__(self, nvml: NvmlLibrary) -> None:
        self._nvml = nvml
        self._looked_at_s: dict[str, float] = {}

    def measure(self, attempts: Sequence[LiveAttempt]) -> None:
        """Store the own use of these attempts in their meters. Call it after they were sampled. Whole GPUs need no
        call."""
        modes = {
            uuid: share.mode
            for attempt in attempts
            for uuid, share in zip_longest(attempt.plan.gpu_uuids, attempt.plan.shares)
            if share is not None
        }
        uses = {uuid: self.read(uuid, mode) for uuid, mode in modes.items()}
        self._looked_at_s = {uuid: at for uuid, at in self._looked_at_s.items() if uuid in uses}
        everybody = frozenset[int]().union(*(attempt.pids for attempt in attempts))
        for attempt in attempts:
            for uuid, meter in attempt.meters.items():
                if meter.own is not None:
                    busy = uses[uuid].utilization_percent or {}
                    server = busy.keys() - everybody if modes[uuid] is ShareMode.MPS else frozenset[int]()
                    meter.own = uses[uuid].of(attempt.pids, server)

    def read(self, uuid: str, mode: ShareMode) -> ProcessUse:
        """What each process uses of the GPU. Never raises: what the GPU does not report is None."""
        try:
            handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
            if mode is ShareMode.MIG:
                return ProcessUse(self._memory(self._mig_devices(handle)), None)
            return ProcessUse(self._memory([handle]), self._utilization(handle, uuid))
        except self._nvml.NVMLError:  # the GPU is lost, or NVML is closed for a reset
            return ProcessUse(None, None)

    def _mig_devices(self, handle: Any) -> list[Any]:
        nvml = self._nvml
        found: list[Any] = []
        for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            try:
                found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
            except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):  # no instance has this index
                continue
        return found

    def _memory(self, devices: Iterable[Any]) -> dict[int, int] | None:
        used: dict[int, int] = {}
        for device in devices:
            processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(device)
            for process in [*processes, *self._mps_clients(device)]:
                if process.usedGpuMemory is None:
                    return None
                used[process.pid] = max(used.get(process.pid, 0), process.usedGpuMemory >> 20)
        return used

    def _mps_clients(self, device: Any) -> list[Any]:
        try:
            return self._nvml.nvmlDeviceGetMPSComputeRunningProcesses(device)
        except self._nvml.NVMLError:  # an old driver
            return []

    def _utilization(self, handle: Any, uuid: str) -> dict[int, float] | None:
        nvml, now_s = self._nvml, time.time()
        since_s = min(self._looked_at_s.get(uuid, now_s), now_s - _SHORTEST_LOOK_S)
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(handle, int(since_s * 1e6))
        except nvml.NVMLError as error:
            # NOT_FOUND: nobody computed. SUCCESS: pynvml raises this code for an empty answer.
            return {} if error.value in (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_SUCCESS) else None
        self._looked_at_s[uuid] = now_s
        by_pid: defaultdict[int, list[int]] = defaultdict(list)
        for sample in samples:
            if 0 < sample.smUtil <= 100:  # entries without a sample hold random values
                by_pid[sample.pid].append(sample.smUtil)
        return {pid: sum(found) / len(found) for pid, found in by_pid.items()}
