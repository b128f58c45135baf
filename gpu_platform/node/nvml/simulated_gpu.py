"""The simulated GPUs of a host, and the condition in which injected faults put them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from gpu_platform.node.nvml.fault_injection import GpuCondition, condition_path, read_condition
from gpu_platform.node.nvml.lazy_pynvml import pynvml
from gpu_platform.node.system.process_tree import FoundProcess, is_alive
from gpu_platform.topology.description import MachineDescription, simulated_uuid

_G = TypeVar("_G", bound="SimulatedGpus")
_P = ParamSpec("_P")
_T = TypeVar("_T")

POWER_LIMITS_MW = (200_000, 700_000)


class SimulatedGpu:
    """One simulated GPU. Callers use it as an opaque handle, as they use NVML's."""

    def __init__(self, index: int, uuid: str) -> None:
        self.index = index
        self.uuid = uuid
        self.stamp: tuple[int, int] | None = None
        self.condition = GpuCondition()
        self.processes: set[FoundProcess] = set()
        self.simulated_work = 0
        """How many ranks work on it that are no processes: those of a fleet."""
        self.compute_mode = pynvml.NVML_COMPUTEMODE_DEFAULT
        self.power_limit_mw = POWER_LIMITS_MW[1]
        self.energy_mj = 0.0
        self.energy_at_s = time.monotonic()

    def living(self) -> list[int]:
        """Pids that compute on it."""
        found = tuple(self.processes)  # other threads add processes meanwhile
        ended = [process for process in found if not is_alive(process)]
        self.processes.difference_update(ended)
        return sorted({process.pid for process in found} - {process.pid for process in ended})


class SimulatedGpus:
    """The GPUs of one host. ``control_dir`` has a file for each GPU that is not in perfect condition."""

    def __init__(self, description: MachineDescription, host: str, control_dir: Path) -> None:
        self.description = description
        self.host = host
        self.control_dir = control_dir
        self._gpus = [SimulatedGpu(slot.index, simulated_uuid(host, slot.index)) for slot in description.gpus]
        self._by_uuid = {gpu.uuid: gpu for gpu in self._gpus}
        self._lock = threading.RLock()

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


def on_gpu(
    function: Callable[Concatenate[_G, SimulatedGpu, _P], _T],
) -> Callable[Concatenate[_G, SimulatedGpu, _P], _T]:
    """Wraps a function of NVML so that it fails on a lost GPU, as NVML does."""

    def checked(self: _G, handle: SimulatedGpu, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        self._condition(handle)
        return function(self, handle, *args, **kwargs)

    return checked
