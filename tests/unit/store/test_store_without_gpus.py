"""A slice without GPUs holds CPUs and memory of its host as others hold GPUs: reserved, lost, drained, released."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gpu_platform.domain.errors import ReservationConflict
from gpu_platform.domain.hosts.gpu import HostInventory
from gpu_platform.domain.jobs.placement import HostSlice, Placement, TopologyLevel
from gpu_platform.domain.states import HostState, JobState
from gpu_platform.store import Store, events, state
from gpu_platform.store.hosts import hosts
from gpu_platform.store.jobs import usage
from gpu_platform.store.jobs.job_states import JobUpdate
from gpu_platform.store.reservations import allocations, attempts, releasing, reserving
from gpu_platform.store.reservations.attempts import AttemptResult
from tests.support.store_cluster import NOW, Cluster, check_invariants, expire_leases, inventory, key


@pytest.fixture
def cluster(store: Store) -> Cluster:
    bare = HostInventory(machine="bare", gpus=[], cpus=8, ram_mib=1000)
    return Cluster(store).host("c", inventory=bare).host("a", inventory=with_room("a", gpus=2))


def with_room(name: str, gpus: int) -> HostInventory:
    return inventory(name, gpus).model_copy(update={"cpus": 8, "ram_mib": 1000})


def placement(*slices: HostSlice) -> Placement:
    return Placement(slices=list(slices), level=TopologyLevel.HOST, bandwidth_gb_s=0.0, score=1.0, why="for a test")


def room(host: str, cpus: int, ram_mib: int = 0) -> HostSlice:
    return HostSlice(host=host, gpu_uuids=[], gpu_indices=[], cpus=cpus, ram_mib=ram_mib)


def gpu(cluster: Cluster, host: str, index: int) -> HostSlice:
    return HostSlice(host=host, gpu_uuids=[cluster.uuid(host, index)], gpu_indices=[index])


def reserve(cluster: Cluster, job_id: str, *slices: HostSlice) -> None:
    cluster.queued(job_id)
    reserving.reserve_gang(cluster.store, key(job_id), placement(*slices), now=NOW)


def test_it_is_reserved_run_and_given_back(store: Store, cluster: Cluster) -> None:
    reserve(cluster, "j1", room("c", 6, 500))
    check_invariants(store)
    assert hosts.read_host_use(store, ["c"])[0].cpus == 6
    attempts.mark_running(store, key("j1"), NOW)
    [row] = state.read_running(store)
    assert (row.gpu_uuids, row.shares, [(use.host, use.cpus) for use in row.host_use]) == ((), (), [("c", 6)])
    assert allocations.held_attempts(store, "c") == [key("j1")]
    releasing.release_gang(store, key("j1"), now=NOW)
    check_invariants(store)
    assert hosts.read_host_use(store, ["c"])[0].cpus == 0
    assert allocations.held_attempts(store) == []
    told = [event.data for event in events.read_events(store, 0, job_id="j1") if event.kind.startswith("gang.")]
    assert told == [{"gpus": [], "hosts": ["c"]}, {"gpus": [], "hosts": ["c"]}]


def test_all_or_nothing_with_a_group_that_has_gpus(store: Store, cluster: Cluster) -> None:
    reserve(cluster, "j1", gpu(cluster, "a", 0), room("c", 8))
    cluster.queued("j2")
    with pytest.raises(ReservationConflict, match="1 CPUs"):
        reserving.reserve_gang(store, key("j2"), placement(gpu(cluster, "a", 1), room("c", 1)), now=NOW)
    check_invariants(store)
    assert cluster.states("a") == ["ALLOCATED", "AVAILABLE"]


def test_a_host_that_is_not_ready_gives_nothing(store: Store, cluster: Cluster) -> None:
    cluster.queued("j1")
    hosts.set_host_state(store, "c", HostState.DRAINING, reason=None, actor="ada", now=NOW)
    with pytest.raises(ReservationConflict, match="c is DRAINED"):
        reserving.reserve_gang(store, key("j1"), placement(room("c", 1)), now=NOW)


def test_a_drain_waits_for_it(store: Store, cluster: Cluster) -> None:
    reserve(cluster, "j1", room("c", 1))
    hosts.set_host_state(store, "c", HostState.DRAINED, reason="work", actor="ada", now=NOW)
    assert cluster.host_state("c") == "DRAINING"
    releasing.release_gang(store, key("j1"), now=NOW)
    assert cluster.host_state("c") == "DRAINED"
    hosts.remove_host(store, "c", reason=None, actor="ada", now=NOW + timedelta(seconds=60))
    assert [host.name for host in hosts.list_hosts(store, NOW)] == ["a"]


def test_a_lost_host_tells_it_and_must_end_it_before_it_is_ready(store: Store, cluster: Cluster) -> None:
    reserve(cluster, "j1", room("c", 1))
    lost = expire_leases(store, NOW + timedelta(seconds=60))
    assert {one.name: one.jobs for one in lost}["c"] == [key("j1")]
    bare = HostInventory(machine="bare", gpus=[], cpus=8, ram_mib=1000)
    assert cluster.report("c", inventory=bare, attempts=[key("j1")]).kill == [key("j1")]
    assert cluster.host_state("c") == "LOST"


def test_its_usage_counts_no_gpus(store: Store, cluster: Cluster) -> None:
    reserve(cluster, "j1", room("c", 4))
    attempts.mark_running(store, key("j1"), NOW)
    attempts.end_attempt(
        store,
        key("j1"),
        [JobState.COMPLETED],
        now=NOW + timedelta(seconds=10),
        actor="control",
        result=AttemptResult(update=JobUpdate(exit_code=0)),
    )
    [attempt] = usage.usage_of_job(store, "j1").attempts
    assert (attempt.gpus, attempt.gpu_seconds, attempt.unmeasured_hosts) == (0, 0.0, ["c"])
