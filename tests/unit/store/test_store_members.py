"""Lists of members: one for each change in a small cluster, at most one a second while many hosts join."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from sqlalchemy import delete

from gpu_platform.store import Store, models
from gpu_platform.store.hosts import gpus, hosts
from gpu_platform.store.leadership import leader, leases, membership
from tests.support.store_cluster import NOW, Cluster, expire_leases


def listed(store: Store) -> tuple[int, list[str]]:
    with store.read() as session:
        version = membership.current_version(session)
        return version, [one.name for one in membership.read_members(session, version)]


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time that lists are numbered by stands still."""
    clock = SimpleNamespace(now=1_800_000_000.0)
    monkeypatch.setattr(membership, "time", SimpleNamespace(time=lambda: clock.now))
    return clock


def test_few_hosts_are_members_at_once(store: Store, second: SimpleNamespace) -> None:
    cluster = Cluster(store)
    for name in "abc":
        cluster.host(name)
        assert name in listed(store)[1]


def test_many_hosts_that_join_at_once_share_a_list(
    store: Store, second: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "AT_ONCE", 2)
    leader.begin_epoch(store, "test", NOW)
    cluster = Cluster(store)
    for number in range(8):
        answer = cluster.report(f"h{number}")
    version, names = listed(store)
    assert names == ["h0", "h1"]
    assert answer.members_version == version
    leases.begin_round(store, NOW)
    later, names = listed(store)
    assert (later, names) == (version + 1, [f"h{number}" for number in range(8)])
    leases.begin_round(store, NOW)
    assert listed(store)[0] == later, "nothing has changed"
    second.now += 60
    cluster.host("h8")
    assert "h8" in listed(store)[1], "nobody has joined for long"


def test_a_database_without_the_last_lists_gives_their_numbers_to_no_other_list(
    store: Store, second: SimpleNamespace
) -> None:
    """As a standby that took over before it had them, all within a second."""
    cluster = Cluster(store)
    for name in "abcd":
        second.now += 0.01
        cluster.host(name)
    told, _ = listed(store)
    with store.write() as session:
        session.execute(delete(models.membership).where(models.membership.c.version > told - 25))
    second.now += 0.01
    cluster.host("e")
    assert listed(store)[0] > told


def test_a_host_that_is_lost_is_no_member_at_once(
    store: Store, second: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "AT_ONCE", 1)
    cluster = Cluster(store)
    for name in "abc":
        cluster.host(name)
    expire_leases(store, NOW.replace(year=NOW.year + 1))
    assert listed(store)[1] == []


def test_counts_are_those_of_the_lists(store: Store) -> None:
    cluster = Cluster(store)
    cluster.host("a", gpus=2).host("b", gpus=3).running("j-000000000000001", {"a": [0]})
    hosts.set_host_state(store, "b", hosts.HostState.LOST, reason="lost with leaf l (1 of 1 hosts)", actor="x", now=NOW)
    with store.read() as session:
        by_host, by_gpu = hosts.count_hosts(session), gpus.count_shown(session)
    every = hosts.list_hosts(store, NOW)
    for row in by_host:
        assert row.count == sum(host.state is row.state for host in every)
    assert [row.lost_with for row in by_host if row.state is hosts.HostState.LOST] == [
        "lost with leaf l (1 of 1 hosts)"
    ]
    for one in by_gpu:
        alike = [gpu for gpu in gpus.list_gpus(store) if (gpu.state, gpu.host_state) == (one.state, one.host_state)]
        assert one.count == len(alike)
    assert sum(one.count for one in by_gpu) == 5
    assert hosts.count_free_gpus(store) == {host.name: host.gpus_free for host in every}
    pages = [gpus.list_gpus(store, offset=start, limit=2) for start in (0, 2, 4)]
    assert [gpu for page in pages for gpu in page] == gpus.list_gpus(store)
