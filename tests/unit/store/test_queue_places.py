"""Places in the queue that people see are those of the scheduler's order, whatever the order goes by."""

from __future__ import annotations

from datetime import timedelta
from random import Random

import pytest
from sqlalchemy import select

from gpu_platform.domain.errors import StaleEpoch
from gpu_platform.domain.placing.queue_orders import ORDERS
from gpu_platform.scheduling.policy_file import read_policy
from gpu_platform.scheduling.scheduler import Scheduler
from gpu_platform.store import Store
from gpu_platform.store.jobs import queue, queue_view
from gpu_platform.store.leadership import leader
from gpu_platform.store.models import queue_entry
from tests.support.store_cluster import NOW, Cluster
from workers.scheduler.sort_keys import write_sort_keys

POLICIES = [
    *({"order": order} for order in sorted(ORDERS)),
    {"order": "fcfs", "order_weights": {"size": -3.0}},
    {"order": "shortest", "ageing_per_hour": 0.5},
    {"order": "priority", "ageing_per_hour": 2.0, "order_weights": {"least_work": 1.0}},
    {"order": "multifactor", "order_weights": {"fair_share": 0.0}},
]


def waiting(store: Store, jobs: int, users: int = 2) -> None:
    draw, wanted = Random(7), Cluster(store).host("a")
    for number in range(jobs):
        wanted.queued(
            f"j{number:02d}",
            now=NOW + timedelta(minutes=draw.randrange(600)),
            priority=draw.choice([0, 0, 0, 1, 5]),
            time_limit_s=draw.choice([None, 60, 3600, 90_000]),
            gpus_per_host=draw.choice([1, 2, 4, 8]),
            user=f"user-{number % users}",
        )


def lead(store: Store, policy: dict[str, object]) -> Scheduler:
    """Another leader begins with ``policy``."""
    core = Scheduler(read_policy(policy), leader.begin_epoch(store, "one", NOW, policy))
    rows = queue.read_queue(store)
    for row in rows:
        core.add(row)
    write_sort_keys(store, core, rows)
    return core


@pytest.mark.some(6)
@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_places_are_those_of_the_schedulers_order(store: Store, policy: dict[str, object]) -> None:
    waiting(store, 14)
    lead(store, {"order": "size_classes"})  # what an earlier leader wrote does not count any more
    core = lead(store, policy)
    rows = sorted(core.queue, key=core.queue.order)
    alike = [rows]
    if core.policy.uses_shares:  # then only the jobs of one user have a lasting order
        alike = [[row for row in rows if row.user == f"user-{number}"] for number in (0, 1)]
    places = {row.job_id: place for group in alike for place, row in enumerate(group, 1)}
    assert queue_view.positions(store, list(places)) == places
    assert {name: queue_view.positions(store, [name])[name] for name in places} == places, "counted one by one"
    assert {one.job_id: one.position for one in queue_view.list_queue(store, 0, 100)} == places
    if not core.policy.uses_shares:
        assert [one.job_id for one in queue_view.list_queue(store, 3, 5)] == [row.job_id for row in rows[3:8]]


def test_an_order_of_a_newer_release_counts_as_priority(store: Store) -> None:
    """Its leader leads while a service of this release still answers."""
    waiting(store, 5)
    core = lead(store, {"order": "priority"})
    rows = sorted(core.queue, key=core.queue.order)
    leader.begin_epoch(store, "two", NOW, {"order": "newer"})
    assert queue_view.positions(store, [row.job_id for row in rows]) == {row.job_id: n for n, row in enumerate(rows, 1)}


def test_a_job_that_the_leader_has_not_seen_yet_counts_without_its_head_start(store: Store) -> None:
    waiting(store, 3)
    core = lead(store, {"order": "shortest"})
    Cluster(store).queued("new", now=NOW - timedelta(days=9))
    more_urgent = sum(row.priority > 0 for row in core.queue)
    assert queue_view.positions(store, ["new"]) == {"new": more_urgent + 1}
    [row] = queue.read_queue(store, ["new"])
    core.add(row)
    write_sort_keys(store, core, [row])
    rows = sorted(core.queue, key=core.queue.order)
    assert queue_view.positions(store, ["new"])["new"] == [row.job_id for row in rows].index("new") + 1
    Cluster(store).enqueue("new", 1, now=NOW)  # asked again: the old key does not count
    with store.read() as session:
        keys = select(queue_entry.c.urgency, queue_entry.c.place).where(queue_entry.c.job_id == "new")
        assert session.execute(keys).all() == [(None, None)]


def test_a_leader_that_was_replaced_writes_no_places(store: Store) -> None:
    waiting(store, 2)
    core = lead(store, {"order": "shortest"})
    leader.begin_epoch(store, "two", NOW, {"order": "shortest"})
    with pytest.raises(StaleEpoch):
        write_sort_keys(store, core, queue.read_queue(store))
