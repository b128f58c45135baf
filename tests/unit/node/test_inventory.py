"""The path that real hosts take through NVML and sysfs, on described machines and a built ``/sys``."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_platform.node.inventory.inventory import read_inventory
from gpu_platform.node.nvml.fault_injection import inject_fault
from gpu_platform.node.nvml.simulated_nvml import SimulatedNvml
from gpu_platform.node.system import paths
from gpu_platform.node.system.sysfs import Sysfs
from gpu_platform.settings import NodeSettings
from gpu_platform.topology.description import MachineDescription, load_description, machine_ids

NODE = NodeSettings(name="box")


def build_sysfs(root: Path, machine: MachineDescription) -> Sysfs:
    """A ``/sys`` in which the machine's GPUs sit below their switches and on their NUMA nodes."""
    links = root / "bus/pci/devices"
    links.mkdir(parents=True)
    switches = sorted({slot.pcie_switch for slot in machine.gpus if slot.pcie_switch})
    for slot in machine.gpus:
        path = root / f"devices/pci0000:{slot.index:02x}/0000:{slot.index:02x}:01.0"
        if slot.pcie_switch is not None:
            bridge = switches.index(slot.pcie_switch)
            path = root / f"devices/pci0000:a{bridge}/0000:a{bridge}:01.0/0000:b{bridge}:00.0"
            path /= f"0000:c{bridge}:{slot.index:02x}.0"
        path /= slot.pci_bus_id or f"0000:{slot.index + 1:02x}:00.0"
        path.mkdir(parents=True)
        (path / "numa_node").write_text(f"{-1 if slot.numa_node is None else slot.numa_node}\n")
        (links / path.name).symlink_to(path)
    for node in machine.numa_nodes:
        first = 16 * node.id
        (root / f"devices/system/node/node{node.id}").mkdir(parents=True)
        (root / f"devices/system/node/node{node.id}/cpulist").write_text(f"{first}-{first + 15}\n")
        (root / f"devices/system/cpu/cpu{first}/topology").mkdir(parents=True)
        (root / f"devices/system/cpu/cpu{first}/topology/physical_package_id").write_text(f"{node.socket}\n")
    return Sysfs(root)


@pytest.mark.parametrize("machine_id", machine_ids())
def test_nvml_and_sysfs_tell_what_the_description_says(tmp_path: Path, machine_id: str) -> None:
    machine = load_description(machine_id)
    nvml = SimulatedNvml(machine, "box", paths.control_dir(tmp_path / "node"))
    seen = read_inventory(nvml, NODE, build_sysfs(tmp_path / "sys", machine))
    described = machine.inventory("box")
    ignored = {"pcie_switch", "serial", "pci_bus_id"}
    assert [gpu.model_dump(exclude=ignored) for gpu in seen.gpus] == [
        gpu.model_dump(exclude=ignored) for gpu in described.gpus
    ]
    assert seen.nvlinks == sorted(described.nvlinks, key=lambda link: (link.a, link.b))
    assert seen.nvlink_generation == (machine.nvlink_generation if described.nvlinks else None)
    assert _groups([gpu.pcie_switch for gpu in seen.gpus]) == _groups([gpu.pcie_switch for gpu in described.gpus])
    assert seen.cuda_version == "13.0"
    assert not seen.simulated


def _groups(names: list[str | None]) -> list[list[int]]:
    """Which GPUs share a switch, whatever it is called."""
    return [[j for j, other in enumerate(names) if other == name and name] for name in names]


def test_a_lost_gpu_is_left_out_and_the_others_keep_their_numbers(tmp_path: Path) -> None:
    machine = load_description("dgx-1v")
    nvml = SimulatedNvml(machine, "box", tmp_path / "nvml")
    inject_fault(nvml.control_dir, 2, lost=True)
    seen = read_inventory(nvml, NODE, build_sysfs(tmp_path / "sys", machine))
    assert [gpu.index for gpu in seen.gpus] == [0, 1, 3, 4, 5, 6, 7]
    assert all(2 not in (link.a, link.b) for link in seen.nvlinks)
    assert len(seen.nvlinks) == 12


def test_a_machine_without_numa_information(tmp_path: Path) -> None:
    nvml = SimulatedNvml(load_description("dgx-h100"), "box", tmp_path / "nvml")
    seen = read_inventory(nvml, NODE, Sysfs(tmp_path / "empty"))
    assert {gpu.numa_node for gpu in seen.gpus} == {None}
    assert {gpu.socket for gpu in seen.gpus} == {None}
    assert seen.machine == "8x NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize("described", [True, False])
def test_mig_profiles_are_told_per_model(tmp_path: Path, described: bool) -> None:
    nvml = SimulatedNvml(load_description("dgx-h100"), "box", tmp_path / "nvml")
    seen = read_inventory(nvml, NODE, None if described else Sysfs(tmp_path / "empty"))
    assert "3g.40gb" in seen.mig_profiles["NVIDIA H100 80GB HBM3"]
