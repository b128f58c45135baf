"""On small machines of any shape the chosen set is what trying every set and every ring finds."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_platform.domain.hosts.gpu import GpuInfo, HostInventory, NvLink
from gpu_platform.domain.jobs.placement import TopologyLevel, WaitCode
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.placing.capacity import largest_gang, socket_of
from gpu_platform.domain.placing.scheduler_input import HostRow
from gpu_platform.domain.states import HostState
from gpu_platform.scheduling.scheduler import Scheduler
from gpu_platform.topology.machine import Machine, machine_of, members
from gpu_platform.topology.subsets import HOST_LEVELS, best_subset
from tests.builders import job
from tests.support.examples import few


@st.composite
def inventories(draw: st.DrawFn) -> HostInventory:
    count = draw(st.integers(1, 6))
    sockets = draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
    gpus = [
        GpuInfo(
            uuid=f"GPU-{index}",
            index=index,
            model="X",
            memory_mib=1024,
            compute_capability="8.0",
            socket=sockets[index],
            numa_node=2 * sockets[index] + draw(st.integers(0, 1)),
            pcie_switch=draw(st.sampled_from([None, "a", "b"])),
        )
        for index in range(count)
    ]
    pairs = list(combinations(range(count), 2))
    links = draw(st.lists(st.integers(0, 2), min_size=len(pairs), max_size=len(pairs)))
    return HostInventory(
        machine="any",
        gpus=gpus,
        nvlinks=[NvLink(a=a, b=b, links=n) for (a, b), n in zip(pairs, links, strict=True) if n],
        nvlink_generation=draw(st.sampled_from([1, 3, 5])),
    )


def slowest_hop_of_best_ring(machine: Machine, gpus: tuple[int, ...], nvlink_only: bool) -> float:
    if len(gpus) == 1:
        return 0.0
    hops = machine.nvlink_gb_s if nvlink_only else machine.pair_gb_s
    first, *rest = gpus
    return max(
        float(min(hops[a, b] for a, b in zip((first, *middle), (*middle, first), strict=True)))
        for middle in permutations(rest)
    )


def left_whole(machine: Machine, rest: int) -> tuple[int, ...]:
    """What is left of islands, sockets, NUMA nodes and switches, negated: less is better."""
    groups = (machine.islands, machine.sockets, machine.numa_nodes, machine.switches)
    return tuple(-sum((rest & group).bit_count() ** 2 for group in kind) for kind in groups)


def worth(machine: Machine, gpus: tuple[int, ...]) -> tuple[int, float, int]:
    """(level, -bandwidth, PCIe switches): less is better."""
    infos = [machine.gpus[gpu] for gpu in gpus]
    one_socket = len({socket_of(info) for info in infos}) == 1
    one_numa = one_socket and len({info.numa_node for info in infos}) == 1
    ring = slowest_hop_of_best_ring(machine, gpus, nvlink_only=True)
    if ring > 0:
        level = TopologyLevel.NVLINK_NUMA if one_numa else TopologyLevel.NVLINK
    else:
        level = TopologyLevel.NUMA if one_numa else TopologyLevel.SOCKET if one_socket else TopologyLevel.HOST
        ring = slowest_hop_of_best_ring(machine, gpus, nvlink_only=False)
    switches = {machine.gpus[gpu].pcie_switch or f"alone {gpu}" for gpu in gpus}
    return HOST_LEVELS.index(level), -ring, len(switches)


@given(inventory=inventories(), free=st.integers(0, 63), size=st.integers(1, 6), cross=st.booleans())
@settings(max_examples=few(300), deadline=None)
def test_the_best_subset_is_the_best_of_all(inventory: HostInventory, free: int, size: int, cross: bool) -> None:
    machine = machine_of(inventory)
    free &= machine.all_gpus
    rated = [worth(machine, gpus) for gpus in combinations(members(free), size)]
    allowed = [value for value in rated if cross or HOST_LEVELS[value[0]] is not TopologyLevel.HOST]
    best = best_subset(machine, free, size, cross)
    if best is None:
        assert not allowed
        return
    assert best.gpus & ~free == 0
    chosen = tuple(members(best.gpus))
    assert len(chosen) == size
    assert worth(machine, chosen) == min(allowed)
    assert (HOST_LEVELS.index(best.level), -best.bandwidth_gb_s) == min(allowed)[:2]
    equals = [gpus for gpus in combinations(members(free), size) if worth(machine, gpus) == min(allowed)]
    sets = [sum(1 << gpu for gpu in gpus) for gpus in equals]
    assert best.gpus == min(sets, key=lambda gpus: (left_whole(machine, free & ~gpus), gpus))


def meets(machine: Machine, gpus: tuple[int, ...], level: str | None) -> bool:
    infos = [machine.gpus[gpu] for gpu in gpus]
    sockets, nodes = {socket_of(info) for info in infos}, {info.numa_node for info in infos}
    return {
        "nvlink": len(gpus) == 1 or slowest_hop_of_best_ring(machine, gpus, nvlink_only=True) > 0,
        "numa": len(sockets) == 1 and len(nodes) == 1,
        "socket": len(sockets) == 1,
    }.get(level or "", True)


levels = st.sampled_from([None, "nvlink", "numa", "socket", "host", "leaf"])


@given(
    inventory=inventories(),
    free=st.integers(0, 63),
    size=st.integers(1, 6),
    cross=st.booleans(),
    required=levels,
    preferred=levels,
    least=st.sampled_from([0.0, 11.0, 12.0, 25.0, 40.0, 100.0]),
)
@settings(max_examples=few(500), deadline=None)
def test_a_required_level_or_bandwidth_is_never_broken_and_a_preferred_level_kept_if_possible(
    inventory: HostInventory,
    free: int,
    size: int,
    cross: bool,
    required: str | None,
    preferred: str | None,
    least: float,
) -> None:
    machine = machine_of(inventory)
    free &= machine.all_gpus
    allowed = [
        gpus
        for gpus in combinations(members(free), size)
        if meets(machine, gpus, required)
        and (size == 1 or -worth(machine, gpus)[1] >= least)
        and (cross or HOST_LEVELS[worth(machine, gpus)[0]] is not TopologyLevel.HOST)
    ]
    best = best_subset(machine, free, size, cross, required, preferred, least)
    if best is None:
        assert not allowed
        return
    chosen = tuple(members(best.gpus))
    assert chosen in allowed
    liked = [gpus for gpus in allowed if meets(machine, gpus, preferred)] or allowed
    assert chosen in liked
    assert worth(machine, chosen) == min(worth(machine, gpus) for gpus in liked)


@given(
    hosts=st.lists(inventories(), min_size=1, max_size=3),
    size=st.integers(1, 7),
    count=st.integers(1, 4),
    cross=st.booleans(),
)
@settings(max_examples=few(200), deadline=None)
def test_admission_never_refuses_what_fits_an_empty_cluster(
    hosts: list[HostInventory], size: int, count: int, cross: bool
) -> None:
    request = ResourceRequest(hosts=count, gpus_per_host=size, allow_cross_numa=cross)
    scheduler = Scheduler()
    for number, inventory in enumerate(hosts):
        scheduler.upsert_host(HostRow(f"h{number}", HostState.READY, inventory))
    scheduler.add(replace(job().row, resources=request))
    (reason,) = scheduler.decide(0.0).reasons.values()  # no GPU is free: the reason tells whether one ever could be
    assert reason.code is WaitCode.NEVER_FITS or largest_gang(hosts, request).fits
