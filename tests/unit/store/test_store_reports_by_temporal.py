"""A host whose reports come through Temporal: it is said while it lasts, and each change is one event."""

from __future__ import annotations

from datetime import timedelta

from gpu_platform.domain.hosts.lease import Heartbeat, HostReport
from gpu_platform.store import Store
from gpu_platform.store.hosts import heartbeats, reports
from gpu_platform.store.leadership import leases
from tests.support.store_cluster import NOW, TTL_S, Cluster, expire_leases, inventory, since


def report(store: Store, seq: int, *, by_temporal: bool) -> None:
    whole = HostReport(
        name="b",
        session="s1",
        address="127.0.0.1",
        url="http://127.0.0.1:1",
        inventory=inventory("b", 1),
        facts="0" * 16,
        seq=seq,
    )
    reports.report_host(store, whole, ttl_s=TTL_S, now=NOW, by_temporal=by_temporal)


def test_which_hosts_report_through_temporal_is_said_until_a_service_answers_them(sqlite_store: Store) -> None:
    Cluster(sqlite_store).host("a", gpus=1)
    report(sqlite_store, 1, by_temporal=False)
    assert leases.services_away(sqlite_store) is None
    before = len(since(sqlite_store, 0))
    for seq in (2, 3):
        report(sqlite_store, seq, by_temporal=True)
    away = leases.services_away(sqlite_store)
    assert away is not None
    assert away.message.startswith("1 hosts report through Temporal (b), because no service answers them")
    assert leases.read_leases(sqlite_store, TTL_S).by_temporal == 1

    beat = Heartbeat(name="b", facts="0" * 16, seq=4)
    assert heartbeats.renew_quiet(sqlite_store, [beat], ttl_s=TTL_S, now=NOW) == [None], "it changes something"
    reports.renew_lease(sqlite_store, beat, ttl_s=TTL_S, now=NOW)
    assert leases.services_away(sqlite_store) is None
    assert leases.read_leases(sqlite_store, TTL_S).by_temporal == 0
    kinds = since(sqlite_store, 0)[before:]
    assert kinds == ["host.reports_through_temporal", "host.reports_to_a_service"]


def test_a_lost_host_reports_to_nobody(sqlite_store: Store) -> None:
    report(sqlite_store, 1, by_temporal=False)
    report(sqlite_store, 2, by_temporal=True)
    expire_leases(sqlite_store, NOW + timedelta(seconds=TTL_S + 1))
    assert leases.services_away(sqlite_store) is None
