"""Jobs and arrays that are held: nobody places them until they are released, and none is forgotten then."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gpu_platform.domain.errors import Forbidden, IllegalTransition, InvalidRequest, NotFound, ReservationConflict
from gpu_platform.domain.jobs.array import ArraySpec
from gpu_platform.domain.jobs.dependency import Dependency, IfUnmet, Standing
from gpu_platform.domain.jobs.placement import WaitCode
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store.jobs import arrays, dependencies, elements, holds, jobs, queue
from gpu_platform.store.jobs.holds import Asker
from gpu_platform.store.reservations import first_places
from gpu_platform.store.reservations.elements import ElementStep, advance_elements
from tests.support.store_cluster import NOW, Cluster, key, placement, set_job_state, since, spec

ADA, OPERATOR = Asker("ada"), Asker("olga", is_operator=True)
LATER = NOW + timedelta(hours=1)


@pytest.fixture
def cluster(store: Store) -> Cluster:
    return Cluster(store).host("a")


def queued(store: Store) -> list[str]:
    return [row.job_id for row in queue.read_queue(store)]


def test_a_job_that_is_held_leaves_the_queue_and_comes_back_at_the_end(cluster: Cluster) -> None:
    store = cluster.store
    cluster.queued("first")
    cluster.queued("second", now=NOW + timedelta(seconds=1))
    holds.hold(store, "first", ADA, "the data is not there yet", NOW)
    assert queued(store) == ["second"]
    reason = jobs.get_job(store, "first").reason
    assert reason is not None
    assert (reason.code, reason.message) == (WaitCode.HELD, "held by ada: the data is not there yet")
    cluster.enqueue("first")  # its workflow asks again, e.g. after a restart
    assert queued(store) == ["second"]
    assert queue.queued_without_row(store, LATER) == [], "nobody misses it"
    holds.hold(store, "first", ADA, "again", NOW)
    assert len([kind for kind in since(store, 0) if kind == "job.held"]) == 1, "repeated, it is a no-op"
    assert holds.release(store, "first", ADA, LATER) == ["first"]
    assert queue.queued_without_row(store, LATER + timedelta(seconds=1)) == ["first"], "so its workflow is asked"
    cluster.enqueue("first", now=LATER)
    assert queued(store) == ["second", "first"], "its place counts from the release"
    assert jobs.get_job(store, "first").reason is None


def test_a_placement_on_its_way_finds_the_hold(cluster: Cluster) -> None:
    store = cluster.store
    cluster.queued("j")
    holds.hold(store, "j", ADA, "", NOW)
    with pytest.raises(ReservationConflict, match="job j is held by ada"):
        cluster.reserve("j", {"a": [0]})
    jobs.submit_job(store, "asks", spec(), actor="ann", now=NOW, idempotency_key=None)
    assert first_places.admit_and_ask(store, "asks", NOW) == (True, None)
    [row] = queue.read_queue(store, ["asks"])
    holds.hold(store, "asks", ADA, "", NOW)
    assert list(first_places.reserve_places(store, [(row, placement({"a": [0]}))], NOW)) == [key("asks")]
    assert first_places.stop_asking(store, key("asks")) is None
    assert cluster.states("a") == ["AVAILABLE"] * 4


def test_a_job_is_held_from_the_start(cluster: Cluster) -> None:
    store = cluster.store
    jobs.submit_job(store, "j", spec(hold=True), actor="ada", now=NOW, idempotency_key=None)
    assert first_places.admit_and_ask(store, "j", NOW) == (False, None)
    reason = jobs.get_job(store, "j").reason
    assert reason is not None
    assert reason.message == "held by ada"
    holds.release(store, "j", ADA, NOW)
    cluster.enqueue("j")
    assert queued(store) == ["j"]


def test_only_who_waits_is_held_and_only_who_is_held_is_released(cluster: Cluster) -> None:
    store = cluster.store
    cluster.running("j", {"a": [0]})
    with pytest.raises(IllegalTransition, match=r"job j is RUNNING: only a job that waits can be held \(preempt"):
        holds.hold(store, "j", ADA, "", NOW)
    with pytest.raises(InvalidRequest, match="job j is RUNNING, and it is not held"):
        holds.release(store, "j", ADA, NOW)
    for name in ("nobody", "a-nobody"):
        with pytest.raises(NotFound):
            holds.hold(store, name, ADA, "", NOW)


def test_what_an_operator_holds_its_owner_does_not_release(cluster: Cluster) -> None:
    store = cluster.store
    cluster.queued("j")
    holds.hold(store, "j", ADA, "mine", NOW)
    holds.hold(store, "j", OPERATOR, "too large", NOW)
    holds.hold(store, "j", ADA, "mine", NOW)
    with pytest.raises(Forbidden, match="j is held by olga, an operator"):
        holds.release(store, "j", ADA, NOW)
    assert holds.release(store, "j", OPERATOR, NOW) == ["j"]


@pytest.mark.parametrize("has_looked", [True, False])
def test_a_job_that_is_held_because_of_a_dependency_is_released_the_same_way(
    cluster: Cluster, has_looked: bool
) -> None:
    store = cluster.store
    cluster.queued("first")
    after = (Dependency(job_id="first"),)
    jobs.submit_job(store, "j", spec(after=after, if_unmet=IfUnmet.HOLD), actor="ada", now=NOW, idempotency_key=None)
    jobs.admit_job(store, "j", NOW)
    with pytest.raises(InvalidRequest, match="not held"):
        holds.release(store, "j", ADA, NOW)
    set_job_state(store, "first", JobState.FAILED, now=NOW, actor="test")
    if has_looked:
        assert dependencies.look(store, "j", NOW).is_held
    assert holds.release(store, "j", ADA, LATER) == ["j"]
    assert dependencies.look(store, "j", LATER).standing is Standing.MET
    cluster.enqueue("j", now=LATER)
    assert queued(store) == ["j"]


def _array(store: Store, **fields: object) -> None:
    arrays.submit_array(
        store, "a-x", spec(**fields), ArraySpec(indices="0-3"), actor="ada", now=NOW, idempotency_key=None
    )
    elements.begin_array(store, "a-x", NOW)


def test_an_array_is_held_with_the_elements_to_come(cluster: Cluster) -> None:
    store = cluster.store
    _array(store)
    advance_elements(store, "a-x", ElementStep(add=2), NOW)
    holds.hold(store, "a-x.1", ADA, "only this one", NOW)
    holds.hold(store, "a-x", ADA, "", NOW)
    assert queued(store) == []
    advance_elements(store, "a-x", ElementStep(first=2, add=1), NOW)
    assert queued(store) == []
    reason = arrays.get_array(store, "a-x").reason
    assert reason is not None
    assert reason.message == "held by ada"
    for element in ("a-x.0", "a-x.2"):
        assert (one := jobs.get_job(store, element).reason) is not None
        assert "release the array" in one.next_step
        with pytest.raises(InvalidRequest, match=r"held with its array: release a-x"):
            holds.release(store, element, ADA, NOW)
    again = ElementStep(again=[key("a-x.0"), key("a-x.1")], first=3)
    advance_elements(store, "a-x", again, NOW)
    assert queued(store) == [], "the reconciler may ask for them"
    assert holds.release(store, "a-x", ADA, LATER) == ["a-x.0", "a-x.2"]
    advance_elements(store, "a-x", ElementStep(again=[key(f"a-x.{n}") for n in range(3)], first=3, add=1), LATER)
    assert sorted(queued(store)) == ["a-x.0", "a-x.2", "a-x.3"], "the one that is held by itself stays"
    assert holds.release(store, "a-x.1", ADA, LATER) == ["a-x.1"]


def test_an_array_that_has_ended_is_not_held(cluster: Cluster) -> None:
    _array(cluster.store, hold=True)
    assert (reason := arrays.get_array(cluster.store, "a-x").reason) is not None
    assert reason.code is WaitCode.HELD
    elements.end_array(cluster.store, "a-x", NOW)
    with pytest.raises(IllegalTransition, match="there is nothing to be held"):
        holds.hold(cluster.store, "a-x", ADA, "", NOW)
