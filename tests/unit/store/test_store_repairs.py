"""Who may repair which host when, and what becomes of the host meanwhile."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from gpu_platform.domain.errors import NotFound
from gpu_platform.domain.hosts.remediation import RepairBegun, RepairStep
from gpu_platform.domain.states import GpuState, HostState
from gpu_platform.store import Store, events
from gpu_platform.store.hosts import gpu_states, hosts, repairs, service_cases
from tests.support.store_cluster import NOW, Cluster


@pytest.fixture
def cluster(store: Store) -> Cluster:
    cluster = Cluster(store)
    for name, leaf in (("a", "l1"), ("b", "l1"), ("c", "l2")):
        cluster.host(name, gpus=2, leaf=leaf, boot_id=f"boot-1-{name}")
    return cluster


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def begin(
    cluster: Cluster,
    host: str,
    at: datetime = NOW,
    step: RepairStep = RepairStep.REBOOT,
    index: int = 0,
    limit: int = 2,
) -> RepairBegun:
    return repairs.begin_repair(
        cluster.store, host, cluster.uuid(host, index), step, since=NOW, reboots_per_day=limit, now=at
    )


def end(cluster: Cluster, host: str, at: datetime, problem: str | None = None) -> None:
    repairs.end_repair(cluster.store, host, cluster.uuid(host, 0), problem, at)


def test_never_two_hosts_of_one_failure_domain_at_once(cluster: Cluster) -> None:
    assert begin(cluster, "a").began
    assert begin(cluster, "a").began, "repeated"
    refused = begin(cluster, "b")
    assert not refused.began
    assert "host a, of the same leaf l1, is being repaired" in (refused.refusal or "")
    assert begin(cluster, "c").began
    end(cluster, "a", after(10))
    assert begin(cluster, "b", after(11)).began


def test_a_repair_that_was_left_behind_blocks_nobody_for_ever(cluster: Cluster) -> None:
    begin(cluster, "a")
    repairs.look_at_repair(cluster.store, "a", cluster.uuid("a", 0), after(1200))
    assert not begin(cluster, "b", after(1900)).began
    assert begin(cluster, "b", after(1200 + 1801)).began


def test_the_host_is_drained_meanwhile_and_back_in_service_afterwards(cluster: Cluster) -> None:
    cluster.running("j", {"a": [1]})
    assert begin(cluster, "a").boot_id == "boot-1-a"
    view = repairs.look_at_repair(cluster.store, "a", cluster.uuid("a", 0), after(1))
    assert (view.host_state, len(view.held_by), view.overruled) == (HostState.DRAINING, 1, False)
    assert hosts.get_host(cluster.store, "a", NOW).reason == f"reboot of the host, for GPU {cluster.uuid('a', 0)}"
    end(cluster, "a", after(2))
    assert cluster.host_state("a") == "READY"


def test_an_operators_drain_stays_and_an_operators_online_is_seen(cluster: Cluster) -> None:
    hosts.set_host_state(cluster.store, "a", HostState.DRAINING, reason="fans", actor="op", now=NOW)
    begin(cluster, "a")
    end(cluster, "a", after(1))
    assert cluster.host_state("a") == "DRAINED"
    begin(cluster, "c")
    hosts.set_host_state(cluster.store, "c", HostState.READY, reason=None, actor="op", now=NOW)
    assert repairs.look_at_repair(cluster.store, "c", cluster.uuid("c", 0), after(1)).overruled


def test_what_was_done_for_another_gpu_of_the_host_is_not_done_again(cluster: Cluster) -> None:
    begin(cluster, "a")
    waiting = begin(cluster, "a", after(1), index=1)
    assert "it is being repaired" in (waiting.refusal or "")
    end(cluster, "a", after(2))
    assert begin(cluster, "a", after(3), index=1).done_before
    assert begin(cluster, "a", after(3), RepairStep.HOST_RESET, index=1).done_before, "a reboot is more"


def test_a_host_is_rebooted_so_often_a_day_and_no_more(cluster: Cluster) -> None:
    for at in (0, 100):
        assert repairs.begin_repair(
            cluster.store,
            "a",
            cluster.uuid("a", 0),
            RepairStep.REBOOT,
            since=after(at),
            reboots_per_day=2,
            now=after(at),
        ).began
        for _ in range(2):
            repairs.note_reboot(cluster.store, "a", cluster.uuid("a", 0), "its command", after(at + 1))
        end(cluster, "a", after(at + 50))
    again = {"since": after(200), "reboots_per_day": 2}
    refused = repairs.begin_repair(cluster.store, "a", cluster.uuid("a", 0), RepairStep.REBOOT, now=after(200), **again)
    assert refused.is_final
    assert "rebooted 2 times within 24 h (limit 2)" in (refused.refusal or "")
    later = after(2 * 86_400)
    assert repairs.begin_repair(
        cluster.store, "a", cluster.uuid("a", 0), RepairStep.REBOOT, since=later, reboots_per_day=2, now=later
    ).began


def test_a_service_case_tells_all_there_is(cluster: Cluster) -> None:
    uuid = cluster.uuid("a", 0)
    key = cluster.running("j", {"a": [0]})
    gpu_states.begin_reset(cluster.store, uuid, "XID 79", NOW)
    begin(cluster, "a")
    end(cluster, "a", after(1), "it did not come back")
    assert repairs.open_service_case(cluster.store, uuid, "needs service", ["reboot of the host: no"], after(2))
    assert not repairs.open_service_case(cluster.store, uuid, "again", [], after(3))
    case = service_cases.service_case(cluster.store, "a:0", after(4))
    assert (case.open, case.gpu.info.uuid, case.gpu.state) == (True, uuid, GpuState.OFFLINE)
    assert case.attempts == [{"job_id": "j", "attempt": key.attempt, "from": NOW, "to": None}]
    kinds = [event.kind for event in case.steps]
    assert kinds[-2:] == ["gpu.state", "gpu.service_case"]
    assert {"host.repair", "host.repaired"} <= set(kinds)
    assert gpu_states.begin_reset(cluster.store, uuid, "XID 46", after(5)).state is GpuState.OFFLINE, "a human decides"
    assert events.last_seq(cluster.store)


def test_a_removed_host_leaves_no_repair_behind(cluster: Cluster) -> None:
    begin(cluster, "a")
    hosts.remove_host(cluster.store, "a", reason=None, actor="op", now=after(3600))
    for step in (
        lambda: begin(cluster, "a", after(3601)),
        lambda: repairs.look_at_repair(cluster.store, "a", "GPU-a-0", after(3601)),
        lambda: repairs.note_reboot(cluster.store, "a", "GPU-a-0", "its own command", after(3601)),
        lambda: end(cluster, "a", after(3601)),
    ):
        with pytest.raises(NotFound):
            step()
    cluster.host("a", gpus=2, leaf="l1")
    assert begin(cluster, "a", after(3602)).began
    assert cluster.host_state("a") == "DRAINED", "it is taken out of service anew"
