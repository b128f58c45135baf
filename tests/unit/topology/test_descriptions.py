from __future__ import annotations

import pytest

from gpu_platform.domain.errors import NotFound
from gpu_platform.topology.description import load_description, load_rack, machine_ids, rack_ids
from gpu_platform.topology.machine import machine_of
from gpu_platform.topology.subsets import best_subset


@pytest.mark.parametrize("name", machine_ids())
def test_every_machine_offers_each_number_of_its_gpus(name: str) -> None:
    machine = machine_of(load_description(name).inventory("host"))
    for size in range(1, machine.size + 1):
        best = best_subset(machine, machine.all_gpus, size, allow_cross_numa=True)
        assert best is not None
        assert best.gpus.bit_count() == size


@pytest.mark.parametrize(
    ("name", "sockets", "nodes", "islands"),
    [
        ("dgx-1v", 2, 2, 1),
        ("dgx-a100-40gb", 2, 4, 1),  # eight NUMA nodes, four of them with GPUs
        ("azure-nd96asr-v4", 4, 4, 1),  # sockets unknown: each NUMA node counts as one
        ("a100-pcie-4x-one-bridge", 2, 2, 3),  # one bridge between two GPUs
        ("rtx4090-8x-all-sys", 2, 2, 8),
        ("gb200-nvl4-tray", 2, 2, 1),
    ],
)
def test_the_groups_of_a_machine(name: str, sockets: int, nodes: int, islands: int) -> None:
    machine = machine_of(load_description(name).inventory("host"))
    assert (len(machine.sockets), len(machine.numa_nodes), len(machine.islands)) == (sockets, nodes, islands)


def test_what_no_source_gave_is_said() -> None:
    assert "smallest PCIe A100" in (load_description("a100-pcie-4x-one-bridge").assumed or "")


def test_the_trays_of_a_rack_are_one_nvlink_domain() -> None:
    assert rack_ids() == ["gb200-nvl72"]
    trays = load_rack("gb200-nvl72").inventories("r1")
    assert len(trays) == 18
    assert sum(len(tray.gpus) for tray in trays.values()) == 72
    assert {tray.nvlink_domain for tray in trays.values()} == {"r1"}


def test_an_unknown_rack_is_named_with_the_known_ones() -> None:
    with pytest.raises(NotFound, match="no rack description 'x'; there are: gb200-nvl72"):
        load_rack("x")
