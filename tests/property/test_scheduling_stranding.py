"""What of a host typical tasks cannot use: against counting GPU by GPU; and what it is good for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.placing.scheduler_input import HostUse
from gpu_platform.scheduling.placing.framework import Offers
from gpu_platform.scheduling.plugins.stranding import StrandedGpus, TypicalTask
from gpu_platform.scheduling.policy import WEIGHTS, Policy
from tests.builders import cluster, job
from tests.support.examples import few

tasks = st.lists(
    st.builds(
        TypicalTask,
        gpus=st.integers(0, 4),
        percent=st.sampled_from([20, 50, 81, 100]),
        cpus=st.integers(0, 20),
        ram_mib=st.integers(0, 1000),
        weight=st.floats(0.1, 5.0),
    ),
    min_size=1,
    max_size=5,
)


def count(left: list[int], cpus: int, ram_mib: int, mix: list[TypicalTask]) -> float:
    total, weight = sum(left), sum(task.weight for task in mix)
    lost = 0.0
    for task in mix:
        able = [gpu for gpu in left if gpu >= task.percent]
        serves = 0 < task.gpus <= len(able) and cpus >= task.cpus and ram_mib >= task.ram_mib
        lost += task.weight / weight * ((total - sum(able)) if serves else total) / 100
    gpus = sum(task.weight * task.gpus * task.percent / 100 for task in mix)
    fed = [total / 100]
    for has, asked in ((cpus, [t.cpus for t in mix]), (ram_mib, [t.ram_mib for t in mix])):
        needed = sum(task.weight * amount for task, amount in zip(mix, asked, strict=True))
        if needed:
            fed.append(has * max(gpus, 1e-9 * weight) / needed)
    return lost + 0.25 * (total / 100 - min(fed))


@given(
    left=st.lists(st.integers(0, 100), min_size=1, max_size=8),
    cpus=st.integers(0, 64),
    ram_mib=st.integers(0, 5000),
    mix=tasks,
)
@settings(max_examples=few(200), deadline=None)
def test_it_is_what_counting_gives(left: list[int], cpus: int, ram_mib: int, mix: list[TypicalTask]) -> None:
    one_host = np.array([left], np.int16), np.array([cpus]), np.array([ram_mib]), np.array([0])
    [measured] = StrandedGpus(mix).stranded(*one_host)
    assert measured == pytest.approx(count(left, cpus, ram_mib, mix))


@given(
    taken=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 7), st.integers(0, 60)), min_size=1, max_size=12),
    asked=st.builds(ResourceRequest, gpus_per_host=st.integers(0, 2), cpus_per_host=st.integers(0, 8)),
    mix=tasks,
)
@settings(max_examples=few(100), deadline=None)
def test_what_is_remembered_is_what_would_be_computed(
    taken: list[tuple[int, int, int]], asked: ResourceRequest, mix: list[TypicalTask]
) -> None:
    """After each change of a host, also to a state that was there before."""
    machines = cluster().host("a", cpus=64).host("b", cpus=64).host("c", "dgx-1v", cpus=32)
    snapshot = machines.scheduler().snapshot
    hosts, gpus = np.arange(3), asked.gpus_per_host
    remembers = StrandedGpus(mix)
    for host, gpu, cpus in taken:
        name = snapshot.names[host]
        machines.busy(name, gpu) if snapshot.is_free(snapshot.uuid(host, gpu)) else machines.free(name, gpu)
        snapshot.upsert_gpus(machines.gpu_rows.values())
        snapshot.upsert_use([HostUse(name, cpus, 0)])
        offers = Offers.none(3)
        for number, free in enumerate(snapshot.available(hosts).tolist()):
            for bit in [bit for bit in range(8) if free >> bit & 1][:gpus]:
                offers.gpus[number] |= np.uint64(1 << bit)
        grown = remembers.growth(asked, snapshot, hosts, offers)
        fresh = StrandedGpus(mix)
        assert grown.tolist() == fresh.growth(asked, snapshot, hosts, offers).tolist()


def test_tasks_with_many_cpus_go_where_cpus_abound() -> None:
    """Both hosts would do; a task that starves the poor one of CPUs would strand its GPUs."""
    machines = cluster().host("poor", cpus=64).host("rich", cpus=512)
    typical = (TypicalTask(1, 100, cpus=12),)
    policy = Policy(weights=WEIGHTS["fragmentation"], typical_tasks=typical)
    scheduler = machines.scheduler(policy)
    scheduler.add(heavy := job().on_host(cpus=30).row)
    scheduler.add(light := job().on_host(cpus=2).row)
    placed = {row.job_id: placement.hosts for row, placement in scheduler.decide(0.0).placements}
    assert placed == {heavy.job_id: ["rich"], light.job_id: ["poor"]}


def test_a_share_fills_a_gpu_that_nothing_else_would() -> None:
    machines = cluster().hosts(2)
    policy = Policy(weights=WEIGHTS["fragmentation"], typical_tasks=(TypicalTask(1, 80), TypicalTask(1, 20)))
    scheduler = machines.scheduler(policy)
    rows = [job().share(80).row, job().share(80).row, job().share(20).row, job().share(20).row]
    for row in rows:
        scheduler.add(row)
    placed = [placement.gpu_uuids[0] for _, placement in scheduler.decide(0.0).placements]
    assert len(placed) == 4
    assert len(set(placed)) == 2
