"""What is connected to what inside one host.

GPUs are numbered by *position* here: 0 for the lowest index of the inventory, and so on. A set of
GPUs is an int whose bit ``p`` stands for the GPU at position ``p``.

Bandwidths are GB/s in one direction between two GPUs:

- NVLink: links times the rate of one link. NVIDIA V100, A100, H100 and Blackwell architecture
  white papers: 6, 12, 18 and 18 links for 150, 300, 450 and 900 GB/s each way; P100: 4 links for 80.
  GPUs of compute capability 8.6 (GA102: RTX A6000, A5000, A40, GeForce RTX 3090) have a slower NVLink 3: the Ampere
  GA102 architecture white paper gives 4 links 56.25 GB/s each way.
- Everything else as NCCL's model has it (``src/graph/topo.h``): 12 for PCIe (``PCI_BW``, Gen3 x16)
  and 10 between sockets (``SKL_QPI_BW``). Inventories do not have the PCIe generation, so for
  machines without NVLink these numbers give an order, not a prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.hosts.gpu import GpuInfo, HostInventory
from gpu_platform.domain.placing.capacity import socket_of

NVLINK_GB_S_PER_LINK = {1: 20.0, 2: 25.0, 3: 25.0, 4: 25.0, 5: 50.0}
GA102_GB_S_PER_LINK = 14.0625
GA102_COMPUTE_CAPABILITY = "8.6"
PCIE_GB_S = 12.0
CROSS_SOCKET_GB_S = 10.0


@dataclass(frozen=True, eq=False)
class Machine:
    """One kind of host. Hosts with equal GPUs and links share one Machine, and all that is computed for it."""

    gpus: tuple[GpuInfo, ...]
    """The GPUs by position, without what differs from host to host: uuid, serial, bus id."""
    links: NDArray[np.int64]
    """The number of NVLinks between each pair, [n, n]."""
    nvlink_gb_s: NDArray[np.float64]
    """The NVLink bandwidth of each pair, 0 without NVLink, [n, n]."""
    pair_gb_s: NDArray[np.float64]
    """The bandwidth of the best connection of each pair, [n, n]."""
    switches: tuple[int, ...]
    """Sets of GPUs under one PCIe switch."""
    numa_nodes: tuple[int, ...]
    sockets: tuple[int, ...]
    islands: tuple[int, ...]
    """Sets of GPUs that NVLink connects, directly or through other GPUs."""

    @property
    def port_gb_s(self) -> float:
        """The bandwidth of all NVLinks of one GPU together, into an NVLink domain of several hosts."""
        return float(self.nvlink_gb_s.max(initial=0.0))

    @property
    def size(self) -> int:
        """The number of GPUs."""
        return len(self.gpus)

    @property
    def all_gpus(self) -> int:
        """The set of all GPUs of the machine."""
        return (1 << len(self.gpus)) - 1


_machines: dict[tuple[object, ...], Machine] = {}


def machine_of(inventory: HostInventory) -> Machine:
    """The Machine that an inventory describes. Equal inventories give the same object."""
    gpus = tuple(
        gpu.model_copy(update={"uuid": "", "serial": None, "pci_bus_id": None})
        for gpu in sorted(inventory.gpus, key=lambda gpu: gpu.index)
    )
    links = tuple(sorted((link.a, link.b, link.links) for link in inventory.nvlinks))
    fingerprint = (gpus, links, inventory.nvlink_generation)
    if fingerprint not in _machines:
        _machines[fingerprint] = _build(gpus, links, inventory.nvlink_generation)
    return _machines[fingerprint]


def members(gpus: int) -> list[int]:
    """The positions of the GPUs in a set, ascending."""
    return [position for position in range(gpus.bit_length()) if gpus >> position & 1]


def _build(gpus: tuple[GpuInfo, ...], link_list: Sequence[tuple[int, int, int]], generation: int | None) -> Machine:
    n = len(gpus)
    position = {gpu.index: p for p, gpu in enumerate(gpus)}
    links = np.zeros((n, n), np.int64)
    for a, b, count in link_list:
        if a in position and b in position and a != b:
            links[position[a], position[b]] = links[position[b], position[a]] = count
    # A generation that is not in the table is at least as fast as the slowest in it.
    link_gb_s = NVLINK_GB_S_PER_LINK.get(generation or 0, min(NVLINK_GB_S_PER_LINK.values()))
    of_gpu = [GA102_GB_S_PER_LINK if gpu.compute_capability == GA102_COMPUTE_CAPABILITY else link_gb_s for gpu in gpus]
    nvlink = np.array(links * np.minimum.outer(of_gpu, of_gpu), np.float64)
    socket_names = [socket_of(gpu) for gpu in gpus]
    one_socket = np.array([[a == b for b in socket_names] for a in socket_names], bool).reshape(n, n)
    pcie = np.where(one_socket, PCIE_GB_S, CROSS_SOCKET_GB_S)
    pair = np.where(links > 0, nvlink, pcie)
    np.fill_diagonal(pair, 0.0)
    return Machine(
        gpus=gpus,
        links=links,
        nvlink_gb_s=nvlink,
        pair_gb_s=pair,
        switches=_groups([gpu.pcie_switch or f"alone {gpu.index}" for gpu in gpus]),
        # Two sockets never share a NUMA node, whatever a host reports about nodes that it does not know.
        numa_nodes=_groups([f"{name}/{gpu.numa_node}" for name, gpu in zip(socket_names, gpus, strict=True)]),
        sockets=_groups(socket_names),
        islands=_islands(links),
    )


def _groups(names: Sequence[str]) -> tuple[int, ...]:
    groups: dict[str, int] = {}
    for position, name in enumerate(names):
        groups[name] = groups.get(name, 0) | 1 << position
    return tuple(groups.values())


def _islands(links: NDArray[np.int64]) -> tuple[int, ...]:
    islands, left = [], set(range(len(links)))
    while left:
        island, frontier = 0, {min(left)}
        while frontier:
            gpu = frontier.pop()
            left.discard(gpu)
            island |= 1 << gpu
            frontier |= {int(other) for other in np.flatnonzero(links[gpu])} & left
        islands.append(island)
    return tuple(islands)
