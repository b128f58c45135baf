"""How simulated GPUs are connected: PCIe, NVLink and the NVLink fabric, as the machine description says."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gpu_platform.node.nvml.lazy_pynvml import pynvml
from gpu_platform.node.nvml.simulated_gpu import SimulatedGpu, SimulatedGpus, on_gpu
from gpu_platform.topology.description import MachineDescription, nvlink_ports


class SimulatedConnections(SimulatedGpus):
    """The functions of NVML that tell how GPUs are connected."""

    def __init__(self, description: MachineDescription, host: str, control_dir: Path) -> None:
        super().__init__(description, host, control_dir)
        self._ports = nvlink_ports(description)

    @on_gpu
    def nvmlDeviceGetPciInfo(self, handle: SimulatedGpu) -> Any:
        return _pci_info(self._bus_id(handle.index))

    @on_gpu
    def nvmlDeviceGetTopologyCommonAncestor(self, handle: SimulatedGpu, other: SimulatedGpu) -> int:
        a, b = self.description.gpus[handle.index], self.description.gpus[other.index]
        if a.pcie_switch is not None and a.pcie_switch == b.pcie_switch:
            return pynvml.NVML_TOPOLOGY_MULTIPLE
        return pynvml.NVML_TOPOLOGY_NODE if a.numa_node == b.numa_node else pynvml.NVML_TOPOLOGY_SYSTEM

    @on_gpu
    def nvmlDeviceGetP2PStatus(self, handle: SimulatedGpu, other: SimulatedGpu, index: int) -> int:
        if index == pynvml.NVML_P2P_CAPS_INDEX_NVLINK:
            pair = {handle.index, other.index}
            linked = any({link.a, link.b} == pair for link in self.description.links)
            return pynvml.NVML_P2P_STATUS_OK if linked else pynvml.NVML_P2P_STATUS_NOT_SUPPORTED
        return pynvml.NVML_P2P_STATUS_OK

    @on_gpu
    def nvmlDeviceGetNvLinkState(self, handle: SimulatedGpu, link: int) -> int:
        self._port(handle, link)
        up = link >= handle.condition.nvlinks_down
        return pynvml.NVML_FEATURE_ENABLED if up else pynvml.NVML_FEATURE_DISABLED

    @on_gpu
    def nvmlDeviceGetNvLinkVersion(self, handle: SimulatedGpu, link: int) -> int:
        self._port(handle, link)
        return getattr(pynvml, f"NVML_NVLINK_VERSION_{self.description.nvlink_generation or 2}_0")

    @on_gpu
    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: SimulatedGpu, link: int) -> int:
        direct = self._port(handle, link) is not None
        return pynvml.NVML_NVLINK_DEVICE_TYPE_GPU if direct else pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH

    @on_gpu
    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: SimulatedGpu, link: int) -> Any:
        peer = self._port(handle, link)
        return _pci_info(f"0000:f{link % 6}:00.0" if peer is None else self._bus_id(peer))

    @on_gpu
    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: SimulatedGpu) -> int:
        return handle.condition.pcie_width

    @on_gpu
    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: SimulatedGpu) -> int:
        return 16

    @on_gpu
    def nvmlDeviceGetGpuFabricInfoV(self, handle: SimulatedGpu, info: Any) -> int:
        if not isinstance(self.description.nvlink, dict):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        info._obj.state = pynvml.NVML_GPU_FABRIC_STATE_COMPLETED
        info._obj.status = handle.condition.fabric_status
        return pynvml.NVML_SUCCESS

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
