from __future__ import annotations

import pytest

from gpu_platform.domain.hosts.gpu import GpuInfo, HostInventory, NvLink
from gpu_platform.domain.jobs.placement import TopologyLevel
from gpu_platform.topology.description import load_description
from gpu_platform.topology.machine import Machine, machine_of, members
from gpu_platform.topology.subsets import Subset, best_subset


def choose(name: str, size: int, *, free: tuple[int, ...] = tuple(range(8)), cross: bool = False) -> Subset | None:
    machine = machine_of(load_description(name).inventory("host"))
    return best_subset(machine, sum(1 << gpu for gpu in free), size, cross)


def chosen(name: str, size: int, *, free: tuple[int, ...] = tuple(range(8)), cross: bool = False) -> list[int]:
    subset = choose(name, size, free=free, cross=cross)
    assert subset is not None
    return members(subset.gpus)


def test_a_pair_on_dgx1_takes_two_links() -> None:
    pair = choose("dgx-1v", 2)
    assert pair is not None
    assert (pair.level, pair.bandwidth_gb_s) == (TopologyLevel.NVLINK_NUMA, 50.0)


def test_dgx1_gpus_without_a_common_link_are_not_a_pair() -> None:
    assert choose("dgx-1v", 2, free=(0, 5)) is None
    apart = choose("dgx-1v", 2, free=(0, 5), cross=True)
    assert apart is not None
    assert apart.level is TopologyLevel.HOST


def test_all_eight_of_dgx1_are_one_ring_of_double_links() -> None:
    whole = choose("dgx-1v", 8)
    assert whole is not None
    assert (whole.level, whole.bandwidth_gb_s) == (TopologyLevel.NVLINK, 50.0)


def test_nvlink_inside_one_numa_node_comes_first() -> None:
    assert chosen("dgx-h100", 4, free=(0, 1, 2, 4, 5, 6, 7)) == [4, 5, 6, 7]


def test_nvlink_may_cross_sockets_without_asking() -> None:
    across = choose("dgx-h100", 6)
    assert across is not None
    assert across.level is TopologyLevel.NVLINK


def test_without_nvlink_sockets_are_crossed_only_when_allowed() -> None:
    assert choose("rtx4090-8x-all-sys", 5) is None
    allowed = choose("rtx4090-8x-all-sys", 5, cross=True)
    assert allowed is not None
    assert allowed.level is TopologyLevel.HOST


def test_a_single_gpu_comes_from_the_numa_node_that_is_broken_already() -> None:
    assert chosen("dgx-h100", 1, free=(0, 1, 2, 3, 5)) == [5]
    assert chosen("dgx-h100", 2, free=(0, 1, 2, 4, 5)) == [4, 5]


def test_gpus_under_one_switch_before_others_of_the_node() -> None:
    assert chosen("dgx-1v", 2, free=(0, 3, 2)) == [2, 3]


@pytest.mark.parametrize("size", [0, 9])
def test_no_set_of_an_impossible_size(size: int) -> None:
    assert choose("dgx-h100", size) is None


def pcie_box(gpus: int, numa_nodes: int, islands_of: int = 0) -> Machine:
    """A box too large to enumerate; ``islands_of`` n: NVLink joins each n neighbours."""
    per_node = gpus // numa_nodes
    infos = [
        GpuInfo(
            uuid=f"u{i}",
            index=i,
            model="X",
            memory_mib=1,
            compute_capability="8.0",
            numa_node=i // per_node,
            socket=i // per_node,
        )
        for i in range(gpus)
    ]
    links = [
        NvLink(a=a, b=b, links=4)
        for a in range(gpus)
        for b in range(a + 1, gpus)
        if islands_of and a // islands_of == b // islands_of
    ]
    return machine_of(HostInventory(machine="large", gpus=infos, nvlinks=links, nvlink_generation=3))


def test_large_machines_are_served_along_their_groups() -> None:
    box = pcie_box(20, numa_nodes=2)
    ten = best_subset(box, box.all_gpus, 10, False)
    assert ten is not None
    assert ten.level is TopologyLevel.NUMA
    assert best_subset(box, box.all_gpus, 11, False) is None
    eleven = best_subset(box, box.all_gpus, 11, True)
    assert eleven is not None
    assert eleven.level is TopologyLevel.HOST


def test_large_machines_have_islands_too() -> None:
    box = pcie_box(20, numa_nodes=2, islands_of=4)
    four = best_subset(box, box.all_gpus & ~0b1, 4, False)
    assert four is not None
    assert (members(four.gpus), four.level) == ([4, 5, 6, 7], TopologyLevel.NVLINK_NUMA)
