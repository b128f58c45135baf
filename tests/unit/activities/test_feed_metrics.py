"""What the leader counts of jobs and hosts: each fact once, each time from event to event."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import REGISTRY

from gpu_platform.domain.events import Event
from gpu_platform.domain.jobs.blame import FailureKind
from gpu_platform.domain.jobs.work_kind import WorkKind
from gpu_platform.domain.states import TERMINAL_JOB_STATES
from gpu_platform.store import Store, events
from gpu_platform.store.jobs.work_kinds import UNKNOWN
from tests.support.store_cluster import NOW
from workers.scheduler.decision_loop import DecisionLoop
from workers.scheduler.feed_metrics import FeedMetrics
from workers.scheduler.metrics import HOSTS_LATE, VERDICT_HELD, leading
from workers.scheduler.policy_in_force import PolicyInForce


class Feed:
    """Events of one job, and by how much metrics have grown since the object was made."""

    def __init__(self) -> None:
        self.metrics = FeedMetrics()
        self._before: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def happens(self, seconds: float, kind: str, /, **data: Any) -> None:
        at = NOW + timedelta(seconds=seconds)
        self.metrics.record(Event(seq=1, at=at, kind=kind, actor="test", job_id="j", attempt=1, data=data))

    def grown(self, name: str, **labels: str) -> float:
        key = (name, tuple(sorted(labels.items())))
        now = REGISTRY.get_sample_value(f"gpu_platform_{name}", labels) or 0.0
        before, self._before[key] = self._before.get(key, 0.0), now
        return round(now - before, 3)


HARDWARE = {"failure": {"kind": "hardware", "message": "XID 79"}}
WATCHED = (
    ("jobs_submitted_total", {"kind": "training"}),
    ("jobs_retried_total", {"reason": "hardware"}),
    ("jobs_retried_total", {"reason": "preempted"}),
    ("jobs_retried_total", {"reason": "none"}),
    ("jobs_failed_total", {"reason": "user"}),
    ("placement_seconds_sum", {}),
    ("placement_seconds_count", {}),
    ("launch_seconds_sum", {}),
    ("launch_seconds_count", {}),
    ("job_completion_seconds_sum", {"kind": "training"}),
    ("checkpoint_age_seconds_sum", {}),
    ("checkpoint_age_seconds_count", {}),
    ("hosts_lost_total", {}),
)


@pytest.fixture
def feed() -> Feed:
    made = Feed()
    for name, labels in WATCHED:
        made.grown(name, **labels)
    return made


def test_a_job_is_counted_from_its_submission_to_its_completion(feed: Feed) -> None:
    feed.happens(0, "job.submitted", kind="training")
    feed.happens(1, "queue.added")
    feed.happens(4, "job.placed")
    feed.happens(4.5, "job.running", kind="training", waited_s=3.5)
    feed.happens(9, "job.completed", kind="training", ran_s=4.5, took_s=9.0)
    assert feed.grown("jobs_submitted_total", kind="training") == 1
    assert feed.grown("placement_seconds_sum") == 3
    assert feed.grown("launch_seconds_sum") == 0.5
    assert feed.grown("job_completion_seconds_sum", kind="training") == 9
    assert feed.grown("jobs_retried_total", reason="hardware") == 0
    assert feed.grown("checkpoint_age_seconds_count") == 0


def test_each_attempt_is_placed_and_launched_and_a_retry_has_its_reason(feed: Feed) -> None:
    feed.happens(0, "queue.added")
    feed.happens(1, "job.placed")
    feed.happens(2, "job.running")
    feed.metrics.checkpoint_saved("j", NOW.timestamp() + 40)
    feed.happens(100, "job.retrying", **HARDWARE)
    feed.happens(100, "queue.added")
    feed.happens(110, "job.placed")
    feed.happens(112, "job.running")
    feed.metrics.checkpoint_saved("j", NOW.timestamp() + 190)
    feed.happens(200, "job.preempted")
    feed.happens(201, "queue.added")
    feed.happens(202, "job.placed")
    feed.happens(203, "job.retrying")
    feed.happens(210, "job.failed", failure={"kind": "user", "message": "exit 1"})
    assert feed.grown("jobs_retried_total", reason="hardware") == 1
    assert feed.grown("jobs_retried_total", reason="preempted") == 1
    assert feed.grown("jobs_retried_total", reason="none") == 1
    assert feed.grown("jobs_failed_total", reason="user") == 1
    assert feed.grown("placement_seconds_sum") == 1 + 10 + 1
    assert feed.grown("launch_seconds_sum") == 1 + 2
    assert feed.grown("launch_seconds_count") == 2, "the third attempt never ran"
    assert feed.grown("checkpoint_age_seconds_sum") == 60 + 10
    assert feed.grown("checkpoint_age_seconds_count") == 2, "the last attempt saved nothing"


def test_nothing_of_a_job_is_kept_after_its_end(feed: Feed) -> None:
    for last in ("job.completed", "job.failed", "job.cancelled"):
        feed.happens(0, "queue.added")
        feed.happens(1, "job.placed")
        feed.happens(1, "queue.added")
        feed.metrics.checkpoint_saved("j", NOW.timestamp())
        feed.happens(2, last)
        assert not any(vars(feed.metrics).values())


def test_every_series_is_there_before_its_first_count() -> None:
    """``increase`` does not see the count with which a series begins."""
    for kind in (*WorkKind, UNKNOWN):
        for name in ("jobs_submitted_total", "jobs_started_total", "job_gpu_seconds_total", "job_wait_seconds_count"):
            assert REGISTRY.get_sample_value(f"gpu_platform_{name}", {"kind": kind}) is not None
        for state in TERMINAL_JOB_STATES:
            assert (
                REGISTRY.get_sample_value("gpu_platform_jobs_ended_total", {"kind": kind, "state": state}) is not None
            )
    for reason in (*FailureKind, "preempted", "none"):
        assert REGISTRY.get_sample_value("gpu_platform_jobs_retried_total", {"reason": reason}) is not None
    for outcome in ("placed", "expired", "unanswered", "preempted"):
        assert REGISTRY.get_sample_value("topology_placement_decisions_total", {"outcome": outcome}) is not None


def test_a_lost_host_is_counted(feed: Feed) -> None:
    feed.happens(0, "host.lost")
    assert feed.grown("hosts_lost_total") == 1


def test_a_standby_shows_nothing_of_when_it_led() -> None:
    with leading():
        assert REGISTRY.get_sample_value("gpu_platform_scheduler_leads") == 1
        for gauge in (HOSTS_LATE, VERDICT_HELD):
            gauge.set(3)
    for name in ("scheduler_leads", "hosts_late", "hosts_verdict_held"):
        assert REGISTRY.get_sample_value(f"gpu_platform_{name}") == 0


def test_the_feed_says_since_when_it_was_not_read(store: Store) -> None:
    assert events.oldest_after(store, 0) is None
    with store.write() as session:
        for seconds in (0, 5):
            events.append_event(session, "host.state", "test", NOW + timedelta(seconds=seconds))
    [first, second] = events.read_events(store, 0)
    assert events.oldest_after(store, 0) == NOW
    assert events.oldest_after(store, first.seq) == NOW + timedelta(seconds=5)
    assert events.oldest_after(store, second.seq) is None


def test_a_leader_that_stands_still_shows_how_old_the_first_unread_event_is(store: Store) -> None:
    loop = DecisionLoop(
        store,
        PolicyInForce.read({}),
        epoch=1,
        poll_s=0.01,
        answer=lambda row, placement: None,
        send_preemption=lambda order: None,
    )
    now = datetime.now(UTC)
    with store.write() as session:
        for seconds in (100, 60, 30):
            events.append_event(session, "host.state", "test", now - timedelta(seconds=seconds))
    assert loop._feed_lag_s() == 0, "it has not loaded anything yet"
    loop._seq = events.read_events(store, 0)[0].seq
    assert loop._feed_lag_s() == pytest.approx(60, abs=5)
    loop._seq = events.last_seq(store)
    assert loop._feed_lag_s() == 0
