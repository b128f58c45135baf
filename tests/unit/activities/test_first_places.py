"""What the leader does with the place of a job that just changes the way in which it asks."""

from __future__ import annotations

import threading

from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from gpu_platform.clock import utc_now
from gpu_platform.store import Store
from gpu_platform.store.jobs import jobs
from gpu_platform.store.leadership import leader
from gpu_platform.store.reservations import first_places
from tests.support.store_cluster import Cluster, key, spec
from tests.support.waiting import eventually
from workers.scheduler.decision_loop import DecisionLoop
from workers.scheduler.policy_in_force import PolicyInForce


def decisions() -> float:
    return REGISTRY.get_sample_value("topology_scheduler_latency_seconds_count") or 0.0


async def test_nobody_behind_it_gets_its_place_until_its_token_comes(sqlite_store: Store) -> None:
    cluster, now = Cluster(sqlite_store).host("a", gpus=1), utc_now()
    jobs.submit_job(sqlite_store, "first", spec(priority=10), actor="ann", now=now, idempotency_key=None)
    first_places.admit_and_ask(sqlite_store, "first", now)
    first_places.stop_asking(sqlite_store, key("first"))
    cluster.queued("behind", now=now)
    epoch = leader.begin_epoch(sqlite_store, "one", now)
    answered: list[str] = []
    stopped = threading.Event()
    loop = DecisionLoop(
        sqlite_store,
        PolicyInForce.read({}),
        epoch=epoch,
        poll_s=0.01,
        answer=lambda row, placement: answered.append(row.job_id),
        send_preemption=lambda order: None,
    )
    thread = threading.Thread(target=loop.run, args=(stopped,))
    with capture_logs() as logs:
        thread.start()
        try:
            await eventually(
                lambda: [one for one in logs if one["event"] == "scheduler.first_place_refused"], "a refusal"
            )
            for name in ("one more", "and another"):
                before = decisions()
                cluster.queued(name, now=now)
                await eventually(lambda before=before: decisions() > before, "a decision")
            assert answered == []
            cluster.enqueue("first", task_token=b"token")
            await eventually(lambda: answered, "an answer")
        finally:
            stopped.set()
            thread.join()
    assert answered == ["first"]
