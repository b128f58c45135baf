"""The interface to a host's GPU driver.

:class:`NvmlLibrary` has two halves. The functions, constants and exceptions of NVML keep NVIDIA's names
(``nvml.nvmlDeviceGetCount()``). A few things that a host does to its GPUs have no function in NVML: they are methods
here. The defaults are those of a real machine; the simulated library answers them for a machine that does not exist.
So no code above asks which of the two it has.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from gpu_platform.node.system.tools import NotEnded, run, run_tool
from gpu_platform.topology.description import MachineDescription


class NvmlLibrary:
    """NVML's functions under NVIDIA's names, and operations on GPUs for which NVML has no function."""

    has_device_nodes: bool = True
    """Its GPUs have device nodes: ``/dev/nvidia<minor>``, and those of MIG instances below ``/dev/nvidia-caps``."""
    runs_cuda: bool = True
    """Programs can use CUDA on its GPUs. If not, no memory is scrubbed and no MPS daemon is started."""
    must_close_to_reset: bool = True
    """A GPU cannot be reset while this process has NVML open."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    @property
    def described_machine(self) -> MachineDescription | None:
        """The description that its GPUs are made from. None: they are real, and sysfs describes the machine."""
        return None

    def add_process(self, uuid: str, pid: int) -> None:
        """Note that the process ``pid`` got the GPU. A real driver notices by itself who computes on a GPU."""

    def simulate_work(self, uuid: str, *, begins: bool) -> None:
        """Note that a simulated GPU begins or ends to work for a rank that is no process. A real GPU ignores it."""

    def reset_gpu(self, uuid: str, timeout_s: float) -> str | None:
        """Reset one GPU (``nvidia-smi --gpu-reset -i UUID``). Returns why it failed, or None. Needs root."""
        return _nvidia_smi_reset(["-i", uuid], timeout_s)

    def reset_all_gpus(self, timeout_s: float) -> str | None:
        """Reset every GPU, with the NVLinks and NVSwitches between them (``nvidia-smi --gpu-reset`` without ``-i``).

        Returns why it failed, or None. Needs root.
        """
        return _nvidia_smi_reset([], timeout_s)

    def set_time_slice(self, uuid: str, setting: int) -> None:
        """Set how long the turns of processes on the GPU are: 0 default, 1 short, 2 medium, 3 long.

        Raises :class:`~gpu_platform.domain.errors.HostUnavailable`.
        """
        run_tool(["nvidia-smi", "compute-policy", "-i", uuid, f"--set-timeslice={setting}"])


class RealNvml(NvmlLibrary):
    """The module ``pynvml``, and with it the driver of this machine."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _nvidia_smi_reset(options: list[str], timeout_s: float) -> str | None:
    command = ["nvidia-smi", "--gpu-reset", *options]
    try:
        done = run(command, timeout_s=timeout_s)
    except FileNotFoundError:
        return "nvidia-smi was not found"
    except NotEnded as error:
        return error.message
    if done.code != 0:
        return f"nvidia-smi ended with {done.code}: {(done.output + done.said).strip()[-500:]}"
    return None
