"""Clusters of the imagination: a file that names machine types and how many hosts there are of each.

::

    leaf_size: 32          # hosts under one leaf switch, in the order given here
    leaves_per_spine: 16
    hosts:
      - {count: 64, machine: dgx-h100}
      - {count: 20, gpus: 2, model: T4, memory_mib: 15360, compute_capability: "7.5"}

A group without a ``machine`` is of plain hosts: all GPUs on one NUMA node, no NVLink.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gpu_platform.domain.gpu import GpuInfo, HostInventory
from gpu_platform.domain.rows import HostRow
from gpu_platform.domain.states import HostState
from gpu_platform.topology.description import load_description, simulated_uuid


class HostGroup(BaseModel):
    """``count`` equal hosts, called ``<name>-0000``, ``<name>-0001``, …"""

    model_config = ConfigDict(extra="forbid")

    count: Annotated[int, Field(ge=1, le=100_000)]
    name: str | None = None
    """Default: the machine's, or the model's."""
    machine: str | None = None
    gpus: Annotated[int | None, Field(ge=1, le=64)] = None
    model: str = "GPU"
    memory_mib: Annotated[int, Field(ge=1)] = 81_920
    compute_capability: str = "9.0"

    @model_validator(mode="after")
    def _says_what_it_is(self) -> Self:
        if (self.machine is None) == (self.gpus is None):
            raise ValueError("say either machine, or gpus (and model)")
        return self

    def inventory(self, host: str) -> HostInventory:
        """Raises NotFound for an unknown machine."""
        if self.machine is not None:
            return load_description(self.machine).inventory(host)
        return HostInventory(
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
    model_config = ConfigDict(extra="forbid")

    hosts: Annotated[list[HostGroup], Field(min_length=1)]
    leaf_size: Annotated[int | None, Field(ge=1)] = None
    leaves_per_spine: Annotated[int | None, Field(ge=1)] = None

    def rows(self) -> list[HostRow]:
        """All hosts, READY. Raises NotFound for an unknown machine."""
        return [
            HostRow(name, HostState.READY, group.inventory(name), *self._switches(number))
            for number, (name, group) in enumerate(self._named())
        ]

    def _named(self) -> Iterator[tuple[str, HostGroup]]:
        taken: dict[str, int] = {}
        for group in self.hosts:
            name = group.name or group.machine or group.model.lower().replace(" ", "-")
            for _ in range(group.count):
                yield f"{name}-{taken.setdefault(name, 0):04d}", group
                taken[name] += 1

    def _switches(self, number: int) -> tuple[str | None, str | None]:
        if self.leaf_size is None:
            return None, None
        leaf = number // self.leaf_size
        return f"leaf-{leaf}", None if self.leaves_per_spine is None else f"spine-{leaf // self.leaves_per_spine}"


def read_openb_nodes(lines: Iterable[str]) -> list[HostRow]:
    """Alibaba's ``openb_node_list_*.csv``, columns sn, gpu (how many) and model; only hosts with GPUs."""
    rows = []
    for node in csv.DictReader(lines):
        if int(node["gpu"]):
            group = HostGroup(count=1, gpus=int(node["gpu"]), model=node["model"])
            rows.append(HostRow(node["sn"], HostState.READY, group.inventory(node["sn"])))
    return rows
