"""The database's disk is full while a promise must be withdrawn: it is not lost, and the leader goes on when there is
room."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from prometheus_client import REGISTRY

from gpu_platform.clock import utc_now
from gpu_platform.store import Store, events
from gpu_platform.store.jobs import promises
from gpu_platform.store.leadership import leader
from gpu_platform.store.reservations import attempts
from tests.support.store_cluster import Cluster
from tests.support.waiting import eventually
from workers.scheduler.decision_loop import DecisionLoop
from workers.scheduler.policy_in_force import PolicyInForce


def fill(ballast: Path) -> None:
    with ballast.open("ab", buffering=0) as file:
        for size in (1 << 16, 1 << 9):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))


def decisions() -> float:
    return REGISTRY.get_sample_value("topology_scheduler_latency_seconds_count") or 0.0


async def test_a_promise_outlives_a_full_disk_and_is_withdrawn_when_there_is_room(small_disk: Path) -> None:
    store = Store(f"sqlite:///{small_disk / 'p.db'}")
    store.migrate()
    began = utc_now() - timedelta(seconds=56)
    wanted = Cluster(store).host("a", gpus=1)
    wanted.queued("runs", now=began, time_limit_s=61)
    attempts.mark_running(store, wanted.reserve("runs", {"a": [0]}), began)
    wanted.queued("waits", now=began, time_limit_s=60)
    epoch = leader.begin_epoch(store, "one", utc_now())
    stopped = threading.Event()
    loop = DecisionLoop(
        store,
        PolicyInForce.read({}),
        epoch=epoch,
        poll_s=0.01,
        answer=lambda row, placement: None,
        send_preemption=lambda order: None,
    )
    thread = threading.Thread(target=loop.run, args=(stopped,))
    thread.start()
    try:
        await eventually(lambda: promises.read_promises(store), "a promise")
        [promise] = promises.read_promises(store)
        fill(small_disk / "ballast")
        before = decisions()
        await eventually(lambda: time.time() > promise.start and decisions() >= before + 2, "the date has passed")
        assert promises.read_promises(store) == [promise]
        assert events.read_events(store, 0, job_id="waits")[-1].kind != "job.promise_withdrawn"
        (small_disk / "ballast").unlink()
        await eventually(
            lambda: [e for e in events.read_events(store, 0, job_id="waits") if e.kind == "job.promise_withdrawn"],
            "the withdrawal",
        )
        assert [one.is_told for one in promises.read_promises(store)] in ([], [False])
        assert thread.is_alive()
    finally:
        stopped.set()
        thread.join()
        store.close()
