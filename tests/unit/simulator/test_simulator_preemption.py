"""Jobs that make room for others in the simulator: what it costs them, and that guarantees are met."""

from __future__ import annotations

import pytest

from gpu_platform.domain.placing.quota import AllocationPolicy, Namespace, Quotas
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.simulator.inputs.failures import Outage
from gpu_platform.scheduling.simulator.records import JobOutcome
from tests.support.simulations import came, hosts, trace

PREEMPTING = Policy(preemption=True, min_run_s=0.0)
TWO = Quotas(
    policy=AllocationPolicy.HYBRID,
    reserved_ratio=0.0,
    namespaces=(Namespace(name="owner", guaranteed_gpus=8), Namespace(name="guest", guaranteed_gpus=0)),
)


def test_a_victim_leaves_after_its_grace_and_begins_again() -> None:
    jobs = trace(
        came("victim", at=0, gpus=8, runs=100, grace_s=10), came("urgent", at=50, gpus=8, runs=20, priority=5)
    ).on(hosts(1))
    ran = jobs.under(PREEMPTING).records()
    assert ran["urgent"].first_start_s == 60
    assert (ran["victim"].preemptions, ran["victim"].end_s) == (1, 60 + 20 + 100)
    # 50 s of work, and 10 s of grace.
    assert ran["victim"].lost_gpu_seconds == 60 * 8
    assert jobs.records()["urgent"].first_start_s == 100, "without preemption it waits"


def test_a_victim_goes_on_from_its_checkpoint() -> None:
    ran = trace(
        came("victim", at=0, gpus=8, runs=100, grace_s=0, checkpoint_s=20),
        came("urgent", at=50, gpus=8, runs=20, priority=5),
    ).on(hosts(1)).under(PREEMPTING).records()  # fmt: skip
    assert ran["urgent"].first_start_s == 50
    assert (ran["victim"].end_s, ran["victim"].lost_gpu_seconds) == (70 + 60, 10 * 8)


def test_who_saved_last_makes_room() -> None:
    ran = trace(
        came("saves", at=0, gpus=8, runs=1000, grace_s=0, checkpoint_s=100),
        came("younger", at=40, gpus=8, runs=1000, grace_s=0),
        came("urgent", at=110, gpus=8, runs=20, priority=5),
    ).on(hosts(2)).under(PREEMPTING).records()  # fmt: skip
    assert (ran["saves"].preemptions, ran["younger"].preemptions) == (1, 0)


def test_nobody_makes_room_before_the_guaranteed_run_time() -> None:
    ran = trace(
        came("victim", at=0, gpus=8, runs=1000, grace_s=0), came("urgent", at=10, gpus=8, runs=20, priority=5)
    ).on(hosts(1)).under(Policy(preemption=True, min_run_s=300.0))  # fmt: skip
    assert ran.records()["urgent"].first_start_s == pytest.approx(300, abs=5)


def test_what_was_lent_is_given_back() -> None:
    jobs = trace(
        *(came(f"guest{n}", at=0, gpus=4, runs=1000, namespace="guest", grace_s=10) for n in range(4)),
        came("owner", at=100, gpus=8, runs=100, namespace="owner"),
    ).on(hosts(2))
    ran = jobs.under(Policy(preemption=True, min_run_s=0.0, quotas=TWO)).records()
    assert ran["owner"].first_start_s == 110
    assert sum(ran[f"guest{n}"].preemptions for n in range(4)) == 2
    assert all(record.outcome is JobOutcome.COMPLETED for record in ran.values())


def test_a_victim_whose_gpu_fails_is_charged_once() -> None:
    jobs = trace(
        came("victim", at=0, gpus=8, runs=100, grace_s=10), came("urgent", at=50, gpus=8, runs=20, priority=5)
    ).on(hosts(1))
    ran = jobs.under(PREEMPTING).failing(Outage(at_s=55, host="gpu-0000", gpu=0, down_s=20)).records()
    assert (ran["victim"].preemptions, ran["victim"].restarts) == (1, 0)
    assert ran["urgent"].first_start_s == 75
    # The grace ends with the GPU: 50 s of work and 5 s of grace, not 10.
    assert ran["victim"].held_periods[0].end_s == 55
    assert ran["victim"].lost_gpu_seconds == 55 * 8


def test_a_victim_that_loses_a_host_in_its_grace_gives_back_the_other_host_at_once() -> None:
    jobs = trace(
        came("victim", at=0, gpus=8, hosts=2, runs=100, grace_s=30),
        came("urgent", at=50, gpus=8, runs=20, priority=5),
    ).on(hosts(2))
    ran = jobs.under(PREEMPTING).failing(Outage(at_s=55, host="gpu-0001", down_s=1000)).records()
    assert ran["urgent"].first_start_s == 55
    assert jobs.under(PREEMPTING).records()["urgent"].first_start_s == 80


def test_the_time_from_a_failure_to_the_next_start_is_reported() -> None:
    jobs = trace(came("a", at=0, gpus=8, runs=100)).on(hosts(1))
    report = jobs.failing(Outage(at_s=30, host="gpu-0000", down_s=500)).report()
    assert (report.recovery_s.count, report.recovery_s.max) == (1, 500)


def test_a_borrower_of_higher_priority_stops_nobody_within_a_guarantee() -> None:
    """It would be served first again, and stopped again: work would be lost for ever."""
    jobs = trace(
        came("owner", at=0, gpus=8, runs=100, namespace="owner", grace_s=0),
        came("urgent", at=10, gpus=8, runs=10, namespace="guest", priority=9),
    ).on(hosts(1))
    ran = jobs.under(Policy(preemption=True, min_run_s=0.0, quotas=TWO)).records()
    assert (ran["owner"].preemptions, ran["urgent"].first_start_s) == (0, 100)
