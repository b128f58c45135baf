"""What is forgotten: hosts that were removed, and rows older than the retention."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import func, select

from gpu_platform.domain.errors import InUse, NotFound
from gpu_platform.domain.states import HostState, JobState
from gpu_platform.store import Store, events, models, retention
from gpu_platform.store.hosts import gpus, hosts
from gpu_platform.store.jobs import jobs
from gpu_platform.store.jobs.job_states import JobUpdate
from gpu_platform.store.reservations import allocations, attempts
from gpu_platform.store.reservations.attempts import AttemptResult
from tests.support.store_cluster import NOW, TTL_S, Cluster, key, spec

SILENT = NOW + timedelta(seconds=TTL_S)
LATER = NOW + timedelta(days=100)


def rows(store: Store, table: str) -> int:
    with store.read() as session:
        return session.scalar(select(func.count()).select_from(getattr(models, table))) or 0


def ended(cluster: Cluster, job_id: str) -> None:
    attempts.end_attempt(
        cluster.store,
        key(job_id),
        [JobState.COMPLETED],
        now=NOW,
        actor="test",
        result=AttemptResult(update=JobUpdate(exit_code=0)),
    )


def remove(store: Store, name: str) -> None:
    hosts.remove_host(store, name, reason=None, actor="ops", now=SILENT)


def test_a_host_is_removed_with_its_gpus_once_nothing_is_held(store: Store) -> None:
    cluster = Cluster(store).host("a").host("b")
    cluster.running("job", {"a": [0]})
    with pytest.raises(InUse, match="host a is READY; job still holds GPUs there"):
        remove(store, "a")
    hosts.set_host_state(store, "a", HostState.LOST, reason=None, actor="ops", now=NOW)
    with pytest.raises(InUse, match="job still holds"):
        remove(store, "a")
    ended(cluster, "job")
    remove(store, "a")
    assert [host.name for host in hosts.list_hosts(store, NOW)] == ["b"]
    assert {gpu.host for gpu in gpus.list_gpus(store)} == {"b"}
    assert events.read_events(store, 0)[-1].kind == "host.removed"
    assert jobs.get_job(store, "job").placement is not None, "where it ran is still known"
    with pytest.raises(NotFound):
        remove(store, "a")
    with pytest.raises(InUse, match="host b is READY"):
        remove(store, "b")
    cluster.host("a")
    assert cluster.host_state("a") == "READY"


def test_a_host_that_still_reports_is_not_removed(store: Store) -> None:
    Cluster(store).host("a")
    hosts.set_host_state(store, "a", HostState.DRAINING, reason="fans", actor="ops", now=NOW)
    with pytest.raises(InUse, match=r"still reports.*stop its node worker.*remove it 8 s later"):
        hosts.remove_host(store, "a", reason=None, actor="ops", now=NOW + timedelta(seconds=2))
    assert hosts.get_host(store, "a", NOW).reason == "fans"
    remove(store, "a")
    assert hosts.list_hosts(store, NOW) == []


def test_only_what_ended_long_ago_is_forgotten(store: Store) -> None:
    cluster = Cluster(store).host("a")
    jobs.submit_job(store, "old", spec(), actor="ada", now=NOW, idempotency_key="k-1")
    jobs.admit_job(store, "old", NOW)
    attempts.mark_running(store, cluster.reserve("old", {"a": [0]}), NOW)
    ended(cluster, "old")
    cluster.running("living", {"a": [1]})
    assert retention.prune(store, NOW - timedelta(days=1)) == {}
    gone = retention.prune(store, LATER)
    assert gone == {"allocation": 1, "reservation": 1, "idempotency": 1}
    assert retention.prune(store, LATER) == {}
    assert allocations.held_attempts(store) == [key("living")]
    assert rows(store, "reservation") == 1
    assert jobs.get_job(store, "old").state is JobState.COMPLETED
    assert rows(store, "event") > 5, "the audit log stays"
