"""Jobs without GPUs take CPUs and memory of hosts, and are in nobody's way who takes GPUs only."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from gpu_platform.domain.jobs.placement import ReasonCode, WaitCode
from gpu_platform.domain.jobs.resources import RankPer, ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.placing.quota import Namespace, Quotas
from gpu_platform.domain.placing.scheduler_input import HostUse
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.scheduler import Decision, Scheduler
from tests.builders import cluster, job


def place(scheduler: Scheduler, *jobs: job, now: float = 0.0) -> Decision:
    for one in jobs:
        scheduler.add(one.row)
    return scheduler.decide(now)


def hosts_of(decision: Decision) -> dict[str, list[str]]:
    return {row.job_id: placement.hosts for row, placement in decision.placements}


def cpus(count: int, hosts: int = 1, name: str | None = None, ram_mib: int = 0) -> job:
    return job(gpus=0, hosts=hosts, name=name).on_host(cpus=count, ram_mib=ram_mib)


def test_it_is_placed_by_free_cpus_and_memory_and_holds_no_gpu() -> None:
    machines = cluster().cpu_host("c", cpus=8, ram_mib=1000)
    scheduler = machines.scheduler()
    decision = place(scheduler, cpus(6, name="large", ram_mib=600), cpus(2, name="small", ram_mib=600))
    [(_, placement)] = decision.placements
    [part] = placement.slices
    assert (part.host, part.gpu_uuids, part.cpus, part.ram_mib) == ("c", [], 6, 600)
    assert "6 CPUs and 600 MiB of memory of c" in placement.why
    assert scheduler.why("small", 0.0).code is WaitCode.WAITING_FOR_GPUS
    assert [count.code for count in scheduler.why("small", 0.0).counts] == [ReasonCode.RAM]


def test_hosts_without_gpus_and_then_those_whose_gpus_are_taken_go_first() -> None:
    machines = cluster().host("a", cpus=8).host("b", cpus=8).busy("b").cpu_host("c", cpus=8)
    decision = place(machines.scheduler(), *(cpus(8, name=name) for name in ("first", "second", "third")))
    assert hosts_of(decision) == {"first": ["c"], "second": ["b"], "third": ["a"]}


def test_a_gang_gets_one_slice_on_each_of_its_hosts_or_none() -> None:
    machines = cluster().cpu_host("c1", cpus=4).cpu_host("c2", cpus=4).cpu_host("c3", cpus=2)
    scheduler = machines.scheduler()
    decision = place(scheduler, cpus(4, hosts=2, name="gang"), cpus(4, hosts=2, name="waits"))
    assert hosts_of(decision) == {"gang": ["c1", "c2"]}
    assert scheduler.snapshot.cpus_held.tolist() == [4, 4, 0]


def test_a_group_without_gpus_stands_beside_one_with() -> None:
    machines = cluster().host("a", cpus=4).cpu_host("c", cpus=8)
    gang = job(name="ps").groups(server=cpus(8), trainer=job(gpus=8))
    [(_, placement)] = place(machines.scheduler(), gang).placements
    assert [(part.group, part.host, len(part.gpu_uuids), part.cpus) for part in placement.slices] == [
        ("server", "c", 0, 8),
        ("trainer", "a", 8, 0),
    ]


def test_it_passes_jobs_that_wait_for_gpus_and_they_pass_it() -> None:
    machines = cluster().host("a", cpus=8).busy("a", 0)
    scheduler = machines.scheduler()
    decision = place(scheduler, job(gpus=8, name="waits"), cpus(8, name="beside"), cpus(1, name="late"))
    assert hosts_of(decision) == {"beside": ["a"]}
    assert hosts_of(place(scheduler, job(gpus=1, name="behind"), now=1.0)) == {}  # kept for the first
    free = cluster().host("a", cpus=8).scheduler()
    decision = place(free, cpus(8, name="all"), cpus(1, name="more"), job(gpus=8, name="gpus"))
    assert hosts_of(decision) == {"all": ["a"], "gpus": ["a"]}


def test_who_waits_for_cpus_keeps_its_turn() -> None:
    scheduler = cluster().cpu_host("c", cpus=8).scheduler()
    first = place(scheduler, cpus(6, name="runs"), cpus(8, name="large"), cpus(2, name="small"))
    assert hosts_of(first) == {"runs": ["c"]}
    assert scheduler.why("small", 0.0).code is WaitCode.BEHIND_HIGHER_PRIORITY
    assert scheduler.why("large", 0.0).next_step == "running jobs must free 8 CPUs on a host"


def test_with_time_limits_it_has_a_date_that_short_jobs_do_not_delay() -> None:
    scheduler = cluster().cpu_host("c", cpus=8).scheduler()
    first = place(
        scheduler,
        cpus(6, name="runs").lasting(100.0),
        cpus(8, name="large").lasting(50.0),
        cpus(2, name="short").lasting(90.0),
        cpus(2, name="long").lasting(200.0),
    )
    assert hosts_of(first) == {"runs": ["c"], "short": ["c"]}
    assert scheduler.promises == {"large": 100.0}


def test_it_starts_when_the_store_says_that_cpus_are_free_again() -> None:
    scheduler = cluster().cpu_host("c", cpus=8).scheduler()
    place(scheduler, cpus(8, name="first"), cpus(8, name="second"))
    scheduler.upsert_use([HostUse("c", 8, 0)])
    scheduler.confirm("first", 1)
    assert [row.job_id for row in scheduler.running_jobs] == ["first"]
    assert hosts_of(scheduler.decide(1.0)) == {}
    scheduler.upsert_use([HostUse("c", 0, 0)])
    scheduler.ended("first", 1)
    assert len(scheduler.running_jobs) == 0
    assert hosts_of(scheduler.decide(2.0)) == {"second": ["c"]}


def test_draining_and_lost_hosts_and_excluded_ones_are_left_out() -> None:
    machines = cluster().cpu_host("c1").cpu_host("c2").cpu_host("c3").cpu_host("c4").draining("c1").lost("c2")
    decision = place(machines.scheduler(), cpus(1, name="again").avoiding(hosts=["c3"]))
    assert hosts_of(decision) == {"again": ["c4"]}


def test_a_job_of_lower_priority_makes_room() -> None:
    scheduler = cluster().cpu_host("c", cpus=8).scheduler(Policy(preemption=True, min_run_s=0.0))
    place(scheduler, cpus(8, name="low"))
    scheduler.upsert_use([HostUse("c", 8, 0)])
    scheduler.confirm("low", 1)
    decision = place(scheduler, cpus(4, name="high").priority(10), now=10.0)
    assert [preemption.victims for preemption in decision.preemptions] == [(("low", 1),)]


def test_limits_of_gpus_are_not_its_business() -> None:
    quotas = Quotas(namespaces=(Namespace(name="default", limit_gpus=0, max_gpus_per_user=0),))
    decision = place(cluster().cpu_host("c").scheduler(Policy(quotas=quotas)), cpus(1, name="free"))
    assert hosts_of(decision) == {"free": ["c"]}


def test_one_that_is_too_large_is_told_so() -> None:
    scheduler = cluster().cpu_host("c", cpus=8).scheduler()
    place(scheduler, cpus(9, name="large"))
    reason = scheduler.why("large", 0.0)
    assert reason.code is WaitCode.NEVER_FITS
    assert "the largest host has 8 CPUs" in reason.next_step


def test_without_gpus_one_cpu_is_asked_for() -> None:
    assert ResourceRequest(gpus_per_host=0).cpus_per_host == 1
    assert ResourceRequest(gpus_per_host=0, cpus_per_host=4).cpus_per_host == 4
    assert ResourceRequest(gpus_per_host=1).cpus_per_host == 0


def test_what_was_stored_when_one_gpu_was_the_default_means_one() -> None:
    of_then = '{"hosts":1,"gpus_per_host":1,"memory_mib":0,"min_compute_capability":null,"model":null}'
    assert ResourceRequest.model_validate_json(of_then).gpus == 1
    group = '{"command":["true"],"gpus":%s,"groups":[{"name":"a","gpus":%s}]}' % (of_then, of_then)  # noqa: UP031
    assert JobSpec.model_validate_json(group).gpu_count == 1
    total = '{"hosts":1,"gpus_per_host":1,"total":16}'
    assert ResourceRequest.model_validate_json(total).gpus == 16
    for request in (ResourceRequest(gpus_per_host=0), ResourceRequest(gpus_per_host=1), ResourceRequest(total=4)):
        text = request.model_dump_json()
        assert '"gpus_per_host":' in text, "a stored request says how many, whatever the default is"
        assert ResourceRequest.model_validate_json(text) == request


@pytest.mark.parametrize(
    "gpus",
    [{"model": "H100"}, {"memory_mib": 1}, {"min_compute_capability": "8.0"}, {"required_level": "nvlink"}],
)
def test_gpus_that_are_described_must_be_asked_for(gpus: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="describes GPUs, but none is asked for"):
        ResourceRequest.model_validate({"gpus_per_host": 0, **gpus})


def test_a_rank_per_gpu_needs_gpus() -> None:
    with pytest.raises(ValidationError, match=r"say how many \(--gpus\), or leave it out"):
        JobSpec(command=["true"], gpus=ResourceRequest(gpus_per_host=0), rank_per=RankPer.GPU)
    with pytest.raises(ValidationError, match="about GPUs"):
        JobSpec(command=["true"], gpus=ResourceRequest(gpus_per_host=0), idle_limit_s=60)
