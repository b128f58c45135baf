"""Descriptions of machines in YAML files: reading one, checking it, and writing that of a host that exists.

The fields are those of :class:`MachineDescription`; ``docs/contributing/machine-type.md`` explains them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from gpu_platform.domain.documents import wrong_fields, yaml_mapping
from gpu_platform.domain.errors import InvalidRequest, NotFound
from gpu_platform.domain.hosts.gpu import HostInventory
from gpu_platform.topology.description import GpuModel, GpuPosition, MachineDescription, NumaNode, load_description


def is_machine_file(name: str) -> bool:
    """True for the name of a file. Other names are those of machine types that the platform knows."""
    return name.endswith((".yaml", ".yml"))


def find_machine(name: str) -> MachineDescription:
    """Return the description of a machine type that the platform knows, or of a file.

    Raises :class:`NotFound` and :class:`InvalidRequest`.
    """
    return read_machine(Path(name)) if is_machine_file(name) else load_description(name)


def read_machine(path: Path) -> MachineDescription:
    """Read a description. Raises :class:`NotFound`, and :class:`InvalidRequest` that names every field at fault."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError) as error:
        raise NotFound(f"there is no file {path}") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{path.name} is not text: {error}") from error
    try:
        return MachineDescription.model_validate(yaml_mapping(text, path.name))
    except ValidationError as error:
        raise InvalidRequest(f"{path.name} describes no machine: {wrong_fields(error)}") from error


def machine_of_host(inventory: HostInventory, machine_id: str, name: str) -> MachineDescription:
    """Return the description of a host as it registered, e.g. ``machine_id`` ``my-box``.

    An inventory does not say which CPUs a NUMA node has, so ``cpus`` of the nodes is null. Raises
    :class:`InvalidRequest` if the host has no GPU or GPUs of several models: a description has one model.
    """
    gpus = sorted(inventory.gpus, key=lambda gpu: gpu.index)
    models = sorted({gpu.model for gpu in gpus})
    if len(models) != 1:
        found = f"GPUs of {len(models)} models ({', '.join(models)})" if models else "no GPU"
        raise InvalidRequest(f"{name} has {found}: a machine description has GPUs of one model")
    first = gpus[0]
    sockets = {gpu.numa_node: gpu.socket for gpu in gpus if gpu.numa_node is not None}
    return MachineDescription(
        id=machine_id,
        name=name,
        cpus=inventory.cpus,
        ram_mib=inventory.ram_mib,
        numa_nodes=[NumaNode(id=node, socket=socket, cpus=None) for node, socket in sorted(sockets.items())],
        gpu=GpuModel(
            model=first.model,
            memory_mib=min(gpu.memory_mib for gpu in gpus),
            compute_capability=first.compute_capability,
            mig_capable=first.mig_capable,
        ),
        gpus=[
            GpuPosition(
                index=gpu.index, pci_bus_id=gpu.pci_bus_id, numa_node=gpu.numa_node, pcie_switch=gpu.pcie_switch
            )
            for gpu in gpus
        ],
        nvlink_generation=inventory.nvlink_generation,
        nvlink=_nvlink(inventory),
        sources=[f"captured from a host: driver {inventory.driver_version or 'unknown'}, {inventory.source}"],
    )


def to_yaml(machine: MachineDescription) -> str:
    """Return the text of a description, one GPU and one NUMA node on a line."""
    fields = machine.model_dump(mode="json", exclude_none=True, exclude={"numa_nodes", "gpu", "gpus", "nvlink"})
    generation = machine.nvlink_generation
    tail = {name: fields.pop(name) for name in ("assumed", "sources") if name in fields}
    fields.pop("nvlink_generation", None)
    lines = [yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=120).rstrip()]
    lines += ["numa_nodes:" + (" []" if not machine.numa_nodes else "")]
    lines += [f"- {_flow(node.model_dump(mode='json'))}" for node in machine.numa_nodes]
    lines += [f"gpu: {_flow(machine.gpu.model_dump(mode='json'))}", "gpus:"]
    lines += [f"- {_flow(gpu.model_dump(mode='json'))}" for gpu in machine.gpus]
    lines += [f"nvlink_generation: {'null' if generation is None else generation}"]
    lines += [f"nvlink: {_flow(machine.model_dump(mode='json')['nvlink'])}"]
    lines += [yaml.safe_dump(tail, sort_keys=False, allow_unicode=True, width=120).rstrip()]
    return "\n".join(lines) + "\n"


def _nvlink(inventory: HostInventory) -> dict[str, int] | list[tuple[int, int, int]]:
    """Return the links in the shorter form: of NVSwitch, if every pair of GPUs has the same number."""
    pairs = sorted((min(link.a, link.b), max(link.a, link.b), link.links) for link in inventory.nvlinks if link.links)
    counts = {links for _, _, links in pairs}
    n = len(inventory.gpus)
    if n > 2 and len(counts) == 1 and len(pairs) == n * (n - 1) // 2:
        return {"nvswitch": counts.pop()}
    return pairs


def _flow(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000).strip()
