"""Hosts: registration, lease, loss, drain."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from gpu_platform.domain.errors import NotFound
from gpu_platform.domain.hosts.lease import GpuTelemetry, SavedCheckpoint
from gpu_platform.domain.states import GpuState, HostState
from gpu_platform.store import Store, events
from gpu_platform.store.hosts import gpus, hosts
from gpu_platform.store.jobs import jobs
from gpu_platform.store.leadership import leader, leases
from gpu_platform.store.reservations import releasing, reserving
from gpu_platform.store.restoring import restoring
from gpu_platform.store.state import read_running, read_state
from tests.support.store_cluster import (
    LATER,
    NOW,
    TTL_S,
    Cluster,
    check_invariants,
    expire_leases,
    inventory,
    key,
    placement,
    read_leases,
    since,
    uuid_of,
)


@pytest.fixture
def cluster(store: Store) -> Cluster:
    return Cluster(store).host("a", gpus=2)


def test_the_first_report_registers_and_later_ones_are_silent(store: Store) -> None:
    cluster = Cluster(store)
    answer = cluster.report("a", 2, leaf="l1", spine="s1")
    assert (answer.ttl_s, answer.kill) == (TTL_S, [])
    (event,) = events.read_events(store, 0)
    assert (event.kind, event.actor, event.host) == ("host.registered", "node/a", "a")
    cluster.report("a", 2, leaf="l1", spine="s1", now=LATER, telemetry=[GpuTelemetry(uuid=uuid_of("a", 1), power_w=70)])
    assert events.last_seq(store) == event.seq
    host = hosts.get_host(store, "a", LATER)
    assert (host.state, host.leaf, host.spine, host.gpus_total, host.gpus_free) == (HostState.READY, "l1", "s1", 2, 2)
    assert host.lease_remaining_s == TTL_S
    assert [gpu.power_w for gpu in gpus.list_gpus(store)] == [None, 70]
    (row,) = hosts.read_hosts(store)
    assert (row.name, row.state, row.leaf, row.inventory) == ("a", HostState.READY, "l1", inventory("a", 2))
    assert [(row.index, row.state, row.free) for row in hosts.read_gpus(store, ["a"])] == [
        (0, GpuState.AVAILABLE, True),
        (1, GpuState.AVAILABLE, True),
    ]
    assert hosts.read_hosts(store, ["b"]) == hosts.read_gpus(store, ["b"]) == []


@pytest.mark.parametrize("news", [{"session": "s2"}, {"leaf": "l2"}, {"url": "http://127.0.0.1:2"}])
def test_news_of_a_host_are_announced_once(cluster: Cluster, news: dict[str, Any]) -> None:
    for _ in range(2):
        cluster.report("a", 2, **news)
    assert since(cluster.store, 1) == ["host.registered"]
    assert events.read_events(cluster.store, 1)[0].data["changed"] == list(news)
    assert hosts.addresses(cluster.store, "a").url == news.get("url", "http://127.0.0.1:1")


def test_a_host_whose_lease_ended_is_lost_with_its_attempts(cluster: Cluster) -> None:
    store = cluster.store
    this = cluster.running("j1", {"a": [0]})
    assert expire_leases(store, NOW + timedelta(seconds=TTL_S)) == []
    expected = [leases.LostHost("a", [this])]
    assert expire_leases(store, LATER) == expected
    assert expire_leases(store, LATER) == []
    assert leases.lost_hosts_with_attempts(store) == expected
    assert cluster.host_state("a") == "LOST"
    assert events.read_events(store, 0)[-1].data["attempts"] == ["j1#1"]
    releasing.release_gang(store, this, now=LATER)
    assert leases.lost_hosts_with_attempts(store) == []


def test_a_host_that_reports_while_it_is_judged_is_not_lost(cluster: Cluster) -> None:
    seen = read_leases(cluster.store)
    cluster.report("a", 2, now=NOW - timedelta(hours=1))
    assert leases.expire_leases(cluster.store, seen, LATER) == [], "even where the clock was set back meanwhile"
    assert cluster.host_state("a") == "READY"
    seen = read_leases(cluster.store)
    cluster.host("b", gpus=1)
    assert [host.name for host in leases.expire_leases(cluster.store, seen, LATER)] == ["a"]
    assert list(read_leases(cluster.store)) == ["b"]


def test_a_launch_that_was_planned_before_a_host_was_lost_has_another_term_ever_after(cluster: Cluster) -> None:
    """Also the first time: term 0 is not checked by hosts."""
    store = cluster.store
    cluster.queued("j1")
    planned = reserving.reserve_gang(store, key("j1"), placement({"a": [0]}), now=NOW)
    terms = [planned.terms["a"], cluster.report("a", 2).term]
    assert terms[0] == terms[1] > 0
    expire_leases(store, LATER)
    releasing.release_gang(store, key("j1"), now=LATER)
    terms.append(cluster.report("a", 2, now=LATER).term)
    hosts.set_host_state(store, "a", HostState.LOST, reason=None, actor="ada", now=LATER)
    later = LATER + timedelta(seconds=2 * TTL_S)
    hosts.remove_host(store, "a", reason=None, actor="ada", now=later)
    terms.append(cluster.report("a", 2, now=later).term)
    assert len(set(terms)) == 3, "nor does it come again for a host that was removed"
    assert terms == sorted(terms)


def test_a_list_of_members_stays_while_a_host_that_was_answered_once_may_know_it(cluster: Cluster) -> None:
    """Its first report said that it knows none, and it is cut off before it sends the next."""
    knows = cluster.report("b", 2).members_version
    for name in ("c", "d"):
        newest = cluster.report(name, 2).members_version
        cluster.report("a", 2, members_version=newest)
        cluster.report(name, 2, members_version=newest)
    found = leases.read_leases(cluster.store, TTL_S)
    assert knows in found.rows["b"].versions


@pytest.mark.parametrize("released", [False, True], ids=["before its release", "after its release"])
def test_a_lost_host_is_back_only_without_stale_attempts(cluster: Cluster, released: bool) -> None:
    store = cluster.store
    this = cluster.running("j1", {"a": [0]})
    expire_leases(store, LATER)
    if released:
        releasing.release_gang(store, this, now=LATER)
    assert cluster.report("a", 2, now=LATER, attempts=[this]).kill == [this]
    assert cluster.host_state("a") == "LOST"
    assert leases.lost_hosts_with_attempts(store) == (
        [] if released else [leases.LostHost("a", [this], is_proved=False)]
    )
    assert cluster.report("a", 2, now=LATER).kill == []
    assert cluster.host_state("a") == "READY"
    assert leases.lost_hosts_with_attempts(store) == (
        [] if released else [leases.LostHost("a", [this], is_proved=True)]
    )


def test_a_host_that_is_back_has_a_whole_lease(cluster: Cluster) -> None:
    """Also by a report with an old round: else the leader declares it LOST again at once, under its new jobs."""
    store = cluster.store
    leader.begin_epoch(store, "leads", NOW)
    before = leases.begin_round(store, NOW)
    cluster.report("a", 2, seq=1, round=before)
    expire_leases(store, LATER)
    leases.begin_round(store, LATER)
    answer = cluster.report("a", 2, now=LATER, seq=2, round=before)
    assert (answer.renewed, cluster.host_state("a")) == (False, "READY")
    assert read_leases(store)["a"] > LATER


def test_a_restarted_node_worker_of_a_lost_host_kills_what_ran_on_before_it_gets_new_work(cluster: Cluster) -> None:
    """Another session (the machine or its node worker started anew), the same host: ranks outlive node workers."""
    store = cluster.store
    stale = cluster.running("j1", {"a": [0]})
    expire_leases(store, LATER)
    releasing.release_gang(store, stale, now=LATER)
    cluster.host("b", gpus=1)
    meanwhile = cluster.running("j2", {"b": [0]})
    for session in ("s2", "s3"):
        answer = cluster.report("a", 2, session=session, now=LATER, attempts=[stale])
        assert answer.kill == [stale], "asked again until it is gone"
        assert cluster.host_state("a") == "LOST"
    assert "a" not in read_leases(store), "it cannot be lost twice"
    assert cluster.report("b", 1, now=LATER, attempts=[meanwhile]).kill == []
    assert cluster.report("a", 2, session="s3", now=LATER).kill == []
    assert cluster.host_state("a") == "READY"
    assert leases.lost_hosts_with_attempts(store) == []
    check_invariants(store)


def test_a_node_worker_is_told_when_its_host_was_put_online(cluster: Cluster) -> None:
    assert cluster.report("a", 2).online_ms is None
    put = {"reason": None, "actor": "ops"}
    hosts.set_host_state(cluster.store, "a", HostState.READY, now=NOW, **put)  # which it was
    assert cluster.report("a", 2).online_ms == int(NOW.timestamp() * 1000)
    hosts.set_host_state(cluster.store, "a", HostState.DRAINING, now=LATER, **put)
    assert cluster.report("a", 2).online_ms == int(NOW.timestamp() * 1000)
    hosts.set_host_state(cluster.store, "a", HostState.READY, now=LATER, **put)
    assert cluster.report("a", 2).online_ms == int(LATER.timestamp() * 1000)


def test_unknown_and_released_attempts_must_die_and_held_ones_live(cluster: Cluster) -> None:
    store = cluster.store
    leader.begin_epoch(store, "leads for long", NOW - restoring.SPARED_FOR * 2)
    held = cluster.running("held", {"a": [0]})
    released = cluster.running("released", {"a": [1]})
    releasing.release_gang(store, released, now=NOW)
    cluster.host("b", gpus=1)
    elsewhere = cluster.running("elsewhere", {"b": [0]})
    reported = [held, released, key("unknown"), elsewhere, key("held", 7)]
    assert cluster.report("a", 2, attempts=reported).kill == [released, key("unknown"), elsewhere, key("held", 7)]
    assert cluster.host_state("a") == "READY"


def test_a_new_host_with_unknown_attempts_is_not_in_service_yet(store: Store) -> None:
    cluster = Cluster(store)
    leader.begin_epoch(store, "leads for long", NOW - restoring.SPARED_FOR * 2)
    assert cluster.report("a", 1, attempts=[key("old")]).kill == [key("old")]
    assert cluster.host_state("a") == "LOST"
    cluster.report("a", 1)
    assert cluster.host_state("a") == "READY"


def test_a_host_that_takes_no_work_has_no_free_gpus(cluster: Cluster) -> None:
    def seen() -> tuple[int, set[HostState]]:
        host = hosts.get_host(cluster.store, "a", NOW)
        return host.gpus_free, {gpu.host_state for gpu in gpus.list_gpus(cluster.store, host="a")}

    assert seen() == (2, {HostState.READY})
    hosts.set_host_state(cluster.store, "a", HostState.DRAINING, reason="fans", actor="op", now=NOW)
    assert seen() == (0, {HostState.DRAINED})
    assert (
        hosts.set_host_state(cluster.store, "a", HostState.DRAINING, reason=None, actor="op", now=NOW).reason == "fans"
    )
    again = hosts.set_host_state(cluster.store, "a", HostState.DRAINING, reason="power", actor="eve", now=NOW)
    assert again.reason == "power"
    assert events.read_events(cluster.store, 0)[-1].data["reason"] == "power"
    hosts.set_host_state(cluster.store, "a", HostState.READY, reason=None, actor="op", now=NOW)
    assert seen() == (2, {HostState.READY})
    expire_leases(cluster.store, LATER)
    assert seen() == (0, {HostState.LOST})


def test_unknown_jobs_are_spared_until_the_leader_has_looked_for_them(cluster: Cluster) -> None:
    """The database may have been lost: Temporal may know them."""
    store, after = cluster.store, NOW + restoring.SPARED_FOR * 2
    released = cluster.running("released", {"a": [1]})
    releasing.release_gang(store, released, now=NOW)
    assert cluster.report("a", 2, attempts=[key("unknown"), released]).kill == [released]
    assert cluster.host_state("a") == "LOST", "nobody else gets its GPUs"
    leader.begin_epoch(store, "new", NOW)
    assert cluster.report("a", 2, attempts=[key("unknown")]).kill == []
    assert cluster.host_state("a") == "LOST"
    assert cluster.report("a", 2, attempts=[key("unknown")], now=after).kill == [key("unknown")]
    cluster.report("a", 2, now=after)
    assert cluster.host_state("a") == "READY"


def test_a_host_proves_that_the_database_is_older_by_a_round_that_it_has_not_given_yet(cluster: Cluster) -> None:
    """Before a leader looks, a term that began long ago would have its newer attempts killed."""
    store, now = cluster.store, NOW + restoring.SPARED_FOR * 2
    known = cluster.running("known", {"a": [1]})
    leader.begin_epoch(store, "old", NOW)
    number = leases.begin_round(store, NOW)
    newer, unknown = key("known", 2), key("unknown")
    assert cluster.report("a", 2, attempts=[known, newer], round=number, now=now).kill == [newer]
    assert cluster.report("a", 2, attempts=[known, newer, unknown], round=number + 1, now=now).kill == []
    assert cluster.host_state("a") == "LOST"
    assert restoring.older_seen_at(store) == now
    assert cluster.report("a", 2, attempts=[known, newer], round=number, now=now).kill == []
    later = now + restoring.SPARED_FOR * 2
    assert cluster.report("a", 2, attempts=[known, newer], round=number, now=later).kill == [], "nobody has looked"
    leader.begin_epoch(store, "new", later)
    restoring.begin_comparing(store, now, later)
    later += restoring.SPARED_FOR * 2
    assert cluster.report("a", 2, attempts=[known, newer], round=number, now=later).kill == [], "it has not ended"
    restoring.end_comparing(store, now, later)
    assert cluster.report("a", 2, attempts=[known, newer], round=number, now=later).kill == [newer]


def test_a_host_with_ranks_that_hold_nothing_gets_no_jobs_while_the_database_may_be_older(cluster: Cluster) -> None:
    """It was LOST in the database that is gone; in this one its GPUs look free."""
    store, now = cluster.store, NOW + restoring.SPARED_FOR * 2
    released = cluster.running("released", {"a": [1]})
    releasing.release_gang(store, released, now=NOW)
    leader.begin_epoch(store, "new", NOW)
    number = leases.begin_round(store, NOW)
    assert cluster.report("a", 2, attempts=[released], round=number + 1, now=now).kill == [released]
    assert cluster.host_state("a") == "LOST"
    cluster.report("a", 2, round=number, now=now)
    assert cluster.host_state("a") == "READY"


def test_a_drained_host_comes_back_drained(cluster: Cluster) -> None:
    store = cluster.store
    this = cluster.running("j1", {"a": [0]})
    host = hosts.set_host_state(store, "a", HostState.DRAINED, reason="new fans", actor="op", now=NOW)
    assert (host.state, host.reason) == (HostState.DRAINING, "new fans")
    expire_leases(store, LATER)
    cluster.report("a", 2, now=LATER)
    assert cluster.host_state("a") == "DRAINING"
    expire_leases(store, LATER + timedelta(days=1))
    releasing.release_gang(store, this, now=LATER)
    cluster.report("a", 2, now=LATER)
    assert cluster.host_state("a") == "DRAINED"
    seq = events.last_seq(store)
    for state in (HostState.DRAINED, HostState.DRAINING):
        host = hosts.set_host_state(store, "a", state, reason="still", actor="op", now=NOW)
        assert host.state is HostState.DRAINED
    assert events.last_seq(store) == seq + 1  # the new reason, once
    assert hosts.set_host_state(store, "a", HostState.READY, reason=None, actor="op", now=NOW).state is HostState.READY
    assert hosts.get_host(store, "a", NOW).reason is None


def test_an_operator_may_declare_a_host_dead(cluster: Cluster) -> None:
    store = cluster.store
    this = cluster.running("j1", {"a": [0]})
    host = hosts.set_host_state(store, "a", HostState.LOST, reason="on fire", actor="op", now=NOW)
    assert (host.state, host.reason) == (HostState.LOST, "on fire")
    assert leases.lost_hosts_with_attempts(store) == [leases.LostHost("a", [this], is_proved=True)]
    releasing.release_gang(store, this, now=NOW)
    cluster.report("a", 2)
    assert cluster.host_state("a") == "DRAINED"


def test_a_lost_host_put_online_waits_for_its_report(cluster: Cluster) -> None:
    store = cluster.store
    hosts.set_host_state(store, "a", HostState.LOST, reason=None, actor="op", now=NOW)
    assert hosts.set_host_state(store, "a", HostState.READY, reason=None, actor="op", now=NOW).state is HostState.LOST
    cluster.report("a", 2)
    assert cluster.host_state("a") == "READY"


def test_an_unknown_host_is_not_found(store: Store) -> None:
    for ask in (
        lambda: hosts.get_host(store, "x", NOW),
        lambda: hosts.addresses(store, "x"),
        lambda: hosts.set_host_state(store, "x", HostState.READY, reason=None, actor="op", now=NOW),
    ):
        with pytest.raises(NotFound, match="no host 'x'"):
            ask()


def test_checkpoints_are_read_with_the_attempts_and_cost_no_event(store: Store) -> None:
    cluster = Cluster(store).host("a").host("b").host("c")
    gang, other = cluster.running("gang", {"a": [0], "b": [0]}), cluster.running("other", {"c": [0]})
    seq = events.last_seq(store)
    cluster.report("a", checkpoints=[SavedCheckpoint(key=gang, written_at=200.5)])
    cluster.report(
        "b", checkpoints=[SavedCheckpoint(key=gang, written_at=100.0), SavedCheckpoint(key=key("gone"), written_at=1)]
    )
    assert events.last_seq(store) == seq
    assert {row.job_id: row.checkpoint_at for row in read_running(store)} == {"gang": 200.5, "other": None}
    assert [jobs.get_job(store, job_id).checkpoint_at for job_id in ("gang", "other")] == [
        datetime.fromtimestamp(200.5, UTC),
        None,
    ]
    assert [row.checkpoint_at for row in read_running(store, [gang])] == [200.5]
    assert [row.checkpoint_at for row in read_running(store, [other])] == [None]
    cluster.report("c", checkpoints=[SavedCheckpoint(key=other, written_at=300.0)])
    hosts.set_host_state(store, "c", HostState.LOST, reason=None, actor="ada", now=NOW)
    read = read_state(store, NOW)
    assert {row.job_id: row.checkpoint_at for row in read.running} == {"gang": 200.5, "other": 300.0}


def test_what_was_given_back_lately_is_found_by_an_index(store: Store) -> None:
    """Of a table without rows PostgreSQL reads all; what matters is that it could do otherwise."""
    with store.read() as session:
        if store.dialect == "postgresql":
            session.execute(text("SET LOCAL enable_seqscan = off"))
        explain = "EXPLAIN QUERY PLAN" if store.dialect == "sqlite" else "EXPLAIN"
        sql = f"{explain} SELECT * FROM allocation WHERE released_at > '2026-01-01 00:00:00'"
        plan = "\n".join(str(tuple(row)) for row in session.execute(text(sql)))
    assert "ix_allocation_released_at" in plan


def test_a_leader_that_proves_it_itself_does_not_keep_hosts_out_for_ever(cluster: Cluster) -> None:
    """Its proof is later than the beginning of its term. What nobody knows is killed, once it has compared."""
    store, unknown = cluster.store, key("unknown")
    cluster.running("known", {"a": [1]})
    leader.begin_epoch(store, "new", NOW)
    restoring.begin_comparing(store, NOW, NOW)
    proof = NOW + timedelta(seconds=1)
    restoring.note_older(store, proof)
    assert cluster.report("a", 2, attempts=[unknown], now=proof).kill == []
    assert cluster.host_state("a") == "LOST"
    restoring.end_comparing(store, None, proof)
    later = proof + restoring.SPARED_FOR * 2
    assert cluster.report("a", 2, attempts=[unknown], now=later).kill == [], "it compared before it knew of the proof"
    restoring.end_comparing(store, proof, later)
    assert cluster.report("a", 2, attempts=[unknown], now=later).kill == [unknown]
    cluster.report("a", 2, now=later)
    assert cluster.host_state("a") == "READY"
