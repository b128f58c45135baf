from __future__ import annotations

import pytest

from gpu_platform.domain.hosts.gpu import GpuInfo, HostInventory, NvLink
from gpu_platform.topology.description import load_description, machine_ids
from gpu_platform.topology.machine import Machine, machine_of, members


def machine(name: str) -> Machine:
    return machine_of(load_description(name).inventory("host"))


@pytest.mark.parametrize("name", machine_ids())
def test_hosts_of_one_type_share_one_machine(name: str) -> None:
    description = load_description(name)
    assert machine_of(description.inventory("a")) is machine_of(description.inventory("b"))


def test_nvlink_bandwidth_follows_links_and_generation() -> None:
    assert machine("dgx-1v").pair_gb_s[0, 3] == 50.0
    assert machine("dgx-1v").pair_gb_s[0, 1] == 25.0
    assert machine("dgx-a100-40gb").pair_gb_s[0, 7] == 300.0
    assert machine("dgx-h100").pair_gb_s[0, 7] == 450.0
    assert machine("dgx-b200").pair_gb_s[0, 7] == 900.0


def test_without_nvlink_sockets_are_apart() -> None:
    box = machine("l40s-4x-dual-socket")
    assert box.pair_gb_s[0, 1] > box.pair_gb_s[0, 2] > 0
    assert not box.nvlink_gb_s.any()
    assert box.islands == (1, 2, 4, 8)


def test_dgx1_is_one_island_on_two_sockets() -> None:
    assert machine("dgx-1v").islands == (0xFF,)
    assert machine("dgx-1v").sockets == (0x0F, 0xF0)


def test_a_host_that_tells_nothing_is_one_socket() -> None:
    gpus = [GpuInfo(uuid=f"u{i}", index=i, model="X", memory_mib=1, compute_capability="8.0") for i in range(3)]
    assert machine_of(HostInventory(machine="vm", gpus=gpus)).numa_nodes == (0b111,)


def test_a_gpu_that_vanished_leaves_a_gap_in_the_indices_only() -> None:
    gpus = [GpuInfo(uuid=f"u{i}", index=i, model="X", memory_mib=1, compute_capability="8.0") for i in (0, 2, 5)]
    links = [NvLink(a=2, b=5, links=4), NvLink(a=0, b=1, links=4)]
    left = machine_of(HostInventory(machine="m", gpus=gpus, nvlinks=links, nvlink_generation=3))
    assert [gpu.index for gpu in left.gpus] == [0, 2, 5]
    assert left.nvlink_gb_s[1, 2] == 100.0
    assert left.islands == (0b001, 0b110)


def test_an_empty_host_is_a_machine_too() -> None:
    assert machine_of(HostInventory(machine="none", gpus=[])).all_gpus == 0


def test_members_lists_a_set() -> None:
    assert members(0b101001) == [0, 3, 5]
