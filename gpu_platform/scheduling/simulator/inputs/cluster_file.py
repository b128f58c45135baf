"""Simulated clusters: a file that names machine types, and how many hosts there are of each.

::

    leaf_size: 32          # hosts under one leaf switch, in the order given here
    leaves_per_spine: 16
    hosts:
      - {count: 64, machine: dgx-h100}
      - {count: 20, gpus: 2, model: T4, memory_mib: 15360, compute_capability: "7.5"}

``machine`` may also be a file with the description of another machine, e.g. ``my-host.yaml``. A group without a
``machine`` is of plain hosts: all GPUs on one NUMA node, no NVLink.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.hosts.gpu import GpuInfo, HostInventory
from gpu_platform.domain.placing.scheduler_input import HostRow
from gpu_platform.domain.states import HostState
from gpu_platform.topology.description import MachineDescription, load_description, simulated_uuid

UNLIMITED = 10**9
"""CPUs and MiB of a host if the file gives none."""


class HostGroup(BaseModel):
    """``count`` equal hosts with the names ``<name>-0000``, ``<name>-0001``, …"""

    model_config = ConfigDict(extra="forbid")

    count: Annotated[int, Field(ge=1, le=100_000)]
    name: str | None = None
    """Default: the name of the machine or of the GPU model."""
    machine: str | MachineDescription | None = None
    """A known machine type, or a description of another one, as in ``gpu_platform/topology/machines``."""
    gpus: Annotated[int | None, Field(ge=1, le=64)] = None
    model: str = "GPU"
    memory_mib: Annotated[int, Field(ge=1)] = 81_920
    compute_capability: str = "9.0"
    cpus: Annotated[int | None, Field(ge=1)] = None
    ram_mib: Annotated[int | None, Field(ge=1)] = None
    """``cpus`` and ``ram_mib`` of a host. Default: those of the machine, or enough for any job."""

    @model_validator(mode="after")
    def _says_what_it_is(self) -> Self:
        if (self.machine is None) == (self.gpus is None):
            raise ValueError("say either machine, or gpus (and model)")
        return self

    def inventory(self, host: str) -> HostInventory:
        """Return the inventory of a host of this name. Raises NotFound for an unknown machine."""
        if self.machine is not None:
            known = load_description(self.machine) if isinstance(self.machine, str) else self.machine
            found = known.inventory(host)
            own = {"cpus": self.cpus or found.cpus or UNLIMITED, "ram_mib": self.ram_mib or found.ram_mib or UNLIMITED}
            return found.model_copy(update=own)
        return HostInventory(
            cpus=self.cpus or UNLIMITED,
            ram_mib=self.ram_mib or UNLIMITED,
            mps=True,
            machine=f"{self.gpus}x{self.model}",
            simulated=True,
            gpus=[
                GpuInfo(
                    uuid=simulated_uuid(host, index),
                    index=index,
                    model=self.model,
                    memory_mib=self.memory_mib,
                    compute_capability=self.compute_capability,
                    numa_node=0,
                    socket=0,
                )
                for index in range(self.gpus or 0)
            ],
        )


class ClusterFile(BaseModel):
    """The contents of a cluster file: see the top of this module."""

    model_config = ConfigDict(extra="forbid")

    hosts: Annotated[list[HostGroup], Field(min_length=1)]
    leaf_size: Annotated[int | None, Field(ge=1)] = None
    leaves_per_spine: Annotated[int | None, Field(ge=1)] = None

    def rows(self) -> list[HostRow]:
        """Return all hosts, READY. Raises NotFound for an unknown machine."""
        return [
            HostRow(name, HostState.READY, group.inventory(name), *self._switches(number))
            for number, (name, group) in enumerate(self._named())
        ]

    def _named(self) -> Iterator[tuple[str, HostGroup]]:
        taken: dict[str, int] = {}
        for group in self.hosts:
            machine = group.machine.id if isinstance(group.machine, MachineDescription) else group.machine
            name = group.name or machine or group.model.lower().replace(" ", "-")
            for _ in range(group.count):
                yield f"{name}-{taken.setdefault(name, 0):04d}", group
                taken[name] += 1

    def _switches(self, number: int) -> tuple[str | None, str | None]:
        if self.leaf_size is None:
            return None, None
        leaf = number // self.leaf_size
        return f"leaf-{leaf}", None if self.leaves_per_spine is None else f"spine-{leaf // self.leaves_per_spine}"


def read_nodes(name: str, lines: Iterable[str]) -> list[HostRow]:
    """Read a table of hosts as Alibaba publishes it. Hosts without GPUs are left out.

    Either ``openb_node_list_*.csv`` (columns sn, gpu, model, cpu_milli, memory_mib), or the list of
    cluster-trace-v2026-spot-gpu (node_name, gpu_capacity_num, gpu_model, cpu_num). Raises InvalidRequest.
    """
    rows = []
    table = csv.DictReader(lines)
    columns = set(table.fieldnames or ())
    if {"sn", "gpu", "model"} <= columns:
        convert = _openb_node
    elif {"node_name", "gpu_capacity_num", "gpu_model", "cpu_num"} <= columns:
        convert = _spot_node
    else:
        raise InvalidRequest(
            f"{name} is no table of hosts that can be read: known are those with the columns sn, gpu, model "
            "and with node_name, gpu_capacity_num, gpu_model, cpu_num"
        )
    for node in table:
        try:
            host, group = convert(node)
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidRequest(f"line {table.line_num} of {name}: {error}") from error
        if group is not None:
            rows.append(HostRow(host, HostState.READY, group.inventory(host)))
    return rows


def _openb_node(node: dict[str, str]) -> tuple[str, HostGroup | None]:
    gpus = int(node["gpu"])
    cpus = int(node.get("cpu_milli") or 0) // 1000
    group = HostGroup(
        count=1, gpus=gpus, model=node["model"], cpus=cpus or None, ram_mib=int(node.get("memory_mib") or 0) or None
    ) if gpus else None  # fmt: skip
    return node["sn"], group


def _spot_node(node: dict[str, str]) -> tuple[str, HostGroup | None]:
    gpus = int(float(node["gpu_capacity_num"]))
    name = f"node-{int(node['node_name']):05d}" if node["node_name"].isdigit() else node["node_name"]
    cpus = int(float(node["cpu_num"])) or None
    return name, HostGroup(count=1, gpus=gpus, model=node["gpu_model"], cpus=cpus) if gpus else None
