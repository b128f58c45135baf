"""CPUs and memory for each GPU become amounts of each host, also where a total is split unevenly."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.placement import HostSlice, Placement, ReasonCode, TopologyLevel
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.placing.capacity import largest_gang
from gpu_platform.domain.placing.host_plans import plan_hosts
from gpu_platform.domain.placing.scheduler_input import HostUse
from tests.builders import cluster, job


def test_they_become_amounts_of_each_host_and_a_stored_request_is_read_again() -> None:
    request = ResourceRequest(hosts=2, gpus_per_host=4, cpus_per_gpu=6, ram_mib_per_gpu=1000)
    assert (request.cpus_per_host, request.ram_mib_per_host) == (24, 4000)
    assert ResourceRequest.model_validate_json(request.model_dump_json()) == request
    total = ResourceRequest(total=12, cpus_per_gpu=6)
    assert (total.cpus_per_host, total.slices(5).cpus_per_host) == (0, 30)
    assert ResourceRequest.model_validate_json(total.model_dump_json()) == total


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"gpus_per_host": 2, "cpus_per_gpu": 4, "cpus_per_host": 9}, "cpus_per_gpu 4 and cpus_per_host 9"),
        ({"gpus_per_host": 2, "ram_mib_per_gpu": 4, "ram_mib_per_host": 4}, "ram_mib_per_gpu 4 and ram_mib_per_host 4"),
        ({"total": 2, "cpus_per_gpu": 4, "cpus_per_host": 8}, "cpus_per_gpu 4 and cpus_per_host 8"),
        ({"cpus_per_gpu": 4}, "cpus_per_gpu describes GPUs, but none is asked for"),
        ({"gpus_per_host": 64, "cpus_per_gpu": 65}, "4160 CPUs on each host; at most 4096"),
    ],
)
def test_they_are_said_once_and_of_gpus(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ResourceRequest.model_validate(asked)


def test_a_waiting_job_says_what_is_missing() -> None:
    machines = cluster().host("a", cpus=32, ram_mib=64_000)
    scheduler = machines.scheduler()
    scheduler.upsert_use([HostUse("a", 4, 0)])
    scheduler.add(job(4, name="waits").per_gpu(cpus=8).row)
    assert not scheduler.decide(0.0).placements
    [count] = scheduler.why("waits", 0.0).counts
    assert (count.code, count.asked, count.available) == (ReasonCode.CPUS, "32 CPUs", "28 CPUs")


@pytest.mark.parametrize(
    ("asked", "fits", "says"),
    [
        ({"gpus_per_host": 8, "cpus_per_gpu": 8}, True, "1 of 1 hosts"),
        ({"gpus_per_host": 8, "cpus_per_gpu": 9}, False, "the largest host has 64 CPUs: ask for at most so many for"),
        ({"total": 8, "cpus_per_gpu": 9}, False, "9 CPUs a GPU); all 1 hosts together could give 7: ask for at most 7"),
        ({"total": 1, "cpus_per_gpu": 65}, False, "the largest host has 64 CPUs"),
        ({"total": 2, "ram_mib_per_gpu": 600}, False, "could give 1: ask for at most 1"),
    ],
)
def test_what_no_host_has_for_its_gpus_is_refused(asked: dict[str, Any], fits: bool, says: str) -> None:
    [row] = cluster().host("h", cpus=64, ram_mib=1024).host_rows.values()
    answer = largest_gang([row.inventory], ResourceRequest(**asked))
    assert answer.fits == fits
    assert says in answer.message


def test_the_ranks_of_a_host_get_what_its_gpus_are_worth() -> None:
    spec = JobSpec(command=["x"], gpus=ResourceRequest(total=3, cpus_per_gpu=4, ram_mib_per_gpu=100))
    slices = [
        HostSlice(host=host, gpu_uuids=[f"{host}{n}" for n in range(gpus)], gpu_indices=list(range(gpus)))
        for host, gpus in (("a", 2), ("b", 1))
    ]
    placement = Placement(slices=slices, level=TopologyLevel.ANY, bandwidth_gb_s=1.0, score=1.0, why="test")
    plans = plan_hosts(spec, AttemptKey(job_id="j", attempt=1), placement)
    assert [(plan.limits.cpus, plan.limits.ram_mib) for plan in plans] == [(8, 200), (4, 100)]


hosts = st.lists(st.tuples(st.integers(1, 64), st.integers(1, 9000)), min_size=1, max_size=4)


@given(hosts, st.integers(1, 16), st.integers(0, 12), st.integers(0, 2000), st.booleans())
def test_no_host_gives_more_than_it_has_and_each_gpu_gets_its_part(
    sizes: list[tuple[int, int]], gpus: int, cpus: int, ram_mib: int, splits: bool
) -> None:
    machines = cluster()
    for number, (has_cpus, has_ram) in enumerate(sizes):
        machines.host(f"h{number}", cpus=has_cpus, ram_mib=has_ram)
    scheduler = machines.scheduler()
    asked = job().total(gpus) if splits else job(min(gpus, 8))
    scheduler.add(asked.per_gpu(cpus, ram_mib).row)
    possible = [
        min([8, *([has[0] // cpus] if cpus else []), *([has[1] // ram_mib] if ram_mib else [])]) for has in sizes
    ]
    decision = scheduler.decide(0.0)
    assert bool(decision.placements) == (sum(possible) >= gpus if splits else max(possible) >= min(gpus, 8))
    for _, placement in decision.placements:
        for part in placement.slices:
            has_cpus, has_ram = sizes[int(part.host[1:])]
            assert (part.cpus, part.ram_mib) == (cpus * len(part.gpu_uuids), ram_mib * len(part.gpu_uuids))
            assert part.cpus <= has_cpus
            assert part.ram_mib <= has_ram
