"""A reservation goes from one attempt to the next in one step: nothing in between, nothing twice, nothing lost."""

from __future__ import annotations

import contextlib
import random

import pytest
from sqlalchemy import select

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import ReservationConflict
from gpu_platform.domain.hosts.share import ShareGrant, ShareMode
from gpu_platform.domain.jobs.blame import FailureKind
from gpu_platform.domain.jobs.job import Failure
from gpu_platform.domain.states import GpuState, HostState, JobState, Parked
from gpu_platform.store import Store, models
from gpu_platform.store.hosts import gpu_states, hosts
from gpu_platform.store.jobs import jobs
from gpu_platform.store.reservations import allocations, attempts, handover, releasing, reserving
from tests.support.store_cluster import NOW, Cluster, check_invariants, inventory, key, placement, uuid_of

FAULT = Failure(kind=FailureKind.HARDWARE, message="XID 79", gpu_uuid=uuid_of("a", 0))


@pytest.fixture
def cluster(store: Store) -> Cluster:
    return Cluster(store).host("a", gpus=4).host("b", gpus=4).host("c", gpus=4)


def hand_over(
    store: Store, this: AttemptKey, on: dict[str, list[int]], parked: bool = False, bad: tuple[str, ...] = ()
) -> None:
    handover.hand_over(
        store,
        this,
        placement(on),
        parked=parked,
        now=NOW,
        faulty_gpus=dict.fromkeys(bad, "XID 79"),
        failure=FAULT,
        hardware_retries=1,
    )


def held(store: Store, host: str) -> list[str]:
    return [str(this) for this in allocations.held_attempts(store, host)]


def test_a_spare_goes_on_and_the_failed_slice_is_given_back(cluster: Cluster) -> None:
    store = cluster.store
    this = cluster.running("j", {"a": [0, 1], "b": [0, 1], "c": [0, 1]})
    bad = uuid_of("a", 0)
    for _ in range(2):  # repeating it changes nothing
        hand_over(store, this, {"c": [0, 1], "b": [0, 1]}, bad=(bad,))
        check_invariants(store)
        assert cluster.states("a") == ["DEGRADED", "AVAILABLE", "AVAILABLE", "AVAILABLE"]
        assert (held(store, "a"), held(store, "b"), held(store, "c")) == ([], ["j#2"], ["j#2"])
    job = jobs.get_job(store, "j")
    assert (job.state, job.attempt, job.hardware_retries) == (JobState.ALLOCATED, 2, 1)
    assert job.failure == FAULT
    assert job.placement is not None
    assert job.placement.hosts == ["c", "b"]
    attempts.mark_running(store, key("j", 2), NOW)
    attempts.end_attempt(store, key("j", 2), [JobState.COMPLETED], now=NOW, actor="workflow")
    check_invariants(store)
    assert cluster.states("b") == ["AVAILABLE"] * 4


def test_the_old_attempt_can_neither_release_nor_reserve_afterwards(cluster: Cluster) -> None:
    store = cluster.store
    this = cluster.running("j", {"a": [0], "b": [0]})
    hand_over(store, this, {"b": [0]})
    releasing.release_gang(store, this, now=NOW)
    assert held(store, "b") == ["j#2"]
    with pytest.raises(ReservationConflict):
        reserving.reserve_gang(store, this, placement({"c": [0]}), now=NOW)
    check_invariants(store)


@pytest.mark.parametrize("on", [{"c": [0]}, {"a": [0], "b": [1]}, {"a": [0], "b": [0]}])
def test_what_is_not_held_or_does_not_work_is_not_handed_over(cluster: Cluster, on: dict[str, list[int]]) -> None:
    store = cluster.store
    this = cluster.running("j", {"a": [0], "b": [0]})
    with pytest.raises(ReservationConflict):
        hand_over(store, this, on, bad=(uuid_of("a", 0),))
    assert (held(store, "a"), held(store, "b")) == (["j#1"], ["j#1"])
    assert jobs.get_job(store, "j").state is JobState.RUNNING
    check_invariants(store)


def test_nothing_is_handed_over_to_a_host_that_drains(cluster: Cluster) -> None:
    store = cluster.store
    this = cluster.running("j", {"a": [0], "b": [0]})
    hosts.set_host_state(store, "b", HostState.DRAINING, reason="repair", actor="op", now=NOW)
    with pytest.raises(ReservationConflict, match="DRAINING"):
        hand_over(store, this, {"b": [0]})
    check_invariants(store)


def test_a_parked_gang_lets_its_gpu_be_reset_and_goes_on(cluster: Cluster) -> None:
    store = cluster.store
    this, following = cluster.running("j", {"a": [0, 1]}), key("j", 2)
    bad = uuid_of("a", 0)
    assert [*allocations.users(store, bad)] == [this]
    hand_over(store, this, {"a": [0, 1]}, parked=True, bad=(bad,))
    check_invariants(store)
    assert [*allocations.users(store, bad)] == []
    assert allocations.holders(store, bad) == [following]
    assert handover.parked_state(store, following) is Parked.WAITING
    with pytest.raises(ReservationConflict):
        handover.unpark(store, following)
    gpu_states.begin_reset(store, bad, "XID 79", NOW)
    assert handover.parked_state(store, following) is Parked.WAITING
    assert gpu_states.finish_reset(store, bad, True, NOW, 3) is GpuState.ALLOCATED
    assert handover.parked_state(store, following) is Parked.READY
    handover.unpark(store, following)
    assert [*allocations.users(store, bad)] == [following]
    attempts.mark_running(store, following, NOW)
    assert cluster.states("a") == ["IN_USE", "IN_USE", "AVAILABLE", "AVAILABLE"]
    check_invariants(store)


def test_a_parked_gang_whose_gpu_is_out_of_service_has_no_hope(cluster: Cluster) -> None:
    store = cluster.store
    this, following = cluster.running("j", {"a": [0, 1]}), key("j", 2)
    bad = uuid_of("a", 0)
    hand_over(store, this, {"a": [0, 1]}, parked=True, bad=(bad,))
    gpu_states.begin_reset(store, bad, "XID 79", NOW)
    assert gpu_states.finish_reset(store, bad, False, NOW, 1) is GpuState.OFFLINE
    assert handover.parked_state(store, following) is Parked.HOPELESS
    attempts.end_attempt(store, following, [JobState.QUEUED], now=NOW, actor="workflow")
    assert handover.parked_state(store, following) is Parked.HOPELESS
    assert cluster.states("a") == ["OFFLINE", "AVAILABLE", "AVAILABLE", "AVAILABLE"]
    check_invariants(store)


@pytest.mark.some(4)
@pytest.mark.parametrize("seed", range(4))
def test_no_order_of_steps_leaks_or_takes_anything_twice(cluster: Cluster, seed: int) -> None:
    """Steps of attempts, each perhaps late or repeated, with resets and hosts going away between."""
    chance, store = random.Random(seed), cluster.store
    this = cluster.running("j", {"a": [0, 1], "b": [0, 1], "c": [0, 1]})
    for _ in range(40):
        attempt = key("j", chance.randint(max(1, this.attempt - 1), this.attempt + 1))
        uuid = uuid_of(chance.choice("abc"), chance.randint(0, 1))
        keep = {name: [0, 1] for name in chance.sample("abc", chance.randint(1, 3))}
        with contextlib.suppress(ReservationConflict):
            match chance.randrange(7):
                case 0 | 1:
                    hand_over(store, attempt, keep, chance.random() < 0.5, chance.choice([(), (uuid,)]))
                case 2:
                    handover.unpark(store, attempt)
                case 3:
                    gpu_states.begin_reset(store, uuid, "test", NOW)
                case 4 | 5:
                    gpu_states.finish_reset(store, uuid, chance.random() < 0.7, NOW, 3)
                case _:
                    handover.parked_state(store, attempt)
        check_invariants(store)
        job = jobs.get_job(store, "j")
        this = key("j", job.attempt)
        with store.read_consistently() as session:
            rows = session.execute(select(models.allocation).where(models.allocation.c.released_at.is_(None))).all()
        assert {row.attempt for row in rows} <= {this.attempt}
    attempts.end_attempt(store, this, [JobState.FAILED], now=NOW, actor="cleanup")
    check_invariants(store)
    assert not allocations.held_attempts(store)


def test_parts_of_gpus_cpus_and_memory_go_with_the_gang(store: Store) -> None:
    cluster = Cluster(store)
    for name in "abc":
        cluster.report(name, inventory=inventory(name, 4).model_copy(update={"cpus": 16, "ram_mib": 64_000}))
    quarter = ShareGrant(mode=ShareMode.TIME_SLICE, percent=25, memory_mib=1000)
    cluster.queued("j", hosts=3)
    place = placement({"a": [0], "b": [0], "c": [0]}, grant=quarter, cpus=4, ram_mib=100)
    reserving.reserve_gang(store, key("j"), place, now=NOW)
    attempts.mark_running(store, key("j"), NOW)
    check_invariants(store)
    kept = placement({"c": [0], "b": [0]}, grant=quarter, cpus=4, ram_mib=100)
    handover.hand_over(
        store, key("j"), kept, parked=False, now=NOW, faulty_gpus={}, failure=FAULT, hardware_retries=1
    )  # fmt: skip
    check_invariants(store)
    assert (held(store, "a"), held(store, "c")) == ([], ["j#2"])
    attempts.end_attempt(store, key("j", 2), [JobState.FAILED], now=NOW, actor="workflow")
    check_invariants(store)
