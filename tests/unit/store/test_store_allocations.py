"""Gangs: all or none, once, and never after the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import IllegalTransition, NotFound, ReservationConflict, StaleEpoch, Unavailable
from gpu_platform.domain.states import GpuState, HostState, JobState
from gpu_platform.store import Store, events, models
from gpu_platform.store.hosts import gpu_states, gpus, hosts
from gpu_platform.store.jobs import jobs, queue
from gpu_platform.store.leadership import leader
from gpu_platform.store.reservations import allocations, attempts, releasing, reserving
from tests.support.store_cluster import NOW, Cluster, check_invariants, key, placement, set_job_state, uuid_of


@pytest.fixture
def cluster(store: Store) -> Cluster:
    return Cluster(store).host("a", gpus=4).host("b", gpus=4)


def kinds(store: Store) -> list[str]:
    return [event.kind for event in events.read_events(store, 0)]


def test_a_gang_takes_its_gpus_on_every_host(cluster: Cluster) -> None:
    store = cluster.store
    cluster.queued("j1")
    this = cluster.reserve("j1", {"a": [0, 1], "b": [3]})
    assert cluster.states("a") == ["ALLOCATED", "ALLOCATED", "AVAILABLE", "AVAILABLE"]
    assert cluster.states("b") == ["AVAILABLE", "AVAILABLE", "AVAILABLE", "ALLOCATED"]
    job = jobs.get_job(store, "j1")
    assert (job.state, job.attempt, job.placement and job.placement.hosts) == (JobState.ALLOCATED, 1, ["a", "b"])
    assert queue.queue_length(store) == 0
    assert allocations.holders(store, uuid_of("a", 0)) == [this]
    assert allocations.held_attempts(store) == allocations.held_attempts(store, "b") == [this]
    assert allocations.is_held(store, this)
    assert gpus.get_gpu(store, "b:3").job_id == "j1"
    placed, reserved = events.read_events(store, 0)[-2:]
    assert placed.data["hosts"] == ["a", "b"]
    assert reserved.data["gpus"] == [uuid_of("a", 0), uuid_of("a", 1), uuid_of("b", 3)]
    check_invariants(store)


def test_a_repeated_reservation_is_a_no_op(cluster: Cluster) -> None:
    cluster.queued("j1")
    cluster.reserve("j1", {"a": [0]}, epoch=0)
    before = events.last_seq(cluster.store)
    cluster.reserve("j1", {"a": [0]})
    assert events.last_seq(cluster.store) == before


def test_one_taken_gpu_refuses_the_whole_gang_and_is_named(cluster: Cluster) -> None:
    cluster.running("j1", {"b": [2]})
    cluster.queued("j2")
    before = events.last_seq(cluster.store)
    with pytest.raises(ReservationConflict, match=f"{uuid_of('b', 2)} on b is IN_USE"):
        cluster.reserve("j2", {"a": [0, 1, 2, 3], "b": [2]})
    assert cluster.states("a") == ["AVAILABLE"] * 4
    assert jobs.get_job(cluster.store, "j2").state is JobState.QUEUED
    assert queue.queue_length(cluster.store) == 1
    assert events.last_seq(cluster.store) == before
    assert not allocations.is_held(cluster.store, key("j2"))
    cluster.reserve("j2", {"a": [0]})
    check_invariants(cluster.store)


@pytest.mark.parametrize("state", [GpuState.DEGRADED, GpuState.RESETTING, GpuState.OFFLINE])
def test_a_gpu_out_of_service_cannot_be_reserved(cluster: Cluster, state: GpuState) -> None:
    gpu_states.set_gpu_state(cluster.store, "a:1", state, reason="broken", actor="op", now=NOW)
    cluster.queued("j1")
    with pytest.raises(ReservationConflict, match=f"{state.value} .broken."):
        cluster.reserve("j1", {"a": [0, 1]})


@pytest.mark.parametrize("state", [HostState.DRAINING, HostState.DRAINED, HostState.LOST])
def test_a_host_out_of_service_takes_no_gang(cluster: Cluster, state: HostState) -> None:
    hosts.set_host_state(cluster.store, "b", state, reason=None, actor="op", now=NOW)
    cluster.queued("j1")
    with pytest.raises(ReservationConflict, match="on b, which is"):
        cluster.reserve("j1", {"a": [0], "b": [0]})
    check_invariants(cluster.store)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"a": [7]}, "is not registered"),
        ({"a": [0, 0]}, "twice"),
        ({}, "none at all"),
    ],
)
def test_a_plan_that_makes_no_sense_is_a_conflict(cluster: Cluster, plan: dict[str, list[int]], message: str) -> None:
    cluster.queued("j1")
    with pytest.raises(ReservationConflict, match=message):
        cluster.reserve("j1", plan)


def test_only_the_current_leader_places(cluster: Cluster) -> None:
    store = cluster.store
    assert leader.current_epoch(store) == 0
    first = leader.begin_epoch(store, "one", NOW)
    second = leader.begin_epoch(store, "two", NOW)
    assert (first, second, leader.current_epoch(store)) == (1, 2, 2)
    cluster.queued("j1")
    with pytest.raises(StaleEpoch, match="epoch 1"):
        cluster.reserve("j1", {"a": [0]}, epoch=first)
    cluster.reserve("j1", {"a": [0]}, epoch=second)
    leader.begin_epoch(store, "three", NOW)
    cluster.reserve("j1", {"a": [0]}, epoch=second)  # it holds; a repeat is no decision


def test_a_reservation_after_the_release_loses(cluster: Cluster) -> None:
    store = cluster.store
    cluster.queued("j1")
    releasing.release_gang(store, key("j1"), now=NOW, faulty_gpus={})
    with pytest.raises(ReservationConflict, match="released before"):
        cluster.reserve("j1", {"a": [0]})
    assert cluster.states("a") == ["AVAILABLE"] * 4
    cluster.reserve("j1", {"a": [0]}, attempt=2)
    releasing.release_gang(store, key("j1", 2), now=NOW, faulty_gpus={})
    with pytest.raises(ReservationConflict):
        cluster.reserve("j1", {"a": [0]}, attempt=2)
    check_invariants(store)


def test_an_earlier_attempt_cannot_reserve_after_a_later_one(cluster: Cluster) -> None:
    cluster.queued("j1")
    this = cluster.reserve("j1", {"a": [0]}, attempt=2)
    releasing.release_gang(cluster.store, this, now=NOW)
    set_job_state(cluster.store, "j1", JobState.QUEUED, now=NOW, actor="control")
    with pytest.raises(ReservationConflict, match="outdated"):
        cluster.reserve("j1", {"a": [0]}, attempt=1)


def test_a_job_that_ended_takes_nothing(cluster: Cluster) -> None:
    cluster.queued("j1")
    set_job_state(cluster.store, "j1", JobState.CANCELLED, now=NOW, actor="ada")
    with pytest.raises(IllegalTransition, match="CANCELLED"):
        cluster.reserve("j1", {"a": [0]})
    with pytest.raises(NotFound):
        cluster.reserve("none", {"a": [0]})
    check_invariants(cluster.store)


def test_running_is_reached_by_way_of_starting(cluster: Cluster) -> None:
    store = cluster.store
    cluster.queued("j1")
    this = cluster.reserve("j1", {"a": [0]})
    for _ in range(2):
        attempts.mark_running(store, this, NOW)
    assert kinds(store)[-2:] == ["job.starting", "job.running"]
    assert cluster.states("a")[0] == "IN_USE"
    assert jobs.get_job(store, "j1").started_at == NOW
    cluster.queued("j2")
    that = cluster.reserve("j2", {"a": [1]})
    set_job_state(store, "j2", JobState.STARTING, now=NOW, actor="control")
    attempts.mark_running(store, that, NOW)
    assert kinds(store).count("job.starting") == 2


def test_what_was_released_cannot_run(cluster: Cluster) -> None:
    cluster.queued("j1")
    with pytest.raises(ReservationConflict):
        attempts.mark_running(cluster.store, key("j1"), NOW)
    this = cluster.reserve("j1", {"a": [0]})
    releasing.release_gang(cluster.store, this, now=NOW)
    with pytest.raises(ReservationConflict):
        attempts.mark_running(cluster.store, this, NOW)


def test_a_release_frees_all_but_what_is_quarantined(cluster: Cluster) -> None:
    store = cluster.store
    this = cluster.running("j1", {"a": [0, 1, 2]})
    gpu_states.set_gpu_state(store, "a:2", GpuState.OFFLINE, reason="pulled", actor="op", now=NOW)
    for _ in range(2):
        releasing.release_gang(store, this, now=NOW, faulty_gpus={uuid_of("a", 1): "XID 79", "other": "?"})
    assert cluster.states("a") == ["AVAILABLE", "DEGRADED", "OFFLINE", "AVAILABLE"]
    assert gpus.get_gpu(store, "a:1").reason == "XID 79"
    assert kinds(store).count("gang.released") == 1
    assert allocations.holders(store, uuid_of("a", 0)) == []
    assert not allocations.is_held(store, this)
    check_invariants(store)


def test_usage_can_be_added_up_afterwards(cluster: Cluster) -> None:
    this = cluster.running("j1", {"a": [0, 1]})
    releasing.release_gang(cluster.store, this, now=NOW)
    with cluster.store.read() as session:
        rows = session.execute(select(models.allocation)).all()
    assert [(row.reserved_at, row.running_at, row.released_at) for row in rows] == [(NOW, NOW, NOW)] * 2


def test_the_last_release_ends_a_drain(cluster: Cluster) -> None:
    store = cluster.store
    first, second = cluster.running("j1", {"a": [0]}), cluster.running("j2", {"a": [1], "b": [0]})
    hosts.set_host_state(store, "a", HostState.DRAINING, reason="new fans", actor="op", now=NOW)
    releasing.release_gang(store, first, now=NOW)
    assert cluster.host_state("a") == "DRAINING"
    releasing.release_gang(store, second, now=NOW)
    assert (cluster.host_state("a"), cluster.host_state("b")) == ("DRAINED", "READY")
    assert events.read_events(store, 0)[-1].data == {"state": "DRAINED"}


REPEATABLE = ["reserve_gang", "mark_starting", "mark_running"]


@pytest.mark.parametrize("step", REPEATABLE)
def test_nobody_releases_an_attempt_while_a_step_finds_it_held(store: Store, step: str) -> None:
    """What the step reads after that is still true at its commit."""
    if store.dialect == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    cluster = Cluster(store).host("h0", gpus=1)
    cluster.queued("job")
    this = cluster.reserve("job", {"h0": [0]})
    steps: dict[str, Callable[[Session], object]] = {
        "reserve_gang": lambda session: inside(reserving.reserve_gang)(session, this, placement({"h0": [0]}), now=NOW),
        "mark_starting": lambda session: inside(attempts.mark_starting)(session, this, NOW),
        "mark_running": lambda session: inside(attempts.mark_running)(session, this, NOW),
    }
    with store.write() as session:
        steps[step](session)
        with pytest.raises(Unavailable, match="lock timeout"):
            release_at_once(store, this)


def release_at_once(store: Store, this: AttemptKey) -> None:
    with store.write() as session:
        session.execute(text("SET LOCAL lock_timeout = '100ms'"))
        releasing.close_reservation(session, this, NOW)


def inside(function: Any) -> Any:
    """The function of a session that ``writing`` made a function of the store."""
    return function.__wrapped__
