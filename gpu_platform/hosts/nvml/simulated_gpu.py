"""What a simulated driver keeps of one GPU."""

from __future__ import annotations

import time

from gpu_platform.hosts.nvml.fault_injection import GpuCondition
from gpu_platform.hosts.nvml.lazy_pynvml import pynvml
from gpu_platform.hosts.system.process_tree import Process, is_alive

POWER_LIMITS_MW = (200_000, 700_000)


class SimulatedGpu:
    """One simulated GPU. Callers use it as an opaque handle, as they use NVML's."""

    def __init__(self, index: int, uuid: str) -> None:
        self.index = index
        self.uuid = uuid
        self.stamp: tuple[int, int] | None = None
        self.condition = GpuCondition()
        self.processes: set[Process] = set()
        self.compute_mode = pynvml.NVML_COMPUTEMODE_DEFAULT
        self.power_limit_mw = POWER_LIMITS_MW[1]
        self.energy_mj = 0.0
        self.energy_at_s = time.monotonic()

    def living(self) -> list[int]:
        """Pids that compute on it."""
        if self.processes:
            self.processes = {process for process in self.processes if is_alive(process)}
        return sorted(process.pid for process in self.processes)
