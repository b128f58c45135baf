"""Promised and estimated starts against what happened, worked out by hand."""

from __future__ import annotations

import pytest

from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.simulator.dates import ToldDates, ToldEstimate, ToldPromise
from gpu_platform.scheduling.simulator.engine import simulate
from gpu_platform.scheduling.simulator.inputs.failures import Outage
from gpu_platform.scheduling.simulator.inputs.trace import Trace
from gpu_platform.scheduling.simulator.observers import Observers
from gpu_platform.scheduling.simulator.records import SimulationRun, Timeline
from gpu_platform.scheduling.simulator.reports.report import report_on
from gpu_platform.scheduling.simulator.reports.told import estimates_of, promises_of
from tests.support.simulations import came, hosts, trace


def test_a_job_that_starts_before_its_promise_keeps_it() -> None:
    jobs = trace(came("a", at=0, gpus=8, runs=100, limit=200), came("b", at=10, gpus=8, runs=5, limit=9)).on(hosts(1))
    run = jobs.run()
    (promise,) = run.told.promises
    assert (promise.job_id, promise.given_at_s, promise.start_s, promise.started_at_s) == ("b", 10, 200, 100)
    figures = report_on(run, "p").promises
    assert (figures.given, figures.kept, figures.broken, figures.open) == (1, 1, 0, 0)


def test_a_failure_takes_a_promise_back_and_the_report_says_why_by_how_much_and_to_whom() -> None:
    jobs = trace(
        came("a", at=0, gpus=8, runs=200, limit=200, namespace="x"),
        came("b", at=10, gpus=8, runs=5, limit=9, namespace="y"),
        came("c", at=20, gpus=1, runs=5, limit=9, namespace="y"),
    ).on(hosts(1))
    report = jobs.failing(Outage(at_s=150, host="gpu-0000", down_s=300)).report()
    # At 150 the host is lost. At 450 it is back: a comes again first and runs until 650, then b starts, then c.
    told = report.promises
    assert (told.withdrawn, told.reasons, told.broken, told.late_s.max) == (1, {"host_out": 1}, 0, 450)
    by_size = {size.gpus: size.promises for size in report.by_size}
    assert (by_size["2-8"].withdrawn, by_size["2-8"].late_s.max) == (1, 450)
    by_namespace = {share.namespace: share.promises.withdrawn for share in report.namespaces}
    assert by_namespace == {"x": 0, "y": 1}


def test_what_is_promised_when_the_simulation_ends_is_open_until_its_time_has_passed() -> None:
    jobs = trace(came("a", at=0, gpus=8, runs=100, limit=200), came("b", at=10, gpus=8, runs=5)).on(hosts(1))
    assert jobs.until(50).report().promises.open == 1
    told = ToldDates(promises=[ToldPromise("b", 10, 200)])
    assert promises_of(_run(told, end_s=260)).broken == 1
    assert promises_of(_run(told, end_s=260)).late_s.max == 60
    assert promises_of(_run(told, end_s=150)).open == 1


def test_the_earliest_promise_of_a_wait_counts() -> None:
    jobs = trace(
        came("a", at=0, gpus=4, runs=30, limit=300),
        came("b", at=0, gpus=4, runs=200, limit=200),
        came("c", at=10, gpus=4, runs=5, limit=9),
        came("d", at=10, gpus=8, runs=5, limit=9),
    ).on(hosts(1))
    dates = {one.job_id: (one.start_s, one.started_at_s) for one in jobs.run().told.promises}
    assert dates["c"] == (200, 30)
    assert dates["d"] == (200, 200)


def test_estimates_are_asked_when_a_job_comes_and_must_wait() -> None:
    jobs = Trace.of(
        "t",
        [
            came("a", at=0, gpus=8, runs=100, limit=100),
            came("b", at=10, gpus=8, runs=50, limit=200),
            came("c", at=20, gpus=8, runs=5, limit=9),
        ],
    )
    run = simulate(jobs, hosts(1), Policy(), observers=Observers(estimates=3))
    told = {one.job_id: (one.asked_at_s, one.start_s, one.started_at_s) for one in run.told.estimates}
    assert told == {"b": (10, 100, 100), "c": (20, 300, 150)}  # a starts at once; b may run for 200 s, and runs for 50
    figures = report_on(run, "p").estimates
    assert (figures.asked, figures.without, figures.started) == (2, 0, 2)
    assert (figures.near, figures.late, figures.error_s.max) == (0.5, 0.0, 150)


def test_asking_changes_nothing() -> None:
    jobs = [
        came(f"j{n:02d}", at=7 * n, gpus=1 + n % 8, runs=20 + 13 * (n % 7), limit=200 if n % 3 else None)
        for n in range(60)
    ]
    given = Trace.of("t", jobs)
    quiet, asked = (
        simulate(given, hosts(2), Policy(), observers=Observers(estimates=count)) for count in (0, len(jobs))
    )
    assert [record.first_start_s for record in quiet.records] == [record.first_start_s for record in asked.records]
    assert len(asked.told.estimates) > 10
    assert not quiet.told.estimates


def test_an_estimate_is_near_within_a_tenth_of_the_wait() -> None:
    told = ToldDates(
        estimates=[
            ToldEstimate("near", 0, 109, None, started_at_s=100),
            ToldEstimate("early", 0, 80, None, started_at_s=100),
            ToldEstimate("unknown", 0, None, None, started_at_s=100),
            ToldEstimate("waits", 0, 100, None),
        ]
    )
    figures = estimates_of(_run(told, end_s=200))
    assert (figures.asked, figures.without, figures.started, figures.near, figures.late) == (4, 1, 2, 0.5, 0.5)
    assert figures.error_s.mean == pytest.approx(14.5)
    assert estimates_of(_run(told, end_s=200), {"near"}).near == 1.0


def _run(told: ToldDates, end_s: float) -> SimulationRun:
    return SimulationRun([], Timeline("held"), 0.0, end_s, 8, 0, [], told)
