"""What attempts used, in the database: measured by hosts, or only held."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_platform.domain.errors import NotFound
from gpu_platform.domain.jobs.usage import RankUsage, mean_utilization
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store.jobs.usage import usage_of_job, usage_report
from gpu_platform.store.reservations import attempts
from gpu_platform.store.reservations.attempts import AttemptResult
from tests.support.store_cluster import NOW, Cluster, key


def measured(rank: int, host: str, **fields: Any) -> RankUsage:
    return RankUsage.model_validate({"rank": rank, "host": host, "seconds": 60, "gpu_seconds": 120, **fields})


def ends(store: Store, job_id: str, now: datetime, *usage: RankUsage, attempt: int = 1) -> None:
    attempts.end_attempt(
        store, key(job_id, attempt), [JobState.COMPLETED], now=now, actor="control", result=AttemptResult(usage=usage)
    )


def test_gpu_seconds_are_what_was_held_and_the_rest_what_hosts_measured(store: Store) -> None:
    Cluster(store).host("a").host("b").running("j1", {"a": [0, 1], "b": [0, 1]})
    later = NOW + timedelta(seconds=100)
    first = measured(0, "a", mean_utilization_percent=80, peak_gpu_memory_mib=900, energy_j=5e4, cpu_s=7, ecc_errors=2)
    second = measured(
        1, "b", mean_utilization_percent=40, peak_gpu_memory_mib=700, energy_j=3e4, cpu_s=5, throttled_s=1.5
    )
    ends(store, "j1", later, second, first)
    ends(store, "j1", later + timedelta(hours=1), first)  # repeated by a retry of the activity
    usage = usage_of_job(store, "j1")
    [attempt] = usage.attempts
    assert (attempt.gpus, attempt.gpu_seconds, attempt.ended_at) == (4, 400, later)
    assert attempt.mean_utilization_percent == pytest.approx(60)
    assert (attempt.peak_gpu_memory_mib, attempt.energy_j, attempt.cpu_s) == (900, 8e4, 12)
    assert (attempt.ecc_errors, attempt.throttled_s) == (2, 1.5)
    assert attempt.ranks == [first, second]
    assert attempt.unmeasured_hosts == []
    assert (usage.total.attempts, usage.total.gpu_seconds) == (1, 400)


def test_of_a_lost_host_only_gpu_seconds_are_known(store: Store) -> None:
    Cluster(store).host("a").host("b").running("j1", {"a": [0], "b": [0]})
    ends(store, "j1", NOW + timedelta(seconds=10), measured(0, "a", energy_j=100))
    [attempt] = usage_of_job(store, "j1").attempts
    assert (attempt.gpu_seconds, attempt.unmeasured_hosts, attempt.energy_j) == (20, ["b"], 100)


def test_an_attempt_that_never_held_anything_used_nothing(store: Store) -> None:
    Cluster(store).host("a").queued("j1")
    attempts.end_attempt(store, key("j1"), [JobState.CANCELLED], now=NOW, actor="control")
    assert usage_of_job(store, "j1").attempts == []
    assert usage_report(store).total.attempts == 0
    with pytest.raises(NotFound, match="there is no job 'j2'"):
        usage_of_job(store, "j2")


def test_sums_are_by_namespace_and_user_and_by_when_attempts_ended(store: Store) -> None:
    cluster = Cluster(store).host("a")
    for number, (job_id, user) in enumerate([("j1", "ada"), ("j2", "ada"), ("j3", "bob")]):
        cluster.queued(job_id, user=user, namespace="team")
        cluster.reserve(job_id, {"a": [number]})
        attempts.end_attempt(
            store, key(job_id), [JobState.CANCELLED], now=NOW + timedelta(seconds=10 * (number + 1)), actor="control"
        )
    report = usage_report(store)
    assert [(row.namespace, row.user, row.attempts, row.gpu_seconds) for row in report.users] == [
        ("team", "ada", 2, 30),
        ("team", "bob", 1, 30),
    ]
    assert report.total.gpu_seconds == 60
    since, until = NOW + timedelta(seconds=20), NOW + timedelta(seconds=30)
    assert usage_report(store, since=since).total.attempts == 2
    assert usage_report(store, since=since, until=until).total.gpu_seconds == 20
    assert usage_report(store, user="bob").total.gpu_seconds == 30
    assert usage_report(store, namespace="other").users == []


@given(st.lists(st.tuples(st.none() | st.floats(0, 100), st.just(0.0) | st.floats(1e-3, 1e6)), max_size=20))
def test_a_mean_lies_between_its_ranks_and_unread_ones_do_not_count(
    ranks: list[tuple[float | None, float]],
) -> None:
    usage = [measured(0, "a", mean_utilization_percent=percent, gpu_seconds=weight) for percent, weight in ranks]
    mean = mean_utilization(usage)
    known = [percent for percent, weight in ranks if percent is not None and weight > 0]
    if mean is None:
        assert known == []
    else:
        assert min(known) - 1e-6 <= mean <= max(known) + 1e-6
