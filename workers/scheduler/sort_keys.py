"""Writes where waiting jobs come in the queue, so that people see the places that the scheduler's order gives."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.queue_orders import ORDERS
from gpu_platform.scheduling.scheduler import Scheduler
from gpu_platform.store import Store
from gpu_platform.store.jobs import queue


def write_sort_keys(store: Store, core: Scheduler, rows: Iterable[PlacementRequest]) -> None:
    """Write the sort keys of these waiting jobs, if the order has head starts. Else the database knows the order.

    A key never changes while the job waits, so it is written once: when the leader begins, or sees the job. Raises
    StaleEpoch.
    """
    policy = core.policy
    if not ORDERS[policy.order].has_head_starts(policy.order_weights):
        return
    orders = {row.job_id: core.queue.order(row) for row in rows}
    if orders:
        queue.write_sort_keys(store, core.epoch, {name: (urgency, at) for name, (urgency, at, _) in orders.items()})
