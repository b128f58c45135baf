"""Which boot it is: the kernel's id on a real host, one of its own on a simulated one."""

from __future__ import annotations

from pathlib import Path

from gpu_platform.node.health.boot import KERNEL, boot_id, reboot_simulated
from gpu_platform.node.nvml.fault_injection import GpuCondition, inject_fault, read_condition
from gpu_platform.node.system.paths import control_dir


def test_a_real_host_tells_the_kernels_boot_id(tmp_path: Path) -> None:
    assert boot_id(tmp_path, simulated=False) == KERNEL.read_text().strip()


def test_a_simulated_reboot_changes_the_boot_id_and_finds_lost_gpus_again(tmp_path: Path) -> None:
    before = boot_id(tmp_path, simulated=True)
    assert boot_id(tmp_path, simulated=True) == before
    control = control_dir(tmp_path)
    inject_fault(control, 0, xid=79)
    inject_fault(control, 1, lost=True, survives_reboots=1)
    reboot_simulated(tmp_path)
    assert boot_id(tmp_path, simulated=True) != before
    assert read_condition(control, 0) == GpuCondition()
    assert read_condition(control, 1).lost
    reboot_simulated(tmp_path)
    assert not read_condition(control, 1).lost
