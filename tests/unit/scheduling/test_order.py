from __future__ import annotations

import pytest

from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.scheduler import Scheduler
from tests.builders import cluster, job


def started(scheduler: Scheduler, *jobs: job) -> list[str]:
    for waiting in jobs:
        scheduler.add(waiting.row)
    return [row.job_id for row, _ in scheduler.decide(0.0).placements]


def test_first_come_first_served() -> None:
    late, early = job(8, name="late").arrived(2), job(8, name="early").arrived(1)
    assert started(cluster().hosts(1).scheduler(), late, early) == ["early"]


def test_priority_goes_first() -> None:
    assert started(cluster().hosts(1).scheduler(), job(8, name="low"), job(8, name="high").priority(5)) == ["high"]


def test_fcfs_ignores_priority() -> None:
    scheduler = cluster().hosts(1).scheduler(Policy(order="fcfs"))
    assert started(scheduler, job(8, name="low"), job(8, name="high").priority(5)) == ["low"]


def test_classes_take_turns_in_the_order_of_arrival() -> None:
    jobs = [job(gpus, name=name) for gpus, name in ((1, "a"), (2, "b"), (1, "c"), (2, "d"))]
    assert started(cluster().hosts(1).scheduler(), *jobs) == ["a", "b", "c", "d"]


def test_a_waiting_gang_keeps_its_hosts_from_later_small_jobs() -> None:
    machines = cluster().hosts(2).busy("dgx-h100-0", 0)
    assert started(machines.scheduler(), job(8, hosts=2, name="gang"), job(1, name="small")) == []


def test_later_jobs_pass_on_hosts_that_the_gang_cannot_use() -> None:
    machines = cluster().hosts(2).busy("dgx-h100-0", 0).host("ada", "l40s-4x-dual-socket")
    assert started(machines.scheduler(), job(8, hosts=2, name="gang"), job(1, name="small")) == ["small"]


def test_a_job_of_higher_priority_passes_a_waiting_gang() -> None:
    machines = cluster().hosts(2).busy("dgx-h100-0", 0)
    assert started(machines.scheduler(), job(8, hosts=2, name="gang"), job(1, name="vip").priority(1)) == ["vip"]


@pytest.mark.parametrize("hopeless", [job(9), job(8, hosts=3), job().needs(model="none such")])
def test_a_job_that_no_release_can_help_keeps_nothing(hopeless: job) -> None:
    machines = cluster().hosts(2).busy("dgx-h100-0", 0)
    assert started(machines.scheduler(), hopeless, job(1, name="small")) == ["small"]


def test_a_job_that_waits_for_repair_keeps_nothing() -> None:
    machines = cluster().hosts(1).broken("dgx-h100-0", 0)
    assert started(machines.scheduler(), job(8, name="whole"), job(1, name="small")) == ["small"]


def test_a_removed_job_is_not_placed_and_keeps_nothing() -> None:
    scheduler = cluster().hosts(1).busy("dgx-h100-0", 0).scheduler()
    assert started(scheduler, job(8, name="whole"), job(1, name="small")) == []
    scheduler.remove("whole")
    assert started(scheduler) == ["small"]


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no queue order 'lifo'"):
        Scheduler(Policy(order="lifo"))


def test_a_weight_of_an_unknown_score_is_refused() -> None:
    with pytest.raises(ValueError, match="no score is called luck"):
        Scheduler(Policy(weights={"luck": 1.0}))
