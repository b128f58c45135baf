"""GPUs of a host whose NVML does not answer: as nvidia-smi tells, or the driver's files; and cards next to GPUs.

The samples are our own, with the elements of nvidia-smi's DTD and the fields of the driver's README.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_platform.node.inventory.driver_files import read_driver_facts
from gpu_platform.node.inventory.inventory import read_inventory, read_inventory_without_nvml
from gpu_platform.node.nvml.simulated_nvml import SimulatedNvml
from gpu_platform.node.system.sysfs import Sysfs
from gpu_platform.settings import NodeSettings
from gpu_platform.topology.description import load_description, simulated_uuid
from tests.fake_nvml import FakeNvml, has_compiler
from tests.unit.node.test_inventory import build_sysfs

NODE = NodeSettings(name="box")
MACHINE = load_description("dgx-h100")


def smi_xml(lost: int | None = None) -> str:
    gpus = ""
    for slot in MACHINE.gpus:
        bus_id = (slot.pci_bus_id or f"0000:{slot.index + 1:02x}:00.0").upper()
        uuid = "Unknown Error" if slot.index == lost else simulated_uuid("box", slot.index)
        gpus += f"""
  <gpu id="0000{bus_id}">
    <product_name>{MACHINE.gpu.model}</product_name>
    <product_brand>NVIDIA</product_brand>
    <mig_mode><current_mig>Disabled</current_mig><pending_mig>Disabled</pending_mig></mig_mode>
    <serial>16500000000{slot.index:02d}</serial>
    <uuid>{uuid}</uuid>
    <minor_number>{slot.index}</minor_number>
    <pci><pci_bus>01</pci_bus><pci_bus_id>0000{bus_id}</pci_bus_id></pci>
    <fb_memory_usage><total>81559 MiB</total><reserved>551 MiB</reserved><used>0 MiB</used></fb_memory_usage>
    <temperature><gpu_temp>35 C</gpu_temp></temperature>
  </gpu>"""
    return f"""<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <timestamp>Mon Jan  5 12:00:00 2026</timestamp>
  <driver_version>550.54.15</driver_version>
  <cuda_version>12.4</cuda_version>
  <attached_gpus>{len(MACHINE.gpus)}</attached_gpus>{gpus}
</nvidia_smi_log>
"""


def stand_in(tmp_path: Path, text: str, code: int = 0) -> str:
    (tmp_path / "answer.xml").write_text(text)
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\n[ "$*" = "-q -x" ] || exit 9\ncat {tmp_path}/answer.xml\nexit {code}\n')
    program.chmod(0o755)
    return str(program)


def build_proc(tmp_path: Path) -> Path:
    proc = tmp_path / "proc"
    for slot in MACHINE.gpus:
        bus_id = slot.pci_bus_id or f"0000:{slot.index + 1:02x}:00.0"
        directory = proc / "driver/nvidia/gpus" / bus_id
        directory.mkdir(parents=True)
        (directory / "information").write_text(
            f"Model: \t\t {MACHINE.gpu.model}\nIRQ:   \t\t 16\nGPU UUID: \t {simulated_uuid('box', slot.index)}\n"
            f"Video BIOS: \t 96.00.89.00.01\nBus Type: \t PCIe\nDMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\n"
            f"Bus Location: \t {bus_id}\nDevice Minor: \t {slot.index}\nGPU Excluded:\t No\n"
        )
    (proc / "driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version: 12\n"
    )
    return proc


@pytest.mark.parametrize("source", ["nvidia-smi", "/proc/driver/nvidia"])
def test_each_source_tells_of_the_same_gpus_as_nvml(tmp_path: Path, source: str) -> None:
    sysfs = build_sysfs(tmp_path / "sys", MACHINE)
    by_nvml = read_inventory(SimulatedNvml(MACHINE, "box", tmp_path / "nvml"), NODE, sysfs)
    smi = stand_in(tmp_path, smi_xml() if source == "nvidia-smi" else "NVIDIA-SMI has failed", 0)
    seen = read_inventory_without_nvml(NODE, sysfs, nvidia_smi=smi, proc=build_proc(tmp_path))
    assert seen.source == source
    assert seen.driver_version == "550.54.15"
    ignored = {"serial", "pcie_switch"}
    assert [gpu.model_dump(exclude=ignored) for gpu in seen.gpus] == [
        gpu.model_dump(exclude=ignored) for gpu in by_nvml.gpus
    ]
    assert all(gpu.pcie_switch for gpu in seen.gpus)
    if source == "nvidia-smi":
        assert seen.cuda_version == "12.4"
        assert seen.gpus[3].serial == "1650000000003"


def test_a_gpu_that_answers_nothing_is_left_out(tmp_path: Path) -> None:
    sysfs = build_sysfs(tmp_path / "sys", MACHINE)
    seen = read_inventory_without_nvml(NODE, sysfs, nvidia_smi=stand_in(tmp_path, smi_xml(lost=2)), proc=tmp_path)
    assert [gpu.index for gpu in seen.gpus] == [0, 1, 3, 4, 5, 6, 7]


def test_without_any_source_there_is_no_gpu(tmp_path: Path) -> None:
    seen = read_inventory_without_nvml(NODE, Sysfs(tmp_path), nvidia_smi=str(tmp_path / "none"), proc=tmp_path)
    assert (seen.gpus, seen.source) == ([], "none")


def test_cards_know_their_nearest_gpus(tmp_path: Path) -> None:
    sysfs = build_sysfs(tmp_path / "sys", MACHINE)
    root = tmp_path / "sys"
    gpu = MACHINE.gpus[5]
    beside = (root / "bus/pci/devices" / (gpu.pci_bus_id or "")).resolve().parent.parent
    for name, kind, path in (
        ("mlx5_5", "infiniband", beside / "0000:c9:07.0" / "0000:fe:00.0"),
        ("ens1", "net", root / "devices/pci0000:ff/0000:ff:01.0/0000:fd:00.0"),
    ):
        path.mkdir(parents=True)
        (path / "numa_node").write_text("1\n")
        (root / "bus/pci/devices" / path.name).symlink_to(path)
        (root / "class" / kind / name).mkdir(parents=True)
        (root / "class" / kind / name / "device").symlink_to(path)
    (root / "class/net/lo").mkdir(parents=True)
    switch = root / "devices/pci0000:fc/0000:fc:00.0"
    switch.mkdir(parents=True)
    (switch / "vendor").write_text("0x10de\n")
    (switch / "class").write_text("0x068000\n")
    (root / "bus/pci/devices" / switch.name).symlink_to(switch)
    seen = read_inventory(SimulatedNvml(MACHINE, "box", tmp_path / "nvml"), NODE, sysfs)
    near = {nic.name: nic.gpus for nic in seen.nics}
    together = [slot.index for slot in MACHINE.gpus if slot.pcie_switch == gpu.pcie_switch]
    assert near["mlx5_5"] == together
    assert near["ens1"] == [slot.index for slot in MACHINE.gpus if slot.numa_node == 1]
    assert {nic.name: nic.kind for nic in seen.nics} == {"mlx5_5": "infiniband", "ens1": "ethernet"}
    assert seen.nvswitches == 1


@pytest.mark.skipif(not has_compiler(), reason="needs a C compiler for the stand-in library")
def test_hosts_of_one_rack_tell_the_same_nvlink_domain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml(tmp_path / "lib", "gb200-nvl4-tray")
    monkeypatch.setenv("FAKE_NVML_STATE", str(fake.state_file))
    nvml = fake.load()
    sysfs = Sysfs(tmp_path)
    assert read_inventory(nvml, NODE, sysfs).nvlink_domain is None
    fabric = "0123456789abcdef0123456789abcdef 7"
    fake.set(**{f"gpu__{index}__fabric": fabric for index in range(len(fake.description.gpus))})
    assert read_inventory(nvml, NODE, sysfs).nvlink_domain == "01234567-89ab-cdef-0123-456789abcdef.7"
    ours = NODE.model_copy(update={"nvlink_domain": "rack-3"})
    assert read_inventory(nvml, ours, sysfs).nvlink_domain == "rack-3", "the operator knows better"
    fake.set(gpu__1__fabric="ffffffffffffffffffffffffffffffff 7")
    assert read_inventory(nvml, NODE, sysfs).nvlink_domain is None, "they are not joined"


def test_an_h200_is_known_without_nvml(tmp_path: Path) -> None:
    """Seen on an H200 with driver 580.159.04: it had compute capability 0.0, and by /proc no memory."""
    information = tmp_path / "proc/driver/nvidia/gpus/0000:00:06.0/information"
    information.parent.mkdir(parents=True)
    information.write_text(
        f"Model: \t\t NVIDIA H200\nGPU UUID: \t {simulated_uuid('box', 0)}\nBus Location: \t 0000:00:06.0\n"
    )
    [gpu] = read_driver_facts(Sysfs(tmp_path / "sys"), nvidia_smi="/none", proc=tmp_path / "proc").gpus
    assert (gpu.compute_capability, gpu.memory_mib, gpu.mig_capable) == ("9.0", 143771, True)
