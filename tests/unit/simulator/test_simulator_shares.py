"""Parts of GPUs, CPUs and memory of hosts in the simulator."""

from __future__ import annotations

import pytest

from gpu_platform.domain.hosts.share import Share
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.placing.scheduler_input import HostRow
from gpu_platform.scheduling.simulator.inputs.cluster_file import ClusterFile, HostGroup
from gpu_platform.scheduling.simulator.inputs.failures import Outage
from gpu_platform.scheduling.simulator.inputs.trace import TraceJob
from gpu_platform.scheduling.simulator.records import SimulatedJob
from tests.support.simulations import trace


def part(name: str, percent: int, *, at: float = 0, runs: float = 100, namespace: str = "default") -> TraceJob:
    asked = ResourceRequest(share=Share(percent=percent, memory_mib=1000))
    return TraceJob(id=name, submit_s=at, duration_s=runs, gpus=asked, namespace=namespace)


def one_host(gpus: int = 1, cpus: int | None = None) -> list[HostRow]:
    return ClusterFile(hosts=[HostGroup(count=1, gpus=gpus, name="gpu", memory_mib=4000, cpus=cpus)]).rows()


def starts(records: dict[str, SimulatedJob]) -> dict[str, float | None]:
    return {name: record.first_start_s for name, record in records.items()}


def test_parts_of_one_gpu_run_side_by_side_as_long_as_they_fit() -> None:
    jobs = trace(part("a", 50), part("b", 40), part("c", 30)).on(one_host())
    assert starts(jobs.records()) == {"a": 0, "b": 0, "c": 100}
    # 90 % of the GPU for 100 s, then 30 %.
    assert jobs.report().utilisation == pytest.approx(1.2 / 2)
    assert jobs.report().allocation_ratio == pytest.approx(1.2 / 2)


def test_tenants_do_not_share_a_gpu() -> None:
    jobs = trace(part("a", 20), part("b", 20, namespace="other")).on(one_host())
    assert starts(jobs.records()) == {"a": 0, "b": 100}


def test_memory_is_not_promised_twice() -> None:
    jobs = trace(*(part(f"j{number}", 10) for number in range(5))).on(one_host())
    assert sorted(jobs.records()[f"j{number}"].first_start_s or 0 for number in range(5)) == [0, 0, 0, 0, 100]


def test_cpus_of_a_host_run_out() -> None:
    asked = ResourceRequest(gpus_per_host=1, cpus_per_host=6)
    jobs = [TraceJob(id=name, submit_s=0, duration_s=100, gpus=asked) for name in "ab"]
    assert starts(trace(jobs).on(one_host(gpus=2, cpus=8)).records()) == {"a": 0, "b": 100}
    assert starts(trace(jobs).on(one_host(gpus=2, cpus=12)).records()) == {"a": 0, "b": 0}


def test_a_failed_gpu_stops_all_that_share_it() -> None:
    jobs = trace(part("a", 50), part("b", 40)).on(one_host())
    records = jobs.failing(Outage(at_s=50, host="gpu-0000", gpu=0, down_s=10)).records()
    assert {name: (record.restarts, record.end_s) for name, record in records.items()} == {"a": (1, 160), "b": (1, 160)}
