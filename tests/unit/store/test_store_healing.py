"""What became of broken GPUs: who avoids them, until when, and what an operator's word is worth."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from gpu_platform.domain.hosts.remediation import BackOff, reason_with_next_step
from gpu_platform.domain.states import GpuState, HostState, JobState
from gpu_platform.store import Store
from gpu_platform.store.hosts import flapping, gpu_states, gpus, hosts
from gpu_platform.store.jobs import queue
from gpu_platform.store.reservations import attempts
from tests.support.store_cluster import NOW, Cluster, expire_leases


@pytest.fixture
def cluster(store: Store) -> Cluster:
    return Cluster(store).host("a", gpus=4).host("b", gpus=4)


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def failed_on(cluster: Cluster, index: int) -> str:
    """A job whose first attempt ended on GPU ``index`` of host a, which is being reset; returns the GPU's uuid."""
    uuid = cluster.uuid("a", index)
    key = cluster.running("j", {"a": [index]})
    gpu_states.begin_reset(cluster.store, uuid, "XID 46", after(1))
    attempts.end_attempt(cluster.store, key, [JobState.QUEUED], now=after(2), actor="workflow")
    return uuid


def heal(cluster: Cluster, uuid: str, at: datetime) -> None:
    assert gpu_states.finish_reset(cluster.store, uuid, True, at, 3) is GpuState.AVAILABLE


def avoided(cluster: Cluster) -> frozenset[str]:
    [row] = queue.read_queue(cluster.store)
    return row.excluded_gpus


def test_a_waiting_job_avoids_a_gpu_no_longer_once_it_is_healed(cluster: Cluster) -> None:
    uuid, other = failed_on(cluster, 1), cluster.uuid("b", 0)
    cluster.enqueue("j", 2, now=after(3), excluded_gpus=[uuid, other])
    [before] = queue.read_queue(cluster.store)
    heal(cluster, uuid, after(4))
    [row] = queue.read_queue(cluster.store)
    assert row.excluded_gpus == {other}
    other_only = replace(before, excluded_gpus=frozenset({other}))
    assert row.class_key == other_only.with_class_key().class_key != before.class_key


def test_a_gpu_that_was_healed_before_the_job_waited_is_not_avoided(cluster: Cluster) -> None:
    uuid = failed_on(cluster, 1)
    heal(cluster, uuid, after(3))
    cluster.enqueue("j", 2, now=after(4), excluded_gpus=[uuid])
    assert avoided(cluster) == frozenset()


def test_a_gpu_that_failed_after_it_was_healed_is_avoided(cluster: Cluster) -> None:
    uuid = cluster.uuid("a", 1)
    gpu_states.begin_reset(cluster.store, uuid, "XID 46", after(-20))
    heal(cluster, uuid, after(-10))
    key = cluster.running("j", {"a": [1]})
    attempts.end_attempt(cluster.store, key, [JobState.QUEUED], now=after(2), actor="workflow")
    cluster.enqueue("j", 2, now=after(3), excluded_gpus=[uuid])
    assert avoided(cluster) == {uuid}


def test_online_of_a_gpu_that_its_host_calls_lost_says_so_and_keeps_what_must_be_done(cluster: Cluster) -> None:
    uuid, lost = cluster.uuid("a", 1), "NVML says: GPU is lost"
    gpu_states.set_gpu_state(
        cluster.store, uuid, GpuState.OFFLINE, reason="XID 79: the host needs a reboot", actor="remediation", now=NOW
    )
    cluster.report("a", 4, degraded={uuid: lost})
    gpu = gpu_states.set_gpu_state(cluster.store, uuid, GpuState.AVAILABLE, reason=None, actor="op", now=after(1))
    assert gpu.state is GpuState.DEGRADED
    assert gpu.reason == f"{lost}; XID 79: the host needs a reboot"
    cluster.report("a", 4, degraded={uuid: lost})
    assert gpus.get_gpu(cluster.store, uuid).reason == gpu.reason
    cluster.report("a", 4)
    assert gpus.get_gpu(cluster.store, uuid).state is GpuState.AVAILABLE


def test_online_ends_a_repair_and_names_no_command_of_it_any_more(cluster: Cluster) -> None:
    uuid, lost = cluster.uuid("a", 1), "NVML says: GPU is lost"
    reason = reason_with_next_step("GPU is lost on GPU 1 of a", "reboot of host a", "a:1")
    assert "remediation approve a:1" in reason
    gpu_states.set_gpu_state(cluster.store, uuid, GpuState.OFFLINE, reason=reason, actor="remediation", now=NOW)
    cluster.report("a", 4, degraded={uuid: lost})
    gpu = gpu_states.set_gpu_state(cluster.store, uuid, GpuState.AVAILABLE, reason=None, actor="op", now=after(1))
    assert gpu.reason == f"{lost}; GPU is lost on GPU 1 of a; needs: reboot of host a"


DAY = BackOff(window=timedelta(hours=24), first=timedelta(minutes=1), longest=timedelta(hours=4))


def fail_and_heal(cluster: Cluster, uuid: str, at: datetime, back_off: BackOff | None = DAY) -> GpuState:
    gpu_states.begin_reset(cluster.store, uuid, "XID 46", at)
    return gpu_states.finish_reset(cluster.store, uuid, True, at, 3, back_off=back_off)


def test_a_gpu_that_fails_again_stays_out_for_a_growing_time_and_comes_back_by_itself(cluster: Cluster) -> None:
    uuid, store = cluster.uuid("a", 0), cluster.store
    assert fail_and_heal(cluster, uuid, after(0)) is GpuState.AVAILABLE
    assert fail_and_heal(cluster, uuid, after(60)) is GpuState.OFFLINE
    reason = gpus.get_gpu(store, uuid).reason or ""
    for words in ("failed 2 times in a row", "until 2026-01-02 03:07:05 UTC", "gpu-platform online a:0", "XID 46"):
        assert words in reason
    assert gpu_states.release_quarantined(store, after(179)) == []
    assert gpu_states.release_quarantined(store, after(180)) == [uuid]
    assert gpus.get_gpu(store, uuid).state is GpuState.AVAILABLE
    assert fail_and_heal(cluster, uuid, after(300)) is GpuState.OFFLINE
    assert gpu_states.release_quarantined(store, after(300 + 239)) == []
    assert gpu_states.release_quarantined(store, after(300 + 240)) == [uuid]
    assert fail_and_heal(cluster, uuid, after(300 + 25 * 3600)) is GpuState.AVAILABLE, "that was long ago"


def test_an_operators_online_ends_it_and_forgets(cluster: Cluster) -> None:
    uuid, store = cluster.uuid("a", 0), cluster.store
    fail_and_heal(cluster, uuid, after(0))
    fail_and_heal(cluster, uuid, after(60))
    gpu_states.set_gpu_state(store, uuid, GpuState.AVAILABLE, reason=None, actor="op", now=after(61))
    assert gpu_states.release_quarantined(store, after(1000)) == []
    assert fail_and_heal(cluster, uuid, after(90)) is GpuState.AVAILABLE


def test_programs_mistakes_do_not_count(cluster: Cluster) -> None:
    uuid = cluster.uuid("a", 0)
    for second in range(5):
        assert fail_and_heal(cluster, uuid, after(second), back_off=None) is GpuState.AVAILABLE


def lose(cluster: Cluster, name: str, at: datetime) -> list[str]:
    expire_leases(cluster.store, at + timedelta(days=1))
    return list(flapping.note_lost_hosts(cluster.store, [name], DAY, at))


def test_a_host_that_is_lost_again_gets_no_work_for_a_while(cluster: Cluster) -> None:
    assert lose(cluster, "a", after(0)) == []
    cluster.report("a", 4, now=after(10))
    assert cluster.host_state("a") == "READY"
    assert lose(cluster, "a", after(60)) == ["a"]
    cluster.report("a", 4, now=after(70))
    assert cluster.host_state("a") in ("DRAINING", "DRAINED")
    assert "failed 2 times in a row" in (hosts.get_host(cluster.store, "a", NOW).reason or "")
    assert flapping.release_hosts(cluster.store, after(179)) == []
    assert flapping.release_hosts(cluster.store, after(181)) == ["a"]
    assert cluster.host_state("a") == "READY"


def test_a_drain_by_an_operator_outlives_it(cluster: Cluster) -> None:
    lose(cluster, "a", after(0))
    cluster.report("a", 4, now=after(10))
    hosts.set_host_state(cluster.store, "a", HostState.DRAINING, reason="fans", actor="op", now=after(20))
    assert lose(cluster, "a", after(60)) == []
    flapping.release_hosts(cluster.store, after(10_000))
    cluster.report("a", 4, now=after(10_001))
    assert cluster.host_state("a") == "DRAINED"
