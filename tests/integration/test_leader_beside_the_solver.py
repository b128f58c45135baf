"""The leader decides while its other thread computes which jobs to move, and does not wait for it when it ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from gpu_platform.clock import utc_now
from gpu_platform.store import Store
from gpu_platform.store.leadership import leader
from gpu_platform.store.reservations import attempts
from tests.support.store_cluster import Cluster, key
from tests.support.waiting import eventually
from workers.scheduler.decision_loop import DecisionLoop
from workers.scheduler.policy_in_force import PolicyInForce
from workers.scheduler.preemptions import PreemptionOrder

POLICY = {
    "defragmentation": True,
    "defragment_after_s": 0.0,
    "defragment_every_s": 0.1,
    "min_run_s": 0.0,
    "defragmentation_budget": {"restart_s": 0.0},
}


class Leader:
    """A decision loop in its thread. Its thread for the solver does something else until it is released."""

    def __init__(self, store: Store) -> None:
        self.placed: list[str] = []
        self.orders: list[PreemptionOrder] = []
        self.loop = DecisionLoop(
            store,
            PolicyInForce.read(POLICY),
            epoch=leader.begin_epoch(store, "one", utc_now()),
            poll_s=0.005,
            answer=lambda row, placement: self.placed.append(row.job_id),
            send_preemption=self.orders.append,
        )
        self.released = threading.Event()
        self.loop._aside.submit(self.released.wait)
        self._stopped = threading.Event()
        self.thread = threading.Thread(target=self.loop.run, args=(self._stopped,))
        self.thread.start()

    def searches(self) -> bool:
        """Whether a search waits for the solver."""
        return hasattr(self.loop, "_core") and self.loop._core._planner.is_searching

    def stop(self) -> None:
        self._stopped.set()
        self.thread.join(10.0)


@pytest.fixture
def one_leader(sqlite_store: Store) -> Iterator[Leader]:
    """On host a ``moves`` has 2 of 4 GPUs, on host b ``stays`` has 1. A gang waits for 4."""
    began = utc_now() - timedelta(hours=1)
    cluster = Cluster(sqlite_store).host("a", now=utc_now()).host("b", now=utc_now())
    for name, gpus, checkpoints in (("moves", {"a": [0, 1]}, True), ("stays", {"b": [0]}, False)):
        cluster.queued(name, now=began, gpus_per_host=sum(map(len, gpus.values())), checkpoints=checkpoints)
        attempts.mark_running(sqlite_store, cluster.reserve(name, gpus), utc_now())
    cluster.queued("gang", now=began, gpus_per_host=4)
    running = Leader(sqlite_store)
    yield running
    running.released.set()
    running.stop()


@pytest.mark.long
async def test_the_leader_decides_while_the_solver_works(one_leader: Leader, sqlite_store: Store) -> None:
    await eventually(one_leader.searches, "the search has begun")
    Cluster(sqlite_store).queued("small", gpus_per_host=1)
    await eventually(lambda: one_leader.placed == ["small"], "others are placed meanwhile")
    assert not one_leader.orders
    one_leader.loop.reconfigure(PolicyInForce.read({**POLICY, "defragment_every_s": 0.2}))
    one_leader.released.set()
    await eventually(lambda: one_leader.orders, "also after the core was loaded again")
    assert [order.victim for order in one_leader.orders] == [key("moves")]


async def test_a_leader_that_ends_does_not_wait_for_the_solver(one_leader: Leader) -> None:
    await eventually(one_leader.searches, "the search has begun")
    one_leader.stop()
    assert not one_leader.thread.is_alive()
    assert not one_leader.released.is_set()
