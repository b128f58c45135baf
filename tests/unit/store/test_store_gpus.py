"""GPUs: what their hosts report of them, what operators ask for, faults, resets."""

from __future__ import annotations

from datetime import datetime

import pytest

from gpu_platform.domain.errors import IllegalTransition, InvalidRequest, NotFound
from gpu_platform.domain.jobs.attempt import FaultReport
from gpu_platform.domain.states import GpuState
from gpu_platform.store import Store, events
from gpu_platform.store.hosts import gpu_states, gpus, hosts
from gpu_platform.store.reservations import releasing
from tests.support.store_cluster import (
    LATER,
    NOW,
    Cluster,
    check_invariants,
    expire_leases,
    inventory,
    since,
    uuid_of,
)


@pytest.fixture
def cluster(store: Store) -> Cluster:
    return Cluster(store).host("a", gpus=2)


def test_a_gpu_that_vanishes_is_offline_until_it_returns(cluster: Cluster) -> None:
    store = cluster.store
    cluster.report("a", 1)
    assert cluster.states("a") == ["AVAILABLE", "OFFLINE"]
    with pytest.raises(IllegalTransition, match="no longer reports"):
        gpu_states.set_gpu_state(store, "a:1", GpuState.AVAILABLE, reason=None, actor="op", now=NOW)
    cluster.report("a", 3)
    assert cluster.states("a") == ["AVAILABLE"] * 3
    assert since(store, 1) == ["gpu.state", "host.registered", "gpu.state", "host.registered"]


def test_a_held_gpu_that_vanishes_and_returns_is_still_held(cluster: Cluster) -> None:
    this = cluster.running("j1", {"a": [1]})
    cluster.report("a", 1)
    assert cluster.states("a") == ["AVAILABLE", "OFFLINE"]
    check_invariants(cluster.store)
    cluster.report("a", 2)
    assert cluster.states("a") == ["AVAILABLE", "IN_USE"]
    releasing.release_gang(cluster.store, this, now=NOW)
    assert cluster.states("a") == ["AVAILABLE", "AVAILABLE"]


def test_an_operator_keeps_a_gpu_offline_whatever_the_inventory_says(cluster: Cluster) -> None:
    gpu_states.set_gpu_state(cluster.store, "a:1", GpuState.OFFLINE, reason="noisy", actor="op", now=NOW)
    cluster.report("a", 1)
    cluster.report("a", 2)
    assert cluster.states("a") == ["AVAILABLE", "OFFLINE"]


def test_a_changed_memory_size_is_followed_even_while_held(cluster: Cluster) -> None:
    cluster.running("j1", {"a": [0]})
    cluster.report("a", inventory=inventory("a", 2, memory_mib=40960))
    check_invariants(cluster.store)
    assert gpus.get_gpu(cluster.store, "a:0").info.memory_mib == 40960


def test_two_hosts_cannot_report_the_same_gpu(cluster: Cluster) -> None:
    """The newcomer is registered without it, and gets it only when an operator has removed its host."""
    uuid = uuid_of("a", 0)

    def seen(now: datetime) -> tuple[str, list[str], dict[str, str]]:
        cluster.report("b", inventory=inventory("a", 1), now=now)
        refused = hosts.get_host(cluster.store, "b", now).refused_gpus
        return gpus.get_gpu(cluster.store, uuid).host, cluster.states("b"), refused

    assert seen(NOW) == ("a", [], {uuid: "a"})
    expire_leases(cluster.store, LATER)
    assert seen(LATER) == ("a", [], {uuid: "a"}), "LOST, and still its host"
    hosts.remove_host(cluster.store, "a", reason=None, actor="op", now=LATER)
    assert seen(LATER) == ("b", ["AVAILABLE"], {})


def test_a_host_keeps_hot_gpus_from_new_work(cluster: Cluster) -> None:
    cluster.running("j1", {"a": [0]})
    hot = {uuid_of("a", 0): "91 C", uuid_of("a", 1): "92 C"}
    for _ in range(2):
        cluster.report("a", 2, degraded=hot)
    assert cluster.states("a") == ["DEGRADED", "DEGRADED"]
    assert gpus.get_gpu(cluster.store, "a:0").reason == "91 C"
    seq = events.last_seq(cluster.store)
    cluster.report("a", 2)
    assert cluster.states("a") == ["IN_USE", "AVAILABLE"]
    assert gpus.get_gpu(cluster.store, "a:0").reason is None
    assert since(cluster.store, seq) == ["gpu.state", "gpu.state"]
    check_invariants(cluster.store)


def test_what_others_took_out_of_service_a_cool_gpu_does_not_put_back(cluster: Cluster) -> None:
    gpu_states.set_gpu_state(cluster.store, "a:0", GpuState.DEGRADED, reason="XID 48", actor="op", now=NOW)
    cluster.report("a", 2, degraded={uuid_of("a", 0): "91 C"})
    cluster.report("a", 2)
    assert cluster.states("a") == ["DEGRADED", "AVAILABLE"]
    assert gpus.get_gpu(cluster.store, "a:0").reason == "XID 48"


def test_gpus_are_named_by_uuid_its_beginning_or_host_and_index(cluster: Cluster) -> None:
    store = cluster.store
    cluster.host("a-2", gpus=1)
    assert gpus.get_gpu(store, "GPU-a-0").info.uuid == "GPU-a-0"
    assert gpus.get_gpu(store, "a:1").info.uuid == "GPU-a-1"
    assert gpus.get_gpu(store, "GPU-a-1").host == "a"
    assert gpus.get_gpu(store, "GPU-a-2-").host == "a-2"
    with pytest.raises(InvalidRequest, match="several"):
        gpus.get_gpu(store, "GPU-a")
    for reference in ("", "a:9", "b:0", "GPU-x", "%", "GPU_a-0", ":0"):
        with pytest.raises(NotFound):
            gpus.get_gpu(store, reference)


def test_gpus_are_listed_by_host_and_state(cluster: Cluster) -> None:
    cluster.host("b", gpus=1)
    cluster.running("j1", {"a": [1]})
    store = cluster.store
    assert [(gpu.host, gpu.info.index, gpu.job_id) for gpu in gpus.list_gpus(store)] == [
        ("a", 0, None),
        ("a", 1, "j1"),
        ("b", 0, None),
    ]
    assert [gpu.info.index for gpu in gpus.list_gpus(store, host="a", states=[GpuState.IN_USE])] == [1]


def test_an_operator_takes_a_gpu_out_and_puts_it_back(cluster: Cluster) -> None:
    store = cluster.store
    this = cluster.running("j1", {"a": [0]})
    gpu = gpu_states.set_gpu_state(store, "a:0", GpuState.OFFLINE, reason="noisy", actor="op", now=NOW)
    assert (gpu.state, gpu.reason, gpu.job_id) == (GpuState.OFFLINE, "noisy", "j1")
    gpu = gpu_states.set_gpu_state(store, "a:0", GpuState.AVAILABLE, reason=None, actor="op", now=NOW)
    assert gpu.state is GpuState.IN_USE
    gpu_states.set_gpu_state(store, "a:0", GpuState.OFFLINE, reason="noisy", actor="op", now=NOW)
    releasing.release_gang(store, this, now=NOW)
    assert cluster.states("a") == ["OFFLINE", "AVAILABLE"]
    seq = events.last_seq(store)
    for _ in range(2):
        gpu_states.set_gpu_state(store, "a:0", GpuState.AVAILABLE, reason=None, actor="op", now=NOW)
    (event,) = events.read_events(store, seq)
    assert (event.kind, event.actor, event.host, event.data) == ("gpu.state", "op", "a", {"state": "AVAILABLE"})
    with pytest.raises(InvalidRequest, match="only the reservation"):
        gpu_states.set_gpu_state(store, "a:0", GpuState.IN_USE, reason=None, actor="op", now=NOW)
    gpu_states.set_gpu_state(store, "a:0", GpuState.OFFLINE, reason="noisy", actor="op", now=NOW)
    with pytest.raises(IllegalTransition):
        gpu_states.set_gpu_state(store, "a:0", GpuState.DEGRADED, reason="?", actor="op", now=NOW)


def test_resets_are_counted_and_too_many_failures_end_in_offline(cluster: Cluster) -> None:
    store, uuid = cluster.store, uuid_of("a", 0)

    def reset(ok: bool) -> GpuState:
        assert gpu_states.begin_reset(store, uuid, "XID 79", NOW).state is GpuState.RESETTING
        gpu_states.begin_reset(store, uuid, "XID 79", NOW)
        state = gpu_states.finish_reset(store, uuid, ok, NOW, 2)
        assert gpu_states.finish_reset(store, uuid, ok, NOW, 2) is state
        return state

    assert [reset(ok) for ok in (False, True, False)] == [GpuState.DEGRADED, GpuState.AVAILABLE, GpuState.DEGRADED]
    assert reset(False) is GpuState.OFFLINE
    gpu = gpus.get_gpu(store, uuid)
    assert gpu.reset_count == 4
    assert gpu.reason == "2 resets in a row failed; XID 79"
    with pytest.raises(NotFound):
        gpu_states.begin_reset(store, "x", "?", NOW)


def test_a_gpu_that_vanishes_while_it_is_reset_stays_with_remediation(cluster: Cluster) -> None:
    gpu_states.begin_reset(cluster.store, uuid_of("a", 1), "XID 79", NOW)
    cluster.report("a", 1)
    assert cluster.states("a") == ["AVAILABLE", "RESETTING"]
    assert gpu_states.finish_reset(cluster.store, uuid_of("a", 1), True, NOW, 2) is GpuState.OFFLINE
    cluster.report("a", 2)
    assert cluster.states("a") == ["AVAILABLE", "AVAILABLE"]


def test_a_fault_is_logged_once_with_the_job_it_hit(cluster: Cluster) -> None:
    store = cluster.store
    this = cluster.running("j1", {"a": [0]})
    seq = events.last_seq(store)
    report = FaultReport(
        fault_id="f1", host="a", gpu_uuid=uuid_of("a", 0), gpu_index=0, xid=31, action="reset", message="m", at_ms=1
    )
    assert gpu_states.record_fault(store, report, NOW)
    assert not gpu_states.record_fault(store, report, NOW)
    (event,) = events.read_events(store, seq)
    assert (event.kind, event.actor, event.job_id, event.attempt) == ("gpu.fault", "node/a", this.job_id, this.attempt)
    assert event.data["xid"] == 31
    assert gpus.get_gpu(store, "a:0").fault_count == 1
    idle = report.model_copy(update={"fault_id": "f2", "gpu_uuid": uuid_of("a", 1)})
    assert gpu_states.record_fault(store, idle, NOW)
    assert events.read_events(store, 0)[-1].job_id is None
