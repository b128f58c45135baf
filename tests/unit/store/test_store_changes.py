"""Jobs that are changed while they wait: what was decided for the old request is refused, and nothing is forgotten."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

from gpu_platform.domain.errors import (
    Forbidden,
    IllegalTransition,
    InUse,
    InvalidRequest,
    NotFound,
    OverQuota,
    ReservationConflict,
)
from gpu_platform.domain.jobs.array import ArraySpec
from gpu_platform.domain.jobs.changes import JobChanges, LimitChange
from gpu_platform.domain.jobs.dependency import Dependency, DependencyKind
from gpu_platform.domain.jobs.placement import WaitCode
from gpu_platform.domain.states import JobState
from gpu_platform.domain.windows import WindowRequest
from gpu_platform.store import Store, windows
from gpu_platform.store.events import read_events
from gpu_platform.store.jobs import arrays, changes, dependencies, elements, holds, jobs, queue
from gpu_platform.store.jobs.changes import Changer, change_running, change_waiting
from gpu_platform.store.jobs.holds import Asker
from gpu_platform.store.leadership import leader
from gpu_platform.store.reservations import attempts, first_places
from gpu_platform.store.reservations.elements import ElementStep, advance_elements
from gpu_platform.store.state import read_running
from tests.support.store_cluster import NOW, Cluster, key, placement, set_job_state, spec

LATER = NOW + timedelta(hours=1)


@pytest.fixture
def cluster(store: Store) -> Cluster:
    return Cluster(store).host("a")


def after(*job_ids: str, kind: DependencyKind = DependencyKind.OK) -> tuple[Dependency, ...]:
    return tuple(Dependency(job_id=one, kind=kind) for one in job_ids)


def test_a_job_that_is_changed_asks_again_with_what_it_says_now(cluster: Cluster) -> None:
    store = cluster.store
    cluster.queued("j", time_limit_s=60)
    cluster.queued("other", now=NOW + timedelta(seconds=1))
    assert change_waiting(store, "j", JobChanges(priority=7, time_limit_s=600), "ada", NOW)
    assert [row.job_id for row in queue.read_queue(store)] == ["other"]
    with pytest.raises(ReservationConflict, match="job j was changed meanwhile"):
        cluster.reserve("j", {"a": [0]})
    assert queue.queued_without_row(store, LATER) == ["j"], "if nobody tells its workflow, the leader does"
    cluster.enqueue("j", now=LATER)
    first, _ = queue.read_queue(store)
    assert (first.job_id, first.priority, first.time_limit_s) == ("j", 7, 600)
    assert first.enqueued_at == NOW.timestamp(), "it keeps its place"
    job = jobs.get_job(store, "j")
    assert (job.spec.priority, job.spec.time_limit_s) == (7, 600)
    assert (limit := changes.changed_limit(store, "j")) is not None
    assert limit.applied_to(spec(time_limit_s=60)).time_limit_s == 600
    cluster.reserve("j", {"a": [0]})
    [event] = [one for one in read_events(store, 0) if one.kind == "job.updated"]
    assert (event.actor, event.data) == ("ada", {"priority": [0, 7], "time_limit_s": [60, 600]})


def test_a_time_limit_can_be_taken_away_and_what_is_the_same_is_no_change(cluster: Cluster) -> None:
    store = cluster.store
    cluster.queued("j", time_limit_s=60)
    assert not change_waiting(store, "j", JobChanges(time_limit_s=60, priority=0), "ada", NOW)
    assert [row.job_id for row in queue.read_queue(store)] == ["j"]
    assert change_waiting(store, "j", JobChanges.model_validate({"time_limit_s": None}), "ada", NOW)
    cluster.enqueue("j")
    [row] = queue.read_queue(store)
    assert row.time_limit_s is None


def test_a_first_place_for_the_old_request_is_refused(cluster: Cluster) -> None:
    store = cluster.store
    jobs.submit_job(store, "j", spec(), actor="ann", now=NOW, idempotency_key=None)
    assert first_places.admit_and_ask(store, "j", NOW) == (True, None)
    [row] = queue.read_queue(store)
    change_waiting(store, "j", JobChanges(time_limit_s=60), "ada", NOW)
    assert list(first_places.reserve_places(store, [(row, placement({"a": [0]}))], NOW)) == [key("j")]
    assert first_places.admit_and_ask(store, "j", NOW) == (True, None)
    [row] = queue.read_queue(store)
    assert first_places.reserve_places(store, [(row, placement({"a": [0]}))], NOW) == {}
    place = first_places.reserved_places(store, [key("j")])[key("j")]
    assert place.limit is not None
    assert place.limit.time_limit_s == 60


def test_a_job_in_the_queue_waits_for_others_from_now_on(cluster: Cluster) -> None:
    store = cluster.store
    cluster.queued("first")
    cluster.queued("j")
    change_waiting(store, "j", JobChanges(after=after("first")), "ada", NOW)
    cluster.enqueue("j")
    assert [row.job_id for row in queue.read_queue(store)] == ["first"]
    reason = jobs.get_job(store, "j").reason
    assert reason is not None
    assert (reason.code, reason.message) == (WaitCode.DEPENDENCY, "waits for job first (QUEUED)")
    assert queue.queued_without_row(store, LATER) == []
    for state in (JobState.ALLOCATED, JobState.RUNNING, JobState.COMPLETED):
        set_job_state(store, "first", state, now=NOW, actor="test")
    assert dependencies.to_be_woken(store, LATER, {"first"}) == ["j"]
    cluster.enqueue("j", now=LATER)
    assert [row.job_id for row in queue.read_queue(store)] == ["j"]


def test_in_the_queue_a_dependency_that_can_never_be_met_holds_the_job(cluster: Cluster) -> None:
    store = cluster.store
    cluster.queued("first")
    cluster.queued("j")
    change_waiting(store, "j", JobChanges(after=after("first")), "ada", NOW)
    set_job_state(store, "first", JobState.FAILED, now=NOW, actor="test")
    cluster.enqueue("j")
    reason = jobs.get_job(store, "j").reason
    assert reason is not None
    assert reason.code is WaitCode.HELD
    assert holds.release(store, "j", Asker("ada"), LATER) == ["j"]
    cluster.enqueue("j", now=LATER)
    assert [row.job_id for row in queue.read_queue(store)] == ["j"]


def test_a_job_that_waits_for_others_can_be_let_go(cluster: Cluster) -> None:
    store = cluster.store
    cluster.queued("first")
    jobs.submit_job(store, "j", spec(after=after("first")), actor="ada", now=NOW, idempotency_key=None)
    jobs.admit_job(store, "j", NOW)
    change_waiting(store, "j", JobChanges(after=()), "ada", NOW)
    assert dependencies.look(store, "j", NOW).standing.value == "met"
    cluster.enqueue("j")
    assert {row.job_id for row in queue.read_queue(store)} == {"first", "j"}


def test_what_cannot_be_is_refused_and_changes_nothing(cluster: Cluster) -> None:
    store = cluster.store
    cluster.queued("first")
    jobs.submit_job(store, "second", spec(after=after("first")), actor="ada", now=NOW, idempotency_key=None)
    for job_id in ("first", "second"):
        with pytest.raises(InvalidRequest, match="would wait for itself"):
            change_waiting(store, "first", JobChanges(after=after(job_id)), "ada", NOW)
    with pytest.raises(NotFound, match="after job 'nobody'"):
        change_waiting(store, "first", JobChanges(after=after("nobody")), "ada", NOW)
    with pytest.raises(NotFound):
        change_waiting(store, "nobody", JobChanges(priority=1), "ada", NOW)
    cluster.queued("warned", time_limit_s=60, warn_before_s=30)
    with pytest.raises(InvalidRequest, match="warn_before_s needs a longer time_limit_s"):
        change_waiting(store, "warned", JobChanges(time_limit_s=10), "ada", NOW)
    assert {row.job_id for row in queue.read_queue(store)} == {"first", "warned"}
    cluster.reserve("first", {"a": [0]})
    with pytest.raises(IllegalTransition, match=r"job first is ALLOCATED: only a job that waits or runs can"):
        change_waiting(store, "first", JobChanges(priority=1), "ada", NOW)
    arrays.submit_array(store, "a-x", spec(), ArraySpec(indices="0-1"), actor="ada", now=NOW, idempotency_key=None)
    elements.begin_array(store, "a-x", NOW)
    advance_elements(store, "a-x", ElementStep(add=1), NOW)
    with pytest.raises(InvalidRequest, match=r"a-x\.0 is an element: it is changed with its array a-x"):
        change_waiting(store, "a-x.0", JobChanges(priority=1), "ada", NOW)


def test_a_new_limit_fits_before_the_deadline_which_stays(cluster: Cluster) -> None:
    store, owner = cluster.store, Changer("ada", is_operator=True)
    cluster.queued("j", deadline_at=LATER, time_limit_s=600)
    assert change_waiting(store, "j", JobChanges(time_limit_s=3600), "ada", NOW)
    too_long = (
        "a time limit of 1h00m was asked for, and there are 59m59s from now to the deadline 2026-01-02 04:04:05 UTC, "
        "which stays: ask for at most 59m59s"
    )
    change_waiting(store, "j", JobChanges(time_limit_s=60), "ada", NOW)
    with pytest.raises(InvalidRequest, match=too_long):
        change_waiting(store, "j", JobChanges(time_limit_s=3600), "ada", NOW + timedelta(seconds=1))
    with pytest.raises(InvalidRequest, match="now is after the deadline"):
        change_waiting(store, "j", JobChanges(time_limit_s=30), "ada", LATER + timedelta(seconds=1))
    assert change_waiting(store, "j", JobChanges.model_validate({"time_limit_s": None}), "ada", NOW)
    changed = jobs.get_job(store, "j").spec
    assert (changed.deadline_at, changed.time_limit_s) == (LATER, None)
    cluster.queued("begins", deadline_at=LATER, begin_at=NOW + timedelta(minutes=30))
    with pytest.raises(InvalidRequest, match="there are 30m00s from its begin at"):
        change_waiting(store, "begins", JobChanges(time_limit_s=1801), "ada", NOW)
    runs(cluster, "running", deadline_at=LATER, time_limit_s=600)
    later = NOW + timedelta(minutes=50)
    assert change_running(store, "running", JobChanges(time_limit_s=3600), owner, later)
    with pytest.raises(InvalidRequest, match="there are 1h00m from its start at 2026-01-02 03:04:05 UTC to"):
        change_running(store, "running", JobChanges(time_limit_s=3601), owner, later)


def test_the_limit_of_the_namespace_holds(cluster: Cluster) -> None:
    store = cluster.store
    cluster.queued("j", time_limit_s=60)
    quotas = {"quotas": {"namespaces": [{"name": "default", "max_job_duration_s": 100}]}}
    leader.begin_epoch(store, "me", NOW, quotas)
    with pytest.raises(OverQuota, match="at most 100 s"):
        change_waiting(store, "j", JobChanges(time_limit_s=101), "ada", NOW)


def runs(cluster: Cluster, job_id: str, **fields: Any) -> None:
    cluster.queued(job_id, **fields)
    attempts.mark_running(cluster.store, cluster.reserve(job_id, {"a": [0]}), NOW)


def test_two_changes_that_make_a_ring_together_are_not_both_made(cluster: Cluster) -> None:
    store = cluster.store
    names = ("a", "b", "c")
    for name in names:
        cluster.queued(name)
    change_waiting(store, "b", JobChanges(after=after("c")), "ada", NOW)
    together, found = threading.Barrier(2), list[str]()

    def change(name: str, other: str) -> None:
        together.wait(10)
        try:
            change_waiting(store, name, JobChanges(after=after(other)), "ada", NOW)
            found.append("made")
        except InvalidRequest as refused:
            found.append(refused.message)

    threads = [threading.Thread(target=change, args=given) for given in (("a", "b"), ("c", "a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    [refusal] = [one for one in found if one != "made"]
    assert len(found) == 2
    assert "would wait for itself" in refusal


def test_a_job_that_runs_gets_another_limit_and_priority(cluster: Cluster) -> None:
    store, owner, operator = cluster.store, Changer("ada"), Changer("op", is_operator=True)
    runs(cluster, "j", time_limit_s=600)
    assert change_running(store, "j", JobChanges(priority=3), owner, NOW) is None
    limit = change_running(store, "j", JobChanges(time_limit_s=60), owner, NOW)
    assert limit == changes.changed_limit(store, "j") == LimitChange(time_limit_s=60)
    assert change_running(store, "j", JobChanges(time_limit_s=60), owner, NOW) == limit, "it is told again"
    with pytest.raises(Forbidden, match="allows no longest time"):
        change_running(store, "j", JobChanges(time_limit_s=61), owner, NOW)
    assert change_running(store, "j", JobChanges(time_limit_s=900), operator, NOW) == LimitChange(time_limit_s=900)
    [row] = read_running(store)
    assert (row.time_limit_s, row.priority) == (900, 3)
    with pytest.raises(IllegalTransition, match="after can be changed only while it waits"):
        change_running(store, "j", JobChanges(after=()), owner, NOW)
    events = [one for one in read_events(store, 0) if one.kind == "job.updated"]
    assert [one.attempt for one in events] == [1, 1, 1]
    quotas = {"quotas": {"namespaces": [{"name": "default", "max_job_duration_s": 1000}]}}
    leader.begin_epoch(store, "me", NOW, quotas)
    change_running(store, "j", JobChanges(time_limit_s=1000), owner, NOW)
    with pytest.raises(Forbidden, match="at most 1000 s"):
        change_running(store, "j", JobChanges(time_limit_s=1001), owner, NOW)


def test_no_longer_limit_reaches_into_a_window(cluster: Cluster) -> None:
    store, operator = cluster.store, Changer("op", is_operator=True)
    runs(cluster, "j", time_limit_s=600)
    cluster.queued("starting")
    begins = NOW + timedelta(hours=1)
    window = WindowRequest(name="fans", maintenance=True, start_at=begins, duration_s=60, hosts=("a",))
    windows.create(store, window, "op", NOW)
    change_running(store, "j", JobChanges(time_limit_s=3500), operator, NOW)
    with pytest.raises(InUse, match="j might still run in maintenance from"):
        change_running(store, "j", JobChanges(time_limit_s=3600), operator, NOW)
    with pytest.raises(InUse):
        change_running(store, "j", JobChanges.model_validate({"time_limit_s": None}), operator, NOW)
    assert changes.changed_limit(store, "j") == LimitChange(time_limit_s=3500)
    cluster.reserve("starting", {"a": [1]})
    with pytest.raises(IllegalTransition, match="starting is ALLOCATED: it is being started: ask again"):
        change_running(store, "starting", JobChanges(priority=1), operator, NOW)
