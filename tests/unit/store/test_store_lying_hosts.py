"""What the database believes of a host: what is its own."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_platform.domain.errors import StaleReport
from gpu_platform.domain.hosts.faults import FaultAction
from gpu_platform.domain.hosts.lease import SavedCheckpoint
from gpu_platform.domain.jobs.attempt import FaultReport
from gpu_platform.domain.states import GpuState
from gpu_platform.store import Store, events
from gpu_platform.store.hosts import gpu_states, gpus, hosts
from gpu_platform.store.jobs import checkpoints
from gpu_platform.store.leadership import leader, leases
from gpu_platform.store.restoring import restoring
from tests.support.store_cluster import LATER, NOW, Cluster, expire_leases, inventory, key, uuid_of


@pytest.fixture
def cluster(store: Store) -> Cluster:
    return Cluster(store).host("a", gpus=2).host("b", gpus=2)


def owners(cluster: Cluster) -> dict[str, str]:
    return {gpu.info.uuid: gpu.host for gpu in gpus.list_gpus(cluster.store)}


def claims(own: int, *theirs: str) -> dict[str, Any]:
    """The inventory of ``a`` with GPUs of others."""
    mine = inventory("a", own)
    more = [mine.gpus[0].model_copy(update={"uuid": uuid, "index": own + at}) for at, uuid in enumerate(theirs)]
    return {"inventory": mine.model_copy(update={"gpus": [*mine.gpus, *more]})}


@pytest.mark.parametrize("lost", [False, True], ids=["reports", "is LOST"])
def test_gpus_of_a_host_are_claimed_by_no_other(cluster: Cluster, lost: bool) -> None:
    before = owners(cluster)
    if lost:
        cluster.report("a", now=LATER, gpus=2)
        expire_leases(cluster.store, LATER)
        assert cluster.host_state("b") == "LOST"
    seq = events.last_seq(cluster.store)
    for _ in range(2):
        cluster.report("a", now=LATER, **claims(2, uuid_of("b", 0), uuid_of("b", 1)))
        assert owners(cluster) == before
    refused = [one for one in events.read_events(cluster.store, seq) if one.kind == "host.gpus_refused"]
    assert [(one.host, one.data) for one in refused] == [("a", {"gpus": {uuid_of("b", 0): "b", uuid_of("b", 1): "b"}})]
    assert hosts.get_host(cluster.store, "a", LATER).refused_gpus == {uuid_of("b", 0): "b", uuid_of("b", 1): "b"}
    [row] = hosts.read_hosts(cluster.store, ["a"])
    assert [gpu.uuid for gpu in row.inventory.gpus] == [uuid_of("a", 0), uuid_of("a", 1)], "as the scheduler sees it"
    cluster.report("b", 2, now=LATER)
    assert owners(cluster) == before
    assert cluster.states("b") == ["AVAILABLE", "AVAILABLE"]


def test_a_gpu_that_vanished_stays_its_hosts_until_an_operator_drains_it(cluster: Cluster) -> None:
    moved = uuid_of("b", 1)
    cluster.report("b", 1)
    cluster.report("a", **claims(2, moved))
    assert owners(cluster)[moved] == "b"
    gpu_states.set_gpu_state(cluster.store, moved, GpuState.DRAINED, reason="moved", actor="op", now=NOW)
    cluster.report("a", **claims(2, moved))
    assert owners(cluster)[moved] == "a"
    assert hosts.get_host(cluster.store, "a", NOW).refused_gpus == {}


def test_the_gpus_of_a_host_that_an_operator_removed_may_be_claimed(cluster: Cluster) -> None:
    moved = uuid_of("b", 0)
    cluster.report("a", now=LATER, facts="0" * 16, **claims(2, moved))
    expire_leases(cluster.store, LATER)
    hosts.remove_host(cluster.store, "b", reason=None, actor="op", now=LATER)
    assert cluster_facts(cluster.store, "a") == "", "the next heartbeat is answered by: send everything"
    cluster.report("a", now=LATER, facts="0" * 16, **claims(2, moved))
    assert owners(cluster)[moved] == "a"


def cluster_facts(store: Store, name: str) -> str:
    from sqlalchemy import text

    with store.read() as session:
        return session.scalar(text("SELECT facts_hash FROM host WHERE name = :name"), {"name": name})


@pytest.mark.parametrize("absurd", [2**63 - 1, 2**53, 10**15])
def test_an_absurd_number_of_a_report_refuses_no_later_one(cluster: Cluster, absurd: int) -> None:
    boot = {"gpus": 2, "boot_id": "one"}
    cluster.report("a", seq=5_000_000, **boot)
    cluster.report("a", seq=absurd, **boot)
    cluster.report("a", seq=7_000_000, **boot)
    with pytest.raises(StaleReport):
        cluster.report("a", seq=6_000_000, **boot)


def test_checkpoints_are_believed_of_attempts_that_had_a_place_on_the_host(cluster: Cluster) -> None:
    mine, theirs = cluster.running("mine", {"a": [0]}), cluster.running("theirs", {"b": [0]})
    both = [SavedCheckpoint(key=one, written_at=9e10) for one in (mine, theirs, key("theirs", 2))]
    cluster.report("a", 2, checkpoints=both)
    assert checkpoints.last_known(cluster.store, "theirs") == []
    assert [row.host for row in checkpoints.last_known(cluster.store, "mine")] == ["a"]
    assert [row.saved for row in saved(cluster.store)] == [mine]


def saved(store: Store) -> list[Any]:
    from types import SimpleNamespace

    with store.read() as session:
        return [SimpleNamespace(saved=one) for one in checkpoints.saved_at(session)]


def test_one_host_alone_does_not_prove_that_the_database_is_older(cluster: Cluster) -> None:
    cluster.host("c", gpus=1)
    leader.begin_epoch(cluster.store, "old", NOW)
    number = leases.begin_round(cluster.store, NOW)
    later = NOW + restoring.SPARED_FOR * 2
    cluster.report("a", 2, round=number + 1, now=later)
    assert restoring.older_seen_at(cluster.store) is None
    assert cluster.report("b", 2, round=number, attempts=[key("over")], now=later).kill == [key("over")]
    assert cluster.host_state("b") == "READY"
    assert cluster.report("b", 2, round=number + 1, attempts=[key("over")], now=later).kill == []
    assert restoring.older_seen_at(cluster.store) == later


@pytest.mark.parametrize("lie", ["gpu", "attempt"])
def test_a_fault_is_recorded_of_the_hosts_own_gpu_and_attempt(cluster: Cluster, lie: str) -> None:
    theirs = cluster.running("theirs", {"b": [0]})
    changes = {"gpu": {"gpu_uuid": uuid_of("b", 0)}, "attempt": {"attempt": theirs}}[lie]
    seq = events.last_seq(cluster.store)
    assert not gpu_states.record_fault(cluster.store, fault("a", **changes), NOW)
    assert events.last_seq(cluster.store) == seq


def test_a_host_takes_no_number_of_a_fault_from_another(cluster: Cluster) -> None:
    assert gpu_states.record_fault(cluster.store, fault("a"), NOW)
    assert not gpu_states.record_fault(cluster.store, fault("a"), NOW)
    assert gpu_states.record_fault(cluster.store, fault("b"), NOW)


def fault(name: str, **changes: Any) -> FaultReport:
    fields = {"host": name, "gpu_uuid": uuid_of(name, 0), "fault_id": "1", "gpu_index": 0, "xid": 48, "at_ms": 1}
    return FaultReport(action=FaultAction.RESET, message="row remap", **{**fields, **changes})
