"""Hosts of one leaf that are lost in several passes of the leader are one event."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gpu_platform.cli.show.tables import event_text, lost_together
from gpu_platform.domain.events import Event
from gpu_platform.domain.hosts.gpu import ClusterCounts
from gpu_platform.store import Store
from gpu_platform.store.events import read_events
from gpu_platform.store.hosts import hosts
from tests.support.store_cluster import NOW, Cluster, expire_leases
from workers.scheduler import domain_losses
from workers.scheduler.domain_losses import DomainWatch

LATER = timedelta(seconds=60)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(domain_losses.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def leaves(store: Store) -> Cluster:
    cluster = Cluster(store)
    for leaf in "ab":
        for number in range(4):
            cluster.host(f"{leaf}{number}", leaf=leaf)
    return cluster


def lose(cluster: Cluster, *names: str, after: timedelta = LATER) -> None:
    """All others report, these do not."""
    later = NOW + after
    for row in hosts.read_hosts(cluster.store):
        if row.name not in names and row.state != "LOST":
            cluster.report(row.name, leaf=row.leaf, now=later)
    expire_leases(cluster.store, later)


def told(store: Store) -> list[Event]:
    return [event for event in read_events(store, 0) if event.kind == "domain.lost"]


def test_a_leaf_that_is_lost_in_two_passes_is_one_event(store: Store, leaves: Cluster, clock: list[float]) -> None:
    leaves.running("gang", {"a0": [0, 1], "a3": [0]})
    leaves.running("other", {"b0": [0]})
    watch = DomainWatch(store)
    assert watch.look() == []
    lose(leaves, "a0", "a1")
    assert watch.look() == []
    clock[0] += 3.0
    lose(leaves, "a0", "a1", "a2", "a3", after=2 * LATER)
    assert watch.look() == [], "more may follow"
    clock[0] += domain_losses.SETTLE_S
    [loss] = watch.look()
    assert str(loss) == "leaf a (4 of 4 hosts)"
    [event] = told(store)
    assert event.data["jobs"] == ["gang"]
    assert event.data["hosts"] == ["a0", "a1", "a2", "a3"]
    assert event_text(event) == "leaf a lost: 4 of 4 hosts, 1 job"
    counts = ClusterCounts(name="c", hosts=hosts.count_hosts(store), gpus=[])
    assert [line.strip() for line in lost_together(counts)] == ["lost with leaf a (4 of 4 hosts): 4 still LOST"]
    assert watch.look() == [], "told once"


def test_a_new_leader_explains_what_the_old_one_had_not(store: Store, leaves: Cluster, clock: list[float]) -> None:
    lose(leaves, "b0", "b1", "b2", "b3")
    old, new = DomainWatch(store), DomainWatch(store)
    assert old.look() == []
    new.look()
    clock[0] += domain_losses.SETTLE_S
    assert [str(loss) for loss in new.look()] == ["leaf b (4 of 4 hosts)"]
    newest = DomainWatch(store)
    newest.look()
    clock[0] += domain_losses.SETTLE_S
    assert newest.look() == [], "it was explained before"
    assert len(told(store)) == 1


def test_one_host_is_no_domain_and_one_that_came_back_is_not_lost(
    store: Store, leaves: Cluster, clock: list[float]
) -> None:
    watch = DomainWatch(store)
    lose(leaves, "a0", "b0", "b1", "b2")
    watch.look()
    for name in ("b1", "b2"):
        leaves.report(name, leaf="b", now=NOW + LATER)
    clock[0] += domain_losses.SETTLE_S
    assert watch.look() == []
    assert told(store) == []
