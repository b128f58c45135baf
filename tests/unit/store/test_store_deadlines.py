"""Deadlines at the submission: what can no longer end in time is refused with what was asked and what there was."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.store import Store
from gpu_platform.store.jobs import jobs
from tests.support.store_cluster import NOW, Cluster, spec

HOUR = timedelta(hours=1)


def submit(store: Store, now: datetime = NOW, key: str | None = None, **fields: object) -> str:
    asked = spec(deadline_at=NOW + HOUR, **fields)
    return jobs.submit_job(store, "j", asked, actor="ada", now=now, idempotency_key=key)[0].id


def test_a_job_that_can_end_in_time_is_accepted(store: Store) -> None:
    Cluster(store).host("a")
    assert submit(store, time_limit_s=3600, key="key") == "j"
    again = submit(store, NOW + 2 * HOUR, time_limit_s=3600, key="key")
    assert again == "j", "sent twice it is one job, however late the second one comes"


@pytest.mark.parametrize(
    ("late", "fields", "message"),
    [
        (HOUR, {}, "the deadline 2026-01-02 04:04:05 UTC has passed: it is 2026-01-02 04:04:05 UTC"),
        (
            timedelta(0),
            {"time_limit_s": 7200},
            "a time limit of 2h00m was asked for, and there are 1h00m from now to the deadline 2026-01-02 04:04:05 "
            "UTC: ask for less with --time, or for a later --deadline",
        ),
        (
            timedelta(0),
            {"time_limit_s": 3000, "begin_at": NOW + HOUR / 2},
            "a time limit of 50m00s was asked for, and there are 30m00s from its begin at 2026-01-02 03:34:05 UTC",
        ),
    ],
)
def test_a_job_that_cannot_is_refused(store: Store, late: timedelta, fields: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        submit(store, NOW + late, **fields)
    assert message in refused.value.message
    assert jobs.list_jobs(store)[0] == []


def test_a_deadline_comes_after_the_begin() -> None:
    with pytest.raises(ValueError, match="deadline_at must be later than begin_at"):
        spec(deadline_at=NOW, begin_at=NOW)
    with pytest.raises(ValueError, match="warn_before_s needs"):
        spec(warn_before_s=60)
    assert spec(warn_before_s=60, deadline_at=NOW).warn_before_s == 60
