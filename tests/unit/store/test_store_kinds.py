"""Kinds of work in the database: what a job named, what earlier jobs say of one that names none, what is counted."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import update

from gpu_platform.domain.errors import IdempotencyConflict
from gpu_platform.domain.jobs.job import Job, JobProgress
from gpu_platform.domain.jobs.work_kind import WorkKind
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store, events, models
from gpu_platform.store.jobs import jobs, work_kinds
from gpu_platform.store.jobs.jobs import IdempotencyKey
from gpu_platform.store.reservations import attempts, handover, releasing
from gpu_platform.store.restoring import restoring
from gpu_platform.store.restoring.restoring import RememberedJob
from tests.support.store_cluster import NOW, Cluster, key, placement, spec
from workers.scheduler.feed_metrics import FeedMetrics
from workers.scheduler.metrics import GPU_SECONDS, JOBS_ENDED, JOBS_STARTED, RUN_SECONDS, WAIT_SECONDS

TRAINING, BATCH = WorkKind.TRAINING, WorkKind.BATCH


def submit(store: Store, job_id: str, minute: int = 0, key: IdempotencyKey | None = None, **fields: object) -> Job:
    now = NOW + timedelta(minutes=minute)
    return jobs.submit_job(store, job_id, spec(**fields), actor="ada", now=now, idempotency_key=key)[0]


def test_a_kind_is_inferred_from_what_the_newest_job_of_that_name_said(store: Store) -> None:
    submit(store, "older", 1, name="run-1", kind=BATCH)
    submit(store, "newer", 2, name="run-22", kind=TRAINING)
    submit(store, "silent", 3, name="run-3")
    found = submit(store, "asks", 4, name="run-4")
    assert (found.spec.kind, found.inferred_kind) == (None, TRAINING)
    assert jobs.get_job(store, "asks") == found
    assert submit(store, "says", 5, name="run-5", kind=BATCH).inferred_kind is None


@pytest.mark.parametrize("other", [{"name": "eval-2"}, {"name": "run-2b"}, {"user": "bob"}, {"namespace": "lab"}])
def test_what_others_do_or_other_names_say_nothing(store: Store, other: dict[str, str]) -> None:
    submit(store, "said", 1, name="run-1", user="ada", kind=TRAINING)
    assert submit(store, "alike", 2, name="run-2", user="ada").inferred_kind is TRAINING
    assert submit(store, "asks", 3, **{"name": "run-2", "user": "ada", **other}).inferred_kind is None


def test_an_inferred_kind_teaches_nothing(store: Store) -> None:
    """Otherwise one word would decide for ever."""
    submit(store, "said", 0, name="run-1", kind=TRAINING)
    for number in range(1, work_kinds.LOOK_BACK):
        submit(store, f"other-{number}", number, name="eval", kind=BATCH)
    assert submit(store, "inferred", 200, name="run-2").inferred_kind is TRAINING
    submit(store, "last", 300, name="eval", kind=BATCH)
    assert submit(store, "asks", 400, name="run-3").inferred_kind is None


def test_jobs_are_listed_by_kind_named_or_inferred(store: Store) -> None:
    submit(store, "said", 1, name="run-1", kind=TRAINING)
    submit(store, "inferred", 2, name="run-2")
    submit(store, "other", 3, name="x", kind=BATCH)
    submit(store, "none", 4, name="y")
    assert [job.id for job in jobs.list_jobs(store, kind=TRAINING)[0]] == ["inferred", "said"]
    assert [job.id for job in jobs.list_jobs(store, kind=WorkKind.INFERENCE)[0]] == []
    unfinished = work_kinds.count_unfinished(store)
    pending = JobState.PENDING
    assert unfinished == {("training", pending): 2, ("batch", pending): 1, ("unknown", pending): 1}


def test_a_row_that_an_older_release_wrote_has_no_kind(store: Store) -> None:
    submit(store, "old")
    with store.write() as session:
        session.execute(update(models.job).values(kind=None, inferred_kind=None))
    found = jobs.get_job(store, "old")
    assert (found.spec.kind, found.inferred_kind) == (None, None)
    assert work_kinds.count_unfinished(store) == {("unknown", JobState.PENDING): 1}


def test_a_restored_job_has_its_kind_again(store: Store) -> None:
    found = RememberedJob("j", spec(kind=BATCH), JobState.QUEUED, JobProgress(attempt=1), None, created_at=NOW)
    assert restoring.restore_job(store, found, NOW)
    assert [job.id for job in jobs.list_jobs(store, kind=BATCH)[0]] == ["j"]


def test_the_same_words_are_the_same_submission_whatever_the_defaults_are_now(store: Store) -> None:
    said = IdempotencyKey("k", "ada", "digest")
    first = submit(store, "first", 0, said, kind=BATCH, priority=-100)
    assert submit(store, "again", 1, said, kind=BATCH, priority=-5) == first
    with pytest.raises(IdempotencyConflict, match="first"):
        submit(store, "other", 2, IdempotencyKey("k", "ada", "other"), kind=BATCH, priority=-5)
    assert submit(store, "equal", 3, IdempotencyKey("k", "ada", "other"), kind=BATCH, priority=-100) == first


def test_a_key_of_an_older_release_is_compared_by_the_job(store: Store) -> None:
    first = submit(store, "first", 0, IdempotencyKey("k", "ada"), priority=3)
    assert submit(store, "again", 1, IdempotencyKey("k", "ada", "digest"), priority=3) == first
    with pytest.raises(IdempotencyConflict, match="first"):
        submit(store, "other", 2, IdempotencyKey("k", "ada", "digest"), priority=4)
    with pytest.raises(IdempotencyConflict, match="first"):
        submit(store, "older", 3, IdempotencyKey("k", "ada"), priority=4)


def at(seconds: float):
    return NOW + timedelta(seconds=seconds)


def runs(store: Store, job_id: str, seconds: float, attempt: int = 1) -> None:
    attempts.mark_running(store, key(job_id, attempt), at(seconds))


def ends(store: Store, job_id: str, states: list[JobState], seconds: float, attempt: int = 1) -> None:
    attempts.end_attempt(store, key(job_id, attempt), states, now=at(seconds), actor="control")


def told(store: Store, kind: str) -> list[dict[str, object]]:
    return [event.data for event in events.read_events(store, 0) if event.kind == kind]


def test_events_tell_how_long_a_job_waited_ran_and_held(store: Store) -> None:
    cluster = Cluster(store).host("a")
    cluster.queued("j", kind=TRAINING)
    cluster.reserve("j", {"a": [0, 1]})
    runs(store, "j", 5)
    ends(store, "j", [JobState.COMPLETED], 65.5)
    assert told(store, "job.running") == [{"kind": "training", "waited_s": 5.0}]
    assert told(store, "job.completed") == [{"kind": "training", "ran_s": 60.5, "took_s": 65.5}]
    [released] = told(store, "gang.released")
    assert (released["kind"], released["gpu_s"], released["hosts"]) == ("training", 131.0, ["a"])


def test_a_job_that_ended_before_its_start_was_written_tells_both(store: Store) -> None:
    cluster = Cluster(store).host("a")
    cluster.queued("j", kind=TRAINING)
    cluster.reserve("j", {"a": [0]})
    ends(store, "j", [JobState.RUNNING, JobState.COMPLETED], 3)
    assert told(store, "job.running") == [{"kind": "training", "waited_s": 3.0}]
    assert told(store, "job.completed") == [{"kind": "training", "ran_s": 0.0, "took_s": 3.0}]


def test_a_retry_keeps_its_place_and_has_no_wait_but_a_preempted_job_waits_again(store: Store) -> None:
    cluster = Cluster(store).host("a")
    cluster.queued("j")
    cluster.reserve("j", {"a": [0]})
    runs(store, "j", 10)
    ends(store, "j", [JobState.QUEUED], 20)
    cluster.enqueue("j", 2, now=at(20))
    cluster.reserve("j", {"a": [0]}, attempt=2)
    runs(store, "j", 30, 2)
    ends(store, "j", [JobState.PREEMPTED, JobState.QUEUED], 40, 2)
    cluster.enqueue("j", 3, now=at(40))
    cluster.reserve("j", {"a": [0]}, attempt=3)
    runs(store, "j", 47, 3)
    assert told(store, "job.running") == [{"waited_s": 10.0}, {}, {"waited_s": 7.0}]


def test_a_job_that_never_ran_has_no_run_time(store: Store) -> None:
    cluster = Cluster(store).host("a")
    cluster.running("ran", {"a": [0]})
    ends(store, "ran", [JobState.QUEUED], 20)
    ends(store, "ran", [JobState.CANCELLED], 3600)
    cluster.queued("waited")
    ends(store, "waited", [JobState.CANCELLED], 30)
    assert all("ran_s" not in data for data in told(store, "job.cancelled"))
    assert len(told(store, "job.cancelled")) == 2


def test_a_gang_that_is_handed_over_tells_what_its_attempt_held(store: Store) -> None:
    cluster = Cluster(store).host("a")
    cluster.queued("j", kind=BATCH)
    cluster.reserve("j", {"a": [0, 1]})
    runs(store, "j", 0)
    handover.hand_over(
        store,
        key("j"),
        placement({"a": [0, 1]}),
        parked=False,
        now=at(10),
        faulty_gpus={},
        failure=None,
        hardware_retries=1,
    )
    [released] = told(store, "gang.released")
    assert (released["kind"], released["gpu_s"]) == ("batch", 20.0)
    releasing.release_gang(store, key("j", 2), now=at(20))
    assert "gpu_s" not in told(store, "gang.released")[1], "no usage was recorded"


class Measured:
    """What the metrics have grown by since the object was made."""

    def __init__(self) -> None:
        self._before = self._now()

    def _now(self) -> dict[tuple[str, ...], float]:
        return {
            (sample.name.removeprefix("gpu_platform_"), *sample.labels.values()): sample.value
            for metric in (JOBS_STARTED, JOBS_ENDED, WAIT_SECONDS, RUN_SECONDS, GPU_SECONDS)
            for family in metric.collect()
            for sample in family.samples
            if sample.name.endswith(("_total", "_sum", "_count"))
        }

    def grown(self) -> dict[tuple[str, ...], float]:
        now = self._now()
        return {
            name: round(now[name] - self._before.get(name, 0), 3) for name in now if now[name] != self._before.get(name)
        }


def test_metrics_count_by_kind(store: Store) -> None:
    cluster = Cluster(store).host("a")
    submit(store, "said", name="serve-1", kind=WorkKind.INFERENCE)
    for job_id, name in (("inferred", "serve-2"), ("unknown", "other")):
        cluster.queued(job_id, name=name)
        cluster.reserve(job_id, {"a": [0]})
        runs(store, job_id, 4)
        ends(store, job_id, [JobState.COMPLETED if job_id == "inferred" else JobState.FAILED], 10)
    measured = Measured()
    counting = FeedMetrics()
    for event in events.read_events(store, 0):
        counting.record(event)
    assert measured.grown() == {
        ("jobs_started_total", "inference"): 1,
        ("job_wait_seconds_sum", "inference"): 4,
        ("job_wait_seconds_count", "inference"): 1,
        ("jobs_ended_total", "inference", "COMPLETED"): 1,
        ("job_run_seconds_sum", "inference"): 6,
        ("job_run_seconds_count", "inference"): 1,
        ("job_gpu_seconds_total", "inference"): 10,
        ("jobs_started_total", "unknown"): 1,
        ("job_wait_seconds_sum", "unknown"): 4,
        ("job_wait_seconds_count", "unknown"): 1,
        ("jobs_ended_total", "unknown", "FAILED"): 1,
        ("job_run_seconds_sum", "unknown"): 6,
        ("job_run_seconds_count", "unknown"): 1,
        ("job_gpu_seconds_total", "unknown"): 10,
    }


def test_events_of_older_releases_are_counted_as_unknown(store: Store) -> None:
    with store.write() as session:
        for kind in ("job.running", "job.failed", "gang.released"):
            events.append_event(session, kind, "control", NOW, job_id="j", attempt=1, data={"hosts": []})
    measured = Measured()
    counting = FeedMetrics()
    for event in events.read_events(store, 0):
        counting.record(event)
    assert measured.grown() == {("jobs_started_total", "unknown"): 1, ("jobs_ended_total", "unknown", "FAILED"): 1}
