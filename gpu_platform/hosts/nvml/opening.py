"""The one seam to GPUs: the real ``pynvml``, or an object with the same functions."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, NoReturn

from gpu_platform.domain.errors import HostUnavailable
from gpu_platform.hosts.nvml.lazy_pynvml import pynvml
from gpu_platform.hosts.nvml.simulated_nvml import SimulatedNvml
from gpu_platform.hosts.system.paths import control_dir
from gpu_platform.settings import NodeSettings
from gpu_platform.topology.description import load_description

Nvml = Any
"""The module ``pynvml`` or a :class:`SimulatedNvml`: NVIDIA's names, constants and exceptions."""


class SilentNvml:
    """In the place of NVML while it does not answer: its names and constants, and every question is refused."""

    def __init__(self, why: str) -> None:
        self.why = why

    def __getattr__(self, name: str) -> Any:
        value = getattr(pynvml, name)
        return self._refuse if name.startswith("nvml") and callable(value) else value

    def _refuse(self, *_: object) -> NoReturn:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)


class NoGpus:
    """In the place of NVML where GPU support is switched off (``node.gpus``): nothing of NVIDIA's is touched."""

    class NVMLError(Exception):
        """Never raised: there is nobody who could."""


def open_nvml(node: NodeSettings, node_dir: Path) -> Nvml:
    """An initialised NVML for this host, whose own directory is ``node_dir``.

    Raises :class:`HostUnavailable` when there is no driver.
    """
    if not node.gpus:
        return NoGpus()
    if node.simulate is not None:
        nvml = SimulatedNvml(load_description(node.simulate), node.name, control_dir(node_dir.resolve()))
        nvml.nvmlInit()
        return nvml
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise HostUnavailable(
            f"NVML of host {node.name} does not open ({error}): install the NVIDIA driver, "
            "or simulate a machine with GPU_PLATFORM_NODE__SIMULATE=dgx-h100"
        ) from error
    return importlib.import_module("pynvml")


def has_gpus() -> bool:
    """Does the real NVML find a GPU here?"""
    try:
        pynvml.nvmlInit()
        try:
            return pynvml.nvmlDeviceGetCount() > 0
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return False
