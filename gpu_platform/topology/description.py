"""Machine descriptions: what a host of a known type contains.

Simulated hosts and tests use them. The facts and their sources are in ``machines/*.yaml``.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Annotated, Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from gpu_platform.domain.errors import NotFound
from gpu_platform.domain.hosts.bounds import MAX_GPUS
from gpu_platform.domain.hosts.gpu import GpuInfo, HostInventory, NvLink


class NumaNode(BaseModel):
    """One NUMA node of a machine."""

    id: int
    socket: int | None
    cpus: str | None
    """The CPUs as a kernel list, e.g. ``0-19,40-59``."""


class GpuModel(BaseModel):
    """The model of a machine's GPUs."""

    model: str
    memory_mib: int
    compute_capability: str
    mig_capable: bool


class GpuPosition(BaseModel):
    """Where one GPU is in the machine."""

    index: int
    pci_bus_id: str | None
    numa_node: int | None
    pcie_switch: str | None


class MachineDescription(BaseModel):
    """A machine type, as described in its YAML file."""

    model_config = ConfigDict(extra="forbid")

    id: str
    name: str
    cpus: Annotated[int | None, Field(ge=1)] = None
    """Logical CPUs of the machine. None: unknown."""
    ram_mib: Annotated[int | None, Field(ge=1)] = None
    """Memory of the machine. None: unknown."""
    numa_nodes: list[NumaNode]
    assumed: str | None = None
    """What no source says, what is assumed instead, and why."""
    gpu: GpuModel
    gpus: Annotated[list[GpuPosition], Field(min_length=1, max_length=MAX_GPUS)]
    nvlink_generation: int | None
    nvlink: dict[str, int] | list[tuple[int, int, int]] = Field(
        description="{nvswitch: links per GPU}, or direct links as (GPU, GPU, count); [] means none"
    )
    sources: list[str]

    @model_validator(mode="after")
    def _names_what_is_there(self) -> Self:
        if problems := [*_wrong_positions(self), *_wrong_links(self)]:
            raise ValueError("; ".join(problems))
        return self

    @property
    def links(self) -> list[NvLink]:
        """Return all pairs that NVLink connects. With NVSwitch, each pair has all links of a GPU."""
        if isinstance(self.nvlink, dict):
            count, n = self.nvlink["nvswitch"], len(self.gpus)
            return [NvLink(a=a, b=b, links=count) for a in range(n) for b in range(a + 1, n)]
        return [NvLink(a=a, b=b, links=links) for a, b, links in self.nvlink]

    def inventory(self, host: str, nvlink_domain: str | None = None) -> HostInventory:
        """Return what a host of this type would register. GPU uuids depend only on ``host`` and the index.
        ``nvlink_domain``: see :class:`HostInventory`; a tray of a rack has one.
        """
        socket_of = {node.id: node.socket for node in self.numa_nodes}
        return HostInventory(
            machine=self.id,
            cpus=self.cpus,
            ram_mib=self.ram_mib,
            driver_version="simulated",
            simulated=True,
            gpus=[
                GpuInfo(
                    uuid=simulated_uuid(host, slot.index),
                    index=slot.index,
                    model=self.gpu.model,
                    memory_mib=self.gpu.memory_mib,
                    compute_capability=self.gpu.compute_capability,
                    mig_capable=self.gpu.mig_capable,
                    pci_bus_id=slot.pci_bus_id,
                    numa_node=slot.numa_node,
                    socket=None if slot.numa_node is None else socket_of[slot.numa_node],
                    pcie_switch=slot.pcie_switch,
                )
                for slot in self.gpus
            ],
            nvlinks=self.links,
            nvlink_generation=self.nvlink_generation,
            nvlink_domain=nvlink_domain,
        )


def _wrong_positions(machine: MachineDescription) -> Iterator[str]:
    """Yield what is wrong about GPUs and NUMA nodes, in sentences."""
    nodes = [node.id for node in machine.numa_nodes]
    for what, numbers in (("numa_nodes", nodes), ("gpus", [gpu.index for gpu in machine.gpus])):
        if twice := sorted({number for number in numbers if numbers.count(number) > 1}):
            yield f"{what} has {', '.join(map(str, twice))} twice"
    for gpu in machine.gpus:
        if gpu.numa_node is not None and gpu.numa_node not in nodes:
            known = ", ".join(map(str, sorted(nodes))) or "none"
            yield f"GPU {gpu.index} is on NUMA node {gpu.numa_node}, but numa_nodes has {known}"


def _wrong_links(machine: MachineDescription) -> Iterator[str]:
    """Yield what is wrong about NVLinks, in sentences."""
    indices = {gpu.index for gpu in machine.gpus}
    if isinstance(machine.nvlink, dict):
        if set(machine.nvlink) != {"nvswitch"} or machine.nvlink["nvswitch"] < 1:
            yield "nvlink is {nvswitch: links of each GPU}, or a list of [GPU, GPU, links]"
        elif indices != set(range(len(indices))):
            yield "with nvswitch the GPUs must be numbered 0, 1, 2, …"
    else:
        pairs = [frozenset((a, b)) for a, b, _ in machine.nvlink]
        for a, b, links in machine.nvlink:
            if missing := {a, b} - indices:
                yield f"nvlink [{a}, {b}, {links}] names GPU {missing.pop()}, which is not in gpus"
            elif a == b or links < 1 or pairs.count(frozenset((a, b))) > 1:
                yield f"nvlink [{a}, {b}, {links}] must join two GPUs, once, by at least one link"
    if machine.nvlink and machine.nvlink_generation is None:
        yield "nvlink_generation is missing: 1 Pascal, 2 Volta and Turing, 3 Ampere, 4 Hopper, 5 Blackwell"


class RackDescription(BaseModel):
    """Hosts of one type whose NVLinks meet in the rack's switches: one NVLink domain."""

    model_config = ConfigDict(extra="forbid")

    id: str
    name: str
    machine: str
    """The id of the hosts' :class:`MachineDescription`."""
    hosts: int
    sources: list[str]

    def inventories(self, rack: str) -> dict[str, HostInventory]:
        """Return host name -> what it would register, for a rack of this type with the name ``rack``."""
        tray = load_description(self.machine)
        names = [f"{rack}-{number:02d}" for number in range(self.hosts)]
        return {name: tray.inventory(name, nvlink_domain=rack) for name in names}


def nvlink_ports(description: MachineDescription) -> dict[int, list[int | None]]:
    """Return for each GPU where each of its links ends: the index of a GPU, or None for a switch."""
    ports: dict[int, list[int | None]] = defaultdict(list)
    if isinstance(description.nvlink, dict):
        for slot in description.gpus:
            ports[slot.index] = [None] * description.nvlink["nvswitch"]
    else:
        for link in description.links:
            ports[link.a] += [link.b] * link.links
            ports[link.b] += [link.a] * link.links
    return ports


def simulated_uuid(host: str, index: int) -> str:
    """Return a GPU uuid in NVML's form. It is the same whenever the simulated host starts."""
    digest = hashlib.sha256(f"{host}/{index}".encode()).digest()
    return f"GPU-{uuid.UUID(bytes=digest[:16])}"


def machine_ids() -> list[str]:
    """Return the ids of all known machine types."""
    return _ids("machines")


def rack_ids() -> list[str]:
    """Return the ids of all known rack types."""
    return _ids("racks")


@cache
def load_description(machine_id: str) -> MachineDescription:
    """Return the description of a machine type. Raises :class:`NotFound` with the known ones."""
    return MachineDescription.model_validate(_load("machines", machine_id))


@cache
def load_rack(rack_id: str) -> RackDescription:
    """Return the description of a rack type. Raises :class:`NotFound` with the known ones."""
    return RackDescription.model_validate(_load("racks", rack_id))


def _ids(folder: str) -> list[str]:
    files = (resources.files("gpu_platform.topology") / folder).iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def _load(folder: str, name: str) -> dict[str, Any]:
    file = resources.files("gpu_platform.topology") / folder / f"{name}.yaml"
    if not file.is_file():
        known = ", ".join(_ids(folder))
        raise NotFound(f"there is no {folder.removesuffix('s')} description {name!r}; there are: {known}")
    return yaml.safe_load(file.read_text())
