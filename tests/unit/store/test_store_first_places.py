"""The leader reserves the first places of jobs: many in one transaction, each whole or not at all."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gpu_platform.domain.errors import StaleEpoch
from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.placing.placement_request import NO_TOKEN, TOKEN_COMES, PlacementRequest
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store.events import read_events
from gpu_platform.store.jobs import jobs, queue
from gpu_platform.store.leadership import leader
from gpu_platform.store.reservations import attempts, first_places, reserving
from tests.support.store_cluster import NOW, Cluster, check_invariants, key, placement, spec


@pytest.fixture
def cluster(store: Store) -> Cluster:
    return Cluster(store).host("a", gpus=4).host("b", gpus=4)


def asks(store: Store, job_id: str, **fields: object) -> PlacementRequest:
    jobs.submit_job(store, job_id, spec(**fields), actor="ann", now=NOW, idempotency_key=None)
    assert first_places.admit_and_ask(store, job_id, NOW) == (True, None)
    [row] = queue.read_queue(store, [job_id])
    assert row.task_token == NO_TOKEN
    return row


def reserve(store: Store, *decided: tuple[PlacementRequest, Placement]) -> list[str]:
    """The jobs that were refused."""
    return [one.job_id for one in first_places.reserve_places(store, decided, NOW)]


def test_a_job_is_admitted_asks_and_finds_its_place(cluster: Cluster) -> None:
    store = cluster.store
    row = asks(store, "j")
    assert first_places.reserved_places(store, [key("j")]) == {}
    assert reserve(store, (row, placement({"a": [0, 1]}))) == []
    place = first_places.reserved_places(store, [key("j")])[key("j")]
    assert (place.placement.hosts, list(place.terms)) == (["a"], ["a"])
    job = jobs.get_job(store, "j")
    assert (job.state, job.attempt) == (JobState.ALLOCATED, 1)
    assert queue.read_queue(store) == []
    # The step is repeated after its process died: the job holds its place already, and asks for no other.
    assert first_places.admit_and_ask(store, "j", NOW) == (False, place)
    assert first_places.stop_asking(store, key("j")) == place
    check_invariants(store)


def test_of_many_only_those_that_do_not_fit_are_refused(cluster: Cluster) -> None:
    store = cluster.store
    one, two, three = asks(store, "one"), asks(store, "two"), asks(store, "three")
    before = len(read_events(store, 0))
    on_two_hosts = placement({"b": [0], "a": [0]})  # "one" has the GPU of a: that of b is free again
    decided = ((one, placement({"a": [0]})), (two, on_two_hosts), (three, placement({"b": [0]})))
    assert reserve(store, *decided) == ["two"]
    assert [jobs.get_job(store, name).state for name in ("one", "two", "three")] == ["ALLOCATED", "QUEUED", "ALLOCATED"]
    assert cluster.states("b")[0] == "ALLOCATED"
    written = read_events(store, 0)[before:]
    assert {event.job_id for event in written} == {"one", "three"}
    assert [row.job_id for row in queue.read_queue(store)] == ["two"]
    check_invariants(store)


def test_a_job_that_gave_up_keeps_its_place_in_the_queue_and_gets_no_reservation(cluster: Cluster) -> None:
    store = cluster.store
    row = asks(store, "j")
    seq = read_events(store, 0)[-1].seq
    assert first_places.stop_asking(store, key("j")) is None
    assert first_places.stop_asking(store, key("j")) is None
    [left] = queue.read_queue(store)
    assert (left.task_token, left.is_answered_in_temporal) == (TOKEN_COMES, False)
    assert read_events(store, seq) == []
    assert reserve(store, (row, placement({"a": [0]}))) == ["j"]
    cluster.enqueue("j", task_token=b"token")
    assert reserve(store, (row, placement({"a": [0]}))) == ["j"]
    assert cluster.states("a")[0] == "AVAILABLE"
    reserving.reserve_gang(store, key("j"), placement({"a": [0]}), now=NOW)
    check_invariants(store)


def test_an_old_leader_reserves_nothing(cluster: Cluster) -> None:
    store = cluster.store
    old = leader.begin_epoch(store, "old", NOW)
    one, two = asks(store, "one"), asks(store, "two")
    leader.begin_epoch(store, "new", NOW)
    decided = [(one, placement({"a": [0]}, epoch=old)), (two, placement({"a": [1]}, epoch=old))]
    with pytest.raises(StaleEpoch):
        first_places.reserve_places(store, decided, NOW)
    assert set(cluster.states("a")) == {"AVAILABLE"}
    assert first_places.reserved_places(store, [key("one"), key("two")]) == {}


def test_a_job_that_may_not_start_yet_does_not_ask(cluster: Cluster) -> None:
    store = cluster.store
    asks(store, "first")
    for name, fields in (
        ("later", {"begin_at": NOW + timedelta(hours=1)}),
        ("after", {"after": [{"job_id": "first"}]}),
    ):
        jobs.submit_job(store, name, spec(**fields), actor="ann", now=NOW, idempotency_key=None)
        assert first_places.admit_and_ask(store, name, NOW) == (False, None)
        assert jobs.get_job(store, name).state is JobState.QUEUED
    assert [row.job_id for row in queue.read_queue(store)] == ["first"]


def test_a_job_that_has_gone_on_has_no_first_place(cluster: Cluster) -> None:
    store = cluster.store
    row = asks(store, "j")
    reserve(store, (row, placement({"a": [0]})))
    attempts.mark_running(store, key("j"), NOW)
    assert first_places.reserved_places(store, [key("j")]) == {}
    assert first_places.admit_and_ask(store, "j", NOW) == (False, None)
    attempts.end_attempt(store, key("j"), [JobState.QUEUED], now=NOW, actor="workflow")
    assert first_places.admit_and_ask(store, "j", NOW) == (False, None)
    assert reserve(store, (row, placement({"a": [0]}))) == ["j"], "its first attempt is over"
    check_invariants(store)


def test_a_job_whose_task_token_never_comes_is_asked_to_ask_again(cluster: Cluster) -> None:
    """The control worker was killed between taking the step that asks with a token and writing the token."""
    store, later = cluster.store, NOW + timedelta(seconds=30)
    asks(store, "j")
    assert queue.queued_without_row(store, later) == [], "its step looks for the place"
    assert first_places.stop_asking(store, key("j")) is None
    assert [row.task_token for row in queue.read_queue(store)] == [TOKEN_COMES]
    assert queue.queued_without_row(store, later) == ["j"]
    cluster.enqueue("j")
    assert queue.queued_without_row(store, later) == []
