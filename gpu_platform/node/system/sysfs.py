"""Where PCI devices sit in the machine, from sysfs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

_BUS_ID = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")


class Sysfs:
    """Reads facts of the machine. ``root`` is ``/sys``, or a copy of one. None: unknown.

    ``numa_nodes_elsewhere``: PCI bus id -> NUMA node, for devices that the kernel does not know. It is asked at most
    once.
    """

    def __init__(
        self, root: Path = Path("/sys"), numa_nodes_elsewhere: Callable[[], Mapping[str, int]] | None = None
    ) -> None:
        self._root = root
        self._ask_elsewhere = numa_nodes_elsewhere

    def numa_node(self, bus_id: str) -> int | None:
        """The device's NUMA node. None also for -1, the kernel's "not known" (machines without NUMA, most VMs)."""
        number = _read_int(self._root / "bus/pci/devices" / bus_id / "numa_node")
        return self._elsewhere.get(bus_id) if number is None or number < 0 else number

    @cached_property
    def _elsewhere(self) -> Mapping[str, int]:
        # A machine with one node needs no other source.
        return self._ask_elsewhere() if self._ask_elsewhere is not None and self.numa_nodes() > 1 else {}

    def socket(self, numa_node: int) -> int | None:
        """The physical package of the node's first CPU. None: the node has no CPUs."""
        cpus = _read(self._root / f"devices/system/node/node{numa_node}/cpulist")
        if not cpus:
            return None
        first = re.split(r"[-,]", cpus)[0]
        return _read_int(self._root / f"devices/system/cpu/cpu{first}/topology/physical_package_id")

    def cpus(self, numa_node: int) -> str | None:
        """The node's CPUs as a kernel list, e.g. ``0-31,64-95``."""
        return _read(self._root / f"devices/system/node/node{numa_node}/cpulist") or None

    def numa_nodes(self) -> int:
        """How many NUMA nodes this machine has."""
        return len(self.numa_node_ids())

    def numa_node_ids(self) -> list[int]:
        """The numbers of this machine's NUMA nodes."""
        found = (self._root / "devices/system/node").glob("node[0-9]*")
        return sorted(int(path.name.removeprefix("node")) for path in found)

    def core(self, cpu: int) -> int:
        """The first CPU of the same core, which identifies the core. ``cpu`` itself if the kernel does not say."""
        siblings = _read(self._root / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        return int(re.split(r"[-,]", siblings)[0]) if siblings else cpu

    def pcie_switch(self, bus_id: str) -> str | None:
        """The highest bridge between the device and its root port, which is the upstream port of the switch.

        None if the device is directly on the root port.
        """
        bridges = self.bridges(bus_id)
        return bridges[1] if len(bridges) >= 2 else None

    def bridges(self, bus_id: str) -> list[str]:
        """Bus ids of the bridges above the device, root port first."""
        path = os.path.realpath(self._root / "bus/pci/devices" / bus_id)
        return [part for part in Path(path).parts if _BUS_ID.fullmatch(part)][:-1]

    def network_cards(self) -> list[tuple[str, str, str]]:
        """(name, ``infiniband`` or ``ethernet``, bus id) of each card's function. Virtual devices are left out."""
        found: dict[str, tuple[str, str, str]] = {}
        for kind, directory in (("infiniband", "class/infiniband"), ("ethernet", "class/net")):
            for path in sorted((self._root / directory).glob("*")):
                device = os.path.realpath(path / "device")
                bus_id = os.path.basename(device)
                if _BUS_ID.fullmatch(bus_id):
                    found.setdefault(bus_id, (path.name, kind, bus_id))
        return sorted(found.values())

    def rdma_nodes(self) -> dict[str, list[str]]:
        """RDMA card, e.g. ``mlx5_0`` -> the names of its device nodes below ``/dev/infiniband``."""
        found: dict[str, list[str]] = {}
        for kind in ("infiniband_verbs", "infiniband_mad"):
            for path in sorted((self._root / "class" / kind).glob("*")):
                if (card := _read(path / "ibdev")) is not None:
                    found.setdefault(card, []).append(path.name)
        return found

    def nvswitches(self) -> int:
        """How many NVSwitches there are: NVIDIA's PCI functions of the class "bridge, other" (0x0680)."""
        return sum(
            _read(path / "vendor") == "0x10de" and (_read(path / "class") or "").startswith("0x0680")
            for path in (self._root / "bus/pci/devices").glob("*")
        )

    def product_name(self) -> str | None:
        """The name that the maker gives the machine (DMI), e.g. ``DGXH100``. None in most virtual machines."""
        name = _read(self._root / "class/dmi/id/product_name")
        return name if name and "DGX" in name.upper() else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _read_int(path: Path) -> int | None:
    text = _read(path)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
