"""Small traces whose outcome can be worked out by hand."""

from __future__ import annotations

import pytest

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.simulator.inputs.failures import Outage
from gpu_platform.scheduling.simulator.inputs.trace import Trace
from gpu_platform.scheduling.simulator.records import JobOutcome
from tests.support.simulations import came, hosts, trace


def test_two_jobs_of_a_whole_host_run_one_after_the_other() -> None:
    report = trace(came("a", at=0, gpus=8, runs=100), came("b", at=50, gpus=4, runs=100)).on(hosts(1)).report()
    # 8 GPUs x 200 s are owned; 8 x 100 + 4 x 100 are used.
    assert (report.begin_s, report.end_s) == (0, 200)
    assert report.utilisation == report.allocation_ratio == pytest.approx(1200 / 1600)
    assert (report.waiting_s.mean, report.waiting_s.max) == (25, 50)
    assert (report.completion_s.mean, report.completion_s.max) == (125, 150)
    assert report.slowdown == pytest.approx((1.0 + 1.5) / 2)
    assert report.jobs[JobOutcome.COMPLETED] == 2


def test_the_series_show_what_was_held_and_who_waited() -> None:
    report = trace(came("a", at=0, gpus=8, runs=100), came("b", at=50, gpus=4, runs=100)).on(hosts(1)).report()
    series, parts = report.series, len(report.series.at_s)
    assert series.held_gpus == [8] * (parts // 2) + [4] * (parts // 2)
    assert sum(series.waiting_jobs) / parts * 200 == pytest.approx(50)
    assert sum(series.wanted_gpus) / parts * 200 == pytest.approx(50 * 4)


def test_jobs_that_end_make_room_in_the_same_instant() -> None:
    ran = trace(came("a", at=0, gpus=8, runs=100), came("b", at=100, gpus=8, runs=5)).on(hosts(1)).records()
    assert ran["b"].first_start_s == 100


def test_a_priority_goes_first_and_fcfs_ignores_it() -> None:
    jobs = trace(
        came("running", at=0, gpus=8, runs=100),
        came("early", at=1, gpus=8, runs=10),
        came("urgent", at=2, gpus=8, runs=10, priority=5),
    ).on(hosts(1))
    assert jobs.records()["urgent"].first_start_s == 100
    assert jobs.under(Policy(order="fcfs")).records()["urgent"].first_start_s == 110


def test_free_gpus_that_no_job_can_use_are_fragments() -> None:
    """Two hosts with two free GPUs each, while a job for four waits; half of the jobs want four."""
    jobs = trace(
        came("a", at=0, gpus=2, runs=100, hosts=2),
        came("b", at=1, gpus=4, runs=10),
    ).on(hosts(2, gpus=4))
    assert jobs.report().fragmentation == pytest.approx(0.5)
    assert jobs.report().waiting_s.max == 99


def test_a_job_larger_than_the_cluster_is_refused_and_delays_nobody() -> None:
    report = trace(came("huge", at=0, gpus=8, hosts=3, runs=10), came("a", at=0, gpus=8, runs=10)).on(hosts(2)).report()
    assert report.jobs[JobOutcome.REFUSED] == 1
    assert report.waiting_s.max == 0


def test_a_time_limit_ends_a_job() -> None:
    ran = trace(came("long", at=0, runs=1000, limit=60)).on(hosts(1)).records()["long"]
    assert (ran.outcome, ran.end_s) == (JobOutcome.TIMED_OUT, 60)


def test_time_limits_that_are_made_up_end_no_job() -> None:
    given = Trace.of("t", [came("a", at=0, runs=100), came("b", at=0, runs=100, limit=60), came("c", at=0, runs=0)])
    limited = given.limited(1.5)
    assert [job.time_limit_s for job in limited.jobs] == [150, 60, 1]
    assert "1.5 times" in limited.notes[0]


def test_until_leaves_the_rest_running_waiting_or_to_come() -> None:
    jobs = trace(
        came("runs", at=0, gpus=8, runs=100),
        came("waits", at=10, gpus=8, runs=100),
        came("later", at=60, gpus=1, runs=1),
    )
    report = jobs.on(hosts(1)).until(50).report()
    assert (
        report.jobs[JobOutcome.RUNNING] == report.jobs[JobOutcome.WAITING] == report.jobs[JobOutcome.NOT_ARRIVED] == 1
    )
    assert report.end_s == 50
    assert report.utilisation == pytest.approx(1.0)


def test_a_failed_gpu_restarts_its_job_elsewhere_from_the_beginning() -> None:
    ran = trace(came("a", at=0, gpus=1, runs=100)).on(hosts(1, gpus=2))
    ran = ran.failing(*(Outage(at_s=30, host="gpu-0000", gpu=gpu, down_s=1000) for gpu in (0,)))
    record, report = ran.records()["a"], ran.report()
    assert (record.restarts, record.end_s, record.lost_gpu_seconds) == (1, 130, 30)
    assert report.lost_gpu_hours * 3600 == pytest.approx(30)
    assert report.utilisation == pytest.approx(100 / 260)
    # In working order: 2 GPUs for 30 s, 1 for 100 s.
    assert report.allocation_ratio == pytest.approx(130 / 160)


def test_checkpoints_keep_the_work_before_them() -> None:
    ran = trace(came("a", at=0, gpus=2, runs=100)).on(hosts(2, gpus=2))
    ran = ran.failing(Outage(at_s=30, host="gpu-0000", down_s=5), checkpoint=20)
    record = ran.records()["a"]
    assert (record.end_s, record.lost_gpu_seconds) == (30 + 80, 20)


def test_a_lost_host_comes_back_and_takes_its_job_again() -> None:
    ran = trace(came("a", at=0, gpus=8, runs=100)).on(hosts(1))
    record = ran.failing(Outage(at_s=10, host="gpu-0000", down_s=50)).records()["a"]
    assert (record.restarts, record.end_s) == (1, 160)


def test_what_failed_twice_is_back_only_after_both_repairs() -> None:
    broken = (Outage(at_s=10, host="gpu-0000", down_s=50), Outage(at_s=20, host="gpu-0000", down_s=100))
    assert trace(came("a", at=0, gpus=8, runs=100)).on(hosts(1)).failing(*broken).records()["a"].end_s == 220


def test_a_job_that_fails_again_and_again_is_given_up() -> None:
    failures = (Outage(at_s=10 * n, host="gpu-0000", gpu=0, down_s=1) for n in range(1, 100))
    report = trace(came("a", at=0, gpus=1, runs=100)).on(hosts(1, gpus=1)).failing(*failures).report()
    assert report.jobs[JobOutcome.FAILED] == 1
    assert report.restarts == 16


def test_fairness_is_one_when_all_wait_alike_and_less_when_one_is_starved() -> None:
    alike = trace(*(came(name, at=0, gpus=1, runs=10, namespace=name) for name in "ab")).on(hosts(1)).report()
    assert alike.fairness == pytest.approx(1.0)
    starved = trace(
        came("first", at=0, gpus=8, runs=90, namespace="a"), came("second", at=0, gpus=8, runs=10, namespace="b")
    )
    # a ran all of its time, b 10 s of 100 s.
    assert starved.on(hosts(1)).report().fairness == pytest.approx(1.1**2 / (2 * (1 + 0.01)))


def test_an_empty_trace_reports_nothing() -> None:
    report = trace().on(hosts(1)).report()
    assert (report.utilisation, report.waiting_s.count, report.end_s) == (0, 0, 0)


def test_two_jobs_with_one_id_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="several jobs called a"):
        trace(came("a", at=0, runs=1), came("a", at=1, runs=1)).on(hosts(1)).run()
