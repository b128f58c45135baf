"""Opens a host's GPU library: the real one, a simulated one, or one that says why there is none."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, NoReturn

from gpu_platform.domain.errors import HostUnavailable
from gpu_platform.node.nvml.lazy_pynvml import pynvml
from gpu_platform.node.nvml.library import NvmlLibrary, RealNvml
from gpu_platform.node.nvml.simulated_nvml import SimulatedNvml
from gpu_platform.node.system.paths import control_dir
from gpu_platform.settings import NodeSettings
from gpu_platform.topology.machine_file import find_machine


class SilentNvml(NvmlLibrary):
    """Stands in for NVML while it does not answer. It has NVML's names and constants, but every function fails."""

    def __init__(self, why: str) -> None:
        self.why = why

    def __getattr__(self, name: str) -> Any:
        value = getattr(pynvml, name)
        return self._refuse if name.startswith("nvml") and callable(value) else value

    def _refuse(self, *_: object) -> NoReturn:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)


class NoGpus(NvmlLibrary):
    """Stands in for NVML where GPU support is switched off (``node.gpus``). Nothing of NVIDIA is used."""

    class NVMLError(Exception):
        """Never raised. Code that handles errors of NVML needs the name."""


def open_nvml(node: NodeSettings, node_dir: Path) -> NvmlLibrary:
    """Open and initialise the NVML library of this host. ``node_dir`` is the host's own directory.

    Raises :class:`HostUnavailable` if there is no driver.
    """
    if not node.gpus:
        return NoGpus()
    if node.simulate is not None:
        nvml = SimulatedNvml(find_machine(node.simulate), node.name, control_dir(node_dir.resolve()))
        nvml.nvmlInit()
        return nvml
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise HostUnavailable(
            f"NVML of host {node.name} does not open ({error}): install the NVIDIA driver, "
            "or simulate a machine with GPU_PLATFORM_NODE__SIMULATE=dgx-h100"
        ) from error
    return RealNvml(importlib.import_module("pynvml"))


def has_gpus() -> bool:
    """True if the real NVML finds a GPU on this machine."""
    return count_gpus() > 0


def count_gpus() -> int:
    """How many GPUs the real NVML finds on this machine. 0 also if NVML does not answer."""
    try:
        pynvml.nvmlInit()
        try:
            return pynvml.nvmlDeviceGetCount()
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return 0
