"""Who holds what a waiting job needs, and when it would start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from gpu_platform.domain.jobs.placement import EstimateBasis, Reason, WaitCode
from gpu_platform.domain.jobs.run_time import RunTime
from gpu_platform.domain.placing.quota import Namespace, Quotas
from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.scheduling.explaining import forward_run
from gpu_platform.scheduling.explaining.forward_run import Estimates
from gpu_platform.scheduling.explaining.waiting_reasons import (
    IDLE_SLICE,
    LEFT_FOR_OTHERS,
    PREEMPTION_FORECAST_LIMIT,
    SLICE,
    WaitingReasons,
)
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.scheduler import Scheduler
from gpu_platform.topology.description import simulated_uuid
from tests.builders import cluster, job
from tests.support.virtual_time import VirtualTime


def playing(machines: cluster, *jobs: job, policy: Policy | None = None) -> VirtualTime:
    play = VirtualTime(machines, machines.scheduler(policy), lambda row: row.time_limit_s or 1e9)
    for one in jobs:
        play.submit(one.row)
    return play


def why(play: VirtualTime, name: str) -> Reason:
    reason = play.scheduler.why(name, play.now)
    assert reason is not None, f"{name} does not wait"
    return reason


def held(reason: Reason) -> list[tuple[str, int, list[str], float | None]]:
    return [(holder.job_id, holder.gpus, holder.hosts, holder.ends_by) for holder in reason.holders]


def test_who_holds_what_it_needs_is_named_nearest_end_first() -> None:
    play = playing(
        cluster().hosts(1), job(4, name="short").lasting(10), job(2, name="long").lasting(99), job(2, name="ever")
    )
    play.submit(job(8, name="all").row)
    assert held(why(play, "all")) == [
        ("short", 4, ["dgx-h100-0"], 10.0),
        ("long", 2, ["dgx-h100-0"], 99.0),
        ("ever", 2, ["dgx-h100-0"], None),
    ]


def test_nobody_is_named_who_is_not_in_the_way() -> None:
    machines = cluster().hosts(2)
    play = playing(machines, job(8, name="a").lasting(50), job(6, name="b").lasting(10), job(2, name="c").lasting(90))
    play.submit(job(4, name="next").row)
    assert held(why(play, "next")) == [("b", 6, ["dgx-h100-1"], 10.0)]


def test_only_five_are_named_and_the_others_counted() -> None:
    play = playing(cluster().hosts(1), *(job(1, name=f"j{n}").lasting(10 + n) for n in range(8)))
    play.submit(job(8, name="all").row)
    reason = why(play, "all")
    assert [holder.job_id for holder in reason.holders] == ["j0", "j1", "j2", "j3", "j4"]
    assert reason.more_holders == 3


def test_a_gang_waits_for_the_hosts_that_are_free_soonest_in_the_domain_it_requires() -> None:
    machines = cluster().hosts(2, leaf="l").hosts(2, "dgx-a100-40gb", leaf="m")
    runs = [
        job(8, name=name).lasting(at).needs(model=model)
        for name, at, model in (("a", 5, "H100"), ("b", 90, "H100"), ("c", 30, "A100"), ("d", 40, "A100"))
    ]
    play = playing(machines, *runs)
    play.submit(job(8, hosts=2, name="gang").requires("leaf").row)
    assert [holder.job_id for holder in why(play, "gang").holders] == ["c", "d"]


def test_a_promise_is_an_estimate_too() -> None:
    play = playing(cluster().hosts(1), job(8, name="runs").lasting(100), job(8, name="next"))
    reason = why(play, "next")
    assert (reason.starts_by, reason.estimated_start, reason.estimate) == (100.0, 100.0, EstimateBasis.PROMISED)


def test_those_ahead_count_with_their_time_limits() -> None:
    waiting = [job(8, name=name).lasting(limit) for name, limit in (("first", 20), ("second", 30), ("third", 5))]
    play = playing(cluster().hosts(1), job(8, name="runs").lasting(100), *waiting)
    assert [why(play, name).estimated_start for name in ("first", "second", "third")] == [100.0, 120.0, 150.0]
    assert why(play, "third").estimate is EstimateBasis.TIME_LIMITS


def test_jobs_of_one_class_have_estimates_of_their_own_and_the_class_that_of_its_first() -> None:
    play = playing(
        cluster().hosts(1), job(8, name="runs").lasting(100), *(job(8, name=f"j{n}").lasting(10) for n in range(3))
    )
    assert [why(play, f"j{n}").estimated_start for n in range(3)] == [100.0, 110.0, 120.0]
    (reason,) = play.scheduler.explain(play.now).values()
    assert (reason.first_job, reason.estimated_start) == ("j0", 100.0)


def test_whoever_depends_on_a_job_without_a_limit_is_told_so() -> None:
    play = playing(cluster().hosts(1), job(8, name="runs"), job(8, name="next").lasting(5))
    reason = why(play, "next")
    assert (reason.estimated_start, reason.estimate) == (None, EstimateBasis.NO_TIME_LIMIT)
    play = playing(cluster().hosts(1), job(8, name="runs").lasting(9), job(8, name="ever"), job(8, name="next"))
    assert why(play, "ever").estimated_start == 9.0
    assert why(play, "next").estimate is EstimateBasis.NO_TIME_LIMIT


def test_what_no_time_limit_brings_about_is_not_estimated() -> None:
    machines = cluster().hosts(2).draining("dgx-h100-1")
    rules = Quotas(namespaces=(Namespace(name="poor", limit_gpus=2),))
    play = playing(machines, job(8, name="runs").lasting(9), policy=Policy(quotas=rules))
    play.submit(job(8, hosts=2, name="broken").row, job(4, name="poor").of("poor").row, job(9, name="large").row)
    assert why(play, "broken").estimate is EstimateBasis.REPAIR
    assert why(play, "poor").estimate is EstimateBasis.QUOTA
    assert why(play, "poor").code is WaitCode.OVER_QUOTA
    assert (why(play, "large").code, why(play, "large").estimate) == (WaitCode.NEVER_FITS, EstimateBasis.REPAIR)


def test_every_waiting_job_has_an_estimate_however_many_are_ahead() -> None:
    play = playing(cluster().hosts(1), job(8, name="runs").lasting(100))
    play.submit(*(job(8, name=f"w{n:04d}").lasting(1).arrived(n).row for n in range(1000)))
    assert why(play, "w0999").estimated_start == 100.0 + 999
    assert why(play, "w0999").estimate is EstimateBasis.TIME_LIMITS


def test_a_run_that_takes_too_many_steps_ends_without_the_last_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_run, "MAX_STEPS", 100)
    play = playing(cluster().hosts(1), job(8, name="runs").lasting(100))
    play.submit(*(job(8, name=f"w{n:04d}").lasting(1).arrived(n).row for n in range(100)))
    assert why(play, "w0010").estimated_start == 100.0 + 10
    assert why(play, "w0099").estimate is EstimateBasis.TOO_FAR


def test_a_decision_tells_a_few_and_all_are_told_soon() -> None:
    machines = cluster().hosts(1).busy("dgx-h100-0")
    scheduler = machines.scheduler()
    rows = [job(8, name=f"j{n}").of(f"n{n}").row for n in range(3 * IDLE_SLICE)]
    for row in rows:
        scheduler.add(row)
    told = dict(scheduler.decide(0.0).reasons)
    assert len(told) == SLICE - LEFT_FOR_OTHERS, "nobody is due yet"
    assert scheduler.unexplained
    calls = 0
    while scheduler.unexplained:
        told |= scheduler.decide(0.0).reasons
        calls += 1
        assert calls < 10
    assert len(told) == len(rows)
    machines.free("dgx-h100-0", 0).tell(scheduler)
    now, renewed = 0.0, {}
    while scheduler.unexplained:
        now += 1.0
        scheduler.snapshot.touch([])
        renewed |= scheduler.decide(now).reasons
        assert now < 10
    assert {reason.message for reason in renewed.values()} == {renewed[next(iter(renewed))].message}
    assert len(renewed) == len(rows), "all of them heard that one GPU is free"


def test_a_decision_looks_at_a_few_jobs_however_many_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Counter[str]()

    def count(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def counted(self: object, *arguments: object) -> object:
            looks[name] += 1
            return original(self, *arguments)

        monkeypatch.setattr(owner, name, counted)

    def advance(self: Estimates, most: int, of: Callable[[Estimates, int], int] = Estimates.advance) -> int:
        made = of(self, most)
        assert made <= most
        looks["advance"] += made
        return made

    monkeypatch.setattr(Estimates, "advance", advance)
    count(WaitingReasons, "reason")
    machines = cluster().hosts(2)
    play = playing(machines, job(8, name="a").lasting(500), job(8, name="b").lasting(900))
    new, everybody = 0, set[str]()
    for cycle in range(60):
        for _ in range(SLICE if cycle < 20 else 0):
            play.scheduler.add(job(8, name=f"w{new:04d}").of(f"n{new}").lasting(10).arrived(new).row)
            new += 1
        looks.clear()
        play.now += 1.0
        play.scheduler.snapshot.touch(["dgx-h100-0-gpu-0"])
        decision = play.scheduler.decide(play.now)
        everybody |= decision.reasons.keys()
        assert looks.total() <= (IDLE_SLICE if cycle >= 20 else SLICE), looks
    assert len(everybody) == new


def test_a_new_promise_is_told_at_once() -> None:
    machines = cluster().hosts(1)
    play = playing(machines, job(4, name="a").lasting(50), job(4, name="b").lasting(100))
    play.submit(job(8, name="next").row, *(job(8, name=f"other{n}").of(f"n{n}").row for n in range(100)))
    machines.free("dgx-h100-0", 4, 5, 6, 7).tell(play.scheduler)
    reasons = play.scheduler.decide(0.0).reasons
    assert [reason.starts_by for reason in reasons.values() if reason.starts_by is not None] == [50.0]


def test_what_is_promised_to_the_first_of_a_kind_is_not_promised_to_those_behind_it() -> None:
    play = playing(cluster().hosts(1), job(8, name="runs").lasting(100), job(8, name="a"), job(8, name="b"))
    (reason,) = play.scheduler.explain(play.now).values()
    assert (reason.for_job("a", 1).starts_by, reason.for_job("a", 1).estimate) == (100.0, EstimateBasis.PROMISED)
    behind = reason.for_job("b", 2)
    assert (behind.starts_by, behind.estimated_start, behind.estimate) == (None, 100.0, EstimateBasis.TIME_LIMITS)
    assert behind.position == 2


def test_a_gang_of_groups_that_is_asked_about_has_a_start_and_holders() -> None:
    machines = cluster().hosts(1).host("ada", "l40s-4x-dual-socket")
    runs = [
        job(8, name="a").lasting(50),
        job(1, name="b").needs(model="L40S").lasting(90),
        job(1, name="c").needs(model="L40S"),
    ]
    play = playing(machines, *runs)
    play.submit(job(name="gang").groups(train=job(8), judge=job(4).needs(model="L40S").across_sockets()).lasting(5).row)
    reason = why(play, "gang")
    assert held(reason) == [("a", 8, ["dgx-h100-0"], 50.0), ("b", 1, ["ada"], 90.0), ("c", 1, ["ada"], None)]
    assert (reason.estimated_start, reason.estimate) == (None, EstimateBasis.NO_TIME_LIMIT)
    play.submit(job(name="less").groups(train=job(8), judge=job(3).needs(model="L40S").across_sockets()).lasting(5).row)
    reason = why(play, "less")
    assert [holder.job_id for holder in reason.holders] == ["a", "b"]
    assert (reason.estimated_start, reason.estimate) == (90.0, EstimateBasis.ALONE)


def test_a_part_that_is_asked_about_has_a_start_and_holders() -> None:
    machines = cluster().host("a", "l40s-4x-dual-socket", mps=True)
    runs = [job(4, name="whole").across_sockets().lasting(70)]
    play = playing(machines, *runs)
    play.submit(job(1, name="part").share(50).lasting(5).row)
    reason = why(play, "part")
    assert held(reason) == [("whole", 4, ["a"], 70.0)]
    assert (reason.starts_by, reason.estimate) == (70.0, EstimateBasis.PROMISED)
    play.submit(job(1, name="second").share(60).lasting(5).row)
    assert (why(play, "second").estimated_start, why(play, "second").estimate) == (70.0, EstimateBasis.ALONE)


def test_who_will_have_others_stopped_for_it_is_told_when_however_large_the_cluster_for_who_asks() -> None:
    policy = Policy(preemption=True, min_run_s=300.0)
    for hosts in (2, PREEMPTION_FORECAST_LIMIT):
        play = playing(cluster().hosts(hosts), *(job(8, name=f"low-{n}") for n in range(hosts)), policy=policy)
        play.submit(job(4, name="equal").row, job(4, name="high").priority(5).row, job(2, name="next").priority(3).row)
        assert (why(play, "high").estimate, why(play, "high").estimated_start) == (EstimateBasis.PREEMPTING, 300.0)
        assert why(play, "equal").estimate is EstimateBasis.NO_TIME_LIMIT
        assert why(play, "next").estimate is EstimateBasis.NO_TIME_LIMIT, "nobody knows what comes after the first"
        told = {reason.first_job: reason.estimate for reason in play.scheduler.explain(play.now).values()}
        known = EstimateBasis.PREEMPTING if hosts == 2 else EstimateBasis.NO_TIME_LIMIT
        assert told["high"] is known


def test_a_start_that_was_promised_earlier_stays_the_answer() -> None:
    policy = Policy(preemption=True, min_run_s=300.0)
    play = playing(cluster().hosts(1), job(8, name="low").lasting(100), policy=policy)
    play.submit(job(4, name="high").priority(5).row)
    assert (why(play, "high").starts_by, why(play, "high").estimate) == (100.0, EstimateBasis.PROMISED)


def test_a_job_that_waits_only_because_its_gpus_are_kept_hides_no_preemption_from_the_first() -> None:
    play = playing(cluster().hosts(1), job(4, name="low"), policy=Policy(preemption=True, min_run_s=300.0))
    play.submit(job(8, name="high").priority(5).row, job(2, name="kept-out").row)
    assert (why(play, "high").estimate, why(play, "high").estimated_start) == (EstimateBasis.PREEMPTING, 300.0)


def published(scheduler: Scheduler, name: str) -> Reason:
    [reason] = [one for one in scheduler.reasons.values() if one.first_job == name]
    return reason


def test_while_the_victims_stop_the_passed_date_of_the_preemption_is_not_told_any_more() -> None:
    machines = cluster().host("a").busy("a")
    scheduler = machines.scheduler(Policy(preemption=True, min_run_s=300.0))
    uuids = tuple(simulated_uuid("a", index) for index in range(8))
    scheduler.started(RunningRow("low", 1, "n", "u", 0, uuids, started_at=0.0))
    scheduler.add(job(4, name="high").priority(5).row)
    scheduler.decide(1.0)
    assert published(scheduler, "high").estimated_start == 300.0
    assert [one.victims for one in scheduler.decide(300.0).preemptions] == [(("low", 1),)]
    told = scheduler.decide(301.0).reasons  # "low" uses its grace; nothing else happens
    assert [(one.first_job, one.estimated_start) for one in told.values()] == [("high", None)]
    assert published(scheduler, "high").estimate is EstimateBasis.PREEMPTING


def test_an_estimate_that_has_passed_is_renewed_without_any_other_change() -> None:
    machines = cluster().host("a").busy("a")
    scheduler = machines.scheduler()
    uuids = tuple(simulated_uuid("a", index) for index in range(8))
    usual = RunTime(100.0, 50.0, 200.0, 10)
    scheduler.started(RunningRow("runs", 1, "n", "u", 0, uuids, started_at=0.0, time_limit_s=9000, run_time=usual))
    scheduler.add(job(4, name="waits").lasting(50).row)
    while scheduler.unexplained:
        scheduler.decide(1.0)
    assert published(scheduler, "waits").estimate is EstimateBasis.RUN_TIMES
    assert published(scheduler, "waits").estimated_start == 100.0
    scheduler.decide(101.0)
    while scheduler.unexplained:
        scheduler.decide(101.0)
    renewed = published(scheduler, "waits")
    assert renewed.estimate is EstimateBasis.RUN_TIMES
    assert renewed.estimated_start is not None
    assert 101.0 < renewed.estimated_start < 9000


def running_as_usual(*, limit: float | None, usual: RunTime) -> Scheduler:
    """A host whose GPUs one job has, of which it is known how long it usually runs."""
    scheduler = cluster().host("a").busy("a").scheduler()
    uuids = tuple(simulated_uuid("a", index) for index in range(8))
    scheduler.started(RunningRow("runs", 1, "n", "u", 0, uuids, started_at=0.0, time_limit_s=limit, run_time=usual))
    return scheduler


def test_an_estimate_from_run_times_has_an_interval_that_ends_with_the_promise() -> None:
    usual = RunTime(1000.0, 500.0, 2000.0, 10)
    for limit, latest in ((None, None), (9000.0, None), (1100.0, 1100.0)):
        scheduler = running_as_usual(limit=limit, usual=usual)
        scheduler.add(job(4, name="waits").lasting(50).row)
        scheduler.decide(1.0)
        for reason in (scheduler.why("waits", 1.0), *scheduler.explain(1.0).values()):
            assert reason is not None
            assert (reason.estimate, reason.estimated_start) == (EstimateBasis.RUN_TIMES, 1000.0)
            assert reason.estimated_between is not None
            low, high = reason.estimated_between
            assert 1.0 < low < 1000.0 < high
            assert latest is None or high == latest
            behind = reason.for_job("behind", 2)
            assert behind.estimated_between is None, "it is that of the first job"


def test_an_interval_is_told_only_as_long_as_its_estimate_may_be_told() -> None:
    reason = Reason(
        code=WaitCode.WAITING_FOR_GPUS,
        message="needs 8 GPUs",
        estimated_start=100.0,
        estimate=EstimateBasis.RUN_TIMES,
        estimated_between=(50.0, 200.0),
    )
    assert reason.as_told(None, 40.0).estimated_between == (50.0, 200.0)
    assert reason.as_told(150.0, 60.0).estimated_between == (60.0, 150.0)
    assert reason.as_told(None, 101.0).estimated_between is None


def test_intervals_learn_from_the_starts_of_jobs_that_were_told_estimates() -> None:
    scheduler = running_as_usual(limit=None, usual=RunTime(1000.0, 500.0, 2000.0, 10))
    scheduler.add(job(4, name="waits").lasting(50).row)
    scheduler.decide(1.0)
    scheduler.why("waits", 1.0)
    scheduler.add(job(2, name="leaves").lasting(50).arrived(1).row)
    scheduler.decide(400.0)
    scheduler.why("leaves", 400.0)
    scheduler.remove("leaves")
    scheduler.ended("runs", 1)
    machines = cluster().host("a")
    machines.free("a", *range(8)).tell(scheduler)
    assert [row.job_id for row, _ in scheduler.decide(500.0).placements] == ["waits"]
    [ratio] = scheduler.intervals.learned()[-1]
    assert -0.7 < ratio < -0.6, "it started after half of the estimated wait"
    scheduler.decide(1e6)
    assert scheduler.intervals.learned()[-1] == [ratio]
