"""NUMA nodes where the kernel says -1: by a stand-in for ``lstopo`` with XML as hwloc 2 writes it, and a real one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gpu_platform.node.inventory.hwloc import PROGRAMS, numa_nodes
from gpu_platform.node.inventory.inventory import read_inventory
from gpu_platform.node.nvml.simulated_nvml import SimulatedNvml
from gpu_platform.node.system.sysfs import Sysfs
from gpu_platform.settings import NodeSettings
from gpu_platform.topology.description import load_description
from tests.unit.node.test_inventory import build_sysfs

DEVICE = '<object type="PCIDev" gp_index="{n}" pci_busid="{bus_id}" pci_type="0302 [10de:2330] [10de:16c1] a1"/>'
PACKAGE = """<object type="Package" os_index="{n}" cpuset="0x{set}" nodeset="0x{set}">
  <object type="NUMANode" os_index="{n}" cpuset="0x{set}" nodeset="0x{set}" local_memory="1073741824"/>
  <object type="Bridge" gp_index="7" bridge_type="0-1" depth="0" bridge_pci="0000:[00-ff]">
    <object type="Bridge" gp_index="8" bridge_type="1-1" depth="1" bridge_pci="0000:[01-ff]">{devices}</object>
  </object>
</object>"""
TOPOLOGY = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0" cpuset="0x00000003" nodeset="0x00000003">{inside}</object>
  <support name="discovery.pu"/>
</topology>"""


def stand_in(directory: Path, near: dict[str, int | None]) -> str:
    """An ``lstopo`` of two nodes with these devices; None: next to both."""

    def devices(node: int | None) -> str:
        buses = (bus_id for bus_id, its in near.items() if its == node)
        return "".join(DEVICE.format(n=n, bus_id=bus_id) for n, bus_id in enumerate(buses))

    packages = "".join(PACKAGE.format(n=node, set=f"{1 << node:08x}", devices=devices(node)) for node in (0, 1))
    (directory / "topology.xml").write_text(TOPOLOGY.format(inside=packages + devices(None)))
    program = directory / "lstopo-no-graphics"
    program.write_text(f'#!/bin/sh\n[ "$*" = "--of xml --whole-io" ] && cat {directory}/topology.xml\n')
    program.chmod(0o755)
    return str(program)


def test_a_device_is_next_to_the_node_that_it_stands_below(tmp_path: Path) -> None:
    near = {"0000:1b:00.0": 0, "0000:5e:00.0": 1, "0000:9d:00.0": 1, "0000:aa:00.0": None}
    assert numa_nodes([str(tmp_path / "none"), stand_in(tmp_path, near)]) == {
        bus_id: node for bus_id, node in near.items() if node is not None
    }


@pytest.mark.parametrize("script", ["exit 1", "echo '<topology'", "echo"], ids=["fails", "torn", "empty"])
def test_without_an_answer_nothing_is_known(tmp_path: Path, script: str) -> None:
    program = tmp_path / "lstopo"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    assert numa_nodes([str(tmp_path / "not installed"), str(program)]) == {}


def test_it_is_asked_only_where_the_kernel_does_not_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = load_description("dgx-1v")
    build_sysfs(tmp_path / "sys", machine)
    nvml = SimulatedNvml(machine, "box", tmp_path / "nvml")
    devices = tmp_path / "sys/bus/pci/devices"
    told = {path.name: int((path / "numa_node").read_text()) for path in devices.iterdir()}
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    stand_in(tmp_path, {bus_id: 1 - node for bus_id, node in told.items()})

    def seen() -> list[int | None]:
        sysfs = Sysfs(tmp_path / "sys", numa_nodes_elsewhere=numa_nodes)
        return [gpu.numa_node for gpu in read_inventory(nvml, NodeSettings(name="box"), sysfs).gpus]

    of_kernel = seen()
    assert of_kernel == [slot.numa_node for slot in machine.gpus]
    for path in devices.iterdir():
        (path / "numa_node").write_text("-1\n")
    assert seen() == [1 - node for node in of_kernel if node is not None]


@pytest.mark.skipif(not any(map(shutil.which, PROGRAMS)), reason="hwloc is not installed here")
def test_the_real_one_agrees_with_the_kernel() -> None:
    known = {path.name: Sysfs().numa_node(path.name) for path in Path("/sys/bus/pci/devices").glob("*")}
    found = numa_nodes()
    assert found or not known
    assert {bus_id: node for bus_id, node in found.items() if known.get(bus_id) is not None} == {
        bus_id: node for bus_id, node in known.items() if node is not None and bus_id in found
    }
