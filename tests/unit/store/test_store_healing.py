"""What became of broken GPUs: who avoids them, until when, and what an operator's word is worth."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from gpu_platform.domain.states import GpuState, JobState
from gpu_platform.store import Store, attempts, gpus, queue
from tests.store_cluster import NOW, Cluster


@pytest.fixture
def cluster(store: Store) -> Cluster:
    return Cluster(store).host("a", gpus=4).host("b", gpus=4)


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def failed_on(cluster: Cluster, index: int) -> str:
    """A job whose first attempt ended on GPU ``index`` of host a, which is being reset; returns the GPU's uuid."""
    uuid = cluster.uuid("a", index)
    key = cluster.running("j", {"a": [index]})
    gpus.begin_reset(cluster.store, uuid, "XID 46", after(1))
    attempts.end_attempt(cluster.store, key, [JobState.QUEUED], now=after(2), actor="workflow")
    return uuid


def heal(cluster: Cluster, uuid: str, at: datetime) -> None:
    assert gpus.finish_reset(cluster.store, uuid, True, at, 3) is GpuState.AVAILABLE


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
    assert row.class_key == queue.class_key(row.gpus, [other], [], row.namespace) != before.class_key


def test_a_gpu_that_was_healed_before_the_job_waited_is_not_avoided(cluster: Cluster) -> None:
    uuid = failed_on(cluster, 1)
    heal(cluster, uuid, after(3))
    cluster.enqueue("j", 2, now=after(4), excluded_gpus=[uuid])
    assert avoided(cluster) == frozenset()


def test_a_gpu_that_failed_after_it_was_healed_is_avoided(cluster: Cluster) -> None:
    uuid = cluster.uuid("a", 1)
    gpus.begin_reset(cluster.store, uuid, "XID 46", after(-20))
    heal(cluster, uuid, after(-10))
    key = cluster.running("j", {"a": [1]})
    attempts.end_attempt(cluster.store, key, [JobState.QUEUED], now=after(2), actor="workflow")
    cluster.enqueue("j", 2, now=after(3), excluded_gpus=[uuid])
    assert avoided(cluster) == {uuid}


def test_online_of_a_gpu_that_its_host_calls_lost_says_so_and_keeps_what_must_be_done(cluster: Cluster) -> None:
    uuid, lost = cluster.uuid("a", 1), "NVML says: GPU is lost"
    gpus.set_gpu_state(
        cluster.store, uuid, GpuState.OFFLINE, reason="XID 79: the host needs a reboot", actor="remediation", now=NOW
    )
    cluster.report("a", 4, degraded={uuid: lost})
    gpu = gpus.set_gpu_state(cluster.store, uuid, GpuState.AVAILABLE, reason=None, actor="op", now=after(1))
    assert gpu.state is GpuState.DEGRADED
    assert gpu.reason == f"{lost}; XID 79: the host needs a reboot"
    cluster.report("a", 4, degraded={uuid: lost})
    assert gpus.get_gpu(cluster.store, uuid).reason == gpu.reason
    cluster.report("a", 4)
    assert gpus.get_gpu(cluster.store, uuid).state is GpuState.AVAILABLE
