"""What Prometheus is told of the truth."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import update

from activities import notices, notifications
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.events import Event
from gpu_platform.domain.jobs.placement import Reason, WaitCode
from gpu_platform.domain.jobs.work_kind import WorkKind
from gpu_platform.domain.leader_silence import LeaderLoop
from gpu_platform.domain.states import JobState
from gpu_platform.identity import renewal
from gpu_platform.store import Store
from gpu_platform.store.jobs import queue
from gpu_platform.store.leadership import leader
from gpu_platform.store.models import queue_entry
from service.metrics import exposition
from tests.support.store_cluster import NOW, Cluster, key, set_job_state
from workers.gateway import server as gateway
from workers.scheduler.metrics import RECOVERY_SECONDS
from workers.scheduler.recovery_times import RecoveryTimes

OF_NODE_WORKERS = ("gpu_platform_gpu_", "gpu_platform_rank_", "gpu_platform_host_")
METRICS = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"


def samples(store: Store, name: str) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(exposition(store).decode())
    found = next(family for family in families if family.name == name)
    return {tuple(value for _, value in sorted(one.labels.items(), reverse=True)): one.value for one in found.samples}


def test_the_reference_lists_what_service_scheduler_and_gateway_measure(store: Store) -> None:
    assert gateway.REFUSED, "its module is imported"
    assert renewal.EXPIRES, "its module is imported"
    assert notifications.SENT, "its module is imported"
    assert notices.TAKEN, "its module is imported"
    text = exposition(store).decode()  # all are in the same registry: this process imports their modules
    served = set(re.findall(r"^# TYPE ((?:gpu_platform|topology)_\w+(?<!_created)) ", text, re.MULTILINE))
    rows = re.findall(r"^\| `((?:gpu_platform|topology)_\w+)`", METRICS.read_text(), re.MULTILINE)
    assert served == {name for name in rows if not name.startswith(OF_NODE_WORKERS)}


def test_domains_say_how_busy_they_are(store: Store) -> None:
    cluster = Cluster(store).host("a", leaf="l1", spine="s1").host("b", leaf="l1", spine="s1").host("c", gpus=2)
    cluster.running("job", {"a": [0, 1, 2], "b": [0]})
    assert samples(store, "topology_gpu_allocation_ratio") == {(): 0.4}
    assert samples(store, "topology_domain_utilization_ratio") == {("leaf", "l1"): 0.5, ("spine", "s1"): 0.5}
    rule = {"hosts": "[ac]", "domains": {"leaf": "l2"}}
    leader.begin_epoch(store, "one", NOW, {"fabric": {"rules": [rule]}})
    by_rule = samples(store, "topology_domain_utilization_ratio")
    assert by_rule == {("leaf", "l1"): 0.25, ("leaf", "l2"): 0.5, ("spine", "s1"): 0.5}
    assert samples(store, "gpu_platform_gpus")[("IN_USE", "a")] == 3


def test_waiting_jobs_are_counted_by_reason(store: Store) -> None:
    cluster = Cluster(store).host("a")
    for job_id in ("one", "two"):
        cluster.queued(job_id)
    row = queue.read_queue(store)[0]
    reason = Reason(code=WaitCode.WAITING_FOR_GPUS, message="needs more")
    assert samples(store, "gpu_platform_jobs_waiting") == {("not_yet_looked_at",): 2}
    queue.set_reasons(store, {row.class_key: reason}, NOW)
    assert samples(store, "gpu_platform_jobs_waiting") == {("waiting_for_gpus",): 2}


def test_jobs_that_have_not_ended_are_counted_by_kind(store: Store) -> None:
    cluster = Cluster(store).host("a")
    cluster.queued("said", name="run-1", kind=WorkKind.TRAINING)
    cluster.queued("inferred", name="run-2")
    cluster.running("unknown", {"a": [0]})
    for job_id in ("done", "dropped"):
        cluster.queued(job_id, name="run-3")
        set_job_state(store, job_id, JobState.CANCELLED, now=NOW, actor="test")
    assert samples(store, "gpu_platform_jobs_unfinished") == {
        ("QUEUED", "training"): 2,
        ("RUNNING", "unknown"): 1,
    }


def test_a_job_that_waits_and_a_leader_that_is_silent_show_for_how_long(store: Store) -> None:
    assert samples(store, "gpu_platform_queue_oldest_seconds") == {(): 0}
    now = datetime.now(UTC)
    cluster = Cluster(store).host("a")
    cluster.queued("j")
    cluster.queued("k")
    with store.write() as session:
        for job_id, seconds in (("j", 10), ("k", 30)):
            since = {"enqueued_at": now - timedelta(seconds=seconds)}
            session.execute(update(queue_entry).values(since).where(queue_entry.c.job_id == job_id))
    assert samples(store, "gpu_platform_queue_oldest_seconds")[()] == pytest.approx(30, abs=5)
    text = exposition(store, {LeaderLoop.DECISIONS: 40.0}).decode()
    assert 'gpu_platform_leader_silent_seconds{loop="decisions"} 40.0' in text


def test_a_recovery_lasts_from_the_fault_until_the_job_runs_again() -> None:
    times = RecoveryTimes(lambda uuid: [key("job")] if uuid == "GPU-1" else [])
    before = RECOVERY_SECONDS._sum.get()
    seconds = iter((0, 2, 9, 10, 30, 31, 50))

    def happens(kind: str, attempt: int, **fields: object) -> None:
        at = NOW + timedelta(seconds=next(seconds))
        times.record(Event(seq=1, at=at, kind=kind, actor="test", job_id="job", attempt=attempt, **fields))  # type: ignore[arg-type]

    hardware = {"failure": {"kind": "hardware", "message": "XID 79"}}
    happens("gpu.fault", 1, gpu_uuid="GPU-1")
    happens("job.retrying", 1, data=hardware)
    happens("job.running", 2)
    happens("host.lost", 2, host="a", data={"attempts": [str(AttemptKey(job_id="job", attempt=2))]})
    happens("job.retrying", 2, data=hardware)
    happens("job.running", 3)
    happens("job.running", 4)
    assert RECOVERY_SECONDS._sum.get() - before == pytest.approx(9 + 21)
