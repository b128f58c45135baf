"""The key figures of a cluster, against cases that were counted by hand."""

from __future__ import annotations

import csv
import io
import itertools
from datetime import timedelta
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_platform.cli.show import report_files
from gpu_platform.domain.cluster_report import ClusterReport, Spread
from gpu_platform.domain.hosts.faults import FaultAction
from gpu_platform.domain.jobs.attempt import FaultReport
from gpu_platform.domain.jobs.blame import FailureKind
from gpu_platform.domain.jobs.job import Failure
from gpu_platform.domain.jobs.usage import RankUsage
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store import cluster_report as reports
from gpu_platform.store.cluster_report import cluster_report
from gpu_platform.store.hosts import gpu_states
from gpu_platform.store.jobs import jobs
from gpu_platform.store.jobs.job_states import JobUpdate
from gpu_platform.store.reservations import attempts
from gpu_platform.store.reservations.attempts import AttemptResult
from tests.support.store_cluster import NOW, Cluster, expire_leases, key, spec, uuid_of

HOUR = timedelta(hours=1)


def fault(host: str, index: int, number: int, **fields: Any) -> FaultReport:
    return FaultReport(
        fault_id=f"f-{number}",
        host=host,
        gpu_uuid=uuid_of(host, index),
        gpu_index=index,
        xid=79,
        message="XID 79",
        at_ms=0,
        **{"action": FaultAction.RESET, **fields},
    )


def three_hours(store: Store) -> ClusterReport:
    """Two hosts with four GPUs each, from the second hour on. ``j1`` holds two GPUs for an hour, ``j2`` one until the
    end, ``j3`` fails after half an hour, ``j4`` never runs."""
    cluster = Cluster(store).host("a").host("b")
    cluster.running("j1", {"a": [0, 1]})
    cluster.running("j2", {"b": [0]})
    cluster.running("j3", {"a": [2]})
    cluster.queued("j4")
    gpu_states.record_fault(store, fault("a", 0, 1), NOW)
    gpu_states.record_fault(store, fault("a", 0, 2), NOW)
    gpu_states.record_fault(store, fault("a", 1, 3, blameless=True), NOW)  # a program's fault
    gpu_states.record_fault(store, fault("a", 1, 4, action=FaultAction.WATCH), NOW)
    failure = Failure(kind=FailureKind.USER, message="exit code 1")
    failed = AttemptResult(update=JobUpdate(failure=failure))
    attempts.end_attempt(store, key("j3"), [JobState.FAILED], now=NOW + HOUR / 2, actor="control", result=failed)
    used = RankUsage(rank=0, host="a", seconds=3600, gpu_seconds=7200, mean_utilization_percent=50, energy_j=3.6e6)
    done = AttemptResult(usage=[used])
    attempts.end_attempt(store, key("j1"), [JobState.COMPLETED], now=NOW + HOUR, actor="control", result=done)
    attempts.end_attempt(store, key("j4"), [JobState.CANCELLED], now=NOW + HOUR, actor="control")
    cluster.report("a", now=NOW + HOUR)
    expire_leases(store, NOW + HOUR)
    return cluster_report(store, NOW - HOUR, NOW + 2 * HOUR)


def test_gpu_time_is_what_was_there_held_and_busy(store: Store) -> None:
    time = three_hours(store).gpu_time
    assert (time.gpus, time.gpu_hours) == (8, 16)
    assert (time.allocated_gpu_hours, time.allocation_ratio) == (4.5, 4.5 / 16)
    assert (time.busy_gpu_hours, time.utilization_of_allocated_percent) == (1, 50)
    assert (time.utilization_of_all_percent, time.energy_kwh) == (100 / 16, 1)


def test_jobs_are_counted_by_how_they_ended(store: Store) -> None:
    found = three_hours(store).jobs
    assert (found.submitted, found.completed, found.failed, found.cancelled) == (4, 1, 1, 1)
    assert (found.completed_per_hour, found.success_ratio) == (pytest.approx(1 / 3), 0.5)
    assert found.failures == {FailureKind.USER: 1}
    assert (found.wait_s.count, found.wait_s.longest) == (3, 0)
    assert found.completion_s.p50 == 3600


def test_faults_and_losses_count_against_hosts_and_models(store: Store) -> None:
    report = three_hours(store)
    assert (report.failures.gpu_faults, report.failures.hosts_lost) == (2, 1)
    a, b = report.hosts
    assert (a.host, a.gpu_faults, a.losses, a.host_hours, a.mtbf_h) == ("a", 2, 0, 2, 1)
    assert (b.host, b.gpu_faults, b.losses, b.mtbf_h, b.allocated_gpu_hours) == ("b", 0, 1, 2, 2)
    [model] = report.gpu_models
    assert (model.gpus, model.gpu_hours, model.gpu_faults, model.mtbf_h) == (8, 16, 2, 8)


def test_users_and_hours_add_up_to_the_whole(store: Store) -> None:
    report = three_hours(store)
    [one] = report.users
    assert (one.user, one.completed, one.failed, one.cancelled) == ("anonymous", 1, 1, 1)
    assert (one.gpu_hours, one.utilization_percent, one.energy_kwh) == (2.5, 50, 1)
    assert [part.gpu_hours for part in report.parts] == [0, 8, 8]
    assert [part.allocated_gpu_hours for part in report.parts] == [0, 3.5, 1]
    assert [(part.submitted, part.completed, part.failed) for part in report.parts] == [(0, 0, 0), (4, 0, 1), (0, 1, 0)]


def test_a_cluster_of_nothing_has_no_ratios(store: Store) -> None:
    report = cluster_report(store, NOW - HOUR, NOW)
    assert (report.gpu_time.allocation_ratio, report.jobs.success_ratio, report.jobs.wait_s) == (None, None, Spread())
    assert (report.hosts, report.users, len(report.parts)) == ([], [], 1)
    assert "Report of the cluster" in report_files.as_page(report)


def test_only_the_events_of_the_period_count(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of events come from several machines, so they are not quite in the order of their numbers."""
    submitted_at = [NOW + timedelta(seconds=30 * number - 45 * (number % 2)) for number in range(60)]
    for number, at in enumerate(submitted_at):
        jobs.submit_job(sqlite_store, f"j{number}", spec(), actor="ada", now=at, idempotency_key=None)

    @given(st.integers(-5, 65), st.integers(1, 40))
    def windows(first: int, length: int) -> None:
        since = NOW + timedelta(seconds=30 * first)
        until = since + timedelta(seconds=30 * length)
        found = cluster_report(sqlite_store, since, until)
        assert found.jobs.submitted == sum(since <= at < until for at in submitted_at)
        assert sum(part.submitted for part in found.parts) == found.jobs.submitted

    windows()
    monkeypatch.setattr(reports, "_SLICE", 7)
    windows()


def ten_hours_of_two_gpus(store: Store) -> None:
    """``j1`` keeps two GPUs 80 % busy for ten hours, and uses 10 kWh."""
    Cluster(store).host("a").running("j1", {"a": [0, 1]})
    used = RankUsage(rank=0, host="a", seconds=36_000, gpu_seconds=72_000, mean_utilization_percent=80, energy_j=3.6e7)
    done = AttemptResult(usage=[used])
    attempts.end_attempt(store, key("j1"), [JobState.COMPLETED], now=NOW + 10 * HOUR, actor="control", result=done)


def test_an_attempt_counts_with_its_part_within_the_period(store: Store) -> None:
    ten_hours_of_two_gpus(store)
    last = cluster_report(store, NOW + 9.5 * HOUR, NOW + 10.5 * HOUR)
    assert (last.gpu_time.allocated_gpu_hours, last.gpu_time.gpu_hours) == (1, 4)
    assert last.gpu_time.busy_gpu_hours == pytest.approx(0.8)
    assert last.gpu_time.utilization_of_all_percent == pytest.approx(20)
    assert last.gpu_time.utilization_of_allocated_percent == pytest.approx(80)
    assert last.gpu_time.energy_kwh == pytest.approx(0.5)
    [user] = last.users
    assert (user.gpu_hours, user.energy_kwh, user.completed) == (pytest.approx(1), pytest.approx(0.5), 1)
    [user] = cluster_report(store, NOW + 2 * HOUR, NOW + 3 * HOUR).users
    assert (user.gpu_hours, user.energy_kwh, user.completed) == (pytest.approx(2), pytest.approx(1), 0)
    for empty in (cluster_report(store, NOW + 10 * HOUR, NOW + 11 * HOUR), cluster_report(store, NOW - HOUR, NOW)):
        assert (empty.gpu_time.busy_gpu_hours, empty.gpu_time.utilization_of_allocated_percent) == (0, None)


def test_periods_that_follow_each_other_add_up(store: Store) -> None:
    ten_hours_of_two_gpus(store)
    edges = [NOW + hours * HOUR for hours in (-1, 0, 2.25, 7, 10, 12)]
    parts = [cluster_report(store, begin, end).gpu_time for begin, end in itertools.pairwise(edges)]
    whole = cluster_report(store, edges[0], edges[-1]).gpu_time
    for figure in ("allocated_gpu_hours", "busy_gpu_hours", "energy_kwh"):
        assert sum(getattr(part, figure) for part in parts) == pytest.approx(getattr(whole, figure))


def test_a_gpu_that_its_host_lost_keeps_its_faults_and_what_was_held_of_it(store: Store) -> None:
    cluster = Cluster(store).host("a", gpus=2)
    cluster.running("j1", {"a": [0, 1]})
    gpu_states.record_fault(store, fault("a", 1, 1), NOW)
    attempts.end_attempt(store, key("j1"), [JobState.COMPLETED], now=NOW + HOUR, actor="control")
    cluster.report("a", gpus=1, now=NOW + HOUR)
    report = cluster_report(store, NOW, NOW + HOUR)
    assert (report.gpu_time.gpus, report.gpu_time.gpu_hours, report.gpu_time.allocation_ratio) == (1, 2, 1)
    [host] = report.hosts
    assert (host.gpus, host.allocation_ratio, host.gpu_faults) == (1, 1, 1)
    [model] = report.gpu_models
    assert (model.gpus, model.gpu_hours, model.gpu_faults, model.mtbf_h) == (1, 2, 1, 2)
    assert [part.gpu_hours for part in report.parts] == [2]


def test_a_long_period_is_told_day_by_day(store: Store) -> None:
    Cluster(store).host("a").running("j1", {"a": [0]})
    report = cluster_report(store, NOW - timedelta(days=2), NOW + timedelta(days=2, hours=12))
    assert [part.hours for part in report.parts] == [24, 24, 24, 24, 12]
    assert [part.allocated_gpu_hours for part in report.parts] == [0, 0, 24, 24, 12]


def test_the_csv_holds_every_figure_and_no_formula(store: Store) -> None:
    report = three_hours(store)
    report.users[0].namespace = "=cmd()"
    rows = list(csv.DictReader(io.StringIO(report_files.as_csv(report))))
    values = {(row["table"], row["name"], row["figure"]): row["value"] for row in rows}
    assert values["host", "a", "gpu_faults"] == "2"
    assert values["user", "'=cmd()/anonymous", "gpu_hours"] == "2.5"
    assert values["host", "b", "allocation_ratio"] == "0.25"
    cluster = {row["figure"]: row["value"] for row in rows if row["table"] == "cluster"}
    assert (cluster["completed"], cluster["completion_s_p50"], cluster["failures_user"]) == ("1", "3600", "1")


def test_the_page_is_well_formed_and_loads_nothing(store: Store) -> None:
    report = three_hours(store)
    report.users[0].user = "<script>alert(1)</script>"
    page = report_files.as_page(report)
    tags: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            tags.append(tag)
            assert not {"src", "href"} & {name for name, _ in attrs}

    Reader().feed(page)
    assert "script" not in tags
    assert tags.count("svg") == 2
    assert tags.count("table") == 4
    assert "28.1%" in page


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_a_percentile_is_one_of_the_values(values: list[float]) -> None:
    spread = Spread.of(values)
    assert {spread.p50, spread.p90, spread.p99} <= set(values)
    assert spread.p50 <= spread.p90 <= spread.p99 <= spread.longest == max(values)
    assert sum(value <= spread.p90 for value in values) >= 0.9 * len(values)
