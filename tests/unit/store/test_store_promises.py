"""Promises in the database: written by the leader only, read by the next one, and shown without dates that passed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gpu_platform.domain.errors import StaleEpoch
from gpu_platform.domain.jobs.placement import EstimateBasis, Reason, WaitCode
from gpu_platform.domain.placing.promise import (
    PromiseChange,
    PromisedPlace,
    PromisedStart,
    PromiseOutcome,
    WithdrawalCode,
)
from gpu_platform.store import Store, events, state
from gpu_platform.store.jobs import jobs, promises, queue, queue_view
from gpu_platform.store.leadership import leader, leases
from tests.support.store_cluster import NOW, Cluster

START = NOW.timestamp() + 1000.123456789
PROMISE = PromisedStart("j1", 1, START, NOW.timestamp(), "key", 60.0, (PromisedPlace("a", ("GPU-a-0", "GPU-a-1")),))


def write(store: Store, *changed: PromisedStart, epoch: int = 1, gone: tuple[str, ...] = ()) -> None:
    promises.write_promises(store, epoch, changed, gone, [], NOW)


def test_a_new_leader_reads_exactly_what_the_old_one_wrote(store: Store) -> None:
    leader.begin_epoch(store, "old", NOW)
    second = replace(PROMISE, job_id="j2", time_limit_s=None, places=(), waits_for="j9")
    write(store, PROMISE, second)
    leader.begin_epoch(store, "new", NOW)
    assert state.read_state(store, NOW).promises == [PROMISE, second]
    write(store, replace(PROMISE, start=START - 10), epoch=2, gone=("j2", "never there"))
    assert promises.read_promises(store) == [replace(PROMISE, start=START - 10)]


def test_a_leader_that_was_replaced_writes_nothing(store: Store) -> None:
    leader.begin_epoch(store, "old", NOW)
    leader.begin_epoch(store, "new", NOW)
    with pytest.raises(StaleEpoch):
        write(store, PROMISE, epoch=1)
    assert promises.read_promises(store) == []


def test_a_promise_that_is_taken_back_is_an_event_of_its_job(store: Store) -> None:
    leader.begin_epoch(store, "old", NOW)
    given = PromiseChange("j1", 1, PromiseOutcome.GIVEN, START, NOW.timestamp())
    lost = replace(given, outcome=PromiseOutcome.WITHDRAWN, code=WithdrawalCode.HOST_OUT, reason="host a is LOST")
    kept = replace(given, outcome=PromiseOutcome.KEPT)
    promises.write_promises(store, 1, [], [], [given, lost, kept], NOW)
    [event] = events.read_events(store, 0, job_id="j1")
    assert (event.kind, event.actor, event.attempt) == ("job.promise_withdrawn", "scheduler", 1)
    assert event.data["reason"] == "host a is LOST"
    assert (event.data["code"], event.data["promised"], event.data["later"]) == ("host_out", START, None)


def _waiting(store: Store, start: float) -> None:
    """Two jobs of one class wait, and their reason has the date of the first one."""
    wanted = Cluster(store).host("a")
    for job_id in ("j1", "j2"):
        wanted.queued(job_id)
        queue.enqueue(store, job_id, 1, task_token=b"t", excluded_gpus=[], excluded_hosts=[], now=NOW)
    reason = Reason(
        code=WaitCode.WAITING_FOR_GPUS,
        message="m",
        first_job="j1",
        starts_by=start,
        estimated_start=start,
        estimate=EstimateBasis.PROMISED,
    )
    [key] = {row.class_key for row in queue.read_queue(store)}
    queue.set_reasons(store, {key: reason}, NOW)


def _shown(store: Store, job_id: str) -> Reason:
    [in_queue] = [one.reason for one in queue_view.list_queue(store, 0, 10) if one.job_id == job_id]
    alone = jobs.get_job(store, job_id).reason
    assert in_queue == alone, "the queue and the job say the same"
    assert alone is not None
    return alone


def test_each_job_shows_its_own_promise_whatever_the_reason_of_its_class_says(store: Store) -> None:
    now = datetime.now(UTC)
    at = now.timestamp()
    leader.begin_epoch(store, "one", now)
    _waiting(store, at + 500)
    assert (_shown(store, "j1").starts_by, _shown(store, "j2").starts_by) == (None, None), "no promise is written"
    write(store, replace(PROMISE, start=at + 100), replace(PROMISE, job_id="j2", start=at + 200))
    assert (_shown(store, "j1").starts_by, _shown(store, "j2").starts_by) == (at + 100, at + 200)
    assert _shown(store, "j2").estimate is EstimateBasis.PROMISED
    write(store, replace(PROMISE, start=at + 100, waits_for="j9"))
    assert _shown(store, "j1").starts_by is None, "nobody knows the date while j9 runs over its limit"


def test_a_date_that_has_passed_is_never_shown_and_a_dead_scheduler_is_named(store: Store) -> None:
    now = datetime.now(UTC)
    at = now.timestamp()
    leader.begin_epoch(store, "one", now)
    leases.begin_round(store, now)
    _waiting(store, at - 5)
    write(store, replace(PROMISE, start=at - 5))
    shown = _shown(store, "j1")
    assert (shown.starts_by, shown.estimated_start) == (None, None)
    assert "has passed" in shown.next_step
    with store.read() as session:
        later = promises.as_told(session, {"j1": shown}, now + timedelta(hours=1))["j1"]
    assert "no scheduler decides since" in later.next_step
    assert (later.starts_by, later.estimated_start) == (None, None)
